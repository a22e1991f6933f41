"""Parameters: where they are inserted, with which type, and what is wrong with them."""

import pytest

from orchestrator.core.jobfile import keys, params
from orchestrator.core.jobfile.keys import JobSpec
from tests.unit.core.jobfile.refused import refused


def load(text: str) -> JobSpec:
    return keys.load(text, path="j.yaml")


def problems(text: str) -> list[str]:
    return refused(load, text)


def test_a_parameter_is_inserted_as_the_file_writes_it() -> None:
    text = "params: {lr: 1e-4, n: 007, on: true}\ncommand: x ${params.lr} ${params.n} ${params.on}\nsetup: ['a ${params.lr}']\n"
    spec = load(text)
    assert spec.command == "x 1e-4 007 true" and spec.setup == ("a 1e-4",)
    assert dict(spec.params) == {"lr": 1e-4, "n": 7, "on": True}


def test_a_train_value_that_is_a_parameter_keeps_its_type() -> None:
    values = "lr: ${params.lr}\n  epochs: ${params.e}\n  cores: ${params.c}\n  eval: ${params.z}\n"
    text = f"params: {{lr: 1e-2, e: 3, c: all, z: true}}\ntrain:\n  {values}  checkpoint_every: ${{params.e}} steps\n"
    spec = load(text)
    train = spec.train
    assert train is not None
    assert (train.lr, train.epochs, train.cores, train.eval, train.checkpoint_every) == (
        0.01, 3, "all", True, "3 steps",
    )  # fmt: skip


def test_options_of_an_entry_keep_their_types_at_any_depth() -> None:
    spec = load("params: {a: 3}\ntrain: {entry: 'm:f', options: {x: ['${params.a}', {y: 'is ${params.a}'}]}}\n")
    assert spec.train is not None and spec.train.options == {"x": [3, {"y": "is 3"}]}


def test_a_variable_of_the_environment_is_text() -> None:
    spec = load("params: {lr: 1e-4}\ncommand: x\nenv: {LR: '${params.lr}', BOTH: 'lr-${params.lr}'}\n")
    assert dict(spec.env) == {"LR": "1e-4", "BOTH": "lr-1e-4"}


def test_a_job_without_parameters_is_left_alone() -> None:
    assert load("command: echo ${param.x} ${PARAMS} ${paramsx}\n").command == "echo ${param.x} ${PARAMS} ${paramsx}"


@pytest.mark.parametrize(("text", "line"), [
    ("command: x\nparams: [a]\n", "j.yaml:2: params: expected a mapping (indented `key: value` lines), got a list"),
    ("command: x\nparams: {a: null}\n", "j.yaml:2: params.a: has no value; write one, or remove it"),
    ("command: x\nparams: {a: {b: 1}}\n",
     "j.yaml:2: params.a: expected one value (text, a number, true or false), got a mapping; lists of values go below "
     "`matrix:`"),
    ("command: x\nparams: {a b: 1}\n",
     "j.yaml:2: params.a b: `a b` is not the name of a parameter; use letters, digits, `_` and `-`, a letter first"),
    ("command: x ${params.lr}\n",
     "j.yaml:1: command: `${params.lr}`: there is no such parameter; give it a value in `params:` or `matrix:`"),
    (
        "command: x ${params.zz}\nparams: {lr: 1}\n",
        "j.yaml:1: command: `${params.zz}`: there is no such parameter; give it a value in `params:` or `matrix:`; known: "
        "lr",
    ),
    ("command: x ${params.}\n", "j.yaml:1: command: has a `${params.` that names no parameter; write ${params.NAME}"),
    ("command: x\nparams: {a: '${env:HOME}'}\n", "j.yaml:2: params.a: `${env:…}` is read only in `env:`; set a variable "
     "there and use it here as $NAME"),
    ("train: {lr: '${params.a}'}\nparams:\n  a: x\n", "j.yaml:3: train.lr: expected a number, got the text `x`"),
])  # fmt: skip
def test_a_mistake_has_its_line(text: str, line: str) -> None:
    assert problems(text) == [line]


def test_a_secret_in_a_parameter_is_refused() -> None:
    token = "ghp_" + "a1B2" * 9
    (line,) = problems(f"command: x\nparams: {{token: {token}}}\n")
    assert line.startswith("j.yaml:2: params.token: looks like a secret") and token not in line


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-4, "1e-4"), (1e-3, "1e-3"), (0.01, "0.01"),
        (0.0015, "0.0015"), (3e-4, "3e-4"), (2.5e-5, "2.5e-5"), (0.05, "0.05"), (0.1, "0.1"), (1.0, "1.0"), (1e6, "1e6"),
        (123456.7, "123456.7"), (0.0, "0.0"), (-1e-7, "-1e-7"), (True, "true"), (3, "3"), ("x y", "x y"),
    ],
)  # fmt: skip
def test_a_value_is_shown_as_people_write_it(value: params.Value, text: str) -> None:
    assert params.text_of(value) == text
    if isinstance(value, float):
        assert float(text) == value

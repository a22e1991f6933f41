"""Parameters and sweeps: where values are inserted, the jobs of the variants, their names, and mistakes at their lines."""

from pathlib import Path

import pytest

from orchestrator.errors import JobSpecError
from orchestrator.job import job_spec, sweep
from orchestrator.job.job_spec import JobSpec
from orchestrator.job.overrides import Override
from orchestrator.job.source import params, yaml_source
from orchestrator.job.sweep import Sweep, Variant
from tests import ROOT
from tests.unit.job.refused import refused


def expand(text: str, path: str = "lr-sweep.yaml") -> Sweep:
    return sweep.expand(yaml_source.read(text), path=path)


def variants(text: str, path: str = "lr-sweep.yaml") -> tuple[Variant, ...]:
    return expand(text, path).variants


def problems(text: str) -> list[str]:
    return refused(expand, text, "s.yaml")


def test_there_is_a_variant_for_every_combination_the_last_parameter_changing_fastest() -> None:
    found = variants("matrix: {lr: [1e-4, 3e-4], seed: [1, 2]}\ncommand: train --lr ${params.lr} ${params.seed}\n")
    assert [variant.spec.command for variant in found] == [
        "train --lr 1e-4 1", "train --lr 1e-4 2", "train --lr 3e-4 1", "train --lr 3e-4 2",
    ]  # fmt: skip
    assert [variant.name for variant in found] == [f"lr-sweep-{number}" for number in (1, 2, 3, 4)]
    assert [variant.label for variant in found][:2] == ["lr=1e-4 seed=1", "lr=1e-4 seed=2"]
    assert [variant.number for variant in found] == [1, 2, 3, 4]


def test_every_parameter_is_a_column_also_a_single_one() -> None:
    (one, _) = variants("params: {batch: 32}\nmatrix: {lr: [1e-4, 0.5]}\ncommand: x ${params.lr} ${params.batch}\n")
    assert dict(one.params) == {"batch": 32, "lr": 1e-4}
    assert one.label == "lr=1e-4", "what all variants have does not name one of them"


def test_a_list_of_the_matrix_replaces_the_single_value_of_the_same_parameter() -> None:
    found = variants("params: {lr: 7}\nmatrix: {lr: [1, 2]}\ncommand: x ${params.lr}\n")
    assert [variant.spec.command for variant in found] == ["x 1", "x 2"]


def test_a_named_variant_is_the_file_with_the_keys_that_differ() -> None:
    found = variants(
        "name: t\ntrain: {epochs: 2, seed: 7}\nvariants:\n  multi:\n  single: {train: {cores: 1, seed: null}}\n"
    )
    shape = [
        (v.name, v.label, v.spec.train and (v.spec.train.cores, v.spec.train.epochs, v.spec.train.seed)) for v in found
    ]
    assert shape == [("t-multi", "multi", ("all", 2, 7)), ("t-single", "single", (1, 2, 1))]


def test_named_variants_run_with_every_combination() -> None:
    text = "name: t\nvariants: {a: {}, b: {env: {X: y}}}\nmatrix: {lr: [1, 2]}\ncommand: x ${params.lr}\n"
    found = variants(text)
    assert [(v.name, v.label) for v in found] == [
        ("t-a-1", "a lr=1"), ("t-a-2", "a lr=2"), ("t-b-1", "b lr=1"), ("t-b-2", "b lr=2"),
    ]  # fmt: skip
    assert [dict(v.spec.env) for v in found] == [{}, {}, {"X": "y"}, {"X": "y"}]


def test_a_named_variant_may_set_a_parameter() -> None:
    text = "params: {lr: 1}\nvariants: {a: {}, b: {params: {lr: 5}}}\ncommand: x ${params.lr}\n"
    assert [variant.spec.command for variant in variants(text)] == ["x 1", "x 5"]


def test_a_local_variant_drops_the_tpu_of_the_others() -> None:
    (here,) = variants("tpu: {zone: us-central1-a}\ncommand: ls\nvariants: {here: {on: local}}\n")
    assert here.spec.on == "local" and here.spec.warnings() == []


def test_a_tpu_may_be_a_parameter() -> None:
    found = variants("matrix: {tpu: [v5e-8, v6e-8]}\ntpu: {accelerator: '${params.tpu}'}\ncommand: ls\n")
    assert [variant.spec.tpu.accelerator for variant in found] == ["v5litepod-8", "v6e-8"]


def test_a_name_that_comes_from_the_file_leaves_room_for_the_number() -> None:
    found = variants("matrix: {n: [1, 2]}\ncommand: x ${params.n}\n", f"{'long-' * 20}.yaml")
    assert [len(variant.name) for variant in found] == [40, 40]
    assert [variant.name[-2:] for variant in found] == ["-1", "-2"]


def test_the_same_name_comes_from_a_longer_list() -> None:
    """`lr-sweep-2` means the same job when a value is added at the end."""
    before, after = (variants(f"matrix: {{n: [5, 6{more}]}}\ncommand: x ${{params.n}}\n") for more in ("", ", 7"))
    assert [(v.name, v.params) for v in before] == [(v.name, v.params) for v in after][:2]


def test_a_long_value_is_called_by_its_number() -> None:
    (one, _) = variants(f"matrix: {{p: [{'x' * 80}, y]}}\ncommand: x ${{params.p}}\n")
    assert one.label == "#1"


def test_values_of_python_make_the_same_sweep() -> None:
    source = yaml_source.source_of({"matrix": {"lr": [1e-4, 2]}, "command": ["x", "${params.lr}"], "parallel": 2})
    found = sweep.expand(source, path="")
    assert [variant.spec.command for variant in found.variants] == ["x 1e-4", "x 2"]
    assert (found.name, found.parallel) == ("job", 2)


X = "command: x ${params.a}\n"


@pytest.mark.parametrize(("text", "line"), [
    (X + "matrix:\n", "2: matrix: expected parameters with lists of values, such as `lr: [1e-4, 3e-4]`"),
    (X + "matrix: [1]\n", "2: matrix: expected parameters with lists of values, such as `lr: [1e-4, 3e-4]`"),
    (X + "matrix:\n  a: []\n", "3: matrix.a: is an empty list; write the values to try, or remove it"),
    (X + "matrix:\n  a: 3\n",
     "3: matrix.a: expected a list of values, such as [1e-4, 3e-4]; a single value goes below `params:`"),
    (X + "matrix:\n  a:\n  - 1\n  - [2]\n",
     "5: matrix.a[1]: expected one value (text, a number, true or false), got a list; lists of values go below "
     "`matrix:`"),
    (X + "matrix: {a: [1, null]}\n", "2: matrix.a[1]: has no value; write one, or remove it"),
    (X + "matrix: {a: [1, .nan]}\n", "2: matrix.a[1]: must be a finite number"),
    (X + "matrix: {a: [1e-4, 2, 0.0001]}\n", "2: matrix.a[2]: `1e-4` is listed twice; remove one of them"),
    (X + "matrix: {a: [1], b: [2]}\n",
     "2: matrix.b: changes nothing; write ${params.b} in `command`, `env` or `train`"),
    ("matrix: {lr: [1, 2]}\ncommand: x ${params.lrr}\n",
     "2: command: `${params.lrr}`: there is no such parameter; did you mean `lr`?"),
    (X + "matrix: {a: [1], 'b c': [2]}\n",
     "2: matrix.b c: `b c` is not the name of a parameter; use letters, digits, `_` and `-`, a letter first"),
    (f"command: x ${{params.a}} ${{params.b}}\nmatrix: {{a: {list(range(101))}, b: [1, 2]}}\n",
     "2: matrix: makes 202 variants; at most 200 are allowed: write fewer values, or several files"),
    (X + "matrix: {a: [1]}\nparallel: 0\n", "3: parallel: expected a number of slices from 1 to 64, such as 2"),
    (X + "matrix: {a: [1]}\nparallel: 99\n", "3: parallel: 99 are too many; write at most 64"),
    (X + f"matrix: {{a: [1]}}\nname: {'n' * 39}\n",
     "3: name: has 39 characters, and the names of its runs are longer; at most 38 are allowed here"),
    (X + "matrix: {a: [1]}\nname: Not One\n",
     "3: name: `Not One` is not a name; write lower-case letters, digits and `-`, at most 40"),
    (X + "matrix: {a: [1]}\nkeep_on_failure: 30m\n",
     "3: keep_on_failure: has no use in a sweep, where the slice of a job that failed goes to the next one; remove it"),
    ("command: x\nvariants: {}\n", "2: variants: expected a mapping of names, each with the keys that it changes"),
    ("command: x\nvariants: [a]\n", "2: variants: expected a mapping of names, each with the keys that it changes"),
    ("command: x\nvariants:\n  A_b: {}\n",
     "3: variants.A_b: its name is not a valid name: letters a-z, digits and `-`, a letter first and no `-` last; for "
     "example `a-b`"),
    ("command: x\nvariants:\n  a: 3\n",
     "3: variants.a: expected a mapping: keys of the file that it changes; leave it empty to change none"),
    ("command: x\nvariants:\n  a: {parallel: 3}\n",
     "3: variants.a.parallel: is of the whole sweep, not of one variant; remove it"),
    (X + "matrix: {a: [1]}\nvariants:\n  v: {params: {a: 3}}\n",
     "4: variants.v.params.a: has values in `matrix:` already; remove it from one of the two"),
    (X + "matrix: {a: [1]}\nparams: [a]\n", "3: params: expected parameters with a value each, such as `lr: 1e-4`"),
    (X + "matrix: {a: [1]}\nvariants:\n  v: {params: 3}\n",
     "4: variants.v.params: expected parameters with a value each, such as `lr: 1e-4`"),
])  # fmt: skip
def test_a_mistake_of_the_sweep_has_its_line(text: str, line: str) -> None:
    assert problems(text) == [f"s.yaml:{line}"]


def test_a_mistake_of_a_value_is_told_at_its_line_for_the_key_that_it_is_wrong_for() -> None:
    text = "train: {lr: '${params.lr}'}\nmatrix:\n  lr:\n  - 1e-4\n  - -3\n"
    assert problems(text) == ["s.yaml:5: train.lr: must be greater than 0, not `-3`"]


def test_a_mistake_of_all_variants_is_told_once_and_all_mistakes_together() -> None:
    text = "tpu: {zone: mars}\ncommand: ls\nvariants:\n  a: {}\n  b: {commando: x}\n"
    first, second = problems(text)
    assert first.startswith("s.yaml:1: tpu.zone: ") and second.startswith(
        "s.yaml:5: commando: unknown key; did you mean"
    )


def test_a_reference_to_no_parameter_is_a_mistake() -> None:
    assert problems("matrix: {lr: [1]}\ncommand: x ${params.lr} ${params.lrr}\n") == [
        "s.yaml:2: command: `${params.lrr}`: there is no such parameter; did you mean `lr`?"
    ]


def test_mistakes_of_the_yaml_itself_are_told() -> None:
    assert problems("matrix: {lr: [1]}\nmatrix: {lr: [2]}\ncommand: ${params.lr}\n") == [
        "s.yaml:2: matrix: duplicate key, first set on line 1; keep one of the two"
    ]


def test_where_one_job_is_expected_a_sweep_is_told_how_to_run() -> None:
    for key in ("matrix: {lr: [1]}\n", "variants: {a: {}}\n"):
        with pytest.raises(
            JobSpecError, match=r"s.yaml:2: (matrix|variants): makes this a sweep, .*`tpujob run` .*Client.sweep"
        ):
            job_spec.load(f"command: ls\n{key}", path="s.yaml")


def test_parallel_alone_is_a_mistake() -> None:
    with pytest.raises(JobSpecError, match=r"s.yaml:2: parallel: only counts with `matrix:` or `variants:`"):
        job_spec.load("command: ls\nparallel: 2\n", path="s.yaml")


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_one_job_or_a_sweep(path: Path) -> None:
    found = sweep.load(path.read_bytes(), path=str(path))
    assert isinstance(found, Sweep) == (path.stem in ("mnist-compare", "lr-sweep"))


def test_every_label_is_the_only_one_of_its_kind() -> None:
    found = variants("matrix: {a: [1, '1', 2]}\ncommand: x ${params.a}\n")
    assert [variant.label for variant in found] == ["a=1", "#2", "a=2"]


SWEPT = "command: x ${params.lr}\nmatrix: {lr: [1, 2]}\nparams: {lr: 3}\n"
NAMED = """\
command: x
variants:
  a: {tpu: {any_of: [{accelerator: v5e-8}]}}
  b: {tpu: [{zone: us-east5}]}
  c: {env: null}
"""
TYPE = Override.key("--accelerator", ("tpu", "accelerator"), "v6e-8")
ZONE = Override.key("--zone", ("tpu", "zone"), "us-east5")


@pytest.mark.parametrize(("text", "option", "told"), [
    (SWEPT, Override.parse("params.lr=7"), "--set params.lr=7: has no effect: the values of lr in `matrix:` count"),
    (SWEPT, Override.parse("params={lr: 7}"), "--set params={lr: 7}: params.lr: has no effect"),
    (NAMED, TYPE, "--accelerator v6e-8: has no effect on the variant `a`"),
    (NAMED, ZONE, "--zone us-east5: has no effect on the variant `b`"),
    (NAMED, Override.variable("N=1"), "--env N: has no effect on the variant `c`"),
])  # fmt: skip
def test_an_option_that_the_values_of_the_sweep_outrank_is_refused(text: str, option: Override, told: str) -> None:
    [problem] = refused(sweep.load, text, path="s.yaml", overrides=[option])
    assert problem.startswith(told)


def test_an_option_changes_what_the_sweep_leaves_open() -> None:
    text = NAMED.replace("[{accelerator: v5e-8}]", "[{zone: us-east5}]").replace("b: {tpu: [{zone: us-east5}]}", "b:")
    options = [TYPE, Override.parse("matrix.n=[1, 2]")]
    found = sweep.load(text.replace("x\n", "x ${params.n}\n"), path="s.yaml", overrides=options)
    assert isinstance(found, Sweep) and len(found.variants) == 6
    assert {each.accelerator for v in found.variants for each in v.spec.tpu.alternatives} == {"v6e-8"}


def load(text: str) -> JobSpec:
    return job_spec.load(text, path="j.yaml")


def mistakes(text: str) -> list[str]:
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
    assert mistakes(text) == [line]


def test_a_secret_in_a_parameter_is_refused() -> None:
    token = "ghp_" + "a1B2" * 9
    (line,) = mistakes(f"command: x\nparams: {{token: {token}}}\n")
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

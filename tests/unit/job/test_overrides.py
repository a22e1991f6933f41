"""Options that change a job for one run: what they change, and how their mistakes are reported."""

import pytest

from orchestrator.errors import JobSpecError, UserError
from orchestrator.job import job_spec
from orchestrator.job.overrides import Override
from tests.unit.job.refused import refused

JOB = "command: python train.py\nlimits: {max_duration: 1h}\n"
TOKEN = "hf_" + "aB3dE5fG7h" * 3 + "aB3d"


def load(*settings: str, text: str = JOB) -> job_spec.JobSpec:
    return job_spec.load(text, path="job.yaml", overrides=[Override.parse(setting) for setting in settings])


def problems(*settings: str, text: str = JOB) -> list[str]:
    return refused(load, *settings, text=text)


def test_an_override_changes_one_key_and_leaves_the_others() -> None:
    spec = load("limits.max_cost=5", "limits.max_duration=2h")
    assert (spec.limits.max_duration_s, spec.limits.max_cost, spec.command) == (7200, 5.0, "python train.py")


def test_an_override_makes_the_sections_that_it_needs() -> None:
    spec = load("train.emulated.cores=4", text="train:\n")
    assert spec.train is not None and spec.train.emulated.cores == 4


def test_of_two_overrides_of_one_key_the_last_one_counts() -> None:
    assert load("tpu.accelerator=v6e-8", "tpu.accelerator=v6e-1").tpu.accelerator == "v6e-1"


@pytest.mark.parametrize(
    ("written", "setup"),
    [("[a, b]", ("a", "b")), ("pip install x", ("pip install x",)), ("null", None), ("", None), ('"1"', ("1",))],
)
def test_the_value_is_yaml_as_in_a_file(written: str, setup: tuple[str, ...] | None) -> None:
    assert load(f"setup={written}").setup == setup


def test_a_key_that_was_text_can_become_a_section() -> None:
    assert problems("command.x=1") == [
        "--set command.x=1: command: expected a command as text, or a list of its arguments"
    ]


@pytest.mark.parametrize(("setting", "message"), [
    ("limits.max_duration=x", "`x` is not a duration: "),
    ("limits.max_durration=2h", "unknown key; did you mean `max_duration`?"),
    ("limit.max_duration=2h", "limit: unknown key; did you mean `limits`?"),
    ("tpu={zone: us-central1-q}", "tpu.zone: "),
    ("tpu.accelerator=v9-8", "`v9-8` is not a known accelerator type"),
    *(("name=A B", "`A B` is not a valid name"), ("env.A=", 'has no value; write "" for empty text')),
    ("train={}", "a job has either `train:` or `command:`"),
])  # fmt: skip
def test_a_mistake_names_the_option_in_place_of_a_line(setting: str, message: str) -> None:
    found = problems(setting)
    assert any(message in problem for problem in found), found
    assert all(
        problem.startswith((f"--set {setting}: ", "--set env.A: ", "job.yaml:1: command: ")) for problem in found
    )


def test_mistakes_of_the_file_come_first_and_keep_their_lines() -> None:
    found = problems("limits.max_cost=-1", text="command: ls\nlimits:\n  stall: never\n")
    assert [problem.partition(": ")[0] for problem in found] == ["job.yaml:3", "--set limits.max_cost=-1"]


@pytest.mark.parametrize(
    "setting", ["tpu.zone=us-east5-a", "tpu={zone: us-east5-a}", "limits.max_duration=2h", "env.A=b"]
)
@pytest.mark.parametrize(
    "text", ["command: [ls\n", "", "a: b: c", "- a\n", "tpu: !x {}\n", "tpu: {zone: *x}\n", "tpu: {1: 2}\n"]
)
def test_what_is_wrong_with_the_file_as_such_is_no_mistake_of_an_option(setting: str, text: str) -> None:
    assert problems(setting, text=text)[0].startswith("job.yaml:1: ")
    assert problems(setting, text=f"{text}\ncommand: ls\nmatrix: {{lr: [1]}}\n")[0].startswith("job.yaml:")


def test_a_value_of_the_file_that_an_option_replaces_is_not_checked() -> None:
    assert (
        load("limits.max_duration=2h", text="command: ls\nlimits: {max_duration: soon}\n").limits.max_duration == 7200
    )


def test_a_job_in_python_is_overridden_like_a_file() -> None:
    job = {"command": "ls", "tpu": {"spot": False}}
    assert job_spec.from_values(job, [Override.parse("tpu.spot=true")]).tpu.spot
    assert refused(job_spec.from_values, job, [Override.parse("tpu.spot=7")]) == [
        "--set tpu.spot=7: expected `true` or `false`, got `7`"
    ]


SEVERAL = """\
command: ls
tpu:
  - {accelerator: v5e-8, zone: us-central1-a, provisioning: on-demand}
  - {accelerator: v6e-8, zone: us-east5-b, spot: true}
"""
BESIDE = """\
command: ls
tpu:
  zone: us-central1-a
  spot: true
  any_of:
    - {accelerator: v5e-8}
    - {accelerator: v6e-8, zone: us-east5-b, provisioning: reserved}
"""


@pytest.mark.parametrize("text", [SEVERAL, BESIDE], ids=["list", "any_of"])
def test_a_key_of_tpu_changes_every_alternative(text: str) -> None:
    changed = load("tpu.zone=europe-west4", text=text).tpu.alternatives
    assert [(one.accelerator, one.zone) for one in changed] == [
        ("v5litepod-8", ("europe-west4",)),
        ("v6e-8", ("europe-west4",)),
    ]


@pytest.mark.parametrize("text", [SEVERAL, BESIDE, "command: ls\ntpu: {provisioning: reserved}\n"])
@pytest.mark.parametrize("setting", ["tpu.spot=true", "tpu.provisioning=spot"])
def test_spot_and_provisioning_take_each_others_place_everywhere(text: str, setting: str) -> None:
    assert {one.effective_provisioning.spot for one in load(setting, text=text).tpu.alternatives} == {True}


def test_a_key_of_the_whole_section_stands_beside_the_alternatives() -> None:
    spec = load("tpu.order=cheapest", text=SEVERAL)
    assert spec.tpu.order == "cheapest" and len(spec.tpu.alternatives) == 2


def test_a_mistake_about_every_alternative_is_reported_once() -> None:
    assert len([each for each in problems("tpu.zone=mars", text=SEVERAL) if "mars" in each]) == 1


def test_a_list_of_alternatives_can_be_given_and_changed() -> None:
    spec = load("tpu=[{accelerator: v5e-4}, {accelerator: v6e-4}]", "tpu.zone=us-central1")
    assert {one.zone for one in spec.tpu.alternatives} == {("us-central1",)}


@pytest.mark.parametrize("text", ["", "x", "=1", ".a=1", "a..b=1", "a.=1"])
def test_a_setting_that_is_no_key_and_value_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"write KEY=VALUE"):
        Override.parse(text)


@pytest.mark.parametrize(("text", "why"), [
    *(("setup=[a", "--set setup=[a: not valid YAML"), ("name=!!str y", "tags (`!!str`) are not allowed")),
    *(("name=a\n---\nb", "a second document"), ("train={lr: 1, lr: 2}", "duplicate key")),
    *(("name=" + "[" * 200, "levels"), ("name=\x1b[31m", "does not belong in a text file")),
])  # fmt: skip
def test_a_value_that_no_file_may_hold_is_refused(text: str, why: str) -> None:
    with pytest.raises(UserError) as caught:
        Override.parse(text)
    assert why in str(caught.value) and "\x1b" not in str(caught.value)


# -- environment variables ---------------------------------------------------------------------------------------------


def variables(*texts: str, text: str = JOB) -> dict[str, str]:
    overrides = [Override.variable(each) for each in texts]
    return dict(job_spec.load(text, path="job.yaml", overrides=overrides).env)


def test_a_variable_is_text_and_goes_beside_those_of_the_file() -> None:
    text = JOB + "env: {N: 3, M: m}\n"
    assert variables("A=1e-4", "B=", "C=a: [b", "M=x=y", text=text) == {
        "N": "3", "A": "1e-4", "B": "", "C": "a: [b", "M": "x=y",
    }  # fmt: skip


def test_a_variable_without_a_value_is_the_users_own() -> None:
    spec = job_spec.load(JOB, path="job.yaml", overrides=[Override.variable("MY_TOKEN")])
    assert job_spec.resolve_env(spec, {"MY_TOKEN": "s3cret"}) == {"MY_TOKEN": "s3cret"}
    assert refused(job_spec.resolve_env, spec, {}) == [
        "--env MY_TOKEN: your variable MY_TOKEN is not set; export it, or remove this"
    ]


@pytest.mark.parametrize(("text", "message"), [
    *(("1A=x", "--env 1A: is not a variable name"), ("TPU_NAME=x", "--env TPU_NAME: is set by tpujob")),
    *(("A=x\ny", "--env A: has a line break"), ("A=${env:}", "--env A: has a `${env:` that names no variable")),
])  # fmt: skip
def test_a_variable_follows_the_rules_of_a_file(text: str, message: str) -> None:
    assert [problem for problem in refused(variables, text) if not problem.startswith(message)] == []


@pytest.mark.parametrize("text", ["", "=x"])
def test_a_variable_needs_a_name(text: str) -> None:
    with pytest.raises(UserError, match="write NAME=VALUE"):
        Override.variable(text)


@pytest.mark.parametrize("make", [
    lambda: Override.variable(f"HF={TOKEN}"),
    lambda: Override.variable("API_KEY=abcdefgh12345678"),
    lambda: Override.parse(f"env.HF={TOKEN}"),
    lambda: Override.parse("env.API_KEY=abcdefgh12345678"),
    lambda: load(f"command=curl -H {TOKEN}"),
    lambda: load(f"env={{HF: {TOKEN}}}"),
    lambda: Override.parse(TOKEN),
    lambda: Override.variable(f"={TOKEN}"),
])  # fmt: skip
def test_a_secret_on_the_command_line_is_refused_and_not_repeated(make: object) -> None:
    assert callable(make)
    with pytest.raises((UserError, JobSpecError)) as caught:
        make()
    text = str(caught.value)
    assert "aB3d" not in text and "12345678" not in text


# -- scalars of `env:` -------------------------------------------------------------------------------------------------


def test_scalars_of_env_are_text_as_written() -> None:
    text = 'command: ls\nenv: {N: 3, FLAG: true, LR: 1e-4, Z: 007, H: 0x1F, I: .inf, Q: "08", T: plain}\n'
    assert dict(job_spec.load(text, path="job.yaml").env) == {
        "N": "3", "FLAG": "true", "LR": "1e-4", "Z": "007", "H": "0x1F", "I": ".inf", "Q": "08", "T": "plain",
    }  # fmt: skip


def test_scalars_of_env_that_an_option_sets_are_text_as_written() -> None:
    assert dict(load("env.LR=1e-4", "env.Z=007", text=JOB + "env: {LR: 1, Z: 2}\n").env) == {"LR": "1e-4", "Z": "007"}


def test_scalars_of_env_in_python_are_text_as_python_writes_them() -> None:
    spec = job_spec.from_values({"command": "ls", "env": {"N": 3, "LR": 1e-4, "FLAG": True}})
    assert dict(spec.env) == {"N": "3", "LR": "0.0001", "FLAG": "true"}


@pytest.mark.parametrize("written", ["", "null", "~"])
def test_a_variable_without_a_value_in_a_file_is_a_mistake(written: str) -> None:
    text = f"command: ls\nenv:\n  A: {written}\n"
    if written == "~":
        assert dict(job_spec.load(text, path="job.yaml").env) == {"A": "~"}
        return
    assert refused(job_spec.load, text, path="job.yaml") == [
        'job.yaml:3: env.A: has no value; write "" for empty text, or ${env:NAME} for your own variable NAME'
    ]

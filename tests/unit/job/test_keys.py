"""Valid job files and the jobs that they describe."""

import importlib.util
import json
import time
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import JobSpecError
from orchestrator.job import job_spec, tpu_keys, train_keys
from orchestrator.job.rules import cross_field_rules as train_rules
from orchestrator.job.source import yaml_source
from tests import ROOT
from tests.unit.job.refused import refused

SWEEPS = {ROOT / "jobs" / "mnist-compare.yaml", ROOT / "jobs" / "lr-sweep.yaml"}  # test_sweep.py reads them
JOBS = sorted({*(ROOT / "jobs").glob("*.yaml")} - SWEEPS)


def load(text: str, path: str = "job.yaml") -> job_spec.JobSpec:
    return job_spec.load(text, path=path)


def test_a_job_has_sensible_defaults() -> None:
    spec = load("train:\n")
    assert (spec.tpu.accelerator, spec.tpu.zone, spec.tpu.spot) == ("v5litepod-8", (), False)
    assert spec.tpu.runtime_version == "v2-alpha-tpuv5-lite"
    assert spec.limits.max_duration_s == 24 * 3600
    assert spec.train is not None and spec.train.cores == "all"
    assert (spec.command, spec.setup, spec.code, spec.artifacts) == (None, None, None, ())


def test_ports_are_one_or_a_list() -> None:
    assert load("command: ls\nports: 6006\n").ports == (6006,)
    assert load("command: ls\nports: [6006, 8888]\n").ports == (6006, 8888)
    assert load("command: ls\nports:\n").ports == load("command: ls\n").ports == ()


def test_a_local_job_may_use_more_cores_than_a_tpu_has_and_warns_of_its_tpu_section() -> None:
    spec = load("on: local\ntpu: {spot: true}\ntrain: {cores: 16}\n")
    assert spec.on == "local" and spec.train is not None and spec.train.cores == 16
    assert spec.warnings() == ["job.yaml:2: tpu: has no effect with `on: local`"]
    assert load("train:\n").on == "tpu" and load("on: local\ncommand: ls\n").warnings() == []


@pytest.mark.parametrize(
    ("path", "name"),
    [("jobs/mnist.yaml", "mnist"), ("/x/My Job (2).yaml", "my-job-2"), ("x/2026.yaml", "job"), ("-", "job")],
)
def test_a_job_without_a_name_is_named_after_its_file(path: str, name: str) -> None:
    assert load("command: ls\n", path).name == name


@pytest.mark.parametrize(("written", "zones"), [
    *(("us-central1", ("us-central1",)), ("us-central1-a", ("us-central1-a",))),
    ("us-central1, europe-west4-a", ("us-central1", "europe-west4-a")),
    *(("[us-central1, europe-west4-a]", ("us-central1", "europe-west4-a")), ("null", ())),
])  # fmt: skip
def test_zones_are_a_zone_a_region_or_several(written: str, zones: tuple[str, ...]) -> None:
    assert load(f"command: ls\ntpu:\n  zone: {written}\n").tpu.zone == zones


def test_a_command_given_as_arguments_is_quoted_for_the_shell() -> None:
    assert load("command: [python, -c, 'print(\"a b\")', $HOME]").command == "python -c 'print(\"a b\")' '$HOME'"


def test_a_command_given_as_text_is_left_alone() -> None:
    assert load("command: |\n  a $X\n  b\n").command == "a $X\nb\n"


def test_setup_is_one_command_or_several() -> None:
    assert load("command: ls\nsetup: pip install x\n").setup == ("pip install x",)
    assert load("command: ls\nsetup: [a, b]\n").setup == ("a", "b")


def test_scalars_are_read_by_the_rules_of_yaml_1_2() -> None:
    spec = load("name: no\ntrain: {lr: 1e-3, seed: 010, examples: 0x10, batch_size: 0o20}\nenv: {A: on, B: 12:30:00}\n")
    assert spec.name == "no"
    assert spec.env == {"A": "on", "B": "12:30:00"}
    assert (spec.train.lr, spec.train.seed, spec.train.examples, spec.train.batch_size) == (0.001, 10, 16, 16)


def test_an_empty_section_means_its_defaults() -> None:
    empty = load("train:\n  emulated:\ntpu:\nlimits:\nenv:\n")
    assert empty.model_dump() == load("train: {}\n").model_dump()


def test_the_training_section_is_plain_data_with_every_setting() -> None:
    spec = load("train: {epochs: 2, emulated: {cores: 2}}\n")
    plain = spec.train.model_dump(mode="json")
    assert set(plain) == set(train_keys.TrainSection.model_fields)
    assert (plain["epochs"], plain["emulated"]["cores"]) == (2, 2)
    assert json.loads(json.dumps(plain)) == plain


def test_the_environment_is_resolved_from_the_callers_variables() -> None:
    spec = load("command: ls\nenv: {A: 'x-${env:B}-${env:C}', D: '$B', E: ''}\n")
    assert job_spec.resolve_env(spec, {"B": "b", "C": "${env:B}"}) == {"A": "x-b-${env:B}", "D": "$B", "E": ""}


def test_every_missing_variable_is_named_at_its_line() -> None:
    spec = load("command: ls\nenv:\n  TOKEN: ${env:MISSING}\n  A: ${env:THERE}\n  B: ${env:GONE} ${env:GONE}\n")
    assert refused(job_spec.resolve_env, spec, {"THERE": "x"}) == [
        "job.yaml:3: env.TOKEN: your variable MISSING is not set; export it, or remove this",
        "job.yaml:5: env.B: your variable GONE is not set; export it, or remove this",
    ]


def test_values_that_linux_does_not_take_together_are_refused_with_their_sum_and_the_largest() -> None:
    spec = load("command: ls\nenv:\n" + "".join(f"  A{number}: x${{env:ME}}\n" for number in range(16)))
    assert job_spec.resolve_env(spec, {"ME": "a" * 98_000})
    assert refused(job_spec.resolve_env, spec, {"ME": "a" * 120_000}) == [
        "job.yaml:2: env: has 1,920,086 bytes in all, and at most 1,572,864 start a program (A10 has 120,006); "
        "ship the largest as files in `code:`"
    ]


def test_a_value_that_linux_does_not_take_is_refused_at_its_line() -> None:
    spec = load("command: ls\nenv:\n  BIG: x${env:ME}\n  OK: y\n")
    most = (128 << 10) - len("BIG=x\0")
    assert len(job_spec.resolve_env(spec, {"ME": "a" * most})["BIG"]) == most + 1
    assert refused(job_spec.resolve_env, spec, {"ME": "é" * most}) == [
        "job.yaml:3: env.BIG: has 262,138 bytes, and Linux takes 131,072; ship it as a file in `code:`"
    ]


def test_variables_that_change_how_programs_start_are_allowed_with_a_warning() -> None:
    spec = load("command: ls\nenv:\n  LD_PRELOAD: /x.so\n  PYTHONPATH: y\n  BASH_ENV: z\n  OTHER: z\n")
    assert spec.warnings() == [
        "job.yaml:3: env.LD_PRELOAD: changes how programs on the worker start; remove it if the job does not need it",
        "job.yaml:4: env.PYTHONPATH: changes how programs on the worker start; remove it if the job does not need it",
        "job.yaml:5: env.BASH_ENV: changes how programs on the worker start; remove it if the job does not need it",
    ]


def test_a_later_check_can_point_at_the_line() -> None:
    spec = load("command: ls\n\ncode: src\n")
    assert spec.mistake(("code",), "is not there") == "job.yaml:3: code: is not there"
    assert spec.mistake(("train", "data_dir"), "is not there") == "job.yaml:1: train.data_dir: is not there"


def test_a_job_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load("command: ls\n").name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_the_shipped_jobs_load_and_fit_the_schema_that_editors_use(path: Path) -> None:
    text = path.read_text("utf-8")
    assert job_spec.load(text, path=str(path)).name == path.stem
    jsonschema.validate(yaml_source.read(text).data, job_spec.schema(), cls=jsonschema.Draft202012Validator)
    assert text.startswith("# yaml-language-server: $schema=../docs/job.schema.json\n")


def test_there_are_shipped_jobs() -> None:
    assert {path.name for path in JOBS} >= {"mnist.yaml", "mnist-single.yaml", "hello.yaml"}


@pytest.mark.parametrize("text", [
    "train:\n",
    "train: {cores: 4, lr: 0.1, emulated: {cores: 2}}\ntpu:\n  zone: [us-central1]\nlimits:\n  max_duration: 1h30m\n",
    "command: [a, b]\nsetup: [x]\nenv: {A: b}\nartifacts: [c]\ncode: .\nname: x\n",
])  # fmt: skip
def test_the_schema_accepts_what_the_loader_accepts(text: str) -> None:
    load(text)
    jsonschema.validate(yaml_source.read(text).data, job_spec.schema(), cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("text", [
    *("name: x\n", "train:\ncommand: ls\n", "train: {epochs: many}\n", "train: {epoch: 1}\n"),
    *("command: ls\ntpu: {acclerator: x}\n", "command: ls\nlimits: {max_duration: 12:30:00}\n"),
    "command: ls\nenv: {A: [1]}\n",
])  # fmt: skip
def test_the_schema_refuses_what_the_loader_refuses(text: str) -> None:
    with pytest.raises(JobSpecError):
        load(text)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml_source.read(text).data, job_spec.schema(), cls=jsonschema.Draft202012Validator)


def _reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("job_reference", ROOT / "docs" / "job_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_schema_is_current() -> None:
    assert (ROOT / "docs" / "job.schema.json").read_text("utf-8") == _reference().schema_text()


def test_the_reference_page_is_current_and_its_example_loads() -> None:
    page = (ROOT / "docs" / "job-file.md").read_text("utf-8")
    assert page == _reference().page_text(page)
    assert "| `max_duration` | text | `24h` |" in page
    load(page.partition("```yaml\n")[2].partition("```")[0])


_KEYWORDS = "name tpu zone train command env us-central1 ~ null yes 1e3 ${env:A} ../x *a &a !!x << ..."
_WORDS = st.sampled_from([*_KEYWORDS.split(), *"{}[],'#\\\0\t\n", '"', "? ", "- ", ": ", "\n  ", "|\n", "---\n"])


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=200), st.binary(max_size=200), st.lists(_WORDS, max_size=40).map("".join)))
@example("? ? a")
@example('{"\\ud800": 1, command: "\\ud800"}')
@example("a: \ud800")
@example("%YAML 1.1\n---\n")
@example("\x85\u2028: |\n\x85")
def test_any_text_is_a_job_or_a_list_of_mistakes(text: str | bytes) -> None:
    try:
        job_spec.load(text, path="job.yaml")
    except JobSpecError as error:
        assert error.problems
        assert all(line.startswith("job.yaml:") and "\n" not in line for line in error.problems)


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KEYS = st.sampled_from([*job_spec.JobSpec.model_fields, "x"])
_PART_KEYS = st.sampled_from(
    [
        *tpu_keys.TpuSection.model_fields,
        *train_keys.TrainSection.model_fields,
        *job_spec.LimitsSection.model_fields,
        "A",
    ]
)


@settings(max_examples=120, deadline=None)
@given(st.dictionaries(_KEYS, st.dictionaries(_PART_KEYS, _PLAIN, max_size=4) | _PLAIN, max_size=4))
def test_any_values_under_the_known_keys_are_a_job_or_a_list_of_mistakes(data: dict[str, object]) -> None:
    try:
        load(json.dumps(data))  # JSON is YAML
    except JobSpecError as error:
        assert all("\n" not in line for line in error.problems)


@pytest.mark.parametrize("text", [
    *("a: [" + "&a x," * 50_000 + "]", "name: '" + "-eyJ" * 60_000 + "'"),
    *("command: ls\nartifacts:\n" + "- ../x\n" * 15_000, "a: 1\n" * 50_000, "x\n" * 120_000),
], ids=["anchors", "nearly-secrets", "patterns", "duplicates", "lines"])  # fmt: skip
def test_a_file_made_to_be_slow_is_not(text: str) -> None:
    """About a second of processor time; reading that is quadratic anywhere would take minutes."""
    began = time.process_time()
    with pytest.raises(JobSpecError):
        load(text)
    assert time.process_time() - began < 20


@pytest.mark.parametrize(("train", "line"), [
    ("{examples: 100}", "job.yaml:1: train.examples: is less than the batch_size of 128, so there would be no step"),
    ("{batch_size: 512, emulated: {examples: 511}}",
     "job.yaml:1: train.emulated.examples: is less than the batch_size of 512, so there would be no step"),
    ("{batch_size: 60001}", "job.yaml:1: train.batch_size: is more than the 60,000 training examples"),
])  # fmt: skip
def test_a_batch_that_the_data_cannot_fill_is_found_before_a_tpu_is_billed(train: str, line: str) -> None:
    assert refused(load, f"train: {train}\n") == [line]


@pytest.mark.parametrize(
    "train", ["{examples: 128}", "{batch_size: 60001, data_dir: data}", "{examples: 1, entry: 'mine:main'}"]
)
def test_a_batch_that_the_data_may_fill_is_accepted(train: str) -> None:
    assert load(f"train: {train}\n").train is not None


def test_the_rule_for_batches_knows_the_default() -> None:
    assert train_keys.TrainSection().batch_size == train_rules.BATCH_SIZE

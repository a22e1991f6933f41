"""A job in Python: every key of the job file, the same checks, and paths of its own."""

import copy
import dataclasses
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.client.job import (
    Emulated,
    Gke,
    Job,
    Limits,
    Profile,
    Tpu,
    TpuAlternative,
    Train,
    path_of,
    spec_of,
    sweep_of,
)
from orchestrator.core.jobfile import keys, sweep
from orchestrator.core.jobfile.gke_keys import GkeSection
from orchestrator.core.jobfile.keys import JobSpec, LimitsSection
from orchestrator.core.jobfile.sweep import Sweep
from orchestrator.core.jobfile.tpu_keys import Alternative, TpuSection
from orchestrator.core.jobfile.train_keys import EmulatedSection, ProfileSection, TrainSection
from orchestrator.errors import JobSpecError, UserError
from tests import ROOT


@pytest.mark.parametrize(("values", "section"), [
    (Tpu, TpuSection), (TpuAlternative, Alternative), (Train, TrainSection), (Emulated, EmulatedSection),
    (Profile, ProfileSection), (Limits, LimitsSection), (Gke, GkeSection), (Job, JobSpec),
])  # fmt: skip
def test_every_key_of_the_job_file_is_a_field(values: Any, section: Any) -> None:
    own = {"directory"} if values is Job else set()
    assert {field.name for field in dataclasses.fields(values) if field.init} - own == set(section.model_fields)


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_loaded_job_is_the_job_of_its_file_and_so_is_its_copy(path: Path) -> None:
    job = Job.load(path)
    if isinstance(found := sweep.load(path.read_bytes(), path=str(path)), Sweep):
        again = sweep_of(dataclasses.replace(job))
        assert [each.spec.model_dump() for each in sweep_of(job).variants] == [
            each.spec.model_dump() for each in found.variants
        ]
        assert [each.spec.model_dump() for each in again.variants] == [
            each.spec.model_dump() for each in found.variants
        ]
        return
    assert spec_of(job) == keys.load(path.read_bytes(), path=str(path))
    assert (job.path, path_of(job), job.directory) == (path, path, path.parent)
    again = dataclasses.replace(job)
    assert again == job
    assert spec_of(again).model_dump() == spec_of(job).model_dump()
    assert (again.path, path_of(again).parent) == (None, path.parent)


def test_what_a_file_says_with_nothing_below_is_kept(tmp_path: Path) -> None:
    (tmp_path / "j.yaml").write_text("train:\n  emulated:\ntpu:\n- accelerator: v5e-8\n- zone: us-central1\n")
    job = Job.load(tmp_path / "j.yaml")
    assert job.train == Train(emulated=Emulated())
    assert job.tpu == Tpu(any_of=(TpuAlternative(accelerator="v5e-8"), TpuAlternative(zone="us-central1")))
    assert job.name == "j"


def test_only_what_is_set_is_passed_on() -> None:
    job = Job(command="true", tpu=Tpu(spot=True))
    assert spec_of(job).model_fields_set == {"command", "name", "tpu"}
    assert spec_of(job).tpu.model_fields_set == {"spot"}
    assert repr(job.tpu) == "Tpu(spot=True)"
    assert job.name == "job"


def test_values_of_python_become_those_of_a_file(tmp_path: Path) -> None:
    job = Job(
        name="all", tpu=Tpu(accelerator="v5e-8", zone=("us-central1-a", "us-west4-a"), wait=timedelta(hours=2)),
        command=["python", "train.py", "a b"], code=tmp_path, setup=("pip install x", "true"),
        limits=Limits(max_duration=timedelta(minutes=90), stall="30s"), directory=tmp_path / "inside",
    )  # fmt: skip
    spec = spec_of(job)
    assert spec.command == "python train.py 'a b'"
    assert (spec.code, spec.setup) == ("..", ("pip install x", "true"))
    assert (spec.limits.max_duration_s, spec.limits.stall, spec.tpu.wait) == (5400.0, 30.0, 7200.0)
    assert spec.tpu.zone == ("us-central1-a", "us-west4-a")


def test_paths_are_relative_to_the_working_directory_at_construction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = Job(train=Train(data_dir=tmp_path / "data"), code="src", name="here")
    monkeypatch.chdir("/")
    assert (job.directory, path_of(job)) == (tmp_path, tmp_path / "Job(here)")
    assert (spec_of(job).code, spec_of(job).train.data_dir) == ("src", "data")  # type: ignore[union-attr]


def test_a_mistake_names_the_field_and_no_line() -> None:
    with pytest.raises(JobSpecError) as raised:
        Job(
            command="true",
            tpu=Tpu(any_of=[TpuAlternative(accelerator="v9-8")]),
            limits=Limits(max_duration="5"),
            max_restarts=2,
        )
    fields = [problem.partition(": ")[0] for problem in raised.value.problems]
    assert sorted(fields) == ["limits.max_duration", "max_restarts", "tpu.any_of[0].accelerator"]
    assert raised.value.hint is None


@pytest.mark.parametrize(("arguments", "problem"), [
    ({}, "nothing to run: add `train:` (the built-in training) or `command:` (any shell command)"),
    ({"command": "true", "train": Train()}, "command: a job has either `train:` or `command:`, not both"),
    ({"command": "a\0b"}, "command: contains a NUL byte"),
    ({"command": object()}, "command: expected text, a number, a list or a mapping, not `object`"),
    ({"train": Train(options={"a": {"b": {1, 2}}})}, "train.options.a.b: expected text"),
    ({"train": Train(options={1: 2})}, "train.options: the key 1 is not a word"),
    ({"command": "true", "env": {"A": [1]}}, "env.A: expected text"),
    ({"command": "true", "tpu": {"acclerator": "v5e-8"}}, "unknown key; did you mean `accelerator`?"),
    ({"command": "true", "env": {"KEY": "AKIAIOSFODNN7EXAMPLE"}}, "env.KEY: looks like a secret"),
    ({"command": "true", "code": "~/x"}, "code: `~/x` is not relative"),
])  # fmt: skip
def test_the_rules_are_those_of_the_file(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(JobSpecError) as raised:
        Job(**arguments)
    assert problem in raised.value.problems[0] or problem in raised.value.message


def test_values_that_hold_themselves_are_refused() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    with pytest.raises(JobSpecError, match="levels"):
        Job(train=Train(options=endless))


def test_a_file_that_is_wrong_names_its_lines(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("name: x\ncomand: true\n")
    with pytest.raises(JobSpecError, match=r"wrong.yaml:2: comand: unknown key; did you mean `command`\?"):
        Job.load(tmp_path / "wrong.yaml")
    with pytest.raises(UserError, match="there is no such file"):
        Job.load(tmp_path / "missing.yaml")


def test_a_job_is_a_value() -> None:
    job = Job(command="true", env={"A": "b"})
    assert job == Job(command="true", env={"A": "b"}) != Job(command="false")
    for same in (pickle.loads(pickle.dumps(job)), copy.deepcopy(job)):
        assert same == job
        assert spec_of(same).env == {"A": "b"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        job.command = "false"  # type: ignore[misc]
    with pytest.raises(TypeError, match="acclerator"):
        Tpu(acclerator="v5e-8")  # type: ignore[call-arg]


def test_a_version_of_python_and_requirements_of_a_file_are_kept_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("command: x\npython: 3.10\nrequirements: [numpy]\n")
    job = Job.load(file)
    assert (job.python, job.requirements) == ("3.10", ["numpy"])
    assert spec_of(dataclasses.replace(job)).python == "3.10"
    made = Job(command="x", requirements=tmp_path / "requirements.txt", directory=tmp_path)
    assert spec_of(made).requirements == "requirements.txt"


def test_a_profile_is_a_section_of_its_own_in_both_directions(tmp_path: Path) -> None:
    job = Job(tpu=Tpu(accelerator="v5e-8", zone="us-central1-a"), train=Train(profile=Profile(start=100)))
    profile = spec_of(job).train.profile  # type: ignore[union-attr]
    assert profile is not None
    assert (profile.start, profile.steps) == (100, 5)
    path = tmp_path / "job.yaml"
    path.write_text("tpu: {accelerator: v5e-8, zone: us-central1-a}\ntrain: {profile: {steps: 2}}\n")
    loaded = Job.load(path).train
    assert loaded is not None
    assert loaded.profile == Profile(steps=2)

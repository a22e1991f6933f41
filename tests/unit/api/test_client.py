"""What `import tpujob` gives and costs: a client, jobs in Python with every key of the job file, and sessions that end."""

import ast
import copy
import dataclasses
import inspect
import pickle
import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tpujob
from orchestrator.api.jobs.job import (
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
from orchestrator.api.session.session import Session
from orchestrator.errors import JobSpecError, UserError
from orchestrator.job import job_spec, sweep
from orchestrator.job.job_spec import JobSpec, LimitsSection
from orchestrator.job.shared_keys import GkeSection
from orchestrator.job.sweep import Sweep
from orchestrator.job.tpu_keys import Alternative, TpuSection
from orchestrator.job.train_keys import EmulatedSection, ProfileSection, TrainSection
from orchestrator.promise import guardian_process
from orchestrator.promise.effects.base import StartGuardian
from orchestrator.promise.effects.locks import FileLocks
from orchestrator.promise.guardian_process import Guardian
from orchestrator.promise.ledger.file import LedgerUnavailable
from orchestrator.settings import Target
from orchestrator.system import fork
from tests import ROOT
from tests.forked import Child, in_thread
from tests.unit.promise.effects.test_interpreter import hangs
from tests.unit.test_imports import imports, is_within
from tests.unit.test_shipped_python import heavy, imported
from tests.waiting import HANG_S

SLICE: dict[str, Any] = {"accelerator": "v5litepod-8"}


def test_importing_tpujob_loads_nothing_else() -> None:
    modules = imported("import tpujob")
    assert heavy(modules) == []
    assert {name for name in modules if name.startswith("orchestrator")} == {"orchestrator"}


def test_a_job_is_described_without_cloud_ssh_and_ledger() -> None:
    modules = imported("import tpujob; tpujob.Job(command='true', tpu=tpujob.Tpu(accelerator='v5e-8'))")
    assert [name for name in heavy(modules) if not name.startswith(("pydantic", "yaml"))] == []


@pytest.mark.parametrize("name", tpujob.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    assert inspect.getdoc(getattr(tpujob, name)), f"{name} has no docstring"


def test_the_list_of_names_is_the_one_that_type_checkers_read() -> None:
    listed = ast.parse((ROOT / "tpujob" / "__init__.pyi").read_text(encoding="utf-8")).body
    names = [alias for each in listed if isinstance(each, ast.ImportFrom) for alias in each.names]
    assert all(alias.asname for alias in names), "`import X as X` exports X"
    assert sorted(str(alias.asname) for alias in names if alias.name != "__version__") == tpujob.__all__
    assert set(tpujob.__all__) <= set(dir(tpujob))


def test_the_public_face_knows_the_client_the_reports_and_the_errors_alone() -> None:
    found = set(imports((ROOT / "tpujob" / "__init__.pyi").read_text(encoding="utf-8"), "tpujob"))
    ours = {name for name in found if name.startswith("orchestrator") and name != "orchestrator.__version__"}
    assert ours and all(
        is_within(name, {"orchestrator.api", "orchestrator.errors", "orchestrator.report"}) for name in ours
    )


def test_every_public_method_is_documented_and_typed() -> None:
    for kind in (tpujob.Client, tpujob.Run, tpujob.Slice, tpujob.Job, tpujob.RunResult):
        for name, member in vars(kind).items():
            if name.startswith("_") or not inspect.isfunction(member):
                continue
            assert member.__doc__, f"{kind.__name__}.{name} has no docstring"
            assert "return" in member.__annotations__, f"{kind.__name__}.{name} has no return type"


def test_a_name_that_does_not_exist_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = tpujob.Nothing  # type: ignore[attr-defined]


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / "tpujob" / "py.typed").exists()


@pytest.mark.parametrize(("call", "why"), [
    (lambda client, job: client.run(job, keep="5s"), "keep 5s: must be between 1m and 7d"),
    (lambda client, job: client.run(job, max_duration=timedelta(minutes=1)), "max_duration 0:01:00: must be between"),
    (lambda client, job: client.submit(job, max_duration="soon"), "max_duration soon: write numbers with units"),
    (lambda client, job: client.slice(**SLICE, wait="0s"), "wait 0s: must be between 1s and 7d"),
    (lambda client, job: client.up(idle="10s"), "idle 10s: must be between 1m and 7d"),
    (lambda client, job: client.extend("x", timedelta(days=8)), "must be between 1m and 7d"),
    (lambda client, job: client.collect("x", max_results="many"), "max_results many: write a number with a unit"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused_before_anything_is_opened(
    call: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUJOB_STATE_DIR", str(tmp_path / "state"))
    with pytest.raises(tpujob.UserError, match=why):
        call(tpujob.Client("emulated"), tpujob.Job(command="true"))
    assert not (tmp_path / "state").exists()


def test_a_slice_exists_only_in_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUJOB_STATE_DIR", str(tmp_path / "state"))
    rented = tpujob.Client("emulated").slice(**SLICE)
    for use in (lambda: rented.name, lambda: rented.hosts, lambda: rented.exec("true")):
        with pytest.raises(tpujob.UserError, match="only inside its `with` block"):
            use()
    with pytest.raises(tpujob.UserError, match="there is no command"):
        rented.exec([])
    assert not (tmp_path / "state").exists()


def test_what_a_slice_cannot_be_is_refused_where_the_block_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUJOB_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    client = tpujob.Client("emulated")
    for block in (client.slice("v5e-8", name="Not A Name"), client.slice("v99-8", zone="us-central1-a")):
        with pytest.raises(tpujob.UserError), block:
            raise AssertionError("the block began")
        with pytest.raises(tpujob.UserError, match="one `with` block"), block:
            raise AssertionError("the block began")


async def quick() -> str:
    return "quick"


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(Target("emulated", "emulated"), tmp_path)


def test_it_is_interrupted_from_another_thread(session: Session) -> None:
    began, ended = threading.Event(), threading.Event()
    threading.Thread(target=lambda: (began.wait(HANG_S), session.interrupt(signal.SIGTERM, "`cancel`"))).start()
    assert session.run(hangs(ended, began)) == "interrupted by `cancel`"
    ended.set()


def test_an_interrupt_that_no_program_has_heard_reaches_the_next_one_and_only_one(session: Session) -> None:
    ended = threading.Event()
    session.interrupt()
    assert session.run(quick()) == "quick", "it never waited"
    assert session.run(hangs(ended, threading.Event())) == "interrupted by Ctrl-C"
    ended.set()
    assert session.run(hangs(ended, threading.Event())) == "late"


def test_closing_it_unlocks_and_wakes_the_guardian(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUJOB_GUARDIAN", "on")
    started: list[Guardian] = []

    def start(*_: object) -> Guardian:
        started.append(Guardian(1, fork.pipe()[1]))
        return started[-1]

    async def arms() -> bool:
        return await StartGuardian()

    monkeypatch.setattr(guardian_process, "start_guardian", start)
    others = FileLocks(session.locks.directory)
    assert in_thread(lambda: session.run(arms())) and session.locks.lock("lease")
    assert started[0].waits and others.is_locked("lease")

    def in_child() -> str:
        session.close()
        return "closed"

    with Child(in_child) as child:
        assert child.said == "closed"
        assert others.is_locked("lease") and started[0].waits, "they are the parent's"
    session.close()
    assert not started[0].waits and not others.is_locked("lease")
    with pytest.raises(LedgerUnavailable):
        session.ledger.leases()


def test_it_waits_for_a_lock_without_spinning(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    others = FileLocks(session.locks.directory)
    assert others.lock("up alice")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            others.unlock("up alice")

    monkeypatch.setattr("orchestrator.api.session.session.time.sleep", sleep)
    session.lock("up alice")
    assert len(slept) == 3 and min(slept) > 0.01
    assert session.locks.is_held("up alice")


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
    assert spec_of(job) == job_spec.load(path.read_bytes(), path=str(path))
    assert (job.path, path_of(job), job.directory) == (path, path, path.parent)
    copied = dataclasses.replace(job)
    assert copied == job
    assert spec_of(copied).model_dump() == spec_of(job).model_dump()
    assert (copied.path, path_of(copied).parent) == (None, path.parent)


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
    ({"command": object()}, "command: expected text, a number, a list or a mapping, not `object`"),
    ({"train": Train(options={"a": {"b": {1, 2}}})}, "train.options.a.b: expected text"),
    ({"train": Train(options={1: 2})}, "train.options: the key 1 is not a word"),  # type: ignore[dict-item]
    ({"command": "true", "env": {"A": [1]}}, "env.A: expected text"),
    ({"command": "true", "env": {"KEY": "AKIAIOSFODNN7EXAMPLE"}}, "env.KEY: looks like a secret"),
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
    assert (profile.start, profile.steps) == (100, 5)
    path = tmp_path / "job.yaml"
    path.write_text("tpu: {accelerator: v5e-8, zone: us-central1-a}\ntrain: {profile: {steps: 2}}\n")
    loaded = Job.load(path).train
    assert loaded.profile == Profile(steps=2)


@pytest.mark.parametrize("call", ["run", "submit", "plan", "export", "sweep", "plan_sweep"])
@pytest.mark.parametrize(("given", "hint"), [
    ("jobs/mnist.yaml", "a job file is loaded first: Job.load('jobs/mnist.yaml')"),
    (Path("a.yaml"), "a job file is loaded first: Job.load('a.yaml')"),
    ({"command": "true"}, "make one with Job(command=...), or load a file with Job.load(path)"),
], ids=["text", "path", "dict"])  # fmt: skip
def test_what_is_no_job_is_refused_with_what_makes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, given: Any, hint: str
) -> None:
    monkeypatch.setenv("TPUJOB_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("TPUJOB_CLOUD", "emulated")
    with pytest.raises(UserError, match="a Job is expected, not a ") as refused:
        getattr(tpujob.Client(), call)(given)
    assert refused.value.hint == hint

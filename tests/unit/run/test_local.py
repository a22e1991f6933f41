"""A job on this machine as a program: what it records, when it stops, and that nothing is left running however it ends."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.jobfile import keys
from orchestrator.core.lease.run_and_attempt import LOCAL, AttemptState
from orchestrator.core.text.environments import Environment
from orchestrator.errors import Canceled, DeadlineExceeded, Interrupted, PayloadFailed, RemoteError, TpujobError
from orchestrator.places.local.worker import LocalExit
from orchestrator.remote.transfer.collect import CollectResult, Problem
from orchestrator.run import local
from orchestrator.run.preparation.runs import new_run
from tests.unit.engine.virtual import VirtualWorld

OK = LocalExit(0)


@dataclass
class Machine:
    """Phases run for a given time; `running` is what ps would show."""

    world: VirtualWorld
    ends: list[LocalExit]
    takes_s: float = 5.0
    left_s: float = 0.0
    running: str | None = None
    started: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    collected: CollectResult | Exception = field(default_factory=CollectResult)
    collections: int = 0
    closed: bool = False
    cancel_at: float | None = None

    def start(self, phase: str, script: str, env: Mapping[str, str], shipment: object, *sinks: Any) -> None:
        assert self.running is None
        self.running, self.left_s = phase, self.takes_s
        self.started.append(phase)
        self.scripts.append(script)

    def wait(self, timeout_s: float) -> LocalExit | None:
        waited = min(timeout_s, self.left_s)
        self.world.time += waited
        self.left_s -= waited
        if self.left_s > 0:
            return None
        self.running = None
        return self.ends[len(self.started) - 1]

    def stop(self, grace_s: float) -> None:
        self.running = None

    def collect(self, destination: Path, patterns: tuple[str, ...], most_bytes: int | None = None) -> CollectResult:
        assert self.running is None, "what still writes is not collected"
        self.collections += 1
        if isinstance(self.collected, Exception):
            raise self.collected
        return self.collected

    def canceled(self) -> bool:
        return self.cancel_at is not None and self.world.time >= self.cancel_at

    def leave(self) -> Path:
        return Path("left")

    def close(self) -> None:
        self.closed = True


def ignore(worker: int, data: bytes) -> None:
    pass


def ready(directory: Path, *ends: LocalExit, text: str = "command: echo hi\n", **machine: Any) -> tuple[Any, ...]:
    directory.mkdir(exist_ok=True)
    world = VirtualWorld(directory)
    spec = keys.load(f"on: local\n{text}", path="job.yaml")
    run, attempt = new_run(spec, directory / "job.yaml", LOCAL, directory / "runs", world.time)
    here: Any = Machine(world, list(ends), **machine)
    prepared = local.prepare(
        spec, run, attempt, here, shipment=None, env={}, asked=Environment(), port=4711, sink=ignore, metrics=ignore
    )
    return world, here, prepared


def attempt_of(world: VirtualWorld, prepared: local.LocalRun) -> Any:
    return world.ledger.run(prepared.run.id)[1]


def test_setup_and_job_run_one_after_the_other_and_the_ledger_knows(tmp_path: Path) -> None:
    world, here, prepared = ready(tmp_path, OK, OK, text="setup: make\ncommand: echo hi\n")
    outcome = world.drive(local.run_local(prepared))
    assert (here.started, here.scripts) == (["setup", "main"], ["set -e\nmake\n", "echo hi\n"])
    assert (outcome.error, outcome.exit_code, outcome.lease) == (None, 0, None)
    assert outcome.spans["setup"] == outcome.spans["main"] == 5.0
    attempt = attempt_of(world, prepared)
    assert (attempt.state, attempt.lease_id, attempt.rc) == (AttemptState.SUCCEEDED, None, None)
    assert world.ledger.leases() == [], "no slice, no lease"
    assert here.closed and not world.locks.is_locked(prepared.attempt.id)


def test_what_a_job_finds_in_its_environment_is_one_worker_that_can_meet_itself(tmp_path: Path) -> None:
    _, _, prepared = ready(tmp_path, OK)
    assert {name: prepared.env[name] for name in ("TPUJOB_WORKER", "TPUJOB_WORKERS", "TPUJOB_COORDINATOR")} == {
        "TPUJOB_WORKER": "0",
        "TPUJOB_WORKERS": "1",
        "TPUJOB_COORDINATOR": "127.0.0.1:4711",
    }
    assert "TPU_NAME" not in prepared.env and "PJRT_DEVICE" not in prepared.env


@pytest.mark.parametrize(("ended", "message", "code"), [
    (LocalExit(3), "the job failed with code 3", 3), (LocalExit(137), "the job failed with code 137", 63),
    (LocalExit(None, "OSError: no space"), "the job was lost: OSError: no space", 63),
])  # fmt: skip
def test_a_job_that_fails_gives_its_code_and_its_artifacts(
    tmp_path: Path, ended: LocalExit, message: str, code: int
) -> None:
    world, here, prepared = ready(tmp_path, ended)
    outcome = world.drive(local.run_local(prepared))
    assert isinstance(outcome.error, PayloadFailed) and outcome.error.message == message
    assert (outcome.exit_code, here.collections, outcome.state) == (code, 1, AttemptState.FAILED)


def test_a_setup_that_fails_keeps_the_job_from_starting(tmp_path: Path) -> None:
    world, here, prepared = ready(tmp_path, LocalExit(9), OK, text="setup: make\ncommand: echo hi\n")
    assert world.drive(local.run_local(prepared)).exit_code == 9
    assert here.started == ["setup"]


def test_the_time_limit_stops_the_job_early_enough_to_save_what_it_made(tmp_path: Path) -> None:
    text = "command: sleep 1d\nlimits: {max_duration: 1h}\n"
    world, here, prepared = ready(tmp_path, OK, text=text, takes_s=9e9)
    began = world.now()
    outcome = world.drive(local.run_local(prepared))
    assert isinstance(outcome.error, DeadlineExceeded) and outcome.exit_code == 124
    assert world.now() - began == pytest.approx(3600 - 60, abs=2)
    assert (here.running, here.collections) == (None, 1)


def test_a_canceled_job_is_stopped_and_keeps_what_it_made(tmp_path: Path) -> None:
    world, here, prepared = ready(tmp_path, OK, text="command: sleep 1d\n", takes_s=9e9)
    here.cancel_at = world.now() + 30
    outcome = world.drive(local.run_local(prepared))
    assert isinstance(outcome.error, Canceled) and outcome.error.message == "canceled by `tpujob cancel`"
    assert (outcome.exit_code, outcome.state) == (71, AttemptState.CANCELED)
    assert world.now() == pytest.approx(here.cancel_at, abs=2)
    assert (here.running, here.collections, here.closed) == (None, 1, True)


def test_artifacts_that_were_refused_make_the_run_a_failure(tmp_path: Path) -> None:
    bad = CollectResult(refused=(Problem(0, "x", "a FIFO"),))
    world, _, prepared = ready(tmp_path, OK, collected=bad)
    assert world.drive(local.run_local(prepared)).exit_code == 65


def test_a_failed_collection_is_the_outcome_of_a_job_that_succeeded(tmp_path: Path) -> None:
    world, here, prepared = ready(tmp_path, OK, collected=RemoteError("the packer ended"))
    outcome = world.drive(local.run_local(prepared))
    assert outcome.error is not None and outcome.error.message == "the packer ended"
    assert outcome.state is AttemptState.ERROR and here.closed


def test_an_interrupted_job_is_stopped_before_its_artifacts_are_saved_wherever_the_signal_comes(tmp_path: Path) -> None:
    world, _, prepared = ready(tmp_path / "first", OK, OK, text="setup: make\ncommand: echo hi\n")
    world.drive(local.run_local(prepared))
    slow = [number for number, name in enumerate(world.effects) if name in ("WaitLocal", "CollectLocal", "StopLocal")]
    assert len(slow) > 5
    for at in slow:
        world, here, prepared = ready(tmp_path / str(at), OK, OK, text="setup: make\ncommand: echo hi\n")
        outcome = world.drive(local.run_local(prepared), interrupt_at=at)
        assert isinstance(outcome.error, Interrupted) and outcome.exit_code == 130
        assert (here.running, here.closed) == (None, True)
        assert attempt_of(world, prepared).state is AttemptState.INTERRUPTED


def test_a_signal_while_the_job_is_being_stopped_does_not_leave_it_running(tmp_path: Path) -> None:
    text = "command: sleep 1d\nlimits: {max_duration: 1h}\n"
    world, _, prepared = ready(tmp_path / "first", OK, text=text, takes_s=9e9)
    world.drive(local.run_local(prepared))
    at = world.effects.index("StopLocal")
    world, here, prepared = ready(tmp_path / "second", OK, text=text, takes_s=9e9)
    outcome = world.drive(local.run_local(prepared), interrupt_at=at)
    assert here.running is None and here.collections == 1
    assert isinstance(outcome.error, TpujobError) and outcome.exit_code in (124, 130)


def test_a_bug_in_us_stops_the_job_and_is_called_one(tmp_path: Path) -> None:
    world, here, prepared = ready(tmp_path, OK, collected=ValueError("oops"))
    outcome = world.drive(local.run_local(prepared))
    assert outcome.exit_code == 70 and here.running is None and here.closed


def test_results_for_which_there_is_no_room_stay_where_they_are_and_that_is_said(tmp_path: Path) -> None:
    no_room = CollectResult(waiting=(Problem(0, "artifacts/model", "no room for 80.0 GB"),))
    world, here, prepared = ready(tmp_path, OK, collected=no_room)
    outcome = world.drive(local.run_local(prepared))
    assert outcome.exit_code == 65 and not here.closed
    assert any("are in left: delete them" in line for line in world.told)

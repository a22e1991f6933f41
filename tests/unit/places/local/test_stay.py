"""A job on this machine as a program: what it records, when it stops, and that nothing is left running however it ends."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.lease.cloud_api import NO_CLOUD
from orchestrator.core.lease.run_and_attempt import LOCAL, AttemptState
from orchestrator.errors import Canceled, DeadlineExceeded, Interrupted, RemoteError, TpujobError
from orchestrator.places.local.stay import LocalStay
from orchestrator.places.place import STATES, Phase
from orchestrator.remote.fleet.steps import StartRequest
from orchestrator.remote.transfer.collect import CollectRequest, Problem
from orchestrator.run.job_run import JobRun
from orchestrator.run.program import run_job
from orchestrator.run.progress import Outcome
from tests.unit.engine.virtual import VirtualCollection, VirtualFleet, VirtualWorld, attempt_of, job


@dataclass
class Here(VirtualFleet):
    """Phases run for `phase_s`; `running` is what ps would show."""

    running: str | None = None
    left: bool = False
    closed: bool = False
    cancel_at: float | None = None
    broken: Exception | None = None  # what a collection raises

    def start(self, request: StartRequest) -> None:
        super().start(request)
        self.running = request.phase

    def wait(self, timeout_s: float) -> Any:
        status = super().wait(timeout_s)
        if status.failed or status.all_succeeded:
            self.running = None
        return status

    def stop(self, grace_s: float) -> None:
        super().stop(grace_s)
        self.running = None

    def collect(self, order: CollectRequest) -> VirtualCollection:
        assert self.running is None, "what still writes is not collected"
        if self.broken is not None:
            raise self.broken
        return super().collect(order)

    def asked_to_end(self) -> bool:
        return self.cancel_at is not None and self.world.time >= self.cancel_at

    def leave(self) -> Path:
        self.left = True
        return Path("left")

    def close(self) -> None:
        self.closed = True


def ready(directory: Path, *phases: str, **here: Any) -> tuple[VirtualWorld, Here, JobRun]:
    directory.mkdir(exist_ok=True)
    world = VirtualWorld(directory)
    crew = Here(world, **{"phase_s": 5.0, **here})
    plain = job(world)

    def request(phase: str) -> Callable[..., StartRequest]:
        return lambda *_: StartRequest("a", phase, "", ({},))

    made = tuple(Phase(name, STATES[name], request(name)) for name in phases or ("main",))
    stay = LocalStay(crew, plain.collect_request(plain.attempt))  # type: ignore[arg-type]
    run = replace(plain.run, cloud=LOCAL)
    return world, crew, replace(plain, run=run, stay=stay, phases=made, max_duration_s=3600.0)


def play(world: VirtualWorld, prepared: JobRun, **how: Any) -> Outcome:
    return world.drive(run_job(prepared, NO_CLOUD), **how)


def test_setup_and_job_run_one_after_the_other_and_the_ledger_knows(tmp_path: Path) -> None:
    world, here, prepared = ready(tmp_path, "setup", "main")
    outcome = play(world, prepared)
    assert [request.phase for request in here.requests] == ["setup", "main"]
    assert (outcome.error, outcome.exit_code, outcome.lease) == (None, 0, None)
    assert attempt_of(world).state is AttemptState.SUCCEEDED and world.ledger.leases() == [], "no slice, no lease"
    assert here.closed and not world.locks.is_locked(prepared.attempt.id)


@pytest.mark.parametrize("phases", [("main",), ("setup", "main")])
def test_a_phase_that_fails_gives_its_code_and_what_it_made_and_nothing_follows_it(
    tmp_path: Path, phases: tuple[str, ...]
) -> None:
    world, here, prepared = ready(tmp_path, *phases, rc=3)
    outcome = play(world, prepared)
    assert (outcome.exit_code, outcome.state) == (3, AttemptState.FAILED)
    assert (len(here.requests), len(here.collections)) == (1, 1)


def test_the_time_limit_stops_the_job_early_enough_to_save_what_it_made(tmp_path: Path) -> None:
    world, here, prepared = ready(tmp_path, phase_s=9e9)
    began = world.now()
    outcome = play(world, prepared)
    assert isinstance(outcome.error, DeadlineExceeded) and outcome.exit_code == 124
    assert world.now() - began == pytest.approx(3600 - 60, abs=3)
    assert (here.running, len(here.collections)) == (None, 1)


def test_a_canceled_job_is_stopped_and_keeps_what_it_made(tmp_path: Path) -> None:
    world, here, prepared = ready(tmp_path, phase_s=9e9)
    here.cancel_at = world.now() + 30
    outcome = play(world, prepared)
    assert isinstance(outcome.error, Canceled) and outcome.error.message == "canceled by `tpujob cancel`"
    assert (outcome.exit_code, outcome.state) == (71, AttemptState.CANCELED)
    assert world.now() == pytest.approx(here.cancel_at, abs=3)
    assert (here.running, len(here.collections), here.closed) == (None, 1, True)


def test_a_failed_collection_is_the_outcome_of_a_job_that_succeeded(tmp_path: Path) -> None:
    world, here, prepared = ready(tmp_path, broken=RemoteError("the packer ended"))
    outcome = play(world, prepared)
    assert outcome.error is not None and outcome.error.message == "the packer ended"
    assert outcome.state is AttemptState.ERROR and here.closed


def test_an_interrupted_job_is_stopped_before_its_artifacts_are_saved_wherever_the_signal_comes(tmp_path: Path) -> None:
    slow = ("StartPhase", "WaitForWorkers", "WaitForCollection")
    world, _, prepared = ready(tmp_path / "first", "setup", "main")
    play(world, prepared)
    steps = [number for number, name in enumerate(world.effects) if name in slow]
    assert len(steps) > 5
    for at in steps:
        world, here, prepared = ready(tmp_path / str(at), "setup", "main")
        outcome = play(world, prepared, interrupt_at=at)
        assert isinstance(outcome.error, Interrupted) and outcome.exit_code == 130
        assert (here.running, here.closed) == (None, True)
        assert attempt_of(world).state is AttemptState.INTERRUPTED


def test_a_signal_while_the_job_is_being_stopped_does_not_leave_it_running(tmp_path: Path) -> None:
    world, _, prepared = ready(tmp_path / "first", phase_s=9e9)
    play(world, prepared)
    at = world.effects.index("StopPhase")
    world, here, prepared = ready(tmp_path / "second", phase_s=9e9)
    outcome = play(world, prepared, interrupt_at=at)
    assert here.running is None and len(here.collections) == 1
    assert isinstance(outcome.error, TpujobError) and outcome.exit_code in (124, 130)


def test_a_bug_in_us_stops_the_job_and_is_called_one(tmp_path: Path) -> None:
    world, here, prepared = ready(tmp_path, broken=ValueError("oops"))
    assert play(world, prepared).exit_code == 70
    assert here.running is None and here.closed


def test_results_for_which_there_is_no_room_stay_where_they_are_and_that_is_said(tmp_path: Path) -> None:
    world, here, prepared = ready(tmp_path, stays=(Problem(0, "artifacts/model", "no room for 80.0 GB"),))
    outcome = play(world, prepared)
    assert outcome.exit_code == 65 and here.left and not here.closed
    assert any("are in left: delete them" in line for line in world.told)

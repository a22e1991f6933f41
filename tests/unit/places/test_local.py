"""A job on this machine: its worker collects with the packer, and nothing is left running however it ends."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.errors import DeadlineExceeded, Interrupted, RemoteError, TpujobError
from orchestrator.hosts.fleet.crew import FleetStatus, StartRequest
from orchestrator.hosts.fleet.follow import WorkerState, WorkerStatus
from orchestrator.hosts.fleet.local import LocalCrew, ask_to_end, remove_leftovers
from orchestrator.hosts.transfer import collect
from orchestrator.hosts.transfer.collect import CollectionProgress, CollectRequest, CollectResult, Problem
from orchestrator.places.local.place import LocalStay
from orchestrator.places.place import STATES, Phase
from orchestrator.promise.lease.cloud_api import NO_CLOUD
from orchestrator.promise.lease.run_and_attempt import LOCAL, AttemptState
from orchestrator.run.job_run import JobRun
from orchestrator.run.program import run_job
from orchestrator.run.progress import Outcome
from tests.disk import calls_of_depth
from tests.simulation.model.bench import Bench, job
from tests.simulation.model.fleet import SimFacts


@pytest.fixture
def crew(tmp_path: Path) -> LocalCrew:
    """A worker whose attempt wrote two artifacts."""
    artifacts = tmp_path / "runs" / "a1" / "artifacts"
    artifacts.mkdir(parents=True)
    for name in ("one", "two"):
        (artifacts / name).write_text(name)
    return LocalCrew(tmp_path / "runs", "a1")


def collected_by(crew: LocalCrew, directory: Path) -> CollectResult:
    found = crew.collect(CollectRequest("", directory / "run", ())).wait(60.0).result
    assert found is not None
    return found


def test_the_artifacts_of_a_local_job_are_collected(crew: LocalCrew, tmp_path: Path) -> None:
    collected = collected_by(crew, tmp_path)
    assert [file.path for file in collected.files] == ["artifacts/one", "artifacts/two"]
    assert collected.problems == ()
    assert (tmp_path / "run" / "worker0" / "artifacts" / "two").read_text() == "two"


def test_a_collection_that_a_signal_ended_the_wait_for_is_gone_on_with(crew: LocalCrew, tmp_path: Path) -> None:
    """A second one would write the same files at the same time."""
    order = CollectRequest("", tmp_path / "run", ())
    first = crew.collect(order)
    assert crew.collect(order) is first
    assert first.wait(60.0).result is not None and crew.collect(order) is first


def test_only_a_phase_that_runs_is_asked_to_end(crew: LocalCrew) -> None:
    crew.start(StartRequest("a1", "main", "sleep 600", ({},)))
    crew.follow(lambda worker, data: None)
    assert crew.wait(60.0).workers[0].state is WorkerState.RUNNING, "the first look tells that at once"
    assert not crew.asked_to_end()
    ask_to_end(crew.runs, crew.attempt)
    assert crew.asked_to_end()
    crew.stop(0.0)
    assert not crew.asked_to_end(), "what has ended is judged by its end"
    with pytest.raises(RemoteError, match="was stopped"):
        crew.start(StartRequest("a1", "main", "sleep 600", ({},)))


def test_more_files_than_an_index_may_list_wait_with_the_reason(
    crew: LocalCrew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.hosts.transfer.collector.INDEX_BYTES", 100)
    collected = collected_by(crew, tmp_path)
    [waiting] = collected.waiting
    assert (waiting.path, collected.files) == (collect.EVERYTHING, ())
    assert "one archive" in waiting.why


@pytest.mark.parametrize("left", [False, True])
def test_a_tree_of_any_depth_that_a_job_made_is_removed(crew: LocalCrew, tmp_path: Path, left: bool) -> None:
    (crew.runs / "a1" / "work" / "/".join("d" * 100)).mkdir(parents=True)
    with calls_of_depth(60):
        remove_leftovers(crew.runs, lambda attempt: False) if left else crew.close()
    assert list(crew.runs.iterdir()) == []


def test_a_packer_that_ends_early_is_the_reason(
    crew: LocalCrew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.hosts.fleet.local.AGENT", ("true",))
    [waiting] = collected_by(crew, tmp_path).waiting
    assert waiting.why


@dataclass
class Here:
    """Phases run for `phase_s`; `running` is what ps would show."""

    world: Bench
    phase_s: float = 5.0
    stays: tuple[Problem, ...] = ()  # of the results, what cannot be collected
    broken: Exception | None = None  # what a collection raises
    running: str | None = None
    ends_at: float = 0.0
    collections: int = 0
    left: bool = False
    closed: bool = False
    workers: tuple[object, ...] = ()

    def facts(self, worker: int) -> Any:
        return SimFacts()

    def start(self, request: StartRequest) -> None:
        self.running, self.ends_at = request.phase, self.world.time + self.phase_s

    def follow(self, sink: object, metrics: object) -> None:
        """What it writes is not looked at."""

    def wait(self, timeout_s: float) -> FleetStatus:
        self.world.time = min(self.world.time + timeout_s, max(self.ends_at, self.world.time))
        if self.world.time < self.ends_at:
            return FleetStatus((WorkerStatus(0, WorkerState.RUNNING, self.world.time, 0),))
        self.running = None
        return FleetStatus((WorkerStatus(0, WorkerState.EXITED, self.ends_at, 0, rc=0),))

    def stop(self, grace_s: float) -> None:
        self.running = None

    def collect(self, order: CollectRequest) -> Any:
        assert self.running is None, "what still writes is not collected"
        if self.broken is not None:
            raise self.broken
        self.collections += 1
        return Mock(wait=lambda timeout_s: CollectionProgress(CollectResult(waiting=self.stays)))

    def cancel(self) -> None:
        """No connection ends."""

    def asked_to_end(self) -> bool:
        return False

    def leave(self) -> Path:
        self.left = True
        return Path("left")

    def close(self) -> None:
        self.closed = True


def ready(*phases: str, **here: Any) -> tuple[Bench, Here, JobRun]:
    world = Bench()
    crew = Here(world, **here)
    plain = job(world)

    def request(phase: str) -> Callable[..., StartRequest]:
        return lambda *_: StartRequest("a", phase, "", ({},))

    made = tuple(Phase(name, STATES[name], request(name)) for name in phases or ("main",))
    stay = LocalStay(crew, plain.collect_request(plain.attempt))  # type: ignore[arg-type]
    run = replace(plain.run, cloud=LOCAL)
    return world, crew, replace(plain, run=run, stay=stay, phases=made, max_duration_s=3600.0)


def play(world: Bench, prepared: JobRun, **how: Any) -> Outcome:
    return world.drive(run_job(prepared, NO_CLOUD), **how)


def test_the_time_limit_stops_the_job_early_enough_to_save_what_it_made() -> None:
    world, here, prepared = ready(phase_s=9e9)
    began = world.time
    outcome = play(world, prepared)
    assert isinstance(outcome.error, DeadlineExceeded) and outcome.exit_code == 124
    assert world.time - began == pytest.approx(3600 - 60, abs=3)
    assert (here.running, here.collections) == (None, 1)


def test_a_failed_collection_is_the_outcome_of_a_job_that_succeeded() -> None:
    world, here, prepared = ready(broken=RemoteError("the packer ended"))
    outcome = play(world, prepared)
    assert outcome.error is not None and outcome.error.message == "the packer ended"
    assert outcome.state is AttemptState.ERROR and here.closed


def test_an_interrupted_job_is_stopped_before_its_artifacts_are_saved_wherever_the_signal_comes() -> None:
    slow = ("StartPhase", "WaitForWorkers", "WaitForCollection")
    world, _, prepared = ready("setup", "main")
    play(world, prepared)
    steps = [number for number, name in enumerate(world.names, 1) if name in slow]
    assert len(steps) > 5
    for at in steps:
        world, here, prepared = ready("setup", "main")
        outcome = play(world, prepared, signalled_at=at)
        assert isinstance(outcome.error, Interrupted) and outcome.exit_code == 130
        assert (here.running, here.closed) == (None, True)
        assert world.attempt.state is AttemptState.INTERRUPTED


def test_a_signal_while_the_job_is_being_stopped_does_not_leave_it_running() -> None:
    world, here, prepared = ready(phase_s=9e9)
    outcome = play(world, prepared, signalled_at="StopPhase")
    assert here.running is None and here.collections == 1
    assert isinstance(outcome.error, TpujobError) and outcome.exit_code in (124, 130)


def test_a_bug_in_us_stops_the_job_and_is_called_one() -> None:
    world, here, prepared = ready(broken=ValueError("oops"))
    assert play(world, prepared).exit_code == 70
    assert here.running is None and here.closed


def test_results_for_which_there_is_no_room_stay_where_they_are_and_that_is_said() -> None:
    world, here, prepared = ready(stays=(Problem(0, "artifacts/model", "no room for 80.0 GB"),))
    outcome = play(world, prepared)
    assert outcome.exit_code == 65 and here.left and not here.closed
    assert any("are in left: delete them" in line for line in world.told)

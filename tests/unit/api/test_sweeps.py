"""Sweeps with runs that are pretended: who runs what and when, failures, capacity, signals, and what is run again."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from orchestrator import errors
from orchestrator.api.jobs import ending
from orchestrator.api.jobs.runs import RunOptions
from orchestrator.api.session import sweep_progress
from orchestrator.api.session.events import Event, Failure, Notice, RunResult, SweepResult
from orchestrator.api.session.reporter import Reporter
from orchestrator.api.session.session import Session
from orchestrator.api.sweeps import lanes
from orchestrator.api.sweeps.lanes import Board
from orchestrator.api.sweeps.sweeps import run_sweep
from orchestrator.job import sweep
from orchestrator.job.job_spec import JobSpec
from orchestrator.job.sweep import Sweep
from orchestrator.promise.lease.absence import Released
from orchestrator.promise.lease.changes import AttemptEnded, Began
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.promise.lease.run_spec import RunSpec
from orchestrator.promise.ledger.file import LedgerUnavailable
from orchestrator.run.job_run import Lane
from tests.waiting import HANG_S, until

Act = Callable[[str, Session], "errors.TpujobError | None"]


class World:
    """Runs end as `act` says: with None a success, else with the error. `runs` has the lane of each, in their order."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("HOME", "XDG_CONFIG_HOME", "CLOUDSDK_CONFIG", "TPUJOB_STATE_DIR"):
            monkeypatch.setenv(name, str(directory / name))
        monkeypatch.setenv("TPUJOB_CLOUD", "emulated")
        monkeypatch.chdir(directory)
        monkeypatch.setattr(lanes, "start_run", self._start)
        monkeypatch.setattr(lanes, "release_lane", lambda lane, capabilities: self.released.append(lane))
        self.directory = directory
        self.act: Act = lambda label, session: None
        self.before_begin: Callable[[Session], object] = lambda session: None
        self.runs: list[tuple[str, str]] = []
        self.goes_on: dict[str, bool] = {}
        self.released: list[Lane] = []
        self.keeps_results = True  # the slice of a run that ends with ArtifactError
        self.events: list[Event] = []
        self.at_once = self.most_at_once = self._count = 0
        self._lock = threading.Lock()

    def _start(self, session: Session, spec: JobSpec, path: Path, options: RunOptions) -> RunResult:
        assert options.sweep is not None and options.lane is not None
        label = options.sweep["variant"]
        with self._lock:
            self.runs.append((label, threading.current_thread().name))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            number = self._count = self._count + 1
        directory, asked = str(self.directory / f"r{number}"), RunSpec.of({"sweep": options.sweep})
        run = RunRecord(f"{number:010d}", str(spec.name), str(path), "emulated", 1.0, directory, asked)
        attempt = Attempt(f"{run.id}-1", run.id)
        self.before_begin(session)
        session.locks.lock(attempt.id)
        session.ledger.record(Began(run, attempt))
        error: errors.TpujobError | None = None
        try:
            error = self.act(label, session)
        finally:
            with self._lock:
                self.at_once -= 1
        state = {errors.PayloadFailed: AttemptState.FAILED, errors.Interrupted: AttemptState.INTERRUPTED}.get(
            type(error), AttemptState.ERROR
        )
        state = AttemptState.SUCCEEDED if error is None else state
        session.ledger.record(AttemptEnded.by(attempt.id, 2.0, state, error))
        if error is None:
            Path(run.directory, "worker0").mkdir(parents=True)
        if error is None or isinstance(error, errors.PayloadFailed):
            self.goes_on[label] = options.lane.reserve_next()
        code = error.exit_code if error is not None else 0
        released = not (self.keeps_results and isinstance(error, errors.ArtifactError))
        place = Path(run.directory)
        result = RunResult(run.id, run.name, str(state), code, place, 1.0, 2.0, released=released, error=error)
        session.reporter.emit(result)
        return result

    def sweep(self, text: str, *, again: bool = False) -> SweepResult:
        session = Session.open(reporter=Reporter(self.events.append))
        found = sweep.load(text, path=str(self.directory / "s.yaml"))
        assert isinstance(found, Sweep)
        try:
            return run_sweep(session, found, self.directory / "s.yaml", again=again)
        finally:
            session.close()

    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


SIX = "name: s\nparallel: 2\nmatrix: {n: [1, 2, 3, 4, 5, 6]}\ncommand: x ${params.n}\n"
ONE_LANE = SIX.replace("parallel: 2", "parallel: 1")


def labels(result: SweepResult, state: str) -> list[str]:
    return [each.variant for each in result.variants if each.state == state]


def test_one_lane_keeps_the_order_of_the_file_and_passes_its_slice_on_while_there_is_a_next_one(world: World) -> None:
    world.sweep(ONE_LANE)
    assert [label for label, _ in world.runs] == [f"n={number}" for number in range(1, 7)]
    assert list(world.goes_on.values()) == [True] * 5 + [False]


def test_more_slices_than_variants_are_not_asked_for(world: World) -> None:
    world.sweep(SIX.replace("parallel: 2", "parallel: 9"))
    assert len({lane for _, lane in world.runs}) <= 6
    assert "s: 6 variants, over 6 slices" in " ".join(world.notices())


@pytest.mark.parametrize("error", [
    errors.UserError("bad"), errors.AuthError("no permission"), errors.TeardownUnproven("who knows"),
    errors.TpujobError("a bug"),
])  # fmt: skip
def test_what_cannot_get_better_stops_the_sweep(error: errors.TpujobError, world: World) -> None:
    def act(label: str, session: Session) -> None:
        if label == "n=2":
            raise error

    world.act = act
    result = world.sweep(ONE_LANE)
    assert (result.exit_code, result.stopped) == (error.exit_code, True)
    assert labels(result, "succeeded") == ["n=1"] and labels(result, "queued") == ["n=3", "n=4", "n=5", "n=6"]


@pytest.mark.parametrize(("place", "plan", "said"), [
    ("", "over 2 slices", "there is no slice for it now"),
    ("on: gke\ngke: {image: 'i:1'}\n", "2 at a time", "the cluster has no room for it now"),
])  # fmt: skip
def test_without_capacity_for_another_variant_it_waits_for_the_end_of_one_that_runs(
    world: World, place: str, plan: str, said: str
) -> None:
    """Here the second lane never gets a slice."""
    first: list[str] = []

    def act(label: str, session: Session) -> errors.TpujobError | None:
        lane = threading.current_thread().name
        first[:] = first or [lane]
        if lane != first[0]:
            return errors.CapacityError("none in this zone")
        until(lambda: any(said in text for text in world.notices()), "the other lane's try")
        return None

    world.act = act
    result = world.sweep(place + SIX)
    assert result.exit_code == 0 and len(labels(result, "succeeded")) == 6
    assert f"s: 6 variants, {plan}, at most" in " ".join(world.notices())
    assert len(world.runs) == 7, "the one that had no slice was run again"


def test_the_last_lane_goes_on_to_the_next_variant_without_capacity(world: World) -> None:
    world.act = lambda label, session: errors.CapacityError("none") if label == "n=1" else None
    result = world.sweep(ONE_LANE)
    assert (result.exit_code, labels(result, "error")) == (69, ["n=1"])


def test_a_slice_that_is_kept_for_results_counts_as_one_of_the_sweep(world: World) -> None:
    """A disk that is full for one job is full for the next one, and each would leave a slice that is billed for an hour."""
    world.act = lambda label, session: errors.ArtifactError("no room for 30.0 MB")
    result = world.sweep(SIX)
    assert sorted(label for label, _ in world.runs) == ["n=1", "n=2"]
    assert (result.exit_code, result.stopped) == (65, True)
    assert len(labels(result, "queued")) == 4


def test_the_other_slices_go_on_beside_one_that_is_kept_for_results(world: World) -> None:
    world.act = lambda label, session: (
        errors.ArtifactError("larger than limits.max_results") if label == "n=1" else None
    )
    result = world.sweep(SIX)
    assert (result.exit_code, result.stopped, len(labels(result, "succeeded"))) == (65, False, 5)
    lane = dict(world.runs)["n=1"]
    assert [label for label, thread in world.runs if thread == lane] == ["n=1"]


def test_damaged_results_of_a_slice_that_is_released_stop_no_other_job(world: World) -> None:
    world.act = lambda label, session: errors.ArtifactError("differs from its hash") if label == "n=1" else None
    world.keeps_results = False
    result = world.sweep(ONE_LANE)
    assert (result.exit_code, result.stopped, len(labels(result, "succeeded"))) == (65, False, 5)


def test_what_succeeded_is_not_run_again_and_more_values_are_only_added(world: World) -> None:
    world.act = lambda label, session: errors.PayloadFailed("no", rc=7) if label == "n=2" else None
    world.sweep(ONE_LANE)
    world.act, world.runs = lambda label, session: None, []
    result = world.sweep(ONE_LANE.replace("5, 6]", "5, 6, 7]"))
    assert [label for label, _ in world.runs] == ["n=2", "n=7"]
    assert [each.done_before for each in result.variants] == [True, False, True, True, True, True, False]
    assert all(each.result is not None for each in result.variants) and result.exit_code == 0
    world.runs.clear()
    world.sweep(ONE_LANE, again=True)
    assert len(world.runs) == 6


def test_another_command_another_code_or_lost_files_are_other_work(world: World) -> None:
    (world.directory / "code").mkdir()
    (world.directory / "code" / "a.py").write_text("1")
    text = ONE_LANE.replace("[1, 2, 3, 4, 5, 6]", "[1]") + "code: code\n"
    world.sweep(text)
    (world.directory / "code" / "a.py").write_text("2")
    world.sweep(text)
    (world.directory / "r2" / "worker0").rmdir()
    world.sweep(text)
    world.sweep(text.replace("command: x", "command: y"))
    assert len(world.runs) == 4
    world.sweep(text.replace("name: s", "name: renamed"))
    assert len(world.runs) == 4, "a name is no work"


def test_a_signal_reaches_every_lane_and_no_other_variant_begins(world: World) -> None:
    heard: list[tuple[int, bool]] = []
    both_listen = threading.Barrier(2)

    def act(label: str, session: Session) -> errors.TpujobError:
        stopped = threading.Event()

        def interrupt(number: int = 2, by: str = "", *, told: bool = False) -> None:
            heard.append((number, told))
            stopped.set()

        session.interrupt = interrupt  # type: ignore[method-assign]
        both_listen.wait(HANG_S)
        if label == "n=2":
            os.kill(os.getpid(), signal.SIGTERM)
        assert stopped.wait(HANG_S)
        return errors.Interrupted(signal.SIGTERM)

    world.act = act
    before = signal.getsignal(signal.SIGTERM)
    result = world.sweep(SIX)
    assert heard == [(signal.SIGTERM, True)] * 2
    assert (result.exit_code, result.stopped) == (143, True) and isinstance(result.error, errors.Interrupted)
    assert len(labels(result, "interrupted")) == 2 and len(labels(result, "queued")) == 4
    assert signal.getsignal(signal.SIGTERM) is before
    told = [text for text in world.notices() if "SIGTERM" in text]
    assert told == ["SIGTERM: stopping 2 runs and deleting every slice"]


def cancel(session: Session) -> None:
    """As another process does, in the ledger."""
    (found,) = sweep_progress.living(session)
    session.ledger.cancel_sweep(found.sweep, 1.0)


def test_a_canceled_sweep_begins_no_other_variant_and_keeps_what_is_done(world: World) -> None:
    world.act = lambda label, session: cancel(session) if label == "n=2" else None
    result = world.sweep(ONE_LANE)
    assert labels(result, "succeeded") == ["n=1", "n=2"]
    assert labels(result, "queued") == ["n=3", "n=4", "n=5", "n=6"]
    assert (result.exit_code, result.stopped) == (71, True) and isinstance(result.error, errors.Canceled)
    assert world.notices().count("canceled by `tpujob cancel`: no other run begins") == 1
    assert world.goes_on["n=2"] is True, "its slice was reserved for the next one"


def test_a_sweep_that_is_canceled_while_a_variant_begins_does_not_begin_it(world: World) -> None:
    world.before_begin = lambda session: cancel(session) if len(world.runs) == 2 else None
    result = world.sweep(ONE_LANE)
    assert labels(result, "succeeded") == ["n=1"] and len(labels(result, "queued")) == 5
    assert (result.exit_code, result.stopped) == (71, True)


def test_a_sweep_that_is_done_when_it_is_canceled_is_a_success(world: World) -> None:
    world.act = lambda label, session: cancel(session) if label == "n=6" else None
    result = world.sweep(ONE_LANE)
    assert (result.exit_code, result.stopped, result.error) == (0, False, None)


def test_a_name_of_a_sweep_and_of_a_run_that_go_on_ends_neither(world: World) -> None:
    def act(label: str, session: Session) -> None:
        run = RunRecord("abcdefghij", "s", "j.yaml", "emulated", 1.0, str(world.directory))
        session.locks.lock("abcdefghij-1")
        session.ledger.record(Began(run, Attempt("abcdefghij-1", run.id)))
        other = Session.open()
        with pytest.raises(errors.UserError, match=r"several go on that are named 's': sweep .*, run abcdefghij"):
            ending.cancel(other, "s")
        other.close()

    world.act = act
    result = world.sweep(ONE_LANE.replace("[1, 2, 3, 4, 5, 6]", "[1]"))
    assert result.exit_code == 0


def test_a_bug_in_a_lane_ends_the_sweep_and_is_raised(world: World) -> None:
    def act(label: str, session: Session) -> None:
        raise ZeroDivisionError(label)

    world.act = act
    with pytest.raises(ZeroDivisionError):
        world.sweep(SIX)
    assert len(world.runs) <= 2


def test_what_keeps_a_lane_from_its_session_is_told_and_stops_the_sweep(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(session: Session, reporter: Reporter) -> Session:
        raise LedgerUnavailable("the ledger cannot be used: disk full")

    monkeypatch.setattr(Session, "beside", refuse)
    result = world.sweep(ONE_LANE)
    told = [event.message for event in world.events if isinstance(event, Failure)]
    assert told == ["the ledger cannot be used: disk full"]
    assert (result.exit_code, result.stopped, str(result.error)) == (70, True, told[0])


def test_a_slice_that_an_earlier_command_left_unproven_counts_though_nothing_is_left_to_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.sweep(ONE_LANE).exit_code == 0
    lease = cast(Released, object())
    monkeypatch.setattr(Session, "recover", lambda session, **_: session.unproven.update({"lease": lease}))
    assert world.sweep(ONE_LANE).exit_code == errors.TeardownUnproven.exit_code and len(world.runs) == 6


MIXED = "name: m\nparallel: 2\ncommand: x\ntpu: {zone: us-central1-a}\n"
MIXED += "variants:\n  a:\n  here: {on: local}\n  there: {on: local}\n"


def test_a_variant_that_waits_for_the_slice_of_another_one_counts_as_queued() -> None:
    """It is taken while the one before still releases its results; two slices run two jobs."""
    found = sweep.load(SIX, path="s.yaml")
    assert isinstance(found, Sweep)
    board = Board(found.variants, {}, lanes=2)
    for _ in range(3):
        board.take()
    assert board.counts == "0 of 6 done, 2 running, 4 queued"


def test_the_counts_say_how_far_a_sweep_is() -> None:
    states = ["succeeded", "failed", "error", "interrupted", "running", "setup", "pending", "queued"]
    assert sweep_progress.counts_of(states) == "3 of 8 done (2 failed), 1 interrupted, 3 running, 1 queued"
    assert sweep_progress.counts_of(["succeeded", "succeeded"]) == "2 of 2 done"


def test_jobs_on_this_machine_run_one_at_a_time_beside_a_slice(world: World) -> None:
    local: list[str] = []

    def act(label: str, session: Session) -> None:
        if label != "a":
            local.append(label)
            assert len(local) == 1
            local.remove(label)

    world.act = act
    result = world.sweep(MIXED)
    assert result.exit_code == 0 and len(world.runs) == 3
    assert world.goes_on["a"] is False, "the slice of `a` is of no use to the others"


def test_a_lane_rather_takes_what_its_slice_can_run(world: World) -> None:
    text = "name: t\nmatrix: {type: [v5e-8, v6e-8], n: [1, 2]}\ntpu: {accelerator: '${params.type}', zone: us-east5}\n"
    world.sweep(text + "command: x ${params.n}\n")
    assert [label for label, _ in world.runs] == [
        "type=v5e-8 n=1", "type=v5e-8 n=2", "type=v6e-8 n=1", "type=v6e-8 n=2",
    ]  # fmt: skip
    world.runs.clear()
    again = text.replace("type: [v5e-8, v6e-8], n: [1, 2]", "n: [3, 4], type: [v5e-8, v6e-8]")
    world.sweep(again + "command: x ${params.n}\n")
    assert [label.split()[1] for label, _ in world.runs] == ["type=v5e-8", "type=v5e-8", "type=v6e-8", "type=v6e-8"]

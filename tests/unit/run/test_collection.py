"""Runs that outlive their command: `attach` to their end, results that take long or stay behind, `tpujob collect`."""

import itertools
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.errors import (
    ArtifactError,
    CloudUnavailable,
    PayloadFailed,
    Preempted,
    TpujobError,
    Unreachable,
    Vanished,
)
from orchestrator.hosts.transfer.collect import CollectionProgress, CollectResult, Problem
from orchestrator.places.place import End, Standing
from orchestrator.promise.effects.base import StoodStill
from orchestrator.promise.effects.cloud import GetGuestAttributes
from orchestrator.promise.lease.changes import (
    AttemptEnded,
    Began,
    CreateSent,
    Detached,
    Intent,
    Leased,
    Ready,
    ReleaseBegan,
)
from orchestrator.promise.lease.lease import CANCEL, Lease, LeaseState, Mode, Purpose
from orchestrator.promise.lease.periods import emulated
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, has_uncollected_results
from orchestrator.promise.recover import close_attempts, recover
from orchestrator.run.collection import UncollectedRun, collect_again, end_of, progress_text
from orchestrator.run.job_run import JobRun
from orchestrator.run.monitor import ChipWatch
from orchestrator.run.program import run_job
from orchestrator.run.progress import Outcome
from orchestrator.run.up_and_down import down, extend
from tests.fakes.leases import lease_and_request
from tests.simulation.model.bench import CAN, Bench, Crash, asking, attachment, held, job
from tests.simulation.model.cloud_client import CloudClient
from tests.simulation.model.faults import CallOutcome
from tests.simulation.model.fleet import SimCollection, SimFleet
from tests.simulation.model.process import Process

QUICK = replace(CAN, timings=emulated())
LINGER_S, TTL_S = emulated().linger_s, emulated().ttl_s


def run(world: Bench, prepared: JobRun | None = None, **how: Any) -> Outcome:
    return world.drive(run_job(prepared or job(world), QUICK), **how)


def left(world: Bench, *, borrowed: bool = False) -> UncollectedRun:
    ((found, attempt),) = world.ledger.runs()
    assert attempt.lease_id is not None
    order = job(world).collect_request(attempt)
    return UncollectedRun(found, attempt, world.ledger.lease(attempt.lease_id), order, borrowed)


def collect(world: Bench, **how: Any) -> Outcome:
    return world.drive(collect_again(left(world), QUICK), **how)


def lease_of(world: Bench) -> Lease:
    (lease,) = world.ledger.leases()
    return lease


def short(world: Bench, seconds: float) -> JobRun:
    """Return a job whose slice ends so soon."""
    (draft,) = job(world).stay.drafts
    return asking(job(world), draft._replace(lease=replace(draft.lease, deadline=world.time + seconds)))


def while_collecting(act: Callable[[Bench], Any]) -> Callable[[Bench], None]:
    done: list[bool] = []

    def between(world: Bench) -> None:
        if world.last == "StartCollection" and not done:
            done.append(True)
            act(world)

    return between


# -- results that take long --


def test_results_that_take_hours_are_waited_for_and_the_label_is_renewed_meanwhile(world: Bench) -> None:
    world.collect_s = 900.0
    outcome = run(world)
    assert outcome.exit_code == 0 and outcome.spans["collect"] >= 900
    assert world.count("SetLabels") >= 900 / (2 * QUICK.timings.renew_s)
    assert world.nodes == {}


def test_the_deadline_ends_the_collecting_and_the_slice(world: Bench) -> None:
    world.collect_s, began = 1e6, world.time
    outcome = run(world, short(world, 600))
    assert outcome.exit_code == 65 and "the end of the slice's time" in str(outcome.error)
    assert "StopCollection" in world.names and world.nodes == {} and world.time <= began + 660


def test_an_extension_gives_the_collecting_more_time(world: Bench) -> None:
    world.collect_s = 1000.0
    longer = while_collecting(lambda world: world.drive(extend(lease_of(world), 3600, QUICK)))
    assert run(world, short(world, 600), between=longer).exit_code == 0


@pytest.mark.parametrize(("act", "error"), [
    (lambda world: world.ledger.record(ReleaseBegan(lease_of(world).id, world.time, "tpujob down")), Vanished),
    (Bench.preempt, Preempted),
])  # fmt: skip
def test_a_slice_that_goes_meanwhile_ends_the_collecting_and_is_not_held(
    world: Bench, act: Callable[[Bench], Any], error: type[Exception]
) -> None:
    world.collect_s = 1e6
    outcome = run(world, between=while_collecting(act))
    assert isinstance(outcome.error, error) and world.nodes == {}


def test_progress_is_said_in_passing(world: Bench) -> None:
    assert progress_text(CollectionProgress(hashed_bytes=3_000_000_000), 5.0) == "reading the results: 3.0 GB so far"
    words = progress_text(CollectionProgress(None, 1203, 12000, 3_200_000_000, 41_000_000_000), 40.0)
    assert words == "1,203 of 12,000 files, 3.2 GB of 41.0 GB, 80.0 MB/s"


# -- results that stay behind --


def test_a_slice_with_results_on_it_is_held_as_long_as_they_may_wait(world: Bench) -> None:
    world.no_room_until = math.inf
    outcome = run(world)
    assert (outcome.exit_code, outcome.state) == (65, AttemptState.FAILED)
    lease = lease_of(world)
    assert (lease.state, lease.mode, lease.purpose) == (LeaseState.READY, Mode.HOLD, Purpose.HOLD)
    assert lease.hold_until == outcome.kept_until == pytest.approx(world.time + LINGER_S, abs=5)
    (node,) = world.nodes.values()
    assert node.spec["labels"]["tpujob-mode"] == "hold"
    assert node.spec["labels"]["tpujob-claimed-until"] == str(int(lease.hold_until or 0))
    assert has_uncollected_results(left(world).attempt, lease) and lease.id not in world.locked


def test_the_hold_is_as_long_as_the_job_says_and_never_past_the_deadline(world: Bench) -> None:
    world.no_room_until = math.inf
    run(world, replace(job(world), linger_s=7200.0))
    assert lease_of(world).hold_until == pytest.approx(world.time + 7200, abs=5)
    other = Bench()
    other.no_room_until, ends_at = math.inf, other.time + 1000
    run(other, replace(short(other, 1000), linger_s=7200.0))
    assert lease_of(other).hold_until == ends_at


def test_where_it_cannot_be_held_it_goes_and_that_is_said(world: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> Any:
        raise CloudUnavailable("503")

    world.no_room_until = math.inf
    monkeypatch.setattr(CloudClient, "set_labels", away)
    outcome = run(world)
    assert outcome.exit_code == 65 and world.nodes == {}
    assert any("cannot be held" in line for line in world.told)


def test_what_was_refused_for_good_holds_nothing(world: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = CollectionProgress(CollectResult(refused=(Problem(0, "artifacts/etc", "a symbolic link"),)))
    monkeypatch.setattr(SimCollection, "advance", lambda _, process, token, __: process.answered(token, refused, None))
    outcome = run(world)
    assert outcome.exit_code == 65 and world.nodes == {}


def test_what_attach_cannot_collect_is_held_like_the_results_of_a_run(world: Bench) -> None:
    to = detached(world)
    world.no_room_until = math.inf
    outcome = world.drive(run_job(to, QUICK))
    assert (outcome.exit_code, outcome.detached) == (65, False)
    lease = lease_of(world)
    assert (lease.mode, lease.detached_at) == (Mode.HOLD, None)
    assert any(getattr(each, "everywhere", False) for each in world.effects), (
        "while it collects, the watchdogs on all workers get heartbeats"
    )
    world.no_room_until = 0.0
    assert collect(world).exit_code == 0 and world.nodes == {}


# -- tpujob collect --


def left_behind(world: Bench) -> Lease:
    world.no_room_until = math.inf
    run(world)
    world.no_room_until = 0.0
    return lease_of(world)


def in_vain(world: Bench, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    world.no_room_until = math.inf
    return {}


def unreachable(world: Bench, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    error = Unreachable("worker0 could not be reached")
    answer = lambda process, effect, token, _: process.answer_later(0.0, token, None, error)  # noqa: E731
    monkeypatch.setattr(SimFleet, "_try_connect", answer)
    return {}


def interrupted(world: Bench, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    world.collect_s = 100.0
    return {"signalled_at": "WaitForCollection"}


@pytest.mark.parametrize(("spoil", "code", "said"), [
    (in_vain, 65, ""), (unreachable, 65, "could not be reached"), (interrupted, 130, ""),
])  # fmt: skip
def test_what_fails_changes_nothing_and_makes_no_hold_longer(
    world: Bench, monkeypatch: pytest.MonkeyPatch, spoil: Callable[..., dict[str, Any]], code: int, said: str
) -> None:
    held = left_behind(world)
    outcome = collect(world, **spoil(world, monkeypatch))
    assert outcome.exit_code == code and said in str(outcome.error)
    assert outcome.kept_until == held.hold_until and lease_of(world) == held
    assert held.id not in world.locked and len(world.nodes) == 1


def test_while_results_come_the_hold_lasts_and_the_deadline_is_its_end(world: Bench) -> None:
    left_behind(world)
    world.collect_s = 5 * LINGER_S
    outcome = collect(world)
    assert outcome.exit_code == 0 and outcome.took_s is not None and outcome.took_s >= sum(outcome.spans.values())
    lease = lease_of(world)
    assert lease.hold_until is not None and lease.down_at is not None
    assert lease.down_at < lease.hold_until <= lease.down_at + TTL_S


def test_no_hold_is_made_longer_for_what_comes_no_more(world: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    held = left_behind(world)

    def stalled(self: SimCollection, process: Process, token: int, deadline: float) -> None:
        world.timeline.at(deadline, process.answered, token, CollectionProgress(total_files=1), None)

    monkeypatch.setattr(SimCollection, "advance", stalled)
    outcome = collect(world)
    assert outcome.exit_code == 65 and world.nodes == {}
    assert lease_of(world).hold_until == held.hold_until
    assert "the time for its results is over" in lease_of(world).reason


def test_a_slice_that_is_gone_is_said_to_be_and_its_absence_proven(world: Bench) -> None:
    left_behind(world)
    world.vanish()
    outcome = collect(world)
    assert outcome.exit_code == 65 and "are lost" in str(outcome.error)
    assert not lease_of(world).open


def test_the_slice_of_up_stays(world: Bench) -> None:
    world.no_room_until = math.inf
    outcome = run(world, job(world, held=held(world, 9)))
    assert outcome.exit_code == 65 and len(world.nodes) == 1
    world.no_room_until = 0.0
    again = world.drive(collect_again(left(world, borrowed=True), QUICK))
    assert (again.exit_code, len(world.nodes)) == (0, 1)
    assert left(world).attempt.state is AttemptState.SUCCEEDED


def detached(world: Bench) -> JobRun:
    world.ran(job(world, detach=True))
    return attachment(world)


@pytest.fixture
def to(world: Bench) -> JobRun:
    return detached(world)


def lease_to(to: JobRun) -> Lease:
    assert to.attached_to is not None
    return to.attached_to


def test_workers_that_cannot_be_reached_from_here_are_no_reason_to_end_the_job(world: Bench) -> None:
    world.lasts_s = 1e6
    to = detached(world)

    def silence(world: Bench) -> None:
        if world.last == "FollowPhase":
            world.cut_off("laptop-vm")

    outcome = world.ran(to, between=silence)
    assert outcome.detached and outcome.exit_code == 71
    assert world.ledger.lease(lease_to(to).id).state is LeaseState.READY


def test_a_slice_that_its_watchdog_deleted_is_settled_by_the_next_command_that_looks(world: Bench, to: JobRun) -> None:
    world.vanish()
    assert world.drive(recover("emulated", CAN, budget_s=600)) == []  # without a question to the cloud it is unknown
    (released,) = world.drive(recover("emulated", CAN, budget_s=600, look=True))
    assert released.gone
    world.drive(close_attempts())
    assert world.attempt.state is AttemptState.INTERRUPTED
    assert "results were not collected here" in world.attempt.detail
    assert not world.ledger.lease(lease_to(to).id).open


@pytest.mark.parametrize("step", range(2))
@pytest.mark.parametrize("ends", [False, True])
def test_recovery_ends_no_attempt_that_its_process_ends_or_leaves_to_the_job_meanwhile(
    world: Bench, step: int, ends: bool
) -> None:
    """Of one that it finds detached it never takes the lock either: an `attach` would read along, and then show all again."""
    made = job(world)
    (lease, _), locked = made.stay.drafts[0], made.attempt.id
    start = (Intent(lease), CreateSent(lease.id, 1.0), Ready(lease.id, 2.0), Began(made.run, made.attempt))
    world.ledger.record(*start, Leased(locked, 2.0, lease.id))
    world.laptop.locks[locked] = Mock()  # another process
    effects = itertools.count()

    def detach(world: Bench) -> None:
        if next(effects) == step:
            end = AttemptEnded.by(locked, 3.0, AttemptState.SUCCEEDED, None)
            world.ledger.record(end if ends else Detached(lease.id, 3.0))
            del world.laptop.locks[locked]

    world.drive(close_attempts(), between=detach)
    assert world.attempt.state is (AttemptState.SUCCEEDED if ends else made.attempt.state)
    assert ("Lock" in world.names) == (ends or step > 0) and "Record" not in world.names


def test_a_detached_slice_that_was_preempted_is_released_by_attach(world: Bench) -> None:
    detached(world)
    world.preempt()
    (released,) = world.drive(recover("emulated", CAN, budget_s=600, look=True))
    assert released.gone and world.nodes == {}


def test_attaching_to_what_is_gone_proves_that_and_says_so(world: Bench, to: JobRun) -> None:
    world.vanish()
    outcome = world.ran(to)
    assert outcome.exit_code == 71 and not outcome.detached
    assert world.ledger.open_leases() == []


def test_attaching_to_a_slice_that_its_watchdog_deletes_does_not_report_that_the_job_goes_on(
    world: Bench, monkeypatch: pytest.MonkeyPatch, to: JobRun
) -> None:
    (node,) = world.nodes.values()
    world.cloud.delete(node.name, CallOutcome(), "watchdog", None)
    monkeypatch.setattr(StoodStill, "perform", lambda *_: (5400.0, "this machine slept"))
    outcome = world.ran(to)
    assert outcome.exit_code == 71 and not outcome.detached and outcome.error is not None
    assert outcome.error.message.endswith("is gone: this machine slept, and its time may have ended meanwhile")
    assert world.ledger.open_leases() == []


def test_cancel_ends_the_run_in_the_ledger_before_it_deletes_and_what_follows_it_ends_too(world: Bench) -> None:
    world.lasts_s = 1e6
    to = detached(world)
    began, canceled_at = world.time, 0.0

    def cancel(world: Bench) -> None:
        nonlocal canceled_at
        if not canceled_at and world.time > began + 60:
            canceled_at = world.time
            _crashed_after_recording(world, to)

    outcome = world.ran(to, between=cancel)
    assert (outcome.state, outcome.exit_code) == (AttemptState.CANCELED, 71)
    attempt = world.attempt
    assert (attempt.state, attempt.exit_code) == (AttemptState.CANCELED, 71)
    assert attempt.detail == outcome.error.message == "canceled by `tpujob cancel`"
    assert attempt.ended_at == pytest.approx(canceled_at, abs=2) and outcome.ended_at - canceled_at < 60
    assert world.nodes == {}


def _crashed_after_recording(world: Bench, to: JobRun) -> None:
    """A `cancel` that is killed right after it has written to the ledger."""
    for step in range(1, 20):
        if world.attempt.state.ended:
            return
        with pytest.raises(Crash):
            world.drive(down((lease_to(to),), CAN, reason=CANCEL), killed_at=step)


def test_a_slice_that_goes_while_attach_connects_ends_the_run_as_canceled(world: Bench, to: JobRun) -> None:
    world.drive(down((lease_to(to),), CAN, reason=CANCEL))
    outcome = world.ran(to)
    assert (outcome.state, outcome.exit_code, outcome.detached) == (AttemptState.CANCELED, 71, False)
    assert world.attempt.state is AttemptState.CANCELED


@pytest.mark.ci
@pytest.mark.parametrize(
    ("ticks", "asked"),
    [
        ([29, 31, 89, 92, 149, 152], [31, 92, 152]),
        ([1510, 1531, 1600, 3029, 3031, 4500, 4531], [1510, 1531, 3031, 4531]),
        ([4000, 4010, 4100, 4531], [4000, 4531]),
    ],
    ids=["as the job begins", "after a late answer too", "as one attaches late"],
)
def test_the_workers_are_asked_soon_once_a_minute_and_later_seldom(ticks: list[int], asked: list[int]) -> None:
    lease, found = lease_and_request().lease, []
    watch = ChipWatch(lease, Standing(lease, 0.0, End(0.0), 0.0), "a-1", 300.0, 0.0)
    for now in ticks:
        (tick := watch.tick()).send(None)
        with suppress(StopIteration):
            assert isinstance(tick.send(float(now)), GetGuestAttributes)
            found.append(now)
            tick.close()
    assert found == asked


@pytest.mark.parametrize(("error", "lost", "state", "code"), [
    (None, False, AttemptState.SUCCEEDED, 0), (ArtifactError("not all"), False, AttemptState.SUCCEEDED, 0),
    (ArtifactError("not all"), True, AttemptState.FAILED, 65), (PayloadFailed("it failed", rc=7), True, AttemptState.FAILED, 7),
])  # fmt: skip
def test_a_run_whose_results_came_from_a_bucket_has_its_own_end(
    error: TpujobError | None, lost: bool, state: AttemptState, code: int
) -> None:
    before = AttemptEnded.by("r1-1", 1.0, AttemptState.SUCCEEDED if error is None else AttemptState.FAILED, error)
    attempt = Attempt("r1-1", "r1", state=before.state, exit_code=code, error=before.error, detail=before.detail)
    came = CollectResult(refused=(Problem(0, "artifacts/x", "it did not reach the bucket"),) * lost)
    found = end_of(attempt, came, 2.0)
    assert (found.state, found.exit_code) == (state, code)

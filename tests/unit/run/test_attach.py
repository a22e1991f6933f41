"""`attach`: follows a detached job to its end, collects its artifacts, releases its slice; leaving changes nothing."""

import itertools
from contextlib import suppress
from unittest.mock import Mock

import pytest

from orchestrator.core.lease.lease import CANCEL, Detached, Intent, Lease, LeaseState, Ready, Sent
from orchestrator.core.lease.run_and_attempt import AttemptEnded, AttemptState, Began, Leased
from orchestrator.engine.effects.base import StoodStill
from orchestrator.engine.effects.cloud import GetGuestAttributes
from orchestrator.engine.leases.recover import close_attempts, recover
from orchestrator.engine.slices.up_and_down import down
from orchestrator.places.place import End, Standing
from orchestrator.run.job_run import JobRun
from orchestrator.run.monitor import ChipWatch
from tests.leases import lease_and_request
from tests.simulation.model.bench import CAN, Bench, Crash, attachment, job
from tests.simulation.model.faults import CallOutcome


def detached(world: Bench) -> JobRun:
    world.ran(job(world, detach=True))
    return attachment(world)


@pytest.fixture
def to(world: Bench) -> JobRun:
    return detached(world)


def lease_of(to: JobRun) -> Lease:
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
    assert world.ledger.lease(lease_of(to).id).state is LeaseState.READY


def test_a_slice_that_its_watchdog_deleted_is_settled_by_the_next_command_that_looks(world: Bench, to: JobRun) -> None:
    world.vanish()
    assert world.drive(recover("emulated", CAN, budget_s=600)) == []  # without a question to the cloud it is unknown
    (released,) = world.drive(recover("emulated", CAN, budget_s=600, look=True))
    assert released.gone
    world.drive(close_attempts())
    assert world.attempt.state is AttemptState.INTERRUPTED
    assert "artifacts" in world.attempt.detail
    assert not world.ledger.lease(lease_of(to).id).open


@pytest.mark.parametrize("step", range(2))
@pytest.mark.parametrize("ends", [False, True])
def test_recovery_ends_no_attempt_that_its_process_ends_or_leaves_to_the_job_meanwhile(
    world: Bench, step: int, ends: bool
) -> None:
    """Of one that it finds detached it never takes the lock either: an `attach` would read along, and then show all again."""
    made = job(world)
    (lease, _), locked = made.stay.drafts[0], made.attempt.id
    start = (Intent(lease), Sent(lease.id, 1.0), Ready(lease.id, 2.0), Began(made.run, made.attempt))
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
            world.drive(down((lease_of(to),), CAN, reason=CANCEL), killed_at=step)


def test_a_slice_that_goes_while_attach_connects_ends_the_run_as_canceled(world: Bench, to: JobRun) -> None:
    world.drive(down((lease_of(to),), CAN, reason=CANCEL))
    outcome = world.ran(to)
    assert (outcome.state, outcome.exit_code, outcome.detached) == (AttemptState.CANCELED, 71, False)
    assert world.attempt.state is AttemptState.CANCELED


@pytest.mark.ci
@pytest.mark.parametrize(
    ("ticks", "asked"),
    [([29, 31, 89, 92, 149, 152], [31, 92, 152]), ([4000, 4010, 4100], [4000])],
    ids=["as the job begins", "as one attaches late"],
)
def test_the_workers_are_asked_soon_once_a_minute_and_once_after_an_attach(ticks: list[int], asked: list[int]) -> None:
    lease, found = lease_and_request().lease, []
    watch = ChipWatch(lease, Standing(lease, 0.0, End(0.0), 0.0), "a-1", 300.0, 0.0)
    for now in ticks:
        (tick := watch.tick()).send(None)
        with suppress(StopIteration):
            assert isinstance(tick.send(float(now)), GetGuestAttributes)
            found.append(now)
            tick.close()
    assert found == asked

"""`attach`: follows a detached job to its end, collects its artifacts, releases its slice; leaving changes nothing."""

import itertools
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.lease.lease import CANCEL, Detached, Intent, Lease, LeaseState, Ready, Sent
from orchestrator.core.lease.run_and_attempt import AttemptEnded, AttemptState, Began, Leased
from orchestrator.engine.effects.base import StoodStill
from orchestrator.engine.effects.cloud import GetGuestAttributes
from orchestrator.engine.leases.recover import close_attempts, recover
from orchestrator.engine.slices.up_and_down import down
from orchestrator.places.place import End, Standing
from orchestrator.run.chips import ChipWatch
from orchestrator.run.job_run import JobRun
from orchestrator.run.program import run_job
from tests.unit.engine.virtual import CAN, Crash, VirtualWorld, attachment, attempt_of, job, lease_and_request


def detached(world: VirtualWorld) -> JobRun:
    world.drive(run_job(job(world, detach=True), CAN))
    return attachment(world)


def lease_of(to: JobRun) -> Lease:
    assert to.attached_to is not None
    return to.attached_to


def test_attaching_ends_like_an_attached_run(world: VirtualWorld) -> None:
    outcome = world.drive(run_job(detached(world), CAN))
    assert (outcome.exit_code, outcome.detached) == (0, False)
    assert attempt_of(world).state is AttemptState.SUCCEEDED
    assert world.cloud.nodes == {} and world.ledger.open_leases() == []


def test_the_code_of_a_failed_job_is_returned_and_the_slice_is_released(world: VirtualWorld) -> None:
    to = detached(world)
    world.fleet.rc = 7
    outcome = world.drive(run_job(to, CAN))
    assert outcome.exit_code == 7
    assert (attempt_of(world).rc, attempt_of(world).exit_code) == (7, 7)
    assert world.cloud.nodes == {}


def test_a_signal_while_the_job_runs_leaves_everything_as_it_was(world: VirtualWorld) -> None:
    to = detached(world)
    world.fleet.ends_at = world.time + 3600
    before = len(world.effects)
    outcome = world.drive(run_job(to, CAN), interrupt_at=12)
    assert outcome.detached and outcome.exit_code == 130
    assert "Delete" not in world.effects[before:]
    assert world.ledger.lease(lease_of(to).id).state is LeaseState.READY
    assert not attempt_of(world).state.ended


def test_workers_that_cannot_be_reached_from_here_are_no_reason_to_end_the_job(world: VirtualWorld) -> None:
    to = detached(world)
    world.fleet.ends_at = world.time + 1e6
    world.fleet.silent_since = world.time
    outcome = world.drive(run_job(to, CAN))
    assert outcome.detached and outcome.exit_code == 71
    assert world.ledger.lease(lease_of(to).id).state is LeaseState.READY


def test_a_slice_that_its_watchdog_deleted_is_settled_by_the_next_command_that_looks(world: VirtualWorld) -> None:
    to = detached(world)
    world.cloud.nodes.clear()
    assert world.drive(recover("emulated", CAN, budget_s=600)) == []  # without a question to the cloud it is unknown
    (released,) = world.drive(recover("emulated", CAN, budget_s=600, look=True))
    assert released.gone
    world.drive(close_attempts())
    assert attempt_of(world).state is AttemptState.INTERRUPTED
    assert "artifacts" in attempt_of(world).detail
    assert not world.ledger.lease(lease_of(to).id).open


@pytest.mark.parametrize("step", range(2))
@pytest.mark.parametrize("ends", [False, True])
def test_recovery_ends_no_attempt_that_its_process_ends_or_leaves_to_the_job_meanwhile(
    world: VirtualWorld, step: int, ends: bool
) -> None:
    """Of one that it finds detached it never takes the lock either: an `attach` would read along, and then show all again."""
    made = job(world)
    (lease, _), locked = made.stay.drafts[0], made.attempt.id
    start = (Intent(lease), Sent(lease.id, 1.0), Ready(lease.id, 2.0), Began(made.run, made.attempt))
    world.ledger.record(*start, Leased(locked, 2.0, lease.id))
    world.locks.lock(locked)
    effects = itertools.count()

    def detach(world: VirtualWorld) -> None:
        if next(effects) == step:
            end = AttemptEnded.by(locked, 3.0, AttemptState.SUCCEEDED, None)
            world.ledger.record(end if ends else Detached(lease.id, 3.0))
            world.locks.unlock(locked)

    world.drive(close_attempts(), between=detach)
    assert attempt_of(world).state is (AttemptState.SUCCEEDED if ends else made.attempt.state)
    assert ("Lock" in world.effects) == (ends or step > 0) and "Record" not in world.effects


def test_a_detached_slice_that_was_preempted_is_released_by_attach(world: VirtualWorld) -> None:
    detached(world)
    for node in world.cloud.nodes.values():
        node.preempted = True
    (released,) = world.drive(recover("emulated", CAN, budget_s=600, look=True))
    assert released.gone and world.cloud.nodes == {}


def test_attaching_to_what_is_gone_proves_that_and_says_so(world: VirtualWorld) -> None:
    to = detached(world)
    world.cloud.nodes.clear()
    world.cloud.workers = _vanished  # type: ignore[method-assign]
    outcome = world.drive(run_job(to, CAN))
    assert outcome.exit_code == 71 and not outcome.detached
    assert world.ledger.open_leases() == []


def test_attaching_to_a_slice_that_its_watchdog_deletes_does_not_report_that_the_job_goes_on(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = detached(world)
    for node in world.cloud.nodes.values():
        node.deleted_at = world.time
    world.cloud.workers = _deleting  # type: ignore[method-assign]
    monkeypatch.setattr(StoodStill, "perform", lambda *_: (5400.0, "this machine slept"))
    outcome = world.drive(run_job(to, CAN))
    assert outcome.exit_code == 71 and not outcome.detached and outcome.error is not None
    assert outcome.error.message.endswith("is gone: this machine slept, and its time may have ended meanwhile")
    assert world.ledger.open_leases() == []


def _deleting(name: Any) -> Any:
    from orchestrator.errors import WrongState

    raise WrongState("getGuestAttributes is not supported while in state DELETING")


def _vanished(name: Any) -> Any:
    from orchestrator.errors import Vanished

    raise Vanished(f"{name.node} does not exist")


def test_cancel_ends_the_run_in_the_ledger_before_it_deletes_and_what_follows_it_ends_too(world: VirtualWorld) -> None:
    to = detached(world)
    world.fleet.ends_at = world.time + 1e6
    began, canceled_at = world.time, 0.0

    def cancel(world: VirtualWorld) -> None:
        nonlocal canceled_at
        if not canceled_at and world.time > began + 60:
            canceled_at = world.time
            _crashed_after_recording(world, to)

    outcome = world.drive(run_job(to, CAN), between=cancel)
    assert (outcome.state, outcome.exit_code) == (AttemptState.CANCELED, 71)
    attempt = attempt_of(world)
    assert (attempt.state, attempt.exit_code) == (AttemptState.CANCELED, 71)
    assert attempt.detail == outcome.error.message == "canceled by `tpujob cancel`"
    assert attempt.ended_at == canceled_at and outcome.ended_at - canceled_at < 60
    assert world.cloud.nodes == {}


def _crashed_after_recording(world: VirtualWorld, to: JobRun) -> None:
    """A `cancel` that is killed right after it has written to the ledger."""
    for step in range(10):
        if attempt_of(world).state.ended:
            return
        with pytest.raises(Crash):
            world.drive(down((lease_of(to),), CAN, reason=CANCEL), crash_at=step)


def test_a_slice_that_goes_while_attach_connects_ends_the_run_as_canceled(world: VirtualWorld) -> None:
    to = detached(world)
    world.drive(down((lease_of(to),), CAN, reason=CANCEL))
    world.cloud.workers = _vanished  # type: ignore[method-assign]
    outcome = world.drive(run_job(to, CAN))
    assert (outcome.state, outcome.exit_code, outcome.detached) == (AttemptState.CANCELED, 71, False)
    assert attempt_of(world).state is AttemptState.CANCELED


@pytest.mark.ci
def test_cancel_killed_at_any_effect_leaves_a_run_that_goes_on_or_one_that_is_canceled(tmp_path: Path) -> None:
    step = 0
    while True:
        directory = tmp_path / str(step)
        directory.mkdir()
        world = VirtualWorld(directory)
        to = detached(world)
        try:
            world.drive(down((lease_of(to),), CAN, reason=CANCEL), crash_at=step)
            break
        except Crash:
            step += 1
        lease, attempt = world.ledger.lease(lease_of(to).id), attempt_of(world)
        assert (lease.state is LeaseState.READY) == (not attempt.state.ended)
        world.locks.held.clear()
        world.drive(close_attempts())
        world.drive(recover("emulated", CAN, budget_s=7200))
        if attempt.state.ended:
            assert attempt_of(world).state is AttemptState.CANCELED and world.cloud.nodes == {}
    assert step > 5


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

"""A run that is canceled from another terminal, at every step: it ends as canceled, and nothing of it stays or comes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.lease.lease import Intent, LeaseState, NotAllowed
from orchestrator.core.lease.run_and_attempt import Attempt, AttemptState, Began
from orchestrator.engine.leases.cancellation import record_cancel
from orchestrator.engine.leases.recover import close_attempts, recover
from orchestrator.engine.provision.drafts import Draft
from orchestrator.run.job_run import JobRun
from orchestrator.run.program import run_job
from orchestrator.run.progress import Outcome
from tests.unit.engine.provision.test_candidate_search import queued
from tests.unit.engine.virtual import CAN, ZONE, Crash, VirtualWorld, asking, job
from tests.unit.run.test_restart import SpotDrafter

ZONES = (ZONE, "us-east1-c")
EVERY = 7  # a sample of the effects, which has each kind of them


def in_order(world: VirtualWorld) -> JobRun:
    world.cloud.full_zones = {ZONE}
    return job(world, zones=ZONES)


def in_a_race(world: VirtualWorld) -> JobRun:
    world.cloud.queue_s = {ZONE: 600.0, "us-east1-c": 300.0}
    plain = job(world, zones=ZONES)
    return asking(plain, *map(queued, plain.stay.drafts), wait_s=3600.0, race=True)


def restarted(world: VirtualWorld) -> JobRun:
    """Its first slice is preempted as soon as its job runs."""
    world.fleet.phase_s = 100
    plain = job(world)
    spot = tuple(Draft(replace(lease, spot=True), request) for lease, request in plain.stay.drafts)
    drafter = SpotDrafter(world, plain.run.id)
    return replace(asking(plain, *spot, drafter=drafter), max_restarts=2)


def preempt_first(world: VirtualWorld) -> None:
    if world.fleet.ends_at:
        for name, node in world.cloud.nodes.items():
            node.preempted = node.preempted or name.endswith("0000000000")


def steps(make: Callable[[VirtualWorld], JobRun], directory: Path) -> int:
    world = VirtualWorld(directory)
    world.drive(run_job(make(world), CAN), between=preempt_first)
    return len(world.effects)


def canceled_after(world: VirtualWorld, make: Callable[[VirtualWorld], JobRun], step: int) -> tuple[Outcome, int]:
    """Run it, and cancel it after this step; its outcome, and how many creates left after the cancel."""
    creates: list[int] = []

    def between(world: VirtualWorld) -> None:
        preempt_first(world)
        if not creates and len(world.effects) >= step and world.ledger.runs():
            creates.append(len([call for call, _ in world.cloud.calls if call == "create"]))
            world.drive(record_cancel(world.ledger.runs()[0][0].id))

    outcome = world.drive(run_job(make(world), CAN), between=between)
    after = len([call for call, _ in world.cloud.calls if call == "create"])
    return outcome, after - creates[0] if creates else 0


@pytest.mark.ci
@pytest.mark.parametrize("make", [in_order, in_a_race, restarted])
def test_after_each_step_it_ends_and_leaves_nothing(make: Callable[[VirtualWorld], JobRun], tmp_path: Path) -> None:
    states = set()
    for step in range(1, steps(make, tmp_path) + 1, EVERY):
        world = VirtualWorld(tmp_path)
        outcome, creates = canceled_after(world, make, step)
        ((_, attempt),) = world.ledger.runs()
        where = f"after step {step}, {world.effects[step - 1]}"
        assert (attempt.state, attempt.exit_code) == (outcome.state, outcome.exit_code), where
        assert world.cloud.nodes == {} and world.ledger.open_leases() == [], where
        assert creates <= 1, where  # one that was on its way
        states.add(outcome.state)
    assert states == {AttemptState.CANCELED, AttemptState.SUCCEEDED}


@pytest.mark.ci
@pytest.mark.parametrize("make", [in_order, in_a_race])
def test_a_run_that_is_killed_after_its_cancel_is_released_by_recovery(
    make: Callable[[VirtualWorld], JobRun], tmp_path: Path
) -> None:
    for step in range(2, steps(make, tmp_path), EVERY):
        world = VirtualWorld(tmp_path)
        with pytest.raises(Crash):
            world.drive(run_job(make(world), CAN), crash_at=step)
        if world.ledger.runs():
            world.drive(record_cancel(world.ledger.runs()[0][0].id))
        world.locks.held.clear()
        world.drive(close_attempts())
        world.drive(recover("emulated", CAN, budget_s=36000))
        assert world.cloud.nodes == {} and world.ledger.open_leases() == []
        assert all(attempt.state.ended for _, attempt in world.ledger.runs())


def test_a_canceled_run_gets_no_lease_and_no_attempt(tmp_path: Path) -> None:
    world = VirtualWorld(tmp_path)
    prepared = job(world, zones=ZONES)
    first, second = (draft.lease for draft in prepared.stay.drafts)
    world.ledger.record(Began(prepared.run, prepared.attempt), Intent(first))
    world.drive(record_cancel(prepared.run.id))
    assert world.effects.index("StartGuardian") < world.effects.index("Record"), "it goes on if this process is killed"
    assert world.ledger.lease(first.id).state is LeaseState.DOWN
    with pytest.raises(NotAllowed, match="was canceled"):
        world.ledger.record(Intent(second))
    with pytest.raises(NotAllowed, match="was canceled"):
        world.ledger.record(Began(prepared.run, Attempt("0123456789-2", prepared.run.id)))

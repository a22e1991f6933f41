"""A lent slice: claimed while it is used, released when it is given back, or when anything else ends the lending."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.core.lease.lease import Down, Lease, LeaseState
from orchestrator.engine.leases.recover import recover
from orchestrator.engine.provision.candidate_search import Search
from orchestrator.engine.slices.lend import LendRequest, Loan, lend
from orchestrator.errors import CapacityError, DeadlineExceeded, Interrupted, Preempted, Vanished
from tests.leases import ZONE, lease_and_request
from tests.simulation.model.bench import CAN, Bench, Crash

HOUR_S = 3600.0


class Borrower:
    """Uses the slice for so long, and looks at the world meanwhile."""

    def __init__(self, world: Bench, use_s: float, look: Callable[[], None] = lambda: None) -> None:
        self.world, self.use_s, self.look = world, use_s, look
        self.step_s = max(1.0, use_s / 1000)  # a thousand steps are enough
        self.lent: list[tuple[Lease, Any]] = []
        self.until = 0.0

    def take(self, lease: Lease, fleet: Any) -> None:
        self.lent.append((lease, fleet))
        self.until = self.world.time + self.use_s

    def returned(self, wait_s: float) -> bool:
        self.world.time += min(self.step_s, max(self.until - self.world.time, 0.0))
        self.look()
        return self.world.time >= self.until

    def request(self) -> LendRequest:
        return LendRequest(Search((lease_and_request(now=self.world.time),)), self.take, self.returned)


def lending(world: Bench, borrower: Borrower, **options: Any) -> Loan:
    return world.drive(lend(borrower.request(), CAN), **options)


def lease_of(world: Bench) -> Lease:
    (lease,) = world.ledger.leases()
    return lease


def test_a_slice_is_lent_once_and_proven_absent_when_it_is_given_back(world: Bench) -> None:
    borrower = Borrower(world, 100)
    loan = lending(world, borrower)
    assert (loan.error, loan.exit_code) == (None, 0)
    ((_, fleet),) = borrower.lent
    assert fleet is world.fleets[-1] and {"SendHeartbeats", "Disconnect"} <= {*world.names}
    assert loan.owed.released is not None and loan.owed.released.gone
    assert lease_of(world).state is LeaseState.GONE and world.nodes == {}
    assert lease_of(world).reason == "it was returned"
    assert world.locked == set()


def test_while_it_is_used_its_claim_never_ends(world: Bench) -> None:
    ahead: list[float] = []

    def look() -> None:
        for node in world.nodes.values():
            ahead.append(int(node.spec["labels"].get("tpujob-claimed-until", world.time + 1)) - world.time)

    loan = lending(world, Borrower(world, 3 * HOUR_S, look))
    assert loan.error is None
    assert min(ahead) > 0, "the watchdog would have deleted it"
    assert "SetLabels" in world.names


@pytest.mark.parametrize(("change", "error"), [
    (lambda world, lease: world.ledger.record(Down(lease.id, world.time, "tpujob down")), Vanished),
    (lambda world, lease: world.vanish(), Vanished),
    (lambda world, lease: world.preempt(), Preempted),
])  # fmt: skip
def test_a_slice_that_is_lost_ends_the_lending(
    world: Bench, change: Callable[[Bench, Lease], None], error: type[Exception]
) -> None:
    done: list[bool] = []

    def look() -> None:
        if not done:
            done.append(True)
            change(world, borrower.lent[0][0])

    borrower = Borrower(world, HOUR_S, look)
    began = world.time
    loan = lending(world, borrower)
    assert isinstance(loan.error, error)
    assert world.time - began < HOUR_S / 2
    assert lease_of(world).state is LeaseState.GONE and world.nodes == {}


def test_it_is_not_lent_beyond_its_deadline(world: Bench) -> None:
    loan = lending(world, Borrower(world, 100 * HOUR_S))
    assert isinstance(loan.error, DeadlineExceeded)
    assert world.time == pytest.approx(lease_of(world).deadline, abs=400)
    assert lease_of(world).state is LeaseState.GONE


def test_without_capacity_nothing_is_lent(world: Bench) -> None:
    world.full(ZONE)
    borrower = Borrower(world, 1)
    loan = lending(world, borrower)
    assert isinstance(loan.error, CapacityError) and loan.exit_code == 69
    assert borrower.lent == [] and loan.lease is None and world.nodes == {}


def test_a_bug_leaves_no_slice_behind(world: Bench) -> None:
    def look() -> None:
        raise ZeroDivisionError

    loan = lending(world, Borrower(world, 10, look))
    assert loan.error is not None and "a bug in tpujob: ZeroDivisionError" in loan.error.message
    assert lease_of(world).state is LeaseState.GONE and world.nodes == {}


def test_a_slice_that_is_not_proven_absent_is_owed(world: Bench) -> None:
    world.plan.stuck.add(lease_and_request().lease.name.node)
    loan = lending(world, Borrower(world, 10))
    assert loan.owed.unproven and loan.exit_code == 75


@pytest.mark.ci
def test_a_signal_anywhere_ends_in_a_proven_release() -> None:
    interrupted: list[bool] = []
    for number in itertools.count(1):
        world = Bench()
        loan = lending(world, Borrower(world, 40), signalled_at=number)
        if len(world.effects) < number:
            break  # it has ended before
        interrupted.append(isinstance(loan.error, Interrupted))
        assert world.nodes == {} and not world.ledger.open_leases(), number
    assert interrupted[0] and interrupted == sorted(interrupted, reverse=True), "until it is shielded"


@pytest.mark.ci
def test_a_process_that_dies_anywhere_leaves_a_lease_that_the_next_one_releases() -> None:
    for number in itertools.count(1):
        world = Bench()
        try:
            lending(world, Borrower(world, 40), killed_at=number)
        except Crash:
            world.drive(recover("emulated", CAN, budget_s=2 * HOUR_S))
            assert world.nodes == {} and not world.ledger.open_leases(), number
        else:
            break  # it has ended before

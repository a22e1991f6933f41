"""A lent slice: claimed while it is used, released when it is given back, or when anything else ends the lending."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.lease.lease import Down, Lease, LeaseState
from orchestrator.engine.leases.recover import recover
from orchestrator.engine.provision.candidate_search import Search
from orchestrator.engine.slices.lend import LendRequest, Loan, lend
from orchestrator.errors import CapacityError, DeadlineExceeded, Interrupted, Preempted, Vanished
from tests.unit.engine.virtual import CAN, ZONE, Crash, VirtualWorld, lease_and_request

HOUR_S = 3600.0


class Borrower:
    """Uses the slice for so long, and looks at the world meanwhile."""

    def __init__(self, world: VirtualWorld, use_s: float, look: Callable[[], None] = lambda: None) -> None:
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


def lending(world: VirtualWorld, borrower: Borrower, **options: Any) -> Loan:
    return world.drive(lend(borrower.request(), CAN), **options)


def lease_of(world: VirtualWorld) -> Lease:
    (lease,) = world.ledger.leases()
    return lease


def test_a_slice_is_lent_once_and_proven_absent_when_it_is_given_back(world: VirtualWorld) -> None:
    borrower = Borrower(world, 100)
    loan = lending(world, borrower)
    assert (loan.error, loan.exit_code) == (None, 0)
    ((_, fleet),) = borrower.lent
    assert fleet is world.fleet and fleet.beating and fleet.canceled
    assert loan.owed.released is not None and loan.owed.released.gone
    assert lease_of(world).state is LeaseState.GONE and world.cloud.nodes == {}
    assert lease_of(world).reason == "it was returned"
    assert world.locks.held == set()


def test_while_it_is_used_its_claim_never_ends(world: VirtualWorld) -> None:
    ahead: list[float] = []

    def look() -> None:
        for node in world.cloud.nodes.values():
            ahead.append(int(node.request.labels.get("tpujob-claimed-until", world.time + 1)) - world.time)

    loan = lending(world, Borrower(world, 3 * HOUR_S, look))
    assert loan.error is None
    assert min(ahead) > 0, "the watchdog would have deleted it"
    assert "SetLabels" in world.effects


@pytest.mark.parametrize(("change", "error"), [
    (lambda world, lease: world.ledger.record(Down(lease.id, world.time, "tpujob down")), Vanished),
    (lambda world, lease: world.cloud.nodes.clear(), Vanished),
    (lambda world, lease: setattr(world.cloud.nodes[lease.name.node], "preempted", True), Preempted),
])  # fmt: skip
def test_a_slice_that_is_lost_ends_the_lending(
    world: VirtualWorld, change: Callable[[VirtualWorld, Lease], None], error: type[Exception]
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
    assert lease_of(world).state is LeaseState.GONE and world.cloud.nodes == {}


def test_it_is_not_lent_beyond_its_deadline(world: VirtualWorld) -> None:
    loan = lending(world, Borrower(world, 100 * HOUR_S))
    assert isinstance(loan.error, DeadlineExceeded)
    assert world.time == pytest.approx(lease_of(world).deadline, abs=120)
    assert lease_of(world).state is LeaseState.GONE


def test_without_capacity_nothing_is_lent(world: VirtualWorld) -> None:
    world.cloud.full_zones.add(ZONE)
    borrower = Borrower(world, 1)
    loan = lending(world, borrower)
    assert isinstance(loan.error, CapacityError) and loan.exit_code == 69
    assert borrower.lent == [] and loan.lease is None and world.cloud.nodes == {}


def test_a_bug_leaves_no_slice_behind(world: VirtualWorld) -> None:
    def look() -> None:
        raise ZeroDivisionError

    loan = lending(world, Borrower(world, 10, look))
    assert loan.error is not None and "a bug in tpujob: ZeroDivisionError" in loan.error.message
    assert lease_of(world).state is LeaseState.GONE and world.cloud.nodes == {}


def test_a_slice_that_is_not_proven_absent_is_owed(world: VirtualWorld) -> None:
    world.cloud.stuck.add(lease_and_request().lease.name.node)
    loan = lending(world, Borrower(world, 10))
    assert loan.owed.unproven and loan.exit_code == 75


def new_world(directory: Path) -> VirtualWorld:
    directory.mkdir()
    return VirtualWorld(directory)


def effects_of_a_lending(directory: Path) -> list[str]:
    world = new_world(directory)
    lending(world, Borrower(world, 40))
    return world.effects


@pytest.mark.ci
def test_a_signal_anywhere_ends_in_a_proven_release(tmp_path: Path) -> None:
    effects = effects_of_a_lending(tmp_path / "whole")
    for number in range(len(effects)):
        world = new_world(tmp_path / str(number))
        loan = lending(world, Borrower(world, 40), interrupt_at=number)
        shielded = "Shield" in effects[: number + 1]
        assert isinstance(loan.error, Interrupted) or shielded, effects[number]
        assert world.cloud.nodes == {}, effects[number]
        assert not world.ledger.open_leases(), effects[number]


@pytest.mark.ci
def test_a_process_that_dies_anywhere_leaves_a_lease_that_the_next_one_releases(tmp_path: Path) -> None:
    effects = effects_of_a_lending(tmp_path / "whole")
    for number in range(len(effects)):
        world = new_world(tmp_path / str(number))
        with pytest.raises(Crash):
            lending(world, Borrower(world, 40), crash_at=number, after=True)
        world.locks.held.clear()
        world.drive(recover("emulated", CAN, budget_s=2 * HOUR_S))
        assert world.cloud.nodes == {}, effects[number]
        assert not world.ledger.open_leases(), effects[number]

"""`up`, `stop`, `start`, `down`: from every state, and twice has the effect of once; and slices that are lent."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.errors import (
    CapacityError,
    DeadlineExceeded,
    Interrupted,
    NeedsConsent,
    Preempted,
    Vanished,
    WrongState,
)
from orchestrator.promise.lease.changes import ReleaseBegan
from orchestrator.promise.lease.lease import DOWN, Lease, LeaseState, Purpose
from orchestrator.promise.obligations import Obligations
from orchestrator.promise.obtain.candidate_search import Search, find
from orchestrator.promise.recover import recover
from orchestrator.run.lend import LendRequest, Loan, lend
from orchestrator.run.up_and_down import UpOutcome, UpRequest, down, start, stop, up
from tests.fakes.leases import ZONE, lease_and_request
from tests.simulation.model.bench import CAN, Bench, Crash, created, held
from tests.simulation.model.process import ProcessLocks


def bring(world: Bench, existing: Lease | None = None, *, n: int = 0, recreate: bool = False) -> UpOutcome:
    drafts = (lease_and_request(n, now=world.time, purpose=Purpose.HOLD),)
    return world.drive(up(UpRequest("alice", drafts, existing, 3600, recreate), CAN))


@pytest.fixture
def lease(world: Bench) -> Lease:
    return held(world, for_s=3600)


def test_up_creates_and_holds(world: Bench) -> None:
    outcome = bring(world)
    assert (outcome.action, outcome.error) == ("created", None)
    assert outcome.lease is not None and outcome.lease.hold_until == pytest.approx(world.time + 3600)
    assert outcome.lease.id not in world.locked, "a held slice needs no live process"


def test_up_of_a_ready_slice_changes_nothing(world: Bench, lease: Lease) -> None:
    world.effects.clear()
    assert bring(world, lease, n=1).action == "already ready"
    assert [call for call, _ in world.calls] == ["Get"]


@pytest.mark.parametrize(("change", "action"), [
    pytest.param(lambda world, lease: world.drive(stop(lease)), "started", id="stopped"),
    pytest.param(lambda world, lease: setattr(world, "time", world.time + 4000), "already ready", id="its hold ran out"),
    pytest.param(lambda world, lease: world.vanish(), "recreated", id="deleted from outside"),
    pytest.param(lambda world, lease: setattr(world, "time", lease.deadline + 10), "recreated", id="past its deadline"),
])  # fmt: skip
def test_up_of_a_slice_that_is_not_ready_or_not_held_any_more_makes_it_both(
    world: Bench, change: Callable[[Bench, Lease], None], action: str, lease: Lease
) -> None:
    change(world, lease)
    outcome = bring(world, lease, n=1)
    assert (outcome.action, outcome.error) == (action, None) and outcome.lease is not None
    assert outcome.lease.hold_until == pytest.approx(world.time + 3600, abs=5)
    assert set(world.nodes) == {outcome.lease.name.node}
    assert world.ledger.lease(lease.id).state is (LeaseState.GONE if action == "recreated" else LeaseState.READY)
    assert world.drive(recover("emulated", CAN, budget_s=600)) == []


def test_up_waits_for_a_slice_that_another_up_is_creating(world: Bench) -> None:
    lease = created(world, lease_and_request(purpose=Purpose.HOLD, now=world.time))
    outcome = bring(world, lease, n=1)
    assert outcome.action == "waited" and outcome.lease is not None and outcome.lease.id == lease.id
    assert outcome.lease.hold_until is not None


def test_a_held_slice_that_is_not_ready_stays_however_the_wait_for_it_ends(world: Bench, lease: Lease) -> None:
    world.nodes[lease.name.node].state = "CREATING"
    assert "still CREATING" in str(bring(world, lease, n=1).error)
    assert lease.name.node in world.nodes and world.ledger.open_leases() == [lease]


def test_a_preempted_slice_is_only_replaced_with_consent(world: Bench, lease: Lease) -> None:
    world.preempt()
    refused = bring(world, lease, n=1)
    assert isinstance(refused.error, NeedsConsent) and lease.name.node in world.nodes
    replaced = bring(world, lease, n=1, recreate=True)
    assert replaced.action == "recreated" and replaced.lease is not None
    assert set(world.nodes) == {replaced.lease.name.node} != {lease.name.node}
    assert world.ledger.lease(lease.id).state is LeaseState.GONE


def test_no_second_slice_while_the_first_is_not_proven_gone(world: Bench, lease: Lease) -> None:
    world.vanish()
    world.settings.unreachable = [ZONE]
    outcome = bring(world, lease, n=1)
    assert outcome.exit_code == 75 and world.nodes == {}


def test_up_that_finds_no_capacity_leaves_nothing(world: Bench) -> None:
    world.full(ZONE)
    outcome = bring(world)
    assert isinstance(outcome.error, CapacityError) and outcome.exit_code == 69
    assert world.nodes == {} and world.ledger.open_leases() == []


def test_stop_and_start_twice_have_the_effect_of_once(world: Bench, lease: Lease) -> None:
    for _ in range(2):
        assert world.drive(stop(lease)).native_state == "STOPPED"
    for _ in range(2):
        world.drive(start(lease, CAN))
    assert [call for call, _ in world.calls if call in ("StopSlice", "StartSlice")] == ["StopSlice", "StartSlice"]


def test_only_a_ready_slice_can_be_stopped(world: Bench, lease: Lease) -> None:
    world.preempt()
    with pytest.raises(WrongState, match="PREEMPTED"):
        world.drive(stop(lease))


def test_down_ends_the_claim_only_once_a_guardian_watches(world: Bench, lease: Lease) -> None:
    """A kill between the two would leave a slice that is billed without a claim, and nothing that looks at once."""
    world.effects.clear()
    world.drive(down((lease,), CAN, reason=DOWN))
    assert world.names.index("StartGuardian") < world.names.index("Record")


def test_down_of_several_sends_every_delete_before_it_waits_for_a_proof(world: Bench) -> None:
    leases = [held(world, n) for n in range(3)]
    world.effects.clear()
    released = world.drive(down(tuple(leases), CAN, reason="test"))
    assert [one.gone for one in released] == [True] * 3
    assert [call for call, _ in world.calls[:3]] == ["Delete"] * 3


def test_recovery_skips_the_handle_that_up_takes_over(world: Bench) -> None:
    created(world, lease_and_request(purpose=Purpose.HOLD, now=world.time))
    assert world.drive(recover("emulated", CAN, budget_s=600, spare="alice")) == []
    assert len(world.drive(recover("emulated", CAN, budget_s=600, spare="bob"))) == 1


def test_past_the_deadline_not_even_the_lock_of_a_live_process_protects(
    world: Bench, monkeypatch: pytest.MonkeyPatch, lease: Lease
) -> None:
    world.time = lease.deadline + 1
    monkeypatch.setattr(ProcessLocks, "lock", lambda *_: False)  # a process that was stopped, not ended
    (released,) = world.drive(recover("emulated", CAN, budget_s=600))
    assert released.gone


def test_down_while_the_run_releases_a_full_zone_ends_the_run(world: Bench) -> None:
    world.full("us-east1-b")
    zones = ("us-east1-b", "us-east1-c")
    drafts = tuple(lease_and_request(n, zone=zone, now=world.time) for n, zone in enumerate(zones))

    def another_terminal(world: Bench) -> None:
        first = next(iter(world.ledger.leases()), None)
        if first is not None and first.state is LeaseState.DOWN and first.reason == "no capacity":
            world.ledger.record(ReleaseBegan(first.id, world.time, "tpujob down"))

    with pytest.raises(Vanished, match="released meanwhile: tpujob down"):
        world.drive(find(Search(drafts), CAN, Obligations()), between=another_terminal)
    assert [node for call, node in world.calls if call == "Create"] == [drafts[0][0].name.node]


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
    (lambda world, lease: world.ledger.record(ReleaseBegan(lease.id, world.time, "tpujob down")), Vanished),
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

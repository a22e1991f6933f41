"""`up`, `stop`, `start`, `down`: from every state of a slice, and twice has the effect of once."""

import math
from collections.abc import Callable

import pytest

from orchestrator.core.lease.lease import DOWN, Down, Lease, LeaseState, Purpose
from orchestrator.engine.leases.obligations import Obligations
from orchestrator.engine.leases.recover import recover
from orchestrator.engine.provision.candidate_search import Search, find
from orchestrator.engine.slices.up_and_down import UpOutcome, UpRequest, down, start, stop, up
from orchestrator.errors import CapacityError, NeedsConsent, Vanished, WrongState
from tests.unit.engine.virtual import CAN, ZONE, VirtualWorld, created, lease_and_request


def bring(world: VirtualWorld, existing: Lease | None = None, *, n: int = 0, recreate: bool = False) -> UpOutcome:
    drafts = (lease_and_request(n, now=world.time, purpose=Purpose.HOLD),)
    return world.drive(up(UpRequest("alice", drafts, existing, 3600, recreate), CAN))


def held(world: VirtualWorld) -> Lease:
    outcome = bring(world)
    assert outcome.lease is not None
    return outcome.lease


def test_up_creates_and_holds(world: VirtualWorld) -> None:
    outcome = bring(world)
    assert (outcome.action, outcome.error) == ("created", None)
    assert outcome.lease is not None and outcome.lease.hold_until == pytest.approx(world.time + 3600)
    assert not world.locks.is_locked(outcome.lease.id), "a held slice needs no live process"


def test_up_of_a_ready_slice_changes_nothing(world: VirtualWorld) -> None:
    lease = held(world)
    world.cloud.calls.clear()
    assert bring(world, lease, n=1).action == "already ready"
    assert [call for call, _ in world.cloud.calls] == ["get"]


@pytest.mark.parametrize(("change", "action"), [
    pytest.param(lambda world, lease: world.drive(stop(lease)), "started", id="stopped"),
    pytest.param(lambda world, lease: setattr(world, "time", world.time + 4000), "already ready", id="its hold ran out"),
    pytest.param(lambda world, lease: world.cloud.nodes.clear(), "recreated", id="deleted from outside"),
    pytest.param(lambda world, lease: setattr(world, "time", lease.deadline + 10), "recreated", id="past its deadline"),
])  # fmt: skip
def test_up_of_a_slice_that_is_not_ready_or_not_held_any_more_makes_it_both(
    world: VirtualWorld, change: Callable[[VirtualWorld, Lease], None], action: str
) -> None:
    lease = held(world)
    change(world, lease)
    outcome = bring(world, lease, n=1)
    assert (outcome.action, outcome.error) == (action, None) and outcome.lease is not None
    assert outcome.lease.hold_until == pytest.approx(world.time + 3600, abs=5)
    assert set(world.cloud.nodes) == {outcome.lease.name.node}
    assert world.ledger.lease(lease.id).state is (LeaseState.GONE if action == "recreated" else LeaseState.READY)
    assert world.drive(recover("emulated", CAN, budget_s=600)) == []


def test_up_waits_for_a_slice_that_another_up_is_creating(world: VirtualWorld) -> None:
    lease = created(world, lease_and_request(purpose=Purpose.HOLD, now=world.time))
    outcome = bring(world, lease, n=1)
    assert outcome.action == "waited" and outcome.lease is not None and outcome.lease.id == lease.id
    assert outcome.lease.hold_until is not None


def test_a_held_slice_that_is_not_ready_stays_however_the_wait_for_it_ends(world: VirtualWorld) -> None:
    lease = held(world)
    world.cloud.nodes[lease.name.node].ready_at = math.inf
    assert "still CREATING" in str(bring(world, lease, n=1).error)
    assert lease.name.node in world.cloud.nodes and world.ledger.open_leases() == [lease]


def test_a_preempted_slice_is_only_replaced_with_consent(world: VirtualWorld) -> None:
    lease = held(world)
    world.cloud.nodes[lease.name.node].preempted = True
    refused = bring(world, lease, n=1)
    assert isinstance(refused.error, NeedsConsent) and lease.name.node in world.cloud.nodes
    replaced = bring(world, lease, n=1, recreate=True)
    assert replaced.action == "recreated" and replaced.lease is not None
    assert set(world.cloud.nodes) == {replaced.lease.name.node} != {lease.name.node}
    assert world.ledger.lease(lease.id).state is LeaseState.GONE


def test_no_second_slice_while_the_first_is_not_proven_gone(world: VirtualWorld) -> None:
    lease = held(world)
    world.cloud.nodes.clear()
    world.cloud.unreachable = (ZONE,)
    outcome = bring(world, lease, n=1)
    assert outcome.exit_code == 75 and world.cloud.nodes == {}


def test_up_that_finds_no_capacity_leaves_nothing(world: VirtualWorld) -> None:
    world.cloud.full_zones = {ZONE}
    outcome = bring(world)
    assert isinstance(outcome.error, CapacityError) and outcome.exit_code == 69
    assert world.cloud.nodes == {} and world.ledger.open_leases() == []


def test_stop_and_start_twice_have_the_effect_of_once(world: VirtualWorld) -> None:
    lease = held(world)
    for _ in range(2):
        assert world.drive(stop(lease)).native_state == "STOPPED"
    for _ in range(2):
        world.drive(start(lease, CAN))
    assert [call for call, _ in world.cloud.calls if call in ("stop", "start")] == ["stop", "start"]


def test_only_a_ready_slice_can_be_stopped(world: VirtualWorld) -> None:
    lease = held(world)
    world.cloud.nodes[lease.name.node].preempted = True
    with pytest.raises(WrongState, match="PREEMPTED"):
        world.drive(stop(lease))


def test_down_ends_the_claim_only_once_a_guardian_watches(world: VirtualWorld) -> None:
    """A kill between the two would leave a slice that is billed without a claim, and nothing that looks at once."""
    lease = held(world)
    world.effects.clear()
    world.drive(down((lease,), CAN, reason=DOWN))
    assert world.effects.index("StartGuardian") < world.effects.index("Record")


def test_down_of_several_sends_every_delete_before_it_waits_for_a_proof(world: VirtualWorld) -> None:
    leases = []
    for n in range(3):
        outcome = bring(world, n=n)
        assert outcome.lease is not None
        leases.append(outcome.lease)
    world.cloud.calls.clear()
    released = world.drive(down(tuple(leases), CAN, reason="test"))
    assert [one.gone for one in released] == [True] * 3
    assert [call for call, _ in world.cloud.calls[:3]] == ["delete"] * 3


def test_a_hold_that_ran_out_is_released_by_the_next_command(world: VirtualWorld) -> None:
    lease = held(world)
    assert world.drive(recover("emulated", CAN, budget_s=600)) == []
    world.time += 3601
    (released,) = world.drive(recover("emulated", CAN, budget_s=600))
    assert released.gone and released.lease.id == lease.id and world.cloud.nodes == {}


def test_recovery_skips_the_handle_that_up_takes_over(world: VirtualWorld) -> None:
    created(world, lease_and_request(purpose=Purpose.HOLD, now=world.time))
    assert world.drive(recover("emulated", CAN, budget_s=600, spare="alice")) == []
    assert len(world.drive(recover("emulated", CAN, budget_s=600, spare="bob"))) == 1


def test_past_the_deadline_not_even_the_lock_of_a_live_process_protects(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = held(world)
    world.time = lease.deadline + 1
    monkeypatch.setattr(world.locks, "lock", lambda _: False)  # a process that was stopped, not ended
    (released,) = world.drive(recover("emulated", CAN, budget_s=600))
    assert released.gone


def test_down_while_the_run_releases_a_full_zone_ends_the_run(world: VirtualWorld) -> None:
    world.cloud.full_zones = {"us-east1-b"}
    zones = ("us-east1-b", "us-east1-c")
    drafts = tuple(lease_and_request(n, zone=zone, now=world.time) for n, zone in enumerate(zones))

    def another_terminal(world: VirtualWorld) -> None:
        first = next(iter(world.ledger.leases()), None)
        if first is not None and first.state is LeaseState.DOWN and first.reason == "no capacity":
            world.ledger.record(Down(first.id, world.time, "tpujob down"))

    with pytest.raises(Vanished, match="released meanwhile: tpujob down"):
        world.drive(find(Search(drafts), CAN, Obligations()), between=another_terminal)
    assert [node for call, node in world.cloud.calls if call == "create"] == [drafts[0][0].name.node]

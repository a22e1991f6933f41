"""Claims in the labels: written first in the create call, renewed while a process is attached, moved by keep and hand-over."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.lease.access import KEY_OUTLIVES_S, Route
from orchestrator.core.lease.cloud_api import Listing, Operation, SliceName
from orchestrator.core.lease.lease import Extended, Held, LeaseState, Mode
from orchestrator.engine.leases.obligations import Obligations, keep_slice
from orchestrator.engine.leases.release import release
from orchestrator.engine.leases.renewal import LeaseRenewal, hand_over, move_claim, wait_for_watchdogs
from orchestrator.engine.provision.candidate_search import Search, find
from orchestrator.engine.provision.drafts import Draft
from orchestrator.engine.slices.up_and_down import extend
from orchestrator.errors import AuthError, CloudUnavailable, UserError, Vanished, WatchdogNotArmed, WrongState
from orchestrator.run.program import run_job
from tests.unit.engine.virtual import CAN, ZONE, VirtualWorld, job, lease_and_request


def ready(world: VirtualWorld) -> Any:
    owed = Obligations()
    world.drive(find(Search((lease_and_request(now=world.time),)), CAN, owed))
    return owed


def labels(world: VirtualWorld) -> Any:
    (node,) = world.cloud.nodes.values()
    return node.request.labels


def test_the_create_call_carries_the_first_claim_as_of_the_moment_it_leaves(world: VirtualWorld) -> None:
    draft = lease_and_request(now=world.time)
    world.time += 1000  # the zone before this one took its time
    world.drive(find(Search((draft,)), CAN, Obligations()))
    begun = world.ledger.lease(draft[0].id).sent_at
    assert begun is not None
    assert int(labels(world)["tpujob-claimed-until"]) == int(begun + CAN.timings.provision_s + CAN.timings.boot_s)


@pytest.mark.parametrize("ahead_s", [-86400.0, 86400.0])
def test_labels_are_in_the_servers_time_and_a_corrected_local_clock_moves_no_deadline(
    world: VirtualWorld, ahead_s: float
) -> None:
    world.cloud.clock_ahead_s = ahead_s
    owed = ready(world)
    first = world.ledger.lease(owed.lease.id)
    assert first.sent_at is not None
    claimed_s = CAN.timings.provision_s + CAN.timings.boot_s
    deadline = labels(world)["tpujob-deadline"]
    assert int(labels(world)["tpujob-claimed-until"]) == int(first.sent_at + ahead_s + claimed_s)
    assert int(deadline) == int(first.deadline + ahead_s)
    assert any("shows are 1 d" in line for line in world.told)
    moved = world.drive(move_claim(first, Held(first.id, world.time, world.time + 3600), CAN))
    assert abs(int(labels(world)["tpujob-claimed-until"]) - (moved.ends_at + ahead_s)) <= 1
    world.cloud.clock_ahead_s = 0.0
    world.drive(move_claim(first, Held(first.id, world.time, world.time + 60), CAN))
    assert labels(world)["tpujob-deadline"] == deadline


def test_an_attached_run_renews_its_claim_before_it_ends_and_not_more_often_than_needed(world: VirtualWorld) -> None:
    world.fleet.phase_s = 5400.0
    outcome = world.drive(run_job(job(world), CAN))
    assert outcome.exit_code == 0
    renewals = [call for call, _ in world.cloud.calls if call == "set_labels"]
    assert 5400 / CAN.timings.renew_s - 2 <= len(renewals) <= 5400 / CAN.timings.renew_s + 1


def test_a_renewal_that_fails_is_tried_again_in_time(world: VirtualWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    owed = ready(world)
    renewal = LeaseRenewal(owed.lease, 2, CAN, world.time)
    relabel = world.cloud.set_labels
    failures = iter([CloudUnavailable("503"), WrongState("busy")])

    def failing(name: SliceName, labels: Any) -> Operation:
        for error in failures:
            raise error
        return relabel(name, labels)

    monkeypatch.setattr(world.cloud, "set_labels", failing)
    end = int(labels(world)["tpujob-claimed-until"])
    while world.time < end - 60:
        world.drive(renewal.tick())
        world.time += 15
    assert int(labels(world)["tpujob-claimed-until"]) > end


def test_a_slice_that_is_being_deleted_is_not_renewed(world: VirtualWorld) -> None:
    owed = ready(world)
    renewal = LeaseRenewal(owed.lease, 2, CAN, world.time)
    world.cloud.delete_s = 1e9
    world.drive(release(owed.lease, CAN, reason="down", budget_s=1))
    before = labels(world)["tpujob-claimed-until"]
    world.time += CAN.timings.label_ttl_s
    world.drive(renewal.tick())
    assert labels(world)["tpujob-claimed-until"] == before


def test_labels_that_never_change_keep_nothing(world: VirtualWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    owed = ready(world)
    monkeypatch.setattr(
        world.cloud, "set_labels", lambda name, labels: world.cloud._operation("update", name.node, world.time)
    )
    began = world.time
    with pytest.raises(CloudUnavailable):
        world.drive(keep_slice(owed, world.time + 3600, CAN))
    assert world.time - began <= 70
    assert world.ledger.lease(owed.lease.id).hold_until is None


def test_no_claim_moves_before_it_is_known_how_long_this_machine_was_off(world: VirtualWorld) -> None:
    owed, world.knows_time = ready(world), False
    before, at = labels(world), world.ledger.lease(owed.lease.id)
    for move in (Held(owed.lease.id, world.time, world.time + 60), lambda lease: Extended(lease.id, world.time, 1e10)):
        with pytest.raises(CloudUnavailable, match="was restarted"):
            world.drive(move_claim(owed.lease, move, CAN))
    assert (labels(world), world.ledger.lease(owed.lease.id)) == (before, at)


def _taken_away(world: VirtualWorld, node: Any) -> None:
    node.preempted = True


def _of_another(world: VirtualWorld, node: Any) -> None:
    node.request = replace(node.request, labels={"tpujob-lease-id": "9999999999"})


def _not_listed(world: VirtualWorld, node: Any) -> None:
    world.cloud.list = lambda *_, **__: Listing((), (), world.time)  # type: ignore[method-assign]


def _of_another_in_a_zone_that_does_not_answer(world: VirtualWorld, node: Any) -> None:
    _of_another(world, node)
    world.cloud.unreachable = (ZONE,)


SPOILED = (_taken_away, _of_another, _of_another_in_a_zone_that_does_not_answer, _not_listed)


@pytest.mark.parametrize("spoil", SPOILED)
def test_what_is_not_this_slice_any_more_takes_no_claim(world: VirtualWorld, spoil: Any) -> None:
    owed = ready(world)
    spoil(world, *world.cloud.nodes.values())
    before = labels(world)
    with pytest.raises(Vanished):
        world.drive(move_claim(owed.lease, Held(owed.lease.id, world.time, world.time + 60), CAN))
    assert labels(world) == before and world.ledger.lease(owed.lease.id).hold_until is None


def test_a_slice_that_an_incomplete_list_lacks_is_asked_for_by_its_name(world: VirtualWorld) -> None:
    owed = ready(world)
    world.cloud.list = lambda *_, **__: Listing((), (ZONE,), world.time)  # type: ignore[method-assign]
    renewal = LeaseRenewal(owed.lease, 2, CAN, world.time)
    world.time += CAN.timings.renew_s
    world.drive(renewal.tick())
    assert int(labels(world)["tpujob-claimed-until"]) == int(world.time + CAN.timings.label_ttl_s)


def test_a_claim_of_a_run_never_becomes_shorter(world: VirtualWorld) -> None:
    owed, (node,) = ready(world), world.cloud.nodes.values()
    long = str(int(world.time + 5 * 3600.0))
    node.request = replace(node.request, labels={**labels(world), "tpujob-claimed-until": long})
    world.drive(extend(owed.lease, 1800, CAN))
    assert labels(world)["tpujob-claimed-until"] == long


@pytest.mark.parametrize("free_after_s", [20.0, 1e9])
def test_of_two_commands_that_move_a_claim_one_waits_a_minute_for_the_other(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch, free_after_s: float
) -> None:
    owed, began, locks = ready(world), world.time, world.locks
    lock = locks.lock
    monkeypatch.setattr(locks, "lock", lambda name: world.time >= began + free_after_s and lock(name))
    if free_after_s < 60:
        world.drive(extend(owed.lease, 1800, CAN))
        assert began + free_after_s <= world.time < began + free_after_s + 3
        return
    with pytest.raises(CloudUnavailable, match="another tpujob command is changing the claim"):
        world.drive(extend(owed.lease, 1800, CAN))
    assert 50 < world.time - began <= 60


@pytest.mark.parametrize("refused", [False, True])
def test_an_extension_moves_the_expiry_of_the_key_in_the_profile_and_a_hold_does_not(
    world: VirtualWorld, refused: bool
) -> None:
    lease, request = lease_and_request(now=world.time)
    draft = Draft(replace(lease, route=Route(os_login=True, user="")), request)
    owed = Obligations()
    world.drive(find(Search((draft,)), CAN, owed))
    before, world.os_login_error = world.logins[lease.id], AuthError("permission denied") if refused else None
    kept = world.drive(keep_slice(owed, world.time + 3600, CAN))
    assert world.logins[lease.id] == before and not [line for line in world.told if "expires as before" in line]
    extended = world.drive(extend(kept, 2 * 86400, CAN))
    assert (world.logins[lease.id] == extended.deadline + KEY_OUTLIVES_S) is not refused
    assert any("expires as before: permission denied" in line for line in world.told) is refused


def test_a_detached_run_is_handed_over_and_left(world: VirtualWorld) -> None:
    outcome = world.drive(run_job(job(world, detach=True), CAN))
    (lease,) = world.ledger.open_leases()
    assert outcome.exit_code == 0 and outcome.detached
    assert lease.state is LeaseState.READY and lease.mode is Mode.DETACHED
    assert labels(world)["tpujob-mode"] == "detached"
    assert int(labels(world)["tpujob-claimed-until"]) == int(lease.deadline)
    assert not world.locks.held


def asked_at(world: VirtualWorld, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the cloud is asked for guest attributes."""
    times: list[float] = []
    published = world.cloud.guest_attributes

    def asked(name: SliceName) -> Any:
        times.append(world.time)
        return published(name)

    monkeypatch.setattr(world.cloud, "guest_attributes", asked)
    return times


def test_guest_attributes_are_read_as_often_as_google_allows(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 queries a minute, and bursts of 3 a second; the VM writes there, too."""
    owed = ready(world)
    world.cloud.armed = False
    times, began = asked_at(world, monkeypatch), world.time
    with pytest.raises(WatchdogNotArmed):
        world.drive(wait_for_watchdogs(owed.lease, 2, CAN))
    assert world.time - began <= CAN.timings.boot_s + 60, "it has a limit"
    assert len(times) > 20
    assert max(sum(begin <= at < begin + 60 for at in times) for begin in times) <= 7
    times.clear()
    with pytest.raises(WatchdogNotArmed):
        world.drive(hand_over(owed.lease, CAN))
    assert max(sum(begin <= at < begin + 60 for at in times) for begin in times) <= 7
    assert world.ledger.lease(owed.lease.id).detached_at is None, "nothing has confirmed: the run stays attached"


def test_an_extension_adds_in_label_and_ledger_to_a_hold_that_was_set_meanwhile(world: VirtualWorld) -> None:
    owed = ready(world)
    unheld = owed.lease
    kept = world.drive(keep_slice(owed, world.time + 600, CAN))
    lease = world.drive(extend(unheld, 60, CAN))
    assert kept.hold_until is not None and lease.hold_until == kept.hold_until + 60
    assert int(labels(world)["tpujob-claimed-until"]) == int(lease.hold_until) and "ExtendLogin" not in world.effects


def test_nothing_is_extended_beyond_a_week(world: VirtualWorld) -> None:
    owed = ready(world)
    with pytest.raises(UserError, match="7 days"):
        world.drive(extend(owed.lease, 7 * 86400, CAN))

"""Claims in the labels: written first in the create call, renewed while a process is attached, moved by keep and hand-over."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.lease.cloud_api import Operation, SliceName
from orchestrator.core.lease.lease import LeaseState, Mode
from orchestrator.engine.jobs.run import run_job
from orchestrator.engine.leases.obligations import Obligations, keep_slice
from orchestrator.engine.leases.release import release
from orchestrator.engine.leases.renewal import LeaseRenewal, hand_over, wait_for_watchdogs
from orchestrator.engine.provision.candidate_search import Search, find
from orchestrator.engine.slices.extend import extend
from orchestrator.errors import CloudUnavailable, UserError, WatchdogNotArmed, WrongState
from tests.unit.engine.virtual import CAN, VirtualWorld, job, lease_and_request


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    return VirtualWorld(tmp_path)


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
def test_labels_are_in_the_servers_time_whatever_the_local_clock(world: VirtualWorld, ahead_s: float) -> None:
    world.cloud.clock_ahead_s = ahead_s
    owed = ready(world)
    first = world.ledger.lease(owed.lease.id)
    assert first.sent_at is not None
    assert int(labels(world)["tpujob-claimed-until"]) == int(
        first.sent_at + ahead_s + CAN.timings.provision_s + CAN.timings.boot_s
    )
    assert int(labels(world)["tpujob-deadline"]) == int(first.deadline + ahead_s)
    assert any("shows are 1 d" in line for line in world.told)
    lease = world.drive(keep_slice(owed, world.time + 3600, CAN))
    assert abs(int(labels(world)["tpujob-claimed-until"]) - (lease.ends_at + ahead_s)) <= 1


def test_a_corrected_local_clock_does_not_move_a_deadline(world: VirtualWorld) -> None:
    world.cloud.clock_ahead_s = 86400.0
    owed = ready(world)
    before = labels(world)["tpujob-deadline"]
    world.cloud.clock_ahead_s = 0.0
    world.drive(keep_slice(owed, world.time + 3600, CAN))
    assert labels(world)["tpujob-deadline"] == before


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
    times = asked_at(world, monkeypatch)
    with pytest.raises(WatchdogNotArmed):
        world.drive(wait_for_watchdogs(owed.lease, 2, CAN))
    assert len(times) > 20
    assert max(sum(begin <= at < begin + 60 for at in times) for begin in times) <= 7
    times.clear()
    with pytest.raises(WatchdogNotArmed):
        world.drive(hand_over(owed.lease, CAN))
    assert max(sum(begin <= at < begin + 60 for at in times) for begin in times) <= 7


def test_waiting_for_the_watchdog_has_a_limit(world: VirtualWorld) -> None:
    owed = ready(world)
    world.cloud.armed = False
    began = world.time
    with pytest.raises(WatchdogNotArmed):
        world.drive(wait_for_watchdogs(owed.lease, 2, CAN))
    assert world.time - began <= CAN.timings.boot_s + 60


def test_a_watchdog_that_does_not_confirm_keeps_the_run_attached(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    owed = ready(world)
    monkeypatch.setattr(world.cloud, "guest_attributes", lambda name: ({}, {}))
    with pytest.raises(WatchdogNotArmed):
        world.drive(hand_over(owed.lease, CAN))
    assert world.ledger.lease(owed.lease.id).detached_at is None


def test_extending_moves_label_and_ledger(world: VirtualWorld) -> None:
    owed = ready(world)
    kept = world.drive(keep_slice(owed, world.time + 3600, CAN))
    lease = world.drive(extend(kept, 1800, CAN))
    assert lease.hold_until is not None
    assert int(labels(world)["tpujob-claimed-until"]) == int(lease.hold_until)
    assert lease.hold_until - world.ledger.lease(lease.id).created_at < 3600 + 1800 + 120


def test_an_extension_during_provisioning_adds_to_the_hold_set_meanwhile(world: VirtualWorld) -> None:
    owed = ready(world)
    unheld = owed.lease
    assert unheld is not None
    kept = world.drive(keep_slice(owed, world.time + 600, CAN))
    assert kept.hold_until is not None
    lease = world.drive(extend(unheld, 60, CAN))
    assert lease.hold_until == kept.hold_until + 60


def test_nothing_is_extended_beyond_a_week(world: VirtualWorld) -> None:
    owed = ready(world)
    with pytest.raises(UserError, match="7 days"):
        world.drive(extend(owed.lease, 7 * 86400, CAN))

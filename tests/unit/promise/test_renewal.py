"""Claims in the labels: written first in the create call, renewed while a process is attached, moved by keep and hand-over."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import CloudUnavailable, UserError, Vanished, WatchdogNotArmed, WrongState
from orchestrator.promise.lease.access import KEY_OUTLIVES_S, Route
from orchestrator.promise.lease.changes import Extended, HandedToNextRun, HeldUntil
from orchestrator.promise.lease.cloud_api import Listing, Operation, SliceView
from orchestrator.promise.lease.lease import LeaseState, Mode, SliceName
from orchestrator.promise.obligations import Obligations, keep_slice
from orchestrator.promise.obtain.candidate_search import Search, find
from orchestrator.promise.obtain.drafts import Draft
from orchestrator.promise.release import release
from orchestrator.promise.renewal import LeaseRenewal, hand_over, move_claim, shorten_claim, wait_for_watchdogs
from orchestrator.run.up_and_down import extend
from tests.fakes.leases import ZONE, lease_and_request
from tests.simulation.model.bench import CAN, Bench, BenchClient, driven, job
from tests.simulation.model.cloud_client import CloudClient
from tests.simulation.model.process import Process, ProcessLocks


def ready(world: Bench) -> Any:
    owed = Obligations()
    world.drive(find(Search((lease_and_request(now=world.laptop.now()),)), CAN, owed))
    return owed


@pytest.fixture
def owed(world: Bench) -> Any:
    return ready(world)


def labels(world: Bench) -> Any:
    (node,) = world.nodes.values()
    return node.spec["labels"]


def test_the_create_call_carries_the_first_claim_as_of_the_moment_it_leaves(world: Bench) -> None:
    draft = lease_and_request(now=world.time)
    world.time += 1000  # the zone before this one took its time
    world.drive(find(Search((draft,)), CAN, Obligations()))
    begun = world.ledger.lease(draft[0].id).sent_at
    assert begun is not None
    assert int(labels(world)["tpujob-claimed-until"]) == int(begun + CAN.timings.provision_s + CAN.timings.boot_s)


@pytest.mark.parametrize("ahead_s", [-86400.0, 86400.0])
def test_labels_are_in_the_servers_time_and_a_corrected_local_clock_moves_no_deadline(
    monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    world = Bench(clock_offset_s=-ahead_s)
    owed = ready(world)
    first = world.ledger.lease(owed.lease.id)
    assert first.sent_at is not None
    claimed_s = CAN.timings.provision_s + CAN.timings.boot_s
    deadline = labels(world)["tpujob-deadline"]
    assert int(labels(world)["tpujob-claimed-until"]) == pytest.approx(first.sent_at + ahead_s + claimed_s, abs=1)
    assert int(deadline) == pytest.approx(first.deadline + ahead_s, abs=1)
    assert any("shows are 1 d" in line for line in world.told)
    moved = world.drive(move_claim(first, HeldUntil(first.id, world.laptop.now(), world.laptop.now() + 3600), CAN))
    assert abs(int(labels(world)["tpujob-claimed-until"]) - (moved.ends_at + ahead_s)) <= 2
    listed = CloudClient.list

    def corrected(*place: Any) -> Listing[SliceView]:
        found = listed(*place)
        return replace(found, server_now=(found.server_now or 0.0) - ahead_s)

    monkeypatch.setattr(CloudClient, "list", corrected)
    world.drive(move_claim(first, HeldUntil(first.id, world.laptop.now(), world.laptop.now() + 60), CAN))
    assert labels(world)["tpujob-deadline"] == deadline


def test_an_attached_run_renews_its_claim_before_it_ends_and_not_more_often_than_needed(world: Bench) -> None:
    world.lasts_s = 5400.0
    outcome = world.ran()
    assert outcome.exit_code == 0
    assert 5400 / CAN.timings.renew_s - 2 <= world.count("SetLabels") <= 5400 / CAN.timings.renew_s + 1


def test_a_renewal_that_fails_is_tried_again_in_time(world: Bench, monkeypatch: pytest.MonkeyPatch, owed: Any) -> None:
    renewal = LeaseRenewal(owed.lease, 1, CAN, world.time)
    relabel = CloudClient.set_labels
    failures = iter([CloudUnavailable("503"), WrongState("busy")])

    def failing(client: CloudClient, name: SliceName, labels: Any) -> Operation:
        for error in failures:
            raise error
        return relabel(client, name, labels)

    monkeypatch.setattr(CloudClient, "set_labels", failing)
    end = int(labels(world)["tpujob-claimed-until"])
    while world.time < end - 60:
        world.drive(renewal.tick())
        world.time += 15
    assert int(labels(world)["tpujob-claimed-until"]) > end


def test_a_slice_that_is_being_deleted_is_not_renewed(world: Bench, owed: Any) -> None:
    renewal = LeaseRenewal(owed.lease, 1, CAN, world.time)
    world.settings.delete_s = 1e9
    world.drive(release(owed.lease, CAN, reason="down", budget_s=1))
    before = labels(world)["tpujob-claimed-until"]
    world.time += CAN.timings.label_ttl_s
    world.drive(renewal.tick())
    assert labels(world)["tpujob-claimed-until"] == before and world.count("SetLabels") == 0


def test_no_claim_moves_before_it_is_known_how_long_this_machine_was_off(
    world: Bench, monkeypatch: pytest.MonkeyPatch, owed: Any
) -> None:
    monkeypatch.setattr(Process, "is_time_certain", lambda _: False)
    before, at = labels(world), world.ledger.lease(owed.lease.id)
    for move in (
        HeldUntil(owed.lease.id, world.time, world.time + 60),
        lambda lease: Extended(lease.id, world.time, 1e10),
    ):
        with pytest.raises(CloudUnavailable, match="was restarted"):
            world.drive(move_claim(owed.lease, move, CAN))
    assert (labels(world), world.ledger.lease(owed.lease.id)) == (before, at)


def _taken_away(world: Bench, node: Any) -> None:
    world.preempt()


def _of_another(world: Bench, node: Any) -> None:
    node.spec["labels"] = {"tpujob-lease-id": "9999999999"}


def _not_listed(world: Bench, node: Any) -> None:
    node.hidden_until = math.inf


def _of_another_in_a_zone_that_does_not_answer(world: Bench, node: Any) -> None:
    _of_another(world, node)
    world.settings.unreachable = [ZONE]


SPOILED = (_taken_away, _of_another, _of_another_in_a_zone_that_does_not_answer, _not_listed)


@pytest.mark.parametrize("spoil", SPOILED)
def test_what_is_not_this_slice_any_more_takes_no_claim(world: Bench, spoil: Any, owed: Any) -> None:
    spoil(world, *world.nodes.values())
    before = labels(world)
    with pytest.raises(Vanished):
        world.drive(move_claim(owed.lease, HeldUntil(owed.lease.id, world.time, world.time + 60), CAN))
    assert labels(world) == before and world.ledger.lease(owed.lease.id).hold_until is None
    assert f"claim {owed.lease.id}" not in world.locked


def test_a_complete_list_without_it_outranks_what_a_get_says(
    world: Bench, monkeypatch: pytest.MonkeyPatch, owed: Any
) -> None:
    listed = CloudClient.list
    monkeypatch.setattr(CloudClient, "list", lambda *place: replace(listed(*place), rows=()))
    world.effects.clear()
    with pytest.raises(Vanished):
        world.drive(move_claim(owed.lease, HeldUntil(owed.lease.id, world.time, world.time + 60), CAN))
    assert world.count("Get") == 0


@pytest.mark.parametrize(("failures", "takes_s"), [
    ([CloudUnavailable("503")] * 3, (0, 10)), ([WrongState("busy")] * 3, (0, 10)), ([None] * 3, (0, 10)),
    ([CloudUnavailable("429", retry_after_s=20.0)], (20, 25)), ([CloudUnavailable("503")] * 99, (50, 61)),
    ([None] * 99, (50, 61)),
])  # fmt: skip
def test_labels_are_written_until_they_are_seen_or_a_minute_is_over(
    world: Bench, monkeypatch: pytest.MonkeyPatch, owed: Any, failures: list[Any], takes_s: tuple[float, float]
) -> None:
    relabel, left, began = CloudClient.set_labels, iter(failures), world.time

    def failing(client: CloudClient, name: SliceName, labels: Any) -> Operation:
        for error in left:
            if error is None:  # accepted, and nothing comes of it
                return Operation("o", True)
            raise error
        return relabel(client, name, labels)

    monkeypatch.setattr(CloudClient, "set_labels", failing)
    move = move_claim(owed.lease, HeldUntil(owed.lease.id, began, began + 600), CAN)
    if len(failures) > 3:
        with pytest.raises(CloudUnavailable, match="503" if failures[0] else "do not take on the new claim"):
            world.drive(move)
    else:
        assert world.drive(move).hold_until == began + 600
        assert int(labels(world)["tpujob-claimed-until"]) == int(began + 600)
    assert takes_s[0] <= world.time - began <= takes_s[1] and f"claim {owed.lease.id}" not in world.locked


@pytest.mark.parametrize(("fields", "due_at"), [
    ({"sent_at": 100.0}, 700.0), ({}, 600.0), ({"sent_at": 0.0, "ready_at": 50.0, "ready_by": 9e4}, 1850.0),
    ({"sent_at": 0.0, "ready_at": 5.0, "ready_by": 10.0}, 610.0), ({"hold_until": 9000.0}, 6300.0),
])  # fmt: skip
def test_when_the_first_renewal_is_due(fields: dict[str, Any], due_at: float) -> None:
    lease = replace(lease_and_request(now=0.0).lease, **fields)

    def renews(at: float) -> bool:
        asked: list[str] = []

        def answer(effect: Any) -> Any:
            asked.append(type(effect).__name__)
            if asked[-1] == "ReadLease":
                raise CloudUnavailable("no answer")
            return at if asked[-1] == "Now" else ()

        driven(LeaseRenewal(lease, 1, CAN, 0.0).tick(), answer)
        return "ReadLease" in asked

    assert renews(due_at) and not renews(due_at - 1.0)


@pytest.mark.parametrize("ahead_s", [0.0, 86400.0])
def test_a_claim_of_a_run_becomes_shorter_only_when_its_wait_is_over(ahead_s: float) -> None:
    world = Bench(clock_offset_s=-ahead_s)
    owed = ready(world)
    (node,) = world.nodes.values()
    node.spec["labels"] = labels(world) | {"tpujob-claimed-until": str(int(world.time + 30000))}
    renewal = LeaseRenewal(owed.lease, 1, CAN, world.laptop.now())
    world.time += CAN.timings.renew_s
    world.drive(renewal.tick())
    next_run = HandedToNextRun(owed.lease.id, world.laptop.now(), "run2", "job2", owed.lease.deadline + 60)
    world.drive(move_claim(owed.lease, next_run, CAN))
    assert world.count("SetLabels") == 2 and int(labels(world)["tpujob-claimed-until"]) > world.time + 20000
    world.drive(shorten_claim(owed.lease, owed.lease, replace(CAN, timings=replace(CAN.timings, provision_s=9000.0))))
    until = owed.lease.ready_at + 9000.0 + CAN.timings.boot_s + ahead_s
    assert int(labels(world)["tpujob-claimed-until"]) == pytest.approx(until, abs=2)


@pytest.mark.parametrize("taken_over", [False, True])
def test_that_the_watchdogs_are_armed_or_are_not_in_time_is_said_once(
    world: Bench, owed: Any, taken_over: bool
) -> None:
    def told_in(seconds: float, every_s: float = 15.0) -> list[str]:
        before, until = len(world.told), world.time + seconds
        while world.time < until:
            world.drive(renewal.tick())
            world.time += every_s
        return [line.split()[0] for line in world.told[before:]]

    how = {"taken_over": True} if taken_over else {}
    renewal = LeaseRenewal(owed.lease, 1, CAN, world.time, **how)
    assert told_in(90.0) == ([] if taken_over else ["watchdog"])
    world.armed, renewal = False, LeaseRenewal(owed.lease, 1, CAN, world.time, taken_over=taken_over)
    asked = world.count("GetGuestAttributes")
    assert told_in(CAN.timings.boot_s - 15, 1.0) == [] and told_in(90.0) == ["warning"]
    assert world.count("GetGuestAttributes") - asked <= CAN.timings.boot_s / 15 + 3, "Google allows ten a minute"
    world.cut_off("api")
    world.armed, renewal = False, LeaseRenewal(owed.lease, 1, CAN, world.time)
    assert told_in(CAN.timings.boot_s + 90) == ["warning"]


def test_a_slice_that_an_incomplete_list_lacks_is_asked_for_by_its_name(world: Bench, owed: Any) -> None:
    world.settings.unreachable = [ZONE]
    renewal = LeaseRenewal(owed.lease, 1, CAN, world.time)
    world.time += CAN.timings.renew_s
    world.drive(renewal.tick())
    assert int(labels(world)["tpujob-claimed-until"]) == pytest.approx(world.time + CAN.timings.label_ttl_s, abs=2)


@pytest.mark.parametrize("free_after_s", [20.0, 1e9])
def test_of_two_commands_that_move_a_claim_one_waits_a_minute_for_the_other(
    world: Bench, monkeypatch: pytest.MonkeyPatch, free_after_s: float
) -> None:
    owed, began, lock = ready(world), world.time, ProcessLocks.lock
    monkeypatch.setattr(
        ProcessLocks, "lock", lambda locks, name: world.time >= began + free_after_s and lock(locks, name)
    )
    if free_after_s < 60:
        world.drive(extend(owed.lease, 1800, CAN))
        assert began + free_after_s <= world.time < began + free_after_s + 3
        return
    with pytest.raises(CloudUnavailable, match="another tpujob command is changing the claim"):
        world.drive(extend(owed.lease, 1800, CAN))
    assert 50 < world.time - began <= 60


@pytest.mark.parametrize(("refused", "ahead_s"), [(False, 0.0), (False, 86400.0), (True, 0.0)])
def test_an_extension_moves_the_expiry_of_the_key_in_the_profile_and_a_hold_does_not(
    refused: bool, ahead_s: float
) -> None:
    world = Bench(clock_offset_s=-ahead_s)
    lease, request = lease_and_request(now=world.time)
    draft = Draft(replace(lease, route=Route(os_login=True, user="")), request)
    owed = Obligations()
    world.drive(find(Search((draft,)), CAN, owed))
    before = world.key_expires_at(lease)
    if refused:
        world.plan.forbidden["os-login"] = [(0.0, math.inf)]
    kept = world.drive(keep_slice(owed, world.laptop.now() + 3600, CAN))
    assert world.key_expires_at(lease) == before and not [line for line in world.told if "expires as before" in line]
    if not refused:
        world.cut_off("os-login", for_s=20.0)
    extended = world.drive(extend(kept, 2 * 86400, CAN))
    moved_s = world.key_expires_at(lease) - extended.deadline - ahead_s - KEY_OUTLIVES_S
    assert (abs(moved_s) < 2) is not refused
    assert any("expires as before: permission denied" in line for line in world.told) is refused


def test_a_detached_run_is_handed_over_and_left(world: Bench) -> None:
    outcome = world.ran(job(world, detach=True))
    (lease,) = world.ledger.open_leases()
    assert outcome.exit_code == 0 and outcome.detached
    assert lease.state is LeaseState.READY and lease.mode is Mode.DETACHED
    assert labels(world)["tpujob-mode"] == "detached"
    assert int(labels(world)["tpujob-claimed-until"]) == int(lease.deadline)
    assert not world.locked


def report(world: Bench, mode: str, armed: bool = True) -> tuple[dict[str, str], ...]:
    record = {"armed": armed, "route": armed, "permission": True, "mode": mode, "worker": 0}
    return ({"tpujob/watchdog": json.dumps(record)},)


@pytest.mark.parametrize("late_s", [100.0, 170.0, 1e9])
@pytest.mark.parametrize("before", ["an error", "nothing", "the old claim"])
def test_a_hand_over_waits_three_minutes_for_the_watchdog(
    world: Bench, monkeypatch: pytest.MonkeyPatch, owed: Any, late_s: float, before: str
) -> None:
    began = world.time

    def published(client: CloudClient, name: SliceName) -> tuple[dict[str, str], ...]:
        if world.time >= began + late_s:
            return report(world, "detached")
        if before == "an error":
            raise CloudUnavailable("503")
        return () if before == "nothing" else report(world, "run")

    monkeypatch.setattr(BenchClient, "guest_attributes", published)
    if late_s < 180:
        assert world.drive(hand_over(owed.lease, CAN)).mode is Mode.DETACHED and world.time < began + late_s + 15
    else:
        with pytest.raises(WatchdogNotArmed, match="did not confirm the claim of the job"):
            world.drive(hand_over(owed.lease, CAN))
        assert 180 <= world.time - began < 195 and world.ledger.lease(owed.lease.id).mode is Mode.RUN


@pytest.mark.parametrize(
    ("changed", "gives_up_s"), [({}, 600.0), ({"deadline": 300.0}, 300.0), ({"ready_at": -200.0}, 400.0)]
)
@pytest.mark.parametrize("before", ["an error", "not armed"])
def test_who_waits_for_watchdogs_gives_up_when_they_had_time_to_boot(
    world: Bench, monkeypatch: pytest.MonkeyPatch, owed: Any, changed: dict[str, float], gives_up_s: float, before: str
) -> None:
    began = world.time
    lease = replace(owed.lease, **{"ready_at": began, **{key: began + value for key, value in changed.items()}})

    def published(client: CloudClient, name: SliceName) -> tuple[dict[str, str], ...]:
        if world.time < armed_at and before == "an error":
            raise CloudUnavailable("503")
        return report(world, "run", armed=world.time >= armed_at)

    monkeypatch.setattr(BenchClient, "guest_attributes", published)
    armed_at = math.inf
    with pytest.raises(WatchdogNotArmed, match="503" if before == "an error" else "no route"):
        world.drive(wait_for_watchdogs(lease, 1, CAN))
    assert gives_up_s <= world.time - began < gives_up_s + 15
    late = replace(lease, ready_at=None, deadline=world.time + 7000.0)
    armed_at = world.time + 550.0
    world.drive(wait_for_watchdogs(late, 1, CAN))
    assert world.time >= armed_at and world.told[-1].startswith("watchdog armed on every worker")


def test_guest_attributes_are_read_as_often_as_google_allows(
    world: Bench, monkeypatch: pytest.MonkeyPatch, owed: Any
) -> None:
    """10 queries a minute, and bursts of 3 a second; the VM writes there, too."""
    world.armed = False
    times, began = [], world.time

    def note(world: Bench) -> None:
        if world.last == "GetGuestAttributes":
            times.append(world.time)

    with pytest.raises(WatchdogNotArmed):
        world.drive(wait_for_watchdogs(owed.lease, 1, CAN), between=note)
    assert world.time - began <= CAN.timings.boot_s + 60, "it has a limit"
    assert len(times) > 20
    assert max(sum(begin <= at < begin + 60 for at in times) for begin in times) <= 7
    times.clear()
    with pytest.raises(WatchdogNotArmed):
        world.drive(hand_over(owed.lease, CAN), between=note)
    assert max(sum(begin <= at < begin + 60 for at in times) for begin in times) <= 7
    assert world.ledger.lease(owed.lease.id).detached_at is None, "nothing has confirmed: the run stays attached"


def test_an_extension_adds_in_label_and_ledger_to_a_hold_that_was_set_meanwhile(world: Bench, owed: Any) -> None:
    unheld = owed.lease
    kept = world.drive(keep_slice(owed, world.time + 600, CAN))
    lease = world.drive(extend(unheld, 60, CAN))
    assert kept.hold_until is not None and lease.hold_until == kept.hold_until + 60
    assert int(labels(world)["tpujob-claimed-until"]) == int(lease.hold_until) and "ExtendLogin" not in world.effects


def test_nothing_is_extended_beyond_a_week(world: Bench, owed: Any) -> None:
    with pytest.raises(UserError, match="7 days"):
        world.drive(extend(owed.lease, 7 * 86400, CAN))

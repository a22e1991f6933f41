"""gc under virtual time and a cloud with faults: what it deletes, what it leaves alone, and when it is complete."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import repeat
from typing import Any

import pytest

from cloud_tpu_emulator.model.records import Node, State
from orchestrator.errors import AuthError, BadRequest, CloudError, CloudUnavailable, UnexpectedReply, WrongState
from orchestrator.promise.effects.base import Report
from orchestrator.promise.gc import Collected, collect_garbage
from orchestrator.promise.lease.cloud_api import Listing
from orchestrator.promise.lease.lease import SliceName
from orchestrator.text import names
from tests.fakes.leases import lease_and_request, queued
from tests.simulation.model.bench import CAN, Bench, Between
from tests.simulation.model.cloud import PROJECT
from tests.simulation.model.cloud_client import CloudClient
from tests.simulation.model.faults import CallOutcome, cloud_fault

A, B = "us-central1-a", "us-west4-a"
OVER_S = -CAN.timings.margin_s - 60  # the end of a claim that is over for long enough
DOWN = CloudUnavailable("the API is down")
Spoil = Callable[..., None]


@pytest.fixture
def world() -> Bench:
    """A project with two zones. This machine's clock and the cloud's have nothing to do with each other."""
    world = Bench(clock_offset_s=-7.9e8, delete_s=30.0)
    world.zones = (A, B)
    return world


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Spoil:
    """Let calls of one kind raise these errors, or give answers that are changed so, one after the other."""

    def spoil(call: str, how: Iterable[Any], where: Callable[..., bool] = lambda *_: True) -> None:
        real, left = getattr(CloudClient, call), iter(how)

        def spoiled(client: CloudClient, *args: Any) -> Any:
            fault = next(left, None) if where(*args) else None
            if isinstance(fault, CloudError):
                raise fault
            answer = real(client, *args)
            return answer if fault is None else fault(answer)

        monkeypatch.setattr(CloudClient, call, spoiled)

    return spoil


def incomplete(listing: Listing[Any]) -> Listing[Any]:
    return replace(listing, unreachable=(A,))


def labels(world: Bench, identity: str, lease_in: float, **changed: str | None) -> dict[str, str]:
    made = names.labels(
        lease_id=identity, owner="k3f9ab", claimed_until=world.time + lease_in, deadline=world.time + 86400, name="mnist",
        mode="run",
    )  # fmt: skip
    named = {
        "tpujob" if key == "tpujob" else f"tpujob-{key.replace('_', '-')}": value for key, value in changed.items()
    }
    return {key: value for key, value in {**made, **named}.items() if value is not None}


def place(
    world: Bench,
    lease_in: float = 3600.0,
    *,
    name: str = "tpujob-k3f9ab-7q2m4x1pzt",
    age_s: float = 7200.0,
    **changed: Any,
) -> Node:
    """Place a READY slice in zone A, whose claim ends then; `changed`: its labels."""
    spec = {"acceleratorType": "v5litepod-8", "runtimeVersion": "v2-alpha-tpuv5-lite"}
    spec["labels"] = labels(world, "7q2m4x1pzt", lease_in, **changed)  # type: ignore[assignment]
    node = Node("", PROJECT, A, name, spec, 1, usd_per_hour=9.6)
    world.cloud.state.create(node, "v2", world.time)
    node.state, node.due, node.created_at = "READY", None, world.time - age_s
    world.cloud.settle()
    return node


def place_request(world: Bench, state: State, identity: str, lease_in: float) -> SliceName:
    request = queued(lease_and_request()).request
    name = replace(request.name, node=f"tpujob-k3f9ab-{identity}")
    world.cloud.ask(replace(request, name=name, labels=labels(world, identity, lease_in)), CallOutcome())
    row = next(row for row in world.cloud.state.queue.rows.values() if row.queue_id == name.node)
    row.state, row.due = state, None
    return name


def named(node: Node) -> SliceName:
    return SliceName(PROJECT, node.zone, node.node_id)


def collect(
    world: Bench, zones: tuple[str, ...] | None = None, *, between: Between | None = None, **options: Any
) -> Collected:
    return world.drive(collect_garbage(PROJECT, zones, CAN, **options), between=between)


def after(kind: str, act: Callable[[], Any]) -> Between:
    """Act once, after the first effect of this kind."""
    done: list[bool] = []

    def between(world: Bench) -> None:
        if world.last == kind and not done:
            done.append(True)
            act()

    return between


def told(world: Bench) -> list[str]:
    return [each.text for each in world.effects if isinstance(each, Report) and not each.passing]


# -- what is deleted ---------------------------------------------------------------------------------------------------


def test_a_slice_whose_claim_is_over_is_deleted_and_seen_absent(world: Bench) -> None:
    dead = place(world, OVER_S)
    collected = collect(world)
    [ended] = collected.ended.values()
    assert ended.gone and "was not renewed" in ended.why
    assert ended.usd_per_hour is not None and ended.usd_per_hour > 0
    assert (collected.done, collected.found, collected.deleted, collected.zones) == (True, 1, 1, [A, B])
    assert world.nodes == {} and world.count("Delete") == 1
    assert told(world)[0].startswith(f"{dead.node_id} (v5litepod-8, us-central1-a, about $")
    assert told(world)[0].endswith("; deleting it") and told(world)[-1] == f"{dead.node_id} absent"


def test_a_delete_waits_for_no_other_zone_and_the_end_for_no_time(world: Bench) -> None:
    place(world, OVER_S)
    place(world, name="tpujob-k3f9ab-claimed0zz")
    began, collected = world.time, collect(world)
    assert (collected.found, collected.deleted, collected.done) == (2, 1, True)
    assert world.names.index("Delete") < max(at for at, name in enumerate(world.names) if name == "ListSlices")
    assert world.time - began < world.plan.delete_s + 30


def test_it_ends_when_all_are_gone_and_not_when_one_is(world: Bench, spoil: Spoil) -> None:
    place(world, OVER_S)
    other = place(world, OVER_S, name="tpujob-k3f9ab-another000", lease_id="another000")
    spoil("get", [DOWN] * 8, lambda name: name.node == other.node_id)
    assert collect(world).deleted == 2 and world.nodes == {}


def test_a_claim_that_ends_between_two_lists_counts_once(world: Bench, spoil: Spoil) -> None:
    world.queues, node = False, place(world)
    spoil("list", [incomplete])
    over = labels(world, "7q2m4x1pzt", OVER_S)
    collected = collect(world, (A,), between=after("ListSlices", lambda: node.spec.update(labels=over)))
    assert (collected.found, collected.deleted, collected.claimed) == (1, 1, {})


def test_without_the_servers_clock_nothing_is_judged(world: Bench, spoil: Spoil) -> None:
    place(world, OVER_S)
    spoil("list", repeat(lambda listing: replace(listing, server_now=None)))
    world.queues = False
    collected = collect(world, deadline_s=60)
    assert world.count("Delete") == 0 and "what time it is" in collected.incomplete[A]


def test_a_dry_run_deletes_nothing_and_is_not_done_while_something_should_go(world: Bench) -> None:
    place(world, OVER_S)
    collected = collect(world, dry_run=True)
    assert not {"Delete", "Get"} & {*world.names}
    assert [each.gone for each in collected.ended.values()] == [False] and not collected.done
    assert told(world)[0].endswith("; would be deleted")
    world.vanish()
    place(world)
    assert collect(world, dry_run=True).done


# -- what is left alone ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changed", "why"), [
    ({"tpujob": None}, "not the label"), ({"tpujob": "0"}, "not the label"),
    ({"name": "someone-elses"}, "not a name like ours"), ({"name": "tpujobs-are-fun"}, "not a name like ours"),
])  # fmt: skip
def test_a_slice_with_one_of_the_two_marks_is_reported_and_never_deleted(
    world: Bench, changed: dict[str, Any], why: str
) -> None:
    node = place(world, OVER_S, **changed)
    collected = collect(world)
    assert world.count("Delete") == 0 and (collected.ended, collected.claimed) == ({}, {})
    assert why in collected.doubtful[named(node)].why
    assert collected.done, "slices of others do not make gc fail"


@pytest.mark.parametrize("text", ["9e99", "-1", "٣", "", "nan", "1" * 60, "soon", "0x10", "1.5"])
def test_an_unreadable_claim_gives_a_day_from_creation_and_a_remark(world: Bench, text: str) -> None:
    node = place(world, claimed_until=text, deadline=text)
    collected = collect(world)
    assert world.count("Delete") == 0 and named(node) in collected.claimed
    assert "is not a time" in collected.doubtful[named(node)].why
    node.created_at -= 3 * 86400
    assert collect(world).ended[named(node)].gone


def test_a_slice_that_cannot_be_judged_is_reported_and_left_alone(world: Bench, spoil: Spoil) -> None:
    node = place(world, claimed_until="x", deadline=None)
    world.queues = False
    spoil("list", repeat(lambda seen: replace(seen, rows=tuple(replace(row, created_at=None) for row in seen.rows))))
    collected = collect(world)
    assert world.count("Delete") == 0 and "look at it yourself" in collected.doubtful[named(node)].why


# -- queued requests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.WAITING, State.FAILED, State.SUSPENDED])
def test_a_request_is_judged_by_its_labels_whether_it_waits_or_is_dead(world: Bench, state: State) -> None:
    world.full(A)
    over, claimed = place_request(world, state, "q2m4x1pzt7", OVER_S), place_request(world, state, "claimed0zz", 600)
    collected = collect(world)
    assert collected.done and [node for call, node in world.calls if call == "Delete"] == [over.node]
    assert [row.queue_id for row in world.cloud.look().queue.rows.values()] == [claimed.node]
    assert claimed in collected.claimed
    assert "not billed" in told(world)[0], "it holds quota, not money"


@pytest.mark.parametrize(
    "error", [AuthError("Permission 'tpu.queuedResources.list' denied"), CloudError("not found"), DOWN]
)
def test_where_requests_cannot_be_listed_nodes_are_deleted_all_the_same(
    world: Bench, spoil: Spoil, error: CloudError
) -> None:
    dead, world.queues = place(world, OVER_S), False
    spoil("list", repeat(error), lambda project, zone, queued=False: queued)
    collected = collect(world, deadline_s=120)
    assert collected.ended[named(dead)].gone and world.nodes == {}
    assert set(collected.incomplete) == {A, B} and not collected.done
    assert collected.incomplete[A] == f"its queued requests cannot be listed: {error.message}"


# -- races -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changed", "doubt"), [
    ({"claimed_until": "1800004500"}, None),
    ({"lease_id": "another000"}, "labels changed"), ({"tpujob": None}, "labels changed"),
])  # fmt: skip
def test_what_changed_between_the_list_and_the_delete_protects_the_slice(
    world: Bench, changed: dict[str, str | None], doubt: str | None
) -> None:
    dead = place(world, OVER_S)
    new = labels(world, "7q2m4x1pzt", OVER_S, **changed)
    collected = collect(world, between=after("ListSlices", lambda: dead.spec.update(labels=new)))
    assert (world.count("Delete"), collected.ended, collected.done) == (0, {}, True)
    if doubt is None:
        assert collected.claimed[named(dead)].until == 1_800_004_500
    else:
        assert doubt in collected.doubtful[named(dead)].why


def test_a_delete_from_elsewhere_at_the_same_time_is_no_problem(world: Bench) -> None:
    dead = place(world, OVER_S)
    collected = collect(world, between=after("ListSlices", world.vanish))
    assert collected.ended[named(dead)].gone and collected.done


def test_the_claim_is_read_again_before_every_repeated_delete(world: Bench) -> None:
    dead = place(world, OVER_S)
    world.plan.delete_effects = [cloud_fault("operation_fails", "nodes.delete")]
    renewed = labels(world, "7q2m4x1pzt", 4500)
    collected = collect(world, between=after("Delete", lambda: dead.spec.update(labels=renewed)))
    assert world.count("Delete") == 1 and named(dead) in collected.claimed


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["zones", "list", "get", "delete"])
@pytest.mark.parametrize("error", [DOWN, UnexpectedReply("HTML"), UnexpectedReply("it goes round in circles")])
def test_every_failed_call_is_repeated_within_the_run(world: Bench, spoil: Spoil, call: str, error: CloudError) -> None:
    place(world, OVER_S)
    world.queues = False
    spoil(call, [error] * 5)
    collected = collect(world)
    assert collected.done and collected.deleted == 1 and world.nodes == {}


@pytest.mark.parametrize("error", [AuthError("Permission denied", hint="log in"), BadRequest("no such zone")])
def test_an_error_that_the_user_must_fix_is_not_repeated_and_leaves_the_run_incomplete(
    world: Bench, spoil: Spoil, error: CloudError
) -> None:
    world.queues = False
    spoil("list", repeat(error), lambda project, zone, queued=False: zone == A)
    collected = collect(world)
    assert collected.incomplete == {A: error.message} and not collected.done
    assert collected.hint == (error.hint or "")
    assert world.names.count("ListSlices") == 3, "once with the queue and once without it, and the other zone"


def test_a_project_whose_zones_cannot_be_listed_is_incomplete(world: Bench, spoil: Spoil) -> None:
    place(world, OVER_S)
    spoil("zones", repeat(DOWN))
    collected = collect(world, deadline_s=60)
    assert not collected.done and "zones cannot be listed" in collected.incomplete["-"]
    assert collect(world, (A,), deadline_s=200).done, "with zones given, they need not be listed"


def test_a_project_without_zones_is_not_complete(world: Bench) -> None:
    world.zones = ()  # type: ignore[assignment]
    assert not collect(world).done


def test_an_incomplete_list_is_repeated_until_it_is_complete(world: Bench, spoil: Spoil) -> None:
    world.queues = False
    spoil("list", [incomplete] * 3)
    assert collect(world, (A,)).done
    dead = place(world, OVER_S)
    spoil("list", repeat(incomplete))
    collected = collect(world, (A,), deadline_s=120)
    assert "not complete" in collected.incomplete[A]
    assert collected.ended[named(dead)].gone, "what is seen to be unclaimed goes all the same"


def test_slices_that_still_exist_at_the_end_are_reported(world: Bench) -> None:
    dead, world.settings.delete_s, began = place(world, OVER_S), math.inf, world.time
    collected = collect(world, deadline_s=300)
    assert not collected.done and collected.ended[named(dead)].problem == "still there: DELETING"
    assert 250 <= world.time - began <= 310


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (AuthError("Permission 'tpu.nodes.delete' denied"), "the delete was refused: Permission"),
        (WrongState("not in state CREATING"), ""),
    ],
)
def test_a_refused_delete_is_reported_with_its_reason(
    world: Bench, spoil: Spoil, error: CloudError, problem: str
) -> None:
    dead = place(world, OVER_S)
    spoil("delete", repeat(error))
    collected = collect(world, deadline_s=60)
    assert not collected.done and problem in collected.ended[named(dead)].problem


def test_a_permission_error_after_the_delete_is_not_an_absence(world: Bench, spoil: Spoil) -> None:
    dead = place(world, OVER_S)
    spoil("get", repeat(AuthError("or it may not exist")))
    collected = collect(world, deadline_s=60)
    assert not collected.done and not collected.ended[named(dead)].gone and world.count("Delete") == 0


def test_retry_after_is_respected(world: Bench, spoil: Spoil) -> None:
    world.queues, began = False, world.time
    spoil("list", [CloudUnavailable("429", retry_after_s=45.0)])
    collect(world, (A,))
    assert world.time >= began + 45


def test_when_the_time_is_over_zones_that_were_not_listed_are_named(world: Bench) -> None:
    world.zones = tuple(f"us-east{n}-a" for n in range(1, 9))  # type: ignore[assignment]
    world.plan.slow_replies = dict.fromkeys(("nodes.list", "queuedResources.list"), 20.0)
    collected = collect(world, deadline_s=100)
    assert set(collected.incomplete.values()) == {"not asked: the time was over"}

"""gc under virtual time and a cloud with faults: what it deletes, what it leaves alone, and when it is complete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from orchestrator.core.lease.cloud_api import Capabilities, Listing, Operation, SliceName, SliceState, SliceView
from orchestrator.core.text import names
from orchestrator.engine.effects.base import Effect, Report, Sleep
from orchestrator.engine.leases.gc import Collected, collect_garbage
from orchestrator.errors import AuthError, BadRequest, CloudError, CloudUnavailable, UnexpectedReply, WrongState
from tests.unit.engine.virtual import driven

CAN = Capabilities(visible_within_s=300, settles_within_s=2700)
MARGIN_S = CAN.timings.margin_s
LOCAL = 1_000_000_000.0  # this machine's clock
SERVER = 1_795_262_400.0  # the cloud's: the two have nothing to do with each other
A, B = "us-central1-a", "us-west4-a"
DOWN = CloudUnavailable("the API is down")
WAITING_OR_DEAD = (SliceState.QUEUED, SliceState.TOMBSTONE)  # here: requests without a node


def node(identity: str = "7q2m4x1pzt", zone: str = A, *, lease_in: float = 3600, **changes: Any) -> SliceView:
    labels = names.labels(
        lease_id=identity, owner="k3f9ab", claimed_until=SERVER + lease_in, deadline=SERVER + 86400,
        name="mnist", mode="run",
    )  # fmt: skip
    view = SliceView(
        SliceName("acme-project", zone, f"tpujob-k3f9ab-{identity}"), SliceState.READY, "READY", "v5litepod-8",
        "v2-alpha-tpuv5-lite", labels, created_at=SERVER - 7200,
    )  # fmt: skip
    return replace(view, **changes)


def relabelled(view: SliceView, **labels: str | None) -> SliceView:
    named = {
        names.PREFIX if key == "tpujob" else f"tpujob-{key.replace('_', '-')}": value for key, value in labels.items()
    }
    changed = {**view.labels, **named}
    return replace(view, labels={key: value for key, value in changed.items() if value is not None})


@dataclass
class World:
    """A project, a clock that only sleeping moves, and faults by effect: each is raised or given once, in order."""

    nodes: dict[SliceName, SliceView]
    zones_known: tuple[str, ...] = (A, B)
    delete_s: float = 30.0
    time: float = LOCAL
    faults: dict[str, list[Any]] = field(default_factory=dict)  # "list", "get", "delete", "zones" → errors or None
    always: dict[str, CloudError] = field(default_factory=dict)  # the same for ever; also "list us-west4-a"
    deleting: dict[SliceName, float] = field(default_factory=dict)
    deletes: list[SliceName] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    unreachable: int = 0  # so many lists are not complete
    before_get: Callable[[World], None] | None = None
    failing_deletes: int = 0  # accepted, and nothing comes of them
    clockless: bool = False
    latency_s: float = 0.1

    @property
    def cloud(self) -> World:
        return self

    @property
    def server_now(self) -> float:
        return SERVER + self.time - LOCAL

    def now(self, cloud: str | None = None) -> float:
        return self.time

    def report(self, told: Report) -> None:
        if not told.passing:
            self.told.append(told.text)

    def _question(self, what: str, *more: str) -> None:
        self.time += self.latency_s
        self.asked.append(what)
        for name in [name for name, at in self.deleting.items() if self.time >= at]:
            self.deleting.pop(name)
            self.nodes.pop(name, None)
        for key in (what, *more):
            if key in self.always:
                raise self.always[key]
            if self.faults.get(key) and (error := self.faults[key].pop(0)) is not None:
                raise error

    def zones(self, project: str) -> Listing[str]:
        self._question("zones")
        return Listing(self.zones_known)

    def list(self, project: str, zone: str, queued: bool = False) -> Listing[SliceView]:
        self._question("list", f"list {zone}", *(["list queue"] if queued else []))
        unreachable: tuple[str, ...] = ()
        if self.unreachable:
            self.unreachable -= 1
            unreachable = (zone,)
        here = [view for view in self.nodes.values() if view.name.zone == zone]
        rows = tuple(view for view in here if queued or view.state not in WAITING_OR_DEAD)
        return Listing(rows, unreachable, None if self.clockless else self.server_now)

    def get(self, name: SliceName) -> SliceView | None:
        self._question("get")
        if self.before_get is not None:
            self.before_get, change = None, self.before_get
            change(self)
        view = self.nodes.get(name)
        if view is not None and name in self.deleting:
            return replace(view, state=SliceState.DELETING, native_state="DELETING")
        return view

    def delete(self, name: SliceName) -> Operation | None:
        self._question("delete")
        self.deletes.append(name)
        if name not in self.nodes:
            return None
        if self.failing_deletes:
            self.failing_deletes -= 1
        else:
            self.deleting.setdefault(name, self.time + self.delete_s)
        return Operation("operation-1", False)

    def collect_garbage(self, zones: tuple[str, ...] | None = None, **options: Any) -> Collected:
        return driven(collect_garbage("acme-project", zones, CAN, **options), self._answer)

    def _answer(self, effect: Effect[Any]) -> Any:
        if isinstance(effect, Sleep):
            self.time += effect.seconds
            return None
        return effect.perform(self)  # type: ignore[arg-type]


def world(*views: SliceView, **options: Any) -> World:
    return World({view.name: view for view in views}, **options)


DEAD = node(lease_in=-MARGIN_S - 60)


# -- what is deleted ---------------------------------------------------------------------------------------------------


def test_a_slice_whose_claim_is_over_is_deleted_and_seen_absent() -> None:
    cloud = world(DEAD)
    collected = cloud.collect_garbage()
    [ended] = collected.ended.values()
    assert ended.gone and "was not renewed" in ended.why
    assert ended.usd_per_hour is not None and ended.usd_per_hour > 0
    assert (collected.done, collected.found, collected.deleted, collected.zones) == (True, 1, 1, [A, B])
    assert cloud.nodes == {} and cloud.deletes == [DEAD.name]
    assert cloud.told[0].startswith("tpujob-k3f9ab-7q2m4x1pzt (v5litepod-8, us-central1-a, about $")
    assert cloud.told[-1] == "tpujob-k3f9ab-7q2m4x1pzt absent"


def test_without_the_servers_clock_nothing_is_judged() -> None:
    cloud = world(DEAD, clockless=True)
    collected = cloud.collect_garbage(deadline_s=60)
    assert cloud.deletes == []
    assert "what time it is" in collected.incomplete[A]


def test_a_dry_run_deletes_nothing_and_is_not_done_while_something_should_go() -> None:
    cloud = world(DEAD)
    collected = cloud.collect_garbage(dry_run=True)
    assert cloud.deletes == [] and "get" not in cloud.asked
    assert [each.gone for each in collected.ended.values()] == [False]
    assert not collected.done
    assert world(node()).collect_garbage(dry_run=True).done


# -- what is left alone ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("view", "why"), [
    (relabelled(DEAD, tpujob=None), "not the label"),
    (relabelled(DEAD, tpujob="0"), "not the label"),
    (replace(DEAD, name=replace(DEAD.name, node="someone-elses")), "not a name like ours"),
    (replace(DEAD, name=replace(DEAD.name, node="tpujobs-are-fun")), "not a name like ours"),
])  # fmt: skip
def test_a_slice_with_one_of_the_two_marks_is_reported_and_never_deleted(view: SliceView, why: str) -> None:
    cloud = world(view)
    collected = cloud.collect_garbage()
    assert cloud.deletes == [] and (collected.ended, collected.claimed) == ({}, {})
    assert why in collected.doubtful[view.name].why
    assert collected.done, "slices of others do not make gc fail"


@pytest.mark.parametrize("text", ["9e99", "-1", "٣", "", "nan", "1" * 60, "soon", "0x10", "1.5"])
def test_an_unreadable_claim_gives_a_day_from_creation_and_a_remark(text: str) -> None:
    young = relabelled(node(), claimed_until=text, deadline=text)
    cloud = world(young)
    collected = cloud.collect_garbage()
    assert cloud.deletes == [] and young.name in collected.claimed
    assert "is not a time" in collected.doubtful[young.name].why
    old = replace(young, created_at=SERVER - 3 * 86400)
    assert world(old).collect_garbage().ended[old.name].gone


def test_a_slice_that_cannot_be_judged_is_reported_and_left_alone() -> None:
    view = replace(relabelled(node(), claimed_until="x", deadline=None), created_at=None)
    cloud = world(view)
    collected = cloud.collect_garbage()
    assert cloud.deletes == [] and "look at it yourself" in collected.doubtful[view.name].why


# -- queued requests ---------------------------------------------------------------------------------------------------


def request(native: str, state: SliceState, identity: str = "q2m4x1pzt7", *, lease_in: float) -> SliceView:
    view = node(identity, lease_in=lease_in, state=state, native_state=native)
    return replace(view, name=replace(view.name, queued=True))


@pytest.mark.parametrize(("native", "state"), [
    ("WAITING_FOR_RESOURCES", SliceState.QUEUED),
    ("FAILED", SliceState.TOMBSTONE), ("SUSPENDED", SliceState.TOMBSTONE),
])  # fmt: skip
def test_a_request_is_judged_by_its_labels_whether_it_waits_or_is_dead(native: str, state: SliceState) -> None:
    over = request(native, state, lease_in=-MARGIN_S - 60)
    claimed = request(native, state, "claimed0zz", lease_in=600)
    cloud = world(over, claimed)
    collected = cloud.collect_garbage()
    assert collected.done and cloud.deletes == [over.name] and list(cloud.nodes) == [claimed.name]
    assert claimed.name in collected.claimed
    assert "not billed" in cloud.told[0], "it holds quota, not money"


@pytest.mark.parametrize(
    "error", [AuthError("Permission 'tpu.queuedResources.list' denied"), CloudError("not found"), DOWN]
)
def test_where_requests_cannot_be_listed_nodes_are_deleted_all_the_same(error: CloudError) -> None:
    cloud = world(DEAD, always={"list queue": error})
    collected = cloud.collect_garbage(deadline_s=120)
    assert collected.ended[DEAD.name].gone and cloud.nodes == {}
    assert set(collected.incomplete) == {A, B} and not collected.done
    assert collected.incomplete[A] == f"its queued requests cannot be listed: {error.message}"


# -- races -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("labels", "doubt"), [
    ({"claimed_until": str(int(SERVER + 4500))}, None),
    ({"lease_id": "another000"}, "labels changed"), ({"tpujob": None}, "labels changed"),
])  # fmt: skip
def test_what_changed_between_the_list_and_the_delete_protects_the_slice(
    labels: dict[str, str | None], doubt: str | None
) -> None:
    cloud = world(DEAD, before_get=lambda cloud: cloud.nodes.update({DEAD.name: relabelled(DEAD, **labels)}))
    collected = cloud.collect_garbage()
    assert (cloud.deletes, collected.ended, collected.done) == ([], {}, True)
    if doubt is None:
        assert collected.claimed[DEAD.name].until == SERVER + 4500
    else:
        assert doubt in collected.doubtful[DEAD.name].why


def test_a_delete_from_elsewhere_at_the_same_time_is_no_problem() -> None:
    cloud = world(DEAD, before_get=lambda cloud: cloud.nodes.clear())
    collected = cloud.collect_garbage()
    assert collected.ended[DEAD.name].gone and collected.done


def test_the_claim_is_read_again_before_every_repeated_delete() -> None:
    cloud = world(DEAD, failing_deletes=1)
    original = cloud.delete

    def delete_then_renew(name: SliceName) -> Operation | None:
        answer = original(name)
        cloud.nodes[name] = relabelled(DEAD, claimed_until=str(int(SERVER + 4500)))
        return answer

    cloud.delete = delete_then_renew  # type: ignore[method-assign]
    collected = cloud.collect_garbage()
    assert len(cloud.deletes) == 1 and DEAD.name in collected.claimed


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["zones", "list", "get", "delete"])
@pytest.mark.parametrize("error", [DOWN, UnexpectedReply("HTML"), UnexpectedReply("it goes round in circles")])
def test_every_failed_call_is_repeated_within_the_run(effect: str, error: CloudError) -> None:
    cloud = world(DEAD, faults={effect: [error] * 5})
    collected = cloud.collect_garbage()
    assert collected.done and collected.deleted == 1 and cloud.nodes == {}


@pytest.mark.parametrize("error", [AuthError("Permission denied"), BadRequest("no such zone")])
def test_an_error_that_the_user_must_fix_is_not_repeated_and_leaves_the_run_incomplete(error: CloudError) -> None:
    cloud = world(always={f"list {A}": error})
    collected = cloud.collect_garbage()
    assert collected.incomplete == {A: error.message} and not collected.done
    assert cloud.asked.count("list") == 3, "once with the queue and once without it, and the other zone"


def test_a_project_whose_zones_cannot_be_listed_is_incomplete() -> None:
    cloud = world(DEAD, always={"zones": DOWN})
    collected = cloud.collect_garbage(deadline_s=60)
    assert not collected.done and "zones cannot be listed" in collected.incomplete["-"]
    assert cloud.collect_garbage((A,), deadline_s=200).done, "with zones given, they need not be listed"


def test_a_project_without_zones_is_not_complete() -> None:
    assert not world(zones_known=()).collect_garbage().done


def test_an_incomplete_list_is_repeated_until_it_is_complete() -> None:
    cloud = world(DEAD, unreachable=3)
    assert cloud.collect_garbage((A,)).done
    cloud = world(DEAD, unreachable=10_000)
    collected = cloud.collect_garbage((A,), deadline_s=120)
    assert "not complete" in collected.incomplete[A]
    assert collected.ended[DEAD.name].gone, "what is seen to be unclaimed goes all the same"


def test_slices_that_still_exist_at_the_end_are_reported() -> None:
    cloud = world(DEAD, delete_s=10_000)
    collected = cloud.collect_garbage(deadline_s=300)
    assert not collected.done and collected.ended[DEAD.name].problem == "still there: DELETING"
    assert LOCAL + 250 <= cloud.time <= LOCAL + 310


def test_a_refused_delete_is_reported_with_its_reason() -> None:
    collected = world(DEAD, always={"delete": AuthError("Permission 'tpu.nodes.delete' denied")}).collect_garbage(
        deadline_s=60
    )
    assert "the delete was refused: Permission" in collected.ended[DEAD.name].problem
    collected = world(DEAD, always={"delete": WrongState("not in state CREATING")}).collect_garbage(deadline_s=60)
    assert not collected.done


def test_a_permission_error_after_the_delete_is_not_an_absence() -> None:
    cloud = world(DEAD, always={"get": AuthError("or it may not exist")})
    collected = cloud.collect_garbage(deadline_s=60)
    assert not collected.done and not collected.ended[DEAD.name].gone and cloud.deletes == []


def test_retry_after_is_respected() -> None:
    cloud = world(DEAD, faults={"list": [CloudUnavailable("429", retry_after_s=45.0)]}, latency_s=0)
    cloud.collect_garbage((A,))
    assert cloud.time >= LOCAL + 45


def test_when_the_time_is_over_zones_that_were_not_listed_are_named() -> None:
    many = tuple(f"us-east{n}-a" for n in range(1, 9))
    collected = world(zones_known=many, latency_s=20.0).collect_garbage(deadline_s=100)
    assert set(collected.incomplete.values()) == {"not asked: the time was over"}

"""Acquiring a slice, call by call: what is recorded before it is sent, what follows from a reply, and when it is given up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import (
    AlreadyExists,
    AuthError,
    CapacityError,
    CloudError,
    CloudUnavailable,
    NotSent,
    Preempted,
    SliceLost,
    UnexpectedReply,
    Vanished,
)
from orchestrator.promise.lease.access import KEY_OUTLIVES_S, Route
from orchestrator.promise.lease.changes import Created, CreateSent, Intent, NotAllowed, Ready
from orchestrator.promise.lease.cloud_api import Listing, Operation, SliceState, SliceView
from orchestrator.promise.lease.lease import LeaseState
from orchestrator.promise.obtain.acquire import acquire, check_ready, create_slice, shorten_labels, wait_until_ready
from orchestrator.promise.obtain.drafts import Draft
from tests.fakes.leases import lease_and_request, queued
from tests.fakes.scripted_cloud import ScriptedCloud
from tests.simulation.model.bench import CAN

BEGAN = 1_800_000_000.0
PLAIN = lease_and_request(now=BEGAN)
QUEUED = queued(PLAIN, valid_for_s=3600.0)
LOGIN = Draft(replace(PLAIN.lease, route=Route(os_login=True, user="")), PLAIN.request)
AWAY, DENIED, TAKEN = CloudUnavailable("no answer"), AuthError("denied"), AlreadyExists("it exists")
SOON, LATE = CloudUnavailable("429", retry_after_s=20.0), NotSent("late")
CREATED, FAILED = Operation("c", True), Operation("c", True, error=CapacityError("no capacity"))


def view(state: SliceState, **fields: Any) -> SliceView:
    labels = {"tpujob-lease-id": PLAIN.lease.id}
    return SliceView(PLAIN.lease.name, state, state.name, "v5litepod-8", "r", **{"labels": labels, **fields})


READY, COMING = view(SliceState.READY), view(SliceState.CREATING)


def cloud(ahead_s: float = 0.0, **replies: Any) -> ScriptedCloud:
    listing: Listing[SliceView] = Listing((), (), BEGAN + ahead_s)
    return ScriptedCloud({"ListSlices": [listing], "Create": [CREATED], "StartGuardian": [True], **replies})


def events(made: ScriptedCloud) -> list[str]:
    return [type(each).__name__ for each in made.log if not isinstance(each, str)]


def test_the_intent_is_recorded_behind_a_guardian_before_the_create_leaves() -> None:
    made = cloud()
    lease = made.drive(create_slice(*PLAIN, CAN))
    assert made.calls == ["ListSlices", "SetServerTime", "StartGuardian", "Create"] and lease.operation == "c"
    intent, told, sent, created = made.log
    assert (intent, type(sent), type(created)) == (Intent(PLAIN.lease), CreateSent, Created)
    assert told == f"{PLAIN.lease.name.node} · guardian watching"
    alone = cloud(StartGuardian=[False])
    alone.drive(create_slice(*PLAIN, CAN))
    assert alone.log[1].endswith("no guardian (TPUJOB_GUARDIAN=off)")


def test_a_queued_slice_has_its_wait_beside_its_life() -> None:
    lease = cloud(ListSlices=[AWAY, Listing((), (), BEGAN)]).drive(create_slice(*QUEUED, CAN))
    assert lease.ready_by is not None and lease.ready_by - BEGAN == pytest.approx(3600.8)
    assert lease.deadline - lease.ready_by == QUEUED.lease.deadline - QUEUED.lease.created_at


@pytest.mark.parametrize(("replies", "recorded", "error", "takes_s"), [
    ([AWAY, CREATED], "CreateSent CreateSent Created", None, (0.5, 2)),
    ([SOON, CREATED], "CreateSent CreateSent Created", None, (20, 22)),
    ([LATE, CREATED], "CreateSent CreateSent Created", None, (0, 0.6)),
    ([UnexpectedReply("HTML")], "CreateSent", UnexpectedReply, (0, 1)),
    ([DENIED], "CreateSent CreateRefused", AuthError, (0, 1)),
    ([AWAY, TAKEN], "CreateSent CreateSent CreateRefused", None, (0.5, 2)),
])  # fmt: skip
def test_each_create_that_leaves_is_counted_until_its_reply_is_known(
    replies: list[Any], recorded: str, error: type[CloudError] | None, takes_s: tuple[float, float]
) -> None:
    made = cloud(Create=replies, Get=[AWAY, READY])
    if error is None:
        made.drive(create_slice(*PLAIN, CAN))
    else:
        with pytest.raises(error):
            made.drive(create_slice(*PLAIN, CAN))
    assert " ".join(events(made)[1:]) == recorded and takes_s[0] <= made.now - BEGAN < takes_s[1]


def test_a_cloud_that_does_not_reply_is_given_up_after_a_minute() -> None:
    for name in ("ListSlices", "Create"):
        replies: dict[str, Any] = {name: [AWAY]}
        made = cloud(**replies)
        with pytest.raises(CloudUnavailable):
            made.drive(create_slice(*PLAIN, CAN))
        assert 30 < made.now - BEGAN < 62
        assert ("Intent" in events(made)) is (name == "Create")


@pytest.mark.parametrize(("found", "adopted"), [([READY], True), ([None], True), ([replace(READY, labels={})], False)])
def test_a_slice_of_this_name_is_adopted_if_it_is_ours_or_is_not_visible_yet(found: list[Any], adopted: bool) -> None:
    made = cloud(Create=[TAKEN], Get=found)
    if adopted:
        assert made.drive(create_slice(*PLAIN, CAN)).sends == 0
    else:
        with pytest.raises(UnexpectedReply, match="exists that tpujob did not create"):
            made.drive(create_slice(*PLAIN, CAN))


# -- a key in the OS Login profile ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_s", [0.0, 1000.0])
def test_the_key_is_there_before_the_create_and_expires_after_the_deadline_in_the_servers_time(ahead_s: float) -> None:
    made = cloud(ahead_s, GrantLogin=[AWAY, AWAY, "ada"])
    lease = made.drive(create_slice(*LOGIN, CAN))
    assert lease.route.user == "ada" and events(made) == ["Intent", "LoginGranted", "CreateSent", "Created"]
    expires_at = next(each.expires_at for each in made.asked if type(each).__name__ == "GrantLogin")
    assert expires_at == pytest.approx(LOGIN.lease.deadline + ahead_s + KEY_OUTLIVES_S, abs=2)


@pytest.mark.parametrize(("replies", "recorded", "error", "takes_s"), [
    ([DENIED], "LoginRefused", AuthError, (0, 1)), ([AWAY, DENIED], "", AuthError, (0.5, 2)),
    ([UnexpectedReply("HTML")], "", UnexpectedReply, (0, 1)), ([AWAY], "", CloudUnavailable, (30, 62)),
    ([SOON, SOON, "ada"], "LoginGranted CreateSent Created", None, (40, 42)),
    ([CloudUnavailable("429", retry_after_s=600.0), "ada"], "", CloudUnavailable, (0, 1)),
])  # fmt: skip
def test_a_key_that_is_refused_for_certain_leaves_nothing_to_remove(
    replies: list[Any], recorded: str, error: type[CloudError] | None, takes_s: tuple[float, float]
) -> None:
    made = cloud(GrantLogin=replies)
    if error is None:
        made.drive(create_slice(*LOGIN, CAN))
    else:
        with pytest.raises(error):
            made.drive(create_slice(*LOGIN, CAN))
    assert " ".join(events(made)[1:]) == recorded and takes_s[0] <= made.now - BEGAN < takes_s[1]


def test_no_key_is_imported_for_a_lease_that_is_released_meanwhile() -> None:
    made = cloud(GrantLogin=[AWAY, "ada"])
    call = made.call

    def released(name: str, effect: Any) -> Any:
        if name == "GrantLogin":
            made.ledger[LOGIN.lease.id] = replace(made.ledger[LOGIN.lease.id], state=LeaseState.DOWN)
        return call(name, effect)

    made.call = released  # type: ignore[method-assign]
    with pytest.raises(NotAllowed):
        made.drive(create_slice(*LOGIN, CAN))
    assert made.calls.count("GrantLogin") == 1


# -- until it is READY ---------------------------------------------------------------------------------------------------

SENT = replace(PLAIN.lease, state=LeaseState.CREATING, sent_at=BEGAN, sends=1, operation="c")


def looked(
    fields: dict[str, Any], operation: Any, *views: Any, started: str | None = None
) -> tuple[ScriptedCloud, Any]:
    """Return the world, and what one look says or raises."""
    lease = replace(SENT, **fields)
    made = ScriptedCloud(
        {"Get": [*views], "operation c": [operation], "operation s": [FAILED]}, ledger={lease.id: lease}
    )
    try:
        return made, made.drive(check_ready(lease, operation=started))
    except CloudError as error:
        return made, error


@pytest.mark.parametrize(("fields", "operation", "seen", "state"), [
    ({}, None, None, "requested"), ({}, AWAY, AWAY, "requested"), ({}, CREATED, COMING, "CREATING"),
    ({}, replace(FAILED, done=False), COMING, "CREATING"), ({"operation": None}, FAILED, COMING, "CREATING"),
    ({"ready_by": BEGAN + 9}, None, view(SliceState.QUEUED), "QUEUED (nothing is billed until there is capacity, then"),
    ({}, None, view(SliceState.QUEUED), "QUEUED (nothing is billed"),
])  # fmt: skip
def test_a_slice_that_is_not_ready_yet_has_its_state(
    fields: dict[str, Any], operation: Any, seen: Any, state: str
) -> None:
    made, check = looked(fields, operation, seen)
    assert check.state.startswith(state) and check.ready is None and made.log == []


@pytest.mark.parametrize(("fields", "operation", "seen", "error", "words"), [
    ({}, FAILED, COMING, CapacityError, "no capacity"),
    ({"ready_by": BEGAN}, None, view(SliceState.QUEUED), CapacityError, "got no capacity in time: it is still QUEUED"),
    ({}, None, view(SliceState.TOMBSTONE), Preempted, "was taken away before it was ready (TOMBSTONE)"),
    ({}, None, view(SliceState.TOMBSTONE, error=SliceLost("its disk failed")), SliceLost, "its disk failed"),
    ({"state": LeaseState.DOWN, "reason": "tpujob down"}, None, READY, Vanished, "was released meanwhile: tpujob down"),
])  # fmt: skip
def test_what_keeps_a_slice_from_becoming_ready_is_raised(
    fields: dict[str, Any], operation: Any, seen: Any, error: type[CloudError], words: str
) -> None:
    _, raised = looked(fields, operation, seen)
    assert type(raised) is error and words in raised.message


@pytest.mark.parametrize(("fields", "started", "settles"), [
    ({}, None, True), ({"sends": 2}, None, False), ({"settled": True}, None, False), ({}, "s", False),
    ({"name": replace(SENT.name, queued=True)}, None, False),  # a request that failed exists
])  # fmt: skip
def test_the_failed_operation_of_the_only_create_settles_it(
    fields: dict[str, Any], started: str | None, settles: bool
) -> None:
    made, raised = looked(fields, FAILED, COMING, started=started)
    assert isinstance(raised, CapacityError) and events(made) == ["Settled"] * settles


def test_a_create_that_failed_meanwhile_says_why_the_slice_was_taken_away() -> None:
    for started in (None, "s"):
        made = ScriptedCloud(
            {"Get": [view(SliceState.TOMBSTONE)], "operation c": [CREATED, FAILED]}, ledger={SENT.id: SENT}
        )
        made.replies["operation s"] = [CREATED, FAILED]
        with pytest.raises(CapacityError, match="no capacity"):
            made.drive(check_ready(SENT, operation=started))


def test_a_slice_that_is_ready_is_recorded_and_a_wait_that_was_not_used_is_taken_off_the_labels() -> None:
    lease = replace(SENT, ready_by=BEGAN + 1000, deadline=BEGAN + 5000)
    unlabelled: Listing[SliceView] = Listing((READY,), (), BEGAN)
    for answers, warned in (([AWAY], True), ([unlabelled], True), ([AuthError("denied")], True)):
        made = ScriptedCloud({"Get": [COMING, AWAY, READY], "ListSlices": answers}, ledger={lease.id: lease})
        ready = made.drive(wait_until_ready(lease, CAN, give_up_at=BEGAN + 60))
        assert ready.state is LeaseState.READY and ready.deadline < BEGAN + 4010
        assert isinstance(made.log[0], Ready) and ("labels say later" in str(made.log[1:])) is warned
    plain = ScriptedCloud({"Get": [READY]}, ledger={SENT.id: SENT})
    plain.drive(wait_until_ready(SENT, CAN, give_up_at=BEGAN + 60))
    plain.drive(shorten_labels(replace(plain.drive(check_ready(SENT)), before=None), CAN))
    assert "ListSlices" not in plain.calls


@pytest.mark.parametrize(("fields", "gives_up_s"), [({}, 2700.0), ({"deadline": BEGAN + 100}, 100.0)])
def test_a_slice_that_never_becomes_ready_is_given_up(fields: dict[str, Any], gives_up_s: float) -> None:
    made = cloud(Get=[COMING])
    with pytest.raises(CloudUnavailable, match="was still CREATING after") as raised:
        made.drive(acquire(replace(PLAIN.lease, **fields), PLAIN.request, CAN))
    assert gives_up_s <= made.now - BEGAN < gives_up_s + 15
    assert f"after {gives_up_s:.0f}"[:8] in raised.value.message and made.passing[-1].startswith(PLAIN.lease.name.node)


def test_a_slice_that_waits_in_a_queue_has_its_time_from_the_end_of_the_wait() -> None:
    made = cloud(Get=[COMING])
    with pytest.raises(CloudUnavailable):
        made.drive(acquire(*QUEUED, CAN))
    assert 3600 + 2700 <= made.now - BEGAN < 3600 + 2720

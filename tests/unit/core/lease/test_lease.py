"""The state machine of a lease, when it may be released, and the proof of absence: what is sufficient, and what is not."""

from dataclasses import replace
from math import inf

import pytest

from orchestrator.core.lease.absence import Evidence, judge, settles_at
from orchestrator.core.lease.access import Route
from orchestrator.core.lease.cloud_api import Listing, Operation, SliceState, SliceView
from orchestrator.core.lease.lease import (
    Created,
    CreateRefused,
    Detached,
    Down,
    Extended,
    Forgotten,
    Gone,
    Held,
    HeldFor,
    Lease,
    LeaseChange,
    LeaseEvent,
    LeaseState,
    LoginGranted,
    LoginRefused,
    Mode,
    NotAllowed,
    Passed,
    Ready,
    Sent,
    Settled,
    apply,
    release_reason,
)
from orchestrator.errors import AuthError, CapacityError, CloudUnavailable
from tests.leases import lease_and_request
from tests.simulation.model.bench import CAN

INTENT, _ = lease_and_request(now=0.0)
CREATING = apply(apply(INTENT, Sent(INTENT.id, 1.0)), Created(INTENT.id, 2.0, "operation-1"))
READY = apply(CREATING, Ready(INTENT.id, 3.0))
DOWN = apply(READY, Down(INTENT.id, 4.0, "test"))
GONE = apply(DOWN, Gone(INTENT.id, 5.0, "proof"))


def test_a_lease_goes_from_intent_to_gone() -> None:
    states = [lease.state for lease in (INTENT, CREATING, READY, DOWN, GONE)]
    assert states == [LeaseState.INTENT, LeaseState.CREATING, LeaseState.READY, LeaseState.DOWN, LeaseState.GONE]


HELD = apply(READY, Held(READY.id, 4.0, 1000.0))
DETACHED = apply(READY, Detached(READY.id, 4.0))
QUEUED = replace(CREATING, ready_by=10.0, deadline=1000.0)
FAILURE, HELD_FOR = HeldFor.FAILURE, {"held_for": HeldFor.FAILURE, "purpose": "hold"}
PASSED = Passed("x", 9.0, run="run2", handle="job2", deadline=500.0, budget_usd=3.0)


@pytest.mark.parametrize(("lease", "event", "changed"), [
    (INTENT, LoginGranted("x", 9.0, "ada"), {"route": Route(user="ada")}),
    (replace(INTENT, route=Route(os_login=True)), LoginRefused("x", 9.0, "no"), {"route": Route()}),
    (replace(CREATING, state="intent", settled=True), Sent("x", 9.0), {"sent_at": 9.0, "sends": 2, "settled": False}),
    (CREATING, Ready("x", 9.0), {"state": LeaseState.READY, "ready_at": 9.0, "settled": True}),
    (replace(CREATING, sends=2), Ready("x", 9.0), {"state": LeaseState.READY, "ready_at": 9.0}),
    (replace(CREATING, state="intent"), CreateRefused("x", 9.0, "quota"), {"sends": 0}),
    (READY, Held("x", 9.0, 1e9), {"hold_until": READY.deadline, "held_for": HeldFor.USER, "purpose": "hold"}),
    (DOWN, Down("x", 9.0, "tpujob down"), {"reason": "tpujob down"}),
    (DOWN, Created("x", 9.0, "operation-2"), {"operation": "operation-2"}),
    (replace(CREATING, sends=2, settled=True), Ready("x", 9.0), {"state": LeaseState.READY, "ready_at": 9.0}),
    (replace(QUEUED, settled=True), Ready("x", 4.0), {"state": LeaseState.READY, "ready_at": 4.0, "deadline": 994.0}),
    (apply(QUEUED, Ready("x", 4.0)), Ready("x", 9.0), {}),
    (DETACHED, Held("x", 9.0, 99.0, FAILURE),
     {"detached_at": None, "hold_until": 99.0, "held_for": FAILURE, "purpose": "hold"}),
    (READY, PASSED, {"run": "run2", "handle": "job2", "deadline": 500.0, "budget_usd": 3.0}),
    (READY, Extended("x", 9.0, 1e9), {"deadline": 1e9}), (HELD, Extended("x", 9.0, 99.0), {"hold_until": 99.0}),
    (READY, Down("x", 9.0, "why"), {"state": LeaseState.DOWN, "down_at": 9.0, "reason": "why"}),
    (DOWN, Forgotten("x", 9.0, "seen"), {"state": LeaseState.FORGOTTEN, "gone_at": 9.0, "reason": "seen"}),
], ids=lambda value: type(value).__name__ if isinstance(value, LeaseChange) else None)  # fmt: skip
def test_an_event_changes_what_it_says_and_nothing_else(
    lease: Lease, event: LeaseEvent, changed: dict[str, object]
) -> None:
    before, after = vars(lease), vars(apply(lease, event))
    assert {name: value for name, value in after.items() if value != before[name]} == changed


@pytest.mark.parametrize(("lease", "event"), [
    *((lease, Gone("x", 9.0, "proof")) for lease in (INTENT, CREATING, READY)),  # only one that is down can be gone
    *((lease, event) for lease in (GONE, DOWN) for event in (Ready("x", 9.0), Held("x", 9.0, 99.0), Sent("x", 9.0))),
    *((GONE, event) for event in (CreateRefused("x", 9.0, "no"), Created("x", 9.0, "operation-2"), Settled("x", 9.0))),
    *((GONE, event) for event in (Down("x", 9.0, "again"), Gone("x", 9.0, "again"))),
    *((HELD, PASSED), (DETACHED, PASSED)),  # what its user or a job claims
], ids=lambda value: value.state.value if isinstance(value, Lease) else type(value).__name__)  # fmt: skip
def test_an_event_that_does_not_fit_the_state_is_refused(lease: Lease, event: LeaseEvent) -> None:
    with pytest.raises(NotAllowed, match="does not apply"):
        apply(lease, event)


@pytest.mark.parametrize(("lease", "now", "owner_alive", "overdue"), [
    pytest.param(INTENT, 10.0, True, False, id="its process lives"),
    pytest.param(INTENT, 10.0, False, True, id="its process died before the create"),
    pytest.param(CREATING, 10.0, False, True, id="its process died while creating"),
    pytest.param(READY, 10.0, False, True, id="its process died while running"),
    pytest.param(READY, INTENT.deadline, True, True, id="past its deadline, whatever lives"),
    pytest.param(HELD, 10.0, False, False, id="held"),
    pytest.param(HELD, 1000.0, False, True, id="held until just now"),
    pytest.param(HELD, 1000.0, True, False, id="held until just now, with a job on it"),
    pytest.param(DOWN, 10.0, True, False, id="being torn down by a living process"),
    pytest.param(DOWN, 10.0, False, True, id="its teardown was cut off"),
    pytest.param(DOWN, INTENT.deadline, True, False, id="being torn down past its deadline"),
    pytest.param(GONE, 10.0, False, False, id="gone"),
    pytest.param(replace(CREATING, hold_until=1e9), 10.0, False, True, id="held on paper, but never ready"),
])  # fmt: skip
def test_which_leases_may_be_released(lease: Lease, now: float, owner_alive: bool, overdue: bool) -> None:
    assert (release_reason(lease, now=now, owner_alive=owner_alive) is not None) is overdue


def test_results_of_a_detached_job_are_held_like_any_slice() -> None:
    left = apply(apply(READY, Detached(READY.id, 4.0)), Held(READY.id, 5.0, 1000.0))
    assert (left.mode, left.detached_at, left.hold_until) == (Mode.HOLD, None, 1000.0)
    assert release_reason(left, now=999.0, owner_alive=False) is None
    assert "is over" in (release_reason(left, now=1000.0, owner_alive=False) or "")


LEASE, REQUEST = lease_and_request(now=0.0)
SENT = replace(LEASE, sent_at=0.0, sends=1)
SETTLED = replace(SENT, settled=True)
HERE = SliceView(LEASE.name, SliceState.READY, "READY", "v5litepod-8", "r", {"tpujob-lease-id": LEASE.id})
OTHER = SliceView(replace(LEASE.name, node="tpujob-other"), SliceState.READY, "READY", "v5litepod-8", "r", {})
CLEAN: Listing[SliceView] = Listing((OTHER,))


def done(n: int) -> Operation:
    return Operation(f"operation-{n}", True, "create", LEASE.name.node)


def failed(n: int) -> Operation:
    return Operation(f"operation-{n}", True, "create", LEASE.name.node, CapacityError("no capacity"))


def under_way(n: int) -> Operation:
    return Operation(f"operation-{n}", False, "create", LEASE.name.node)


def test_a_404_a_clean_list_and_a_settled_create_are_the_proof() -> None:
    assert judge(SETTLED, Evidence(None, CLEAN), 10.0, CAN).gone


@pytest.mark.parametrize(("evidence", "missing"), [
    pytest.param(Evidence(HERE, None), "still there", id="the slice exists"),
    pytest.param(Evidence(AuthError("403"), CLEAN), "get failed: 403", id="get answers 403"),
    pytest.param(Evidence(CloudUnavailable("timeout"), CLEAN), "get failed: timeout", id="get times out"),
    pytest.param(Evidence(None, None), "not yet listed", id="no list yet"),
    pytest.param(Evidence(None, CloudUnavailable("503")), "list failed: 503", id="the list fails"),
    pytest.param(Evidence(None, Listing((), ("us-central1-a",))), "us-central1-a unreachable", id="the zone is unreachable"),
    pytest.param(Evidence(None, Listing((OTHER, HERE))), "still listed", id="get says 404 but it is listed"),
    pytest.param(Evidence(None, Listing((replace(OTHER, labels={"tpujob-lease-id": LEASE.id}),))),
                 "still listed", id="another node of the run is listed"),
])  # fmt: skip
def test_anything_less_is_not_and_says_what_is_missing(evidence: Evidence, missing: str) -> None:
    verdict = judge(SETTLED, evidence, 1e9, CAN)
    assert not verdict.gone and missing in verdict.missing[0]


def test_a_404_before_the_create_has_settled_is_not_gone_and_has_a_time() -> None:
    verdict = judge(SENT, Evidence(None, CLEAN, CloudUnavailable("503")), 10.0, CAN)
    assert not verdict.gone and verdict.quiet_until == CAN.settles_within_s


def test_a_create_that_is_known_to_be_under_way_is_not_settled_by_time() -> None:
    verdict = judge(SENT, Evidence(None, CLEAN, (under_way(1),)), 1e9, CAN)
    assert verdict.missing == ("the create call is still under way",) and verdict.quiet_until is None


@pytest.mark.parametrize(("lease", "creates", "certain_at"), [
    pytest.param(LEASE, (), None, id="no create left"),
    pytest.param(replace(SENT, sends=0), (), None, id="the only create was refused"),
    pytest.param(SETTLED, (under_way(1),), None, id="settled before"),
    pytest.param(SENT, (failed(1),), None, id="its operation failed"),
    pytest.param(SENT, (done(1),), 300.0, id="its operation succeeded, and the slice may not be visible yet"),
    pytest.param(replace(SENT, ready_at=5.0), (done(1),), None, id="its operation succeeded, the slice was READY"),
    pytest.param(SENT, (under_way(1),), inf, id="its operation is under way"),
    pytest.param(SENT, (), 300.0, id="no trace of it: it would show within the visibility bound"),
    pytest.param(SENT, CloudUnavailable("503"), 2700.0, id="the list of operations fails"),
    pytest.param(replace(SENT, sends=2), (done(1),), 300.0, id="sent twice, one operation seen"),
    pytest.param(replace(SENT, sends=2), (failed(1),), 300.0, id="sent twice, one failed, of the other no trace"),
    pytest.param(replace(SENT, sends=2), (failed(1), failed(2)), None, id="sent twice, both failed"),
    pytest.param(replace(SENT, sends=2), (done(1), failed(2)), 300.0, id="sent twice, one may not be visible yet"),
    pytest.param(replace(SENT, sends=2), (done(1), under_way(2)), inf, id="sent twice, one under way"),
])  # fmt: skip
def test_when_no_create_can_have_an_effect_any_more(
    lease: Lease, creates: tuple[Operation, ...], certain_at: float | None
) -> None:
    assert settles_at(lease, creates, 10.0, CAN) == certain_at
    if certain_at is not None and certain_at != inf:
        assert settles_at(lease, creates, certain_at, CAN) is None


def test_a_queued_request_that_failed_exists_all_the_same_and_may_not_be_visible_yet() -> None:
    queued = replace(SENT, name=replace(SENT.name, queued=True))
    assert settles_at(queued, (failed(1),), 10.0, CAN) == 300.0
    assert settles_at(queued, (failed(1),), 10.0, CAN, seen=True) is None


def test_a_create_that_succeeded_has_settled_once_its_slice_was_seen() -> None:
    assert settles_at(SENT, (done(1),), 10.0, CAN, seen=True) is None
    assert judge(SENT, Evidence(None, CLEAN, (done(1),), seen=True), 10.0, CAN).gone
    assert not judge(SENT, Evidence(None, CLEAN, (done(1),)), 10.0, CAN).gone

"""The proof of absence: what is sufficient, and what is not."""

from dataclasses import replace
from math import inf

import pytest

from orchestrator.core.lease.absence import Evidence, judge, settles_at
from orchestrator.core.lease.cloud_api import Listing, Operation, SliceState, SliceView
from orchestrator.core.lease.lease import Lease
from orchestrator.errors import AuthError, CapacityError, CloudUnavailable
from tests.unit.engine.virtual import CAN, lease_and_request

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

"""A lease: its states, when it may be released, what proves absence; and the route to its slice, with its firewall rule."""

from dataclasses import asdict, replace
from ipaddress import IPv4Network
from math import inf

import pytest

from orchestrator.errors import AuthError, CapacityError, CloudUnavailable
from orchestrator.promise.lease.absence import Evidence, Released, Verdict, judge, settles_at, unchecked
from orchestrator.promise.lease.access import (
    AccessWish,
    ProjectRules,
    Route,
    Via,
    contradiction,
    describe,
    reason,
    route,
)
from orchestrator.promise.lease.changes import (
    Created,
    CreateRefused,
    CreateSent,
    Detached,
    Extended,
    Forgotten,
    Gone,
    HandedToNextRun,
    HeldUntil,
    LeaseChange,
    LeaseEvent,
    LoginGranted,
    LoginRefused,
    NotAllowed,
    Ready,
    ReleaseBegan,
    Settled,
    apply,
)
from orchestrator.promise.lease.cloud_api import Listing, Operation, SliceState, SliceView
from orchestrator.promise.lease.lease import CANCEL, HeldFor, Lease, LeaseState, Mode, Purpose, release_reason
from orchestrator.promise.lease.lease import DOWN as DOWN_BY_USER
from orchestrator.promise.lease.network import (
    ANYWHERE,
    RELAY_RANGE,
    SSH_PORT,
    Entrance,
    FirewallRule,
    NetworkPlace,
    Subnetwork,
    add_role,
    admit_ssh,
    enable,
    entrance,
    in_place,
    place_of,
    reach_google,
    route_out,
)
from orchestrator.promise.lease.run_spec import read
from tests.fakes.leases import lease_and_request
from tests.simulation.model.bench import CAN

INTENT, _ = lease_and_request(now=0.0)
CREATING = apply(apply(INTENT, CreateSent(INTENT.id, 1.0)), Created(INTENT.id, 2.0, "operation-1"))
READY = apply(CREATING, Ready(INTENT.id, 3.0))
DOWN = apply(READY, ReleaseBegan(INTENT.id, 4.0, "test"))
GONE = apply(DOWN, Gone(INTENT.id, 5.0, "proof"))


def test_a_lease_goes_from_intent_to_gone() -> None:
    states = [lease.state for lease in (INTENT, CREATING, READY, DOWN, GONE)]
    assert states == [LeaseState.INTENT, LeaseState.CREATING, LeaseState.READY, LeaseState.DOWN, LeaseState.GONE]


HELD = apply(READY, HeldUntil(READY.id, 4.0, 1000.0))
DETACHED = apply(READY, Detached(READY.id, 4.0))
QUEUED = replace(CREATING, ready_by=10.0, deadline=1000.0)
FAILURE, HELD_FOR = HeldFor.FAILURE, {"held_for": HeldFor.FAILURE, "purpose": "hold"}
PASSED = HandedToNextRun("x", 9.0, run="run2", handle="job2", deadline=500.0, budget_usd=3.0)


@pytest.mark.parametrize(("lease", "event", "changed"), [
    (INTENT, LoginGranted("x", 9.0, "ada"), {"route": Route(user="ada", os_login=True)}),
    (replace(INTENT, route=Route(os_login=True)), LoginRefused("x", 9.0, "no"), {"route": Route()}),
    (
        replace(CREATING, state=LeaseState.INTENT, settled=True), CreateSent("x", 9.0),
        {"sent_at": 9.0, "sends": 2, "settled": False},
    ),
    (CREATING, Ready("x", 9.0), {"state": LeaseState.READY, "ready_at": 9.0, "settled": True}),
    (replace(CREATING, sends=2), Ready("x", 9.0), {"state": LeaseState.READY, "ready_at": 9.0}),
    (replace(CREATING, state=LeaseState.INTENT), CreateRefused("x", 9.0, "quota"), {"sends": 0}),
    (READY, HeldUntil("x", 9.0, 1e9), {"hold_until": READY.deadline, "held_for": HeldFor.USER, "purpose": "hold"}),
    (DOWN, ReleaseBegan("x", 9.0, "tpujob down"), {"reason": "tpujob down"}),
    (DOWN, Created("x", 9.0, "operation-2"), {"operation": "operation-2"}),
    (replace(CREATING, sends=2, settled=True), Ready("x", 9.0), {"state": LeaseState.READY, "ready_at": 9.0}),
    (replace(QUEUED, settled=True), Ready("x", 4.0), {"state": LeaseState.READY, "ready_at": 4.0, "deadline": 994.0}),
    (replace(QUEUED, settled=True), Ready("x", 12.0), {"state": LeaseState.READY, "ready_at": 12.0}),
    (CREATING, Settled("x", 9.0), {"settled": True}),
    (apply(QUEUED, Ready("x", 4.0)), Ready("x", 9.0), {}),
    (DETACHED, HeldUntil("x", 9.0, 99.0, FAILURE),
     {"detached_at": None, "hold_until": 99.0, "held_for": FAILURE, "purpose": "hold"}),
    (READY, PASSED, {"run": "run2", "handle": "job2", "deadline": 500.0, "budget_usd": 3.0}),
    (replace(DETACHED, purpose=Purpose.QUEUE), PASSED,
     {"run": "run2", "handle": "job2", "deadline": 500.0, "budget_usd": 3.0, "detached_at": None}),
    (READY, Extended("x", 9.0, 1e9), {"deadline": 1e9}), (HELD, Extended("x", 9.0, 99.0), {"hold_until": 99.0}),
    (READY, ReleaseBegan("x", 9.0, "why"), {"state": LeaseState.DOWN, "down_at": 9.0, "reason": "why"}),
    (DOWN, Forgotten("x", 9.0, "seen"), {"state": LeaseState.FORGOTTEN, "gone_at": 9.0, "reason": "seen"}),
], ids=lambda value: type(value).__name__ if isinstance(value, LeaseChange) else None)  # fmt: skip
def test_an_event_changes_what_it_says_and_nothing_else(
    lease: Lease, event: LeaseEvent, changed: dict[str, object]
) -> None:
    before, after = vars(lease), vars(apply(lease, event))
    assert {name: value for name, value in after.items() if value != before[name]} == changed


@pytest.mark.parametrize(("lease", "event"), [
    *((lease, Gone("x", 9.0, "proof")) for lease in (INTENT, CREATING, READY)),  # only one that is down can be gone
    *((lease, event) for lease in (GONE, DOWN) for event in (Ready("x", 9.0), HeldUntil("x", 9.0, 99.0), CreateSent("x", 9.0))),
    *((GONE, event) for event in (CreateRefused("x", 9.0, "no"), Created("x", 9.0, "operation-2"), Settled("x", 9.0))),
    *((GONE, event) for event in (ReleaseBegan("x", 9.0, "again"), Gone("x", 9.0, "again"))),
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


def test_a_node_is_billed_from_its_create_and_a_queued_slice_from_ready() -> None:
    assert (INTENT.billed_from, READY.billed_from) == (None, 1.0)
    assert replace(READY, name=replace(READY.name, queued=True)).billed_from == 3.0


@pytest.mark.parametrize(
    ("reason", "command"), [(CANCEL, CANCEL), (DOWN_BY_USER, DOWN_BY_USER), ("its job ended", None)]
)
def test_a_user_ends_a_slice_by_two_commands(reason: str, command: str | None) -> None:
    assert replace(DOWN, reason=reason).canceled_by == command


def test_a_teardown_that_was_cut_off_has_its_reason_or_one() -> None:
    assert release_reason(DOWN, now=10.0, owner_alive=False) == "test"
    assert release_reason(replace(DOWN, reason=""), now=10.0, owner_alive=False) == "its teardown was not finished"


def test_results_of_a_detached_job_are_held_like_any_slice() -> None:
    left = apply(apply(READY, Detached(READY.id, 4.0)), HeldUntil(READY.id, 5.0, 1000.0))
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


def test_a_slice_about_which_nothing_was_asked_is_not_gone() -> None:
    released = unchecked(LEASE, CloudUnavailable("no answer"))
    verdict = Verdict(gone=False, missing=("no answer",), last_seen="unknown")
    assert released == Released(LEASE, False, 0.0, verdict, deletes_sent=0, answer="")


def test_a_create_that_succeeded_has_settled_once_its_slice_was_seen() -> None:
    assert settles_at(SENT, (done(1),), 10.0, CAN, seen=True) is None


def test_a_create_call_of_this_process_settles_after_its_own_end_however_long_it_stood_still() -> None:
    late = 10_000.0
    assert settles_at(SENT, (), late, CAN) is None
    assert settles_at(SENT, (done(1),), 10.0, CAN) is not None, "what was not seen may still be invisible"
    assert settles_at(SENT, (), late, CAN, own_ended_at=inf) == inf
    assert settles_at(SENT, (), late, CAN, own_ended_at=late - 1) == late - 1 + CAN.visible_within_s
    verdict = judge(SENT, Evidence(None, CLEAN, (), own_ended_at=inf), late, CAN)
    assert verdict.missing == ("the create call is still under way",) and not verdict.gone
    assert judge(SENT, Evidence(None, CLEAN, (done(1),), seen=True), 10.0, CAN).gone
    assert not judge(SENT, Evidence(None, CLEAN, (done(1),)), 10.0, CAN).gone


FORBIDDEN, REQUIRED = ProjectRules(no_external_addresses=True), ProjectRules(os_login=True)
BASTION = "ssh -W %h:%p bastion"


@pytest.mark.parametrize(("wish", "rules", "taken"), [
    (AccessWish(), ProjectRules(), Route()), (AccessWish(), FORBIDDEN, Route(Via.IAP)),
    (AccessWish(via="auto"), FORBIDDEN, Route(Via.IAP)), (AccessWish(via="external"), FORBIDDEN, Route()),
    (AccessWish(via="internal"), ProjectRules(), Route(Via.INTERNAL)),
    (AccessWish(ssh_proxy_command=BASTION), ProjectRules(), Route(Via.INTERNAL, BASTION)),
    (AccessWish(ssh_proxy_command=BASTION), FORBIDDEN, Route(Via.INTERNAL, BASTION)),
    (AccessWish(via="internal", ssh_proxy_command=BASTION), FORBIDDEN, Route(Via.INTERNAL, BASTION)),
    (AccessWish(os_login="auto"), REQUIRED, Route(os_login=True, user="")),
    (AccessWish(via="iap", ssh_proxy_command=BASTION), ProjectRules(), Route(Via.IAP)),
    (AccessWish(), REQUIRED, Route(os_login=True, user="")), (AccessWish(os_login="off"), REQUIRED, Route()),
    (AccessWish(os_login="on"), ProjectRules(), Route(os_login=True, user="")),
])  # fmt: skip
def test_the_route_is_what_was_asked_for_else_what_the_project_allows(
    wish: AccessWish, rules: ProjectRules, taken: Route
) -> None:
    assert route(wish, rules) == taken


def test_a_wish_outranks_the_next_one_key_by_key_and_auto_is_a_wish() -> None:
    settings = AccessWish(via="iap", network="shared", tags=("ssh",), os_login="on")
    job = AccessWish(via="auto", network="own", tags=())
    assert job.over(settings) == AccessWish(via="auto", network="own", tags=(), os_login="on")
    assert AccessWish().over(settings) == settings


def test_a_route_survives_the_ledger() -> None:
    taken = Route(Via.INTERNAL, BASTION, os_login=True, user="ada_example_com")
    assert read(Route, asdict(taken)) == taken


LAB = AccessWish(network="lab", tags=("ssh",))


@pytest.mark.parametrize(("taken", "wish", "word"), [
    (Route(), AccessWish(), None), (Route(Via.IAP), AccessWish(via="auto", os_login="auto"), None),
    (Route(Via.IAP), AccessWish(via="iap"), None), (Route(), AccessWish(via="iap"), "`via: iap`"),
    (Route(os_login=True), AccessWish(os_login="off"), "with OS Login"),
    (Route(), AccessWish(os_login="on"), "without OS Login"), (Route(), LAB, None),
    (Route(), AccessWish(subnetwork=""), None), (Route(), AccessWish(network="other"), "`network`"),
    (Route(), AccessWish(subnetwork="tpus"), "`subnetwork`"), (Route(), AccessWish(tags=()), "`tags`"),
    (Route(), AccessWish(secure_boot=True), "`secure_boot`"),
])  # fmt: skip
def test_a_slice_contradicts_only_what_a_wish_says(taken: Route, wish: AccessWish, word: str | None) -> None:
    why = contradiction(taken, LAB, wish)
    assert why is None if word is None else word in str(why)


def test_the_way_to_one_worker_is_that_to_its_address() -> None:
    assert describe(Route(), 1) == "by its external address"
    assert describe(Route(Via.INTERNAL, BASTION), 1) == f"by its internal address, through `{BASTION}`"
    assert describe(Route()) == "by their external addresses" and SSH_PORT == 22


FREE = "no policy is known to forbid external addresses"


@pytest.mark.parametrize(("wish", "rules", "why"), [
    (AccessWish(), ProjectRules(), FREE), (AccessWish(via="auto"), FORBIDDEN, "a policy forbids external addresses"),
    (AccessWish(via="iap", ssh_proxy_command=BASTION), FORBIDDEN, "`via: iap` in `access:`"),
    (AccessWish(ssh_proxy_command=BASTION), FORBIDDEN, "`ssh_proxy_command` in `access:`"),
    (AccessWish(os_login="on"), REQUIRED, f"{FREE}; `os_login: on`"),
    (AccessWish(os_login="off"), REQUIRED, f"{FREE}; `os_login: off`"),
    (AccessWish(os_login="auto"), REQUIRED, f"{FREE}; a policy requires OS Login"),
])  # fmt: skip
def test_the_route_has_its_reason(wish: AccessWish, rules: ProjectRules, why: str) -> None:
    assert reason(wish, rules) == why


def test_each_command_that_opens_a_way_is_whole() -> None:
    place = NetworkPlace("acme", "lab", "tpus", "us-east1")
    subnetwork = Subnetwork("tpus", "us-east1", "lab", True)
    bind = "`gcloud projects add-iam-policy-binding acme --member={} --role=roles/x`"
    rule = "`gcloud compute firewall-rules create {0}-allow-{1} --network={0} --direction=INGRESS --allow=tcp:22 "
    region = "--region=us-east1 --project=acme"
    assert [
        add_role("acme", "roles/x", "vm@acme.iam.gserviceaccount.com"), add_role("acme", "roles/x", "ada@example.com"),
        add_role("acme", "roles/x", None), enable("acme", "tpu", "iap"), admit_ssh(place, through_relay=True),
        admit_ssh(replace(place, network=None), through_relay=False), reach_google(place, subnetwork),
        route_out("acme", "lab", "us-east1"),
    ] == [
        bind.format("serviceAccount:vm@acme.iam.gserviceaccount.com"), bind.format("user:ada@example.com"),
        bind.format("user:YOU"), "`gcloud services enable tpu iap --project=acme`",
        rule.format("lab", "iap") + "--source-ranges=35.235.240.0/20 --project=acme`",
        rule.format("NETWORK", "ssh") + "--source-ranges=ADDRESS/32 --project=acme`",
        "`gcloud compute networks subnets update tpus --region=us-east1 --enable-private-ip-google-access --project=acme`",
        f"`gcloud compute routers create lab-router --network=lab {region}` and `gcloud compute routers nats create lab-nat "
        f"--router=lab-router {region} --auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges`",
    ]  # fmt: skip


def rule(name: str, *sources: str, priority: int = 1000, allows: bool = True, **said: object) -> FirewallRule:
    found = {"network": "default", "covers_ssh": True, **said}
    return FirewallRule(name, priority=priority, allows=allows, sources=tuple(map(IPv4Network, sources)), **found)  # type: ignore[arg-type]


WIDE, RELAY = rule("wide", ANYWHERE), rule("relay", RELAY_RANGE)
PRIVATE = rule("private", "10.128.0.0/9")
OFFICE = rule("office", "203.0.113.0/24")
BLOCK = rule("block", ANYWHERE, priority=900, allows=False)
PUBLIC = FirewallRule("public", "default", 1000, True, True, (IPv4Network("8.8.8.0/24"),))


@pytest.mark.parametrize(("rules", "source", "expected"), [
    ([], RELAY_RANGE, Entrance(False)), ([RELAY], RELAY_RANGE, Entrance(True, ("relay",))),
    ([WIDE], RELAY_RANGE, Entrance(True, ("wide",))), ([PRIVATE, OFFICE], RELAY_RANGE, Entrance(False)),
    ([WIDE, BLOCK], RELAY_RANGE, Entrance(False, ("block",))),
    ([rule("first", RELAY_RANGE, priority=100), BLOCK], RELAY_RANGE, Entrance(True, ("first",))),
    ([WIDE, rule("same", ANYWHERE, allows=False)], RELAY_RANGE, Entrance(False, ("same",))),
    ([rule("two", "10.0.0.0/8", RELAY_RANGE)], RELAY_RANGE, Entrance(True, ("two",))),
    ([rule("two", "10.0.0.0/8", "35.235.241.0/24", allows=False)], RELAY_RANGE, Entrance(None, ("two",))),
    ([rule("two", "10.0.0.0/8", "8.8.8.0/24")], None, Entrance(None, ("two",))),
    ([RELAY, rule("part", "35.235.241.0/24", priority=1, allows=False)], RELAY_RANGE, Entrance(None, ("part",))),
    ([rule("elsewhere", ANYWHERE, network="other")], RELAY_RANGE, Entrance(False)),
    ([rule("web", ANYWHERE, covers_ssh=False)], RELAY_RANGE, Entrance(False)),
    ([rule("tagged", ANYWHERE, tags=("gpu",))], RELAY_RANGE, Entrance(False)),
    ([rule("tagged", ANYWHERE, tags=("tpu",))], RELAY_RANGE, Entrance(True, ("tagged",))),
    ([rule("account", ANYWHERE, accounts=("vm@acme",))], RELAY_RANGE, Entrance(True, ("account",))),
    ([rule("account", ANYWHERE, accounts=("x@acme",))], RELAY_RANGE, Entrance(False)),
    ([WIDE], None, Entrance(True, ("wide",))), ([PUBLIC], None, Entrance(None, ("public",))),
    ([PUBLIC, BLOCK], None, Entrance(False, ("block",))),
    ([rule("early", "8.8.8.0/24", priority=1), BLOCK], None, Entrance(None, ("early", "block"))),
    ([PRIVATE], None, Entrance(False)),
])  # fmt: skip
def test_the_rule_with_the_lowest_number_decides_and_none_means_no(
    rules: list[FirewallRule], source: str | None, expected: Entrance
) -> None:
    assert entrance(rules, "default", source, tags=("tpu",), account="vm@acme") == expected


def test_an_address_inside_may_be_one_that_a_private_range_lets_in() -> None:
    assert entrance([PRIVATE], "default", None, inside=True) == Entrance(None, ("private",))


@pytest.mark.parametrize(("wish", "expected"), [
    (AccessWish(), NetworkPlace("acme", "default")), (AccessWish(network="lab"), NetworkPlace("acme", "lab")),
    (AccessWish(network="projects/host/global/networks/lab"), NetworkPlace("host", "lab")),
    (AccessWish(subnetwork="small"), NetworkPlace("acme", None, "small")),
    (AccessWish(network="lab", subnetwork="small"), NetworkPlace("acme", "lab", "small")),
    (AccessWish(network="projects/host/global/networks/lab", subnetwork="small"), NetworkPlace("host", "lab", "small")),
    (AccessWish(subnetwork="projects/host/regions/us-east1/subnetworks/small"),
     NetworkPlace("host", None, "small", "us-east1")),
])  # fmt: skip
def test_the_place_of_new_slices_may_be_in_another_project(wish: AccessWish, expected: NetworkPlace) -> None:
    assert place_of(wish, "acme") == expected


def test_slices_go_to_the_subnetwork_that_is_named_else_to_any_of_the_network() -> None:
    rows = [Subnetwork(name, region, "lab", False) for name in ("a", "b") for region in ("us-east1", "us-west4")]
    rows.append(Subnetwork("a", "us-east1", "other", False))

    def found(place: NetworkPlace, *regions: str) -> list[tuple[str, str, str]]:
        return [(each.name, each.region, each.network) for each in in_place(rows, place, regions)]

    assert found(NetworkPlace("p", "lab"), "us-east1") == [("a", "us-east1", "lab"), ("b", "us-east1", "lab")]
    assert found(NetworkPlace("p", "lab", "a"), "us-east1", "us-west4") == [
        ("a", "us-east1", "lab"),
        ("a", "us-west4", "lab"),
    ]
    assert found(NetworkPlace("p", None, "b", "us-west4"), "us-east1", "us-west4") == [("b", "us-west4", "lab")]

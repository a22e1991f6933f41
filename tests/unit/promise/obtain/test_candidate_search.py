"""The search for a slice: order, waiting, races; and never two slices by mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator import errors
from orchestrator.promise.effects.cloud import Create
from orchestrator.promise.lease.access import NO_WISH, AccessWish, ProjectRules, Route, Via, route
from orchestrator.promise.lease.changes import Began, ReleaseBegan, RunCanceled
from orchestrator.promise.lease.cloud_api import Listing, QueueTerms, SliceState, SliceView
from orchestrator.promise.lease.lease import Lease, LeaseState
from orchestrator.promise.obligations import Obligations, release_owed
from orchestrator.promise.obtain import candidate_search, refusals
from orchestrator.promise.obtain.candidate_search import LoserRelease, Search, find
from orchestrator.promise.obtain.drafts import Draft
from orchestrator.text.units import format_usd_per_hour
from tests.fakes.leases import lease_and_request, queued
from tests.fakes.scripted_cloud import ScriptedCloud
from tests.simulation.model.bench import CAN, Bench, job
from tests.simulation.model.cloud_client import CloudClient
from tests.simulation.model.faults import CallOutcome, FaultInjector
from tests.simulation.scenarios.commands import rerouted

A, B, C = "us-central1-a", "us-west1-c", "europe-west4-b"


class Drafts:
    """Candidates in these zones, each time under new names, by the way that the user wishes and the known policies allow."""

    def __init__(
        self, world: Bench, *zones: str, through: Any = lambda draft: draft, wish: AccessWish = NO_WISH
    ) -> None:
        self.world, self.zones, self.through, self.made = world, zones, through, 0
        self.wish, self.rules = wish, ProjectRules()
        self.used: set[tuple[float, float]] = set()

    def make(self, used_s: float = 0.0, spent_usd: float = 0.0) -> tuple[Draft, ...]:
        self.used.add((used_s, spent_usd))
        self.made += len(self.zones)
        return tuple(map(self._draft, range(self.made - len(self.zones), self.made), self.zones))

    def _draft(self, number: int, zone: str) -> Draft:
        lease, request = self.through(lease_and_request(number, zone=zone, now=self.world.time))
        taken = route(self.wish, self.rules)
        metadata = {"enable-oslogin": "TRUE" if taken.os_login else "FALSE"}
        asked = replace(request, external_ips=taken.via is Via.EXTERNAL, metadata=metadata)
        return Draft(replace(lease, route=taken), asked)

    def reroute(self, refused: Route, refusal: errors.CloudError) -> Route | None:
        self.rules, found = rerouted(self.wish, self.rules, refused, refusal)
        return found


def search(world: Bench, search: Search, owed: Obligations | None = None) -> Lease:
    """Search; Ctrl+C is heard whenever a create leaves, and at the end."""
    world.effects.clear()
    found = None
    try:
        found = world.drive(find(search, CAN, owed or Obligations()))
    finally:
        masked = False
        for name in world.names:
            masked = name == "MaskSignals" or (masked and name != "UnmaskSignals")
            assert not (masked and name == "Create")
        assert not (masked and found is not None)
    return found


def created(world: Bench) -> list[str]:
    return [node for call, node in world.calls if call == "Create"]


def alive(world: Bench) -> set[str]:
    state = world.cloud.look()
    return {each.zone for each in (*state.nodes.values(), *state.queue.rows.values())}


def test_a_request_for_the_last_moment_is_valid_for_a_second_at_least(world: Bench) -> None:
    """The API counts whole seconds, and one that is valid for none is refused as a mistake."""
    drafts = Drafts(world, A, B, through=queued)
    world.full(A, B)
    with pytest.raises(errors.CapacityError):
        search(world, Search(drafts.make(), wait_s=1.5, drafter=drafts))
    requests = [each.request for each in world.effects if isinstance(each, Create)]
    assert requests and all(each.queue is not None and each.queue.valid_for_s >= 1.0 for each in requests)


@pytest.mark.parametrize("refused_at_once", [False, True])
def test_waiting_ends_in_time_with_the_reply_of_every_candidate(world: Bench, refused_at_once: bool) -> None:
    world.plan.refusing = {B: errors.QuotaError("Quota limit 'X' has been exceeded. Limit: 0 in region us-west1.")}
    if refused_at_once:
        world.plan.refusing[A] = errors.CapacityError("no capacity")
    else:
        world.full(A)
    drafts, began = Drafts(world, A, B), world.time
    with pytest.raises(errors.CapacityError) as raised:
        search(world, Search(drafts.make(), wait_s=900, drafter=drafts))
    assert world.count("Create") < 30, "each of them counts against a quota"
    assert drafts.used == {(0.0, 0.0)}, "no attempt came before"
    assert world.time - began <= 900 and set(raised.value.details) == {f"v5litepod-8 {A}", f"v5litepod-8 {B}"}


@pytest.mark.parametrize("error", [
    errors.QuotaError("Quota limit has been exceeded"),
    errors.AuthError("Permission denied"),
    errors.BadRequest("no", scope="place"),
])  # fmt: skip
def test_candidates_without_quota_permission_or_offer_are_tried_once_and_the_others_again(
    world: Bench, error: errors.CloudError
) -> None:
    world.plan.refusing = {A: error}
    world.full(B, for_s=1200)
    drafts = Drafts(world, A, B)
    lease = search(world, Search(drafts.make(), wait_s=3600, drafter=drafts))
    assert lease.name.zone == B
    asked_a = {draft for draft in created(world) if world.ledger.lease(draft[-10:]).name.zone == A}
    assert len(asked_a) == 1
    assert any(f"us-central1-a   {refusals.describe(error)}" in line for line in world.told)


NOT_THERE, USED_UP = (
    errors.BadRequest("v5litepod-8 was not found in zone", scope="place"),
    errors.QuotaError("Quota 'X' exhausted"),
)


@pytest.mark.parametrize(("refusing", "kind", "named"), [
    ({A: NOT_THERE, B: NOT_THERE}, errors.BadRequest, "was not found in zone"),
    ({A: NOT_THERE, B: USED_UP}, errors.QuotaError, "Quota 'X' exhausted"),
    ({A: USED_UP, B: NOT_THERE}, errors.QuotaError, "Quota 'X' exhausted"),
    ({A: NOT_THERE}, errors.CapacityError, f"no capacity in {B}; refused: {NOT_THERE.message}\n"),
    ({A: USED_UP}, errors.CapacityError, f"no capacity in {B}; quota: Quota 'X' exhausted\n"),
    ({}, errors.CapacityError, "no capacity in any zone that was asked for"),
])  # fmt: skip
def test_the_last_word_is_what_the_user_can_change_and_not_that_one_place_lacks_it(
    world: Bench, refusing: dict[str, errors.CloudError], kind: type[errors.CloudError], named: str
) -> None:
    world.plan.refusing = refusing
    world.full(*({A, B} - refusing.keys()))
    with pytest.raises(kind, match=named):
        search(world, Search(Drafts(world, A, B).make()))
    assert len(created(world)) == 2 and alive(world) == set()


def test_a_regional_quota_excludes_the_other_zones_of_the_region_too(world: Bench) -> None:
    world.plan.refusing = {
        A: errors.QuotaError("Quota limit 'XPerRegion' has been exceeded. Limit: 0 in region us-central1.")
    }
    lease = search(world, Search(Drafts(world, A, "us-central1-b", C).make()))
    assert lease.name.zone == C and len(created(world)) == 2


@pytest.mark.parametrize(
    "error", [errors.BadRequest("no such runtime"), errors.AuthError("billing is off", scope="project")]
)
def test_a_wrong_request_and_a_refusal_of_the_whole_project_stop_the_search(
    world: Bench, error: errors.CloudError
) -> None:
    world.plan.refusing, drafts = {A: error}, Drafts(world, A, B)
    with pytest.raises(type(error), match=error.message):
        search(world, Search(drafts.make(), wait_s=3600, drafter=drafts))
    assert len(created(world)) == 1


# -- policies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("racing", [False, True])
def test_what_a_policy_refuses_is_asked_for_by_another_way_once_the_refused_create_is_proven_gone(
    world: Bench, racing: bool
) -> None:
    world.settings.forbid_external_ips = world.settings.require_os_login = True
    drafts = Drafts(world, A, B, through=queued if racing else lambda draft: draft)
    owed = Obligations()
    lease = search(world, Search(drafts.make(), wait_s=600, race=racing, drafter=drafts), owed)
    assert lease.route == Route(Via.IAP, os_login=True, user="developer_emulated_example")
    assert alive(world) == {lease.name.zone} or racing
    refused = [each for each in world.ledger.leases() if not each.route.os_login]
    assert refused and all(each.state is LeaseState.GONE for each in refused)
    assert world.cloud.login_keys() >= {lease.id}
    assert [line for line in world.told if line.startswith("access ")] == [
        "access constraints/compute.vmExternalIpAccess forbids external addresses: the workers are reached through "
        "Identity-Aware Proxy",
        "access constraints/compute.requireOsLogin forbids SSH keys in the metadata: the workers are reached through "
        "Identity-Aware Proxy, with OS Login",
    ]


def test_a_refusal_that_shows_only_once_the_node_is_dead_changes_the_way(world: Bench) -> None:
    world.settings.forbid_external_ips, world.plan.policy_says = True, "operation"
    drafts = Drafts(world, A)
    assert search(world, Search(drafts.make(), drafter=drafts)).route.via is Via.IAP


def test_a_way_that_the_user_asks_for_is_not_changed(world: Bench) -> None:
    world.settings.forbid_external_ips = True
    drafts = Drafts(world, A, B, wish=AccessWish(via="external"))
    with pytest.raises(errors.ExternalAddressRefused):
        search(world, Search(drafts.make(), drafter=drafts))
    assert len(created(world)) == 1


@pytest.mark.parametrize(
    "error", [errors.QuotaError("Login profile size exceeds 32 KiB"), errors.UnexpectedReply("not JSON")]
)
def test_an_import_that_failed_is_not_tried_again_and_counts_as_without_effect_only_where_it_was_refused(
    world: Bench, monkeypatch: pytest.MonkeyPatch, error: errors.CloudError
) -> None:
    monkeypatch.setattr(world.cloud, "import_key", Mock(side_effect=error))
    drafts, owed, began = Drafts(world, A, wish=AccessWish(os_login="on")), Obligations(), world.time
    with pytest.raises(type(error), match=error.message):
        search(world, Search(drafts.make(), drafter=drafts), owed)
    assert created(world) == [] and world.time - began < 10 and world.names.count("GrantLogin") == 1
    world.drive(release_owed(owed, CAN, "it failed"))
    (lease,) = world.ledger.leases()
    assert lease.state is LeaseState.GONE and lease.route.os_login is isinstance(error, errors.UnexpectedReply)


def test_a_key_is_not_imported_again_once_another_command_has_released_the_lease(world: Bench) -> None:
    world.cut_off("os-login")

    def released(world: Bench) -> None:
        if world.names.count("GrantLogin") == 1:
            (lease,) = world.ledger.leases()
            world.ledger.record(ReleaseBegan(lease.id, world.time, "down"))
            world.plan.cut.clear()

    drafts = Drafts(world, A, wish=AccessWish(os_login="on"))
    with pytest.raises(errors.Vanished, match="released by another"):
        world.drive(find(Search(drafts.make(), drafter=drafts), CAN, Obligations()), between=released)
    assert world.cloud.login_keys() == set() and created(world) == []


@pytest.mark.parametrize(("error", "sent_at"), [
    (errors.CloudUnavailable("503", retry_after_s=25.0), [0.0, 25.0, 50.0]),
    (errors.UnexpectedReply("its effect is unknown"), [0.0]),
], ids=["unavailable", "unexpected"])  # fmt: skip
def test_a_create_is_sent_again_when_the_cloud_says_for_a_minute_and_not_where_its_effect_is_unknown(
    world: Bench, monkeypatch: pytest.MonkeyPatch, error: errors.CloudError, sent_at: list[float]
) -> None:
    times, began = [], world.time

    def create(*_: object) -> None:
        times.append(world.time - began)
        raise error

    monkeypatch.setattr(CloudClient, "create", create)
    with pytest.raises(type(error)):
        world.drive(find(Search(Drafts(world, A).make()), CAN, Obligations()))
    (lease,) = world.ledger.leases()
    assert times == pytest.approx(sent_at, abs=2) and lease.sends == len(sent_at), (
        "none of them is known to have had no effect"
    )


def test_a_foreign_slice_of_its_name_is_neither_used_nor_deleted(world: Bench) -> None:
    ((lease, request),) = drafts = Drafts(world, A).make()
    world.cloud.create(replace(request, labels={"tpujob-lease-id": "9999999999"}), CallOutcome())
    owed = Obligations()
    with pytest.raises(errors.UnexpectedReply, match="neither used nor deleted"):
        world.drive(find(Search(drafts), CAN, owed))
    world.drive(release_owed(owed, CAN, "it failed"))
    assert alive(world) == {A} and ("Delete", request.name.node) not in world.calls
    assert world.ledger.lease(lease.id).state is LeaseState.GONE, "its only create was refused"
    assert world.time - lease.created_at < 5, "nothing was waited for"


# -- queued ------------------------------------------------------------------------------------------------------------


def test_a_queued_slice_gets_its_full_time_from_when_it_has_capacity(world: Bench) -> None:
    world.full(A, for_s=1000)
    draft = queued(lease_and_request(0, zone=A, now=world.time))
    life_s = draft[0].deadline - draft[0].created_at
    lease = search(world, Search((draft,), wait_s=7200))
    assert lease.ready_at is not None and lease.deadline == pytest.approx(lease.ready_at + life_s)
    (node,) = world.nodes.values()
    assert int(node.spec["labels"]["tpujob-deadline"]) == pytest.approx(lease.deadline, abs=1)
    claimed_s = int(node.spec["labels"]["tpujob-claimed-until"]) - lease.ready_at
    assert claimed_s == pytest.approx(CAN.timings.label_ttl_s, abs=60), (
        "and not for the hours that it might have waited"
    )


def test_a_slow_call_for_the_time_does_not_shorten_the_wait(world: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    world.plan.slow_replies = dict.fromkeys(("nodes.list", "queuedResources.list"), 40.0)
    lease = search(world, Search((queued(lease_and_request(0, zone=A, now=world.time)),)))
    assert lease.sent_at is not None and lease.ready_by == pytest.approx(lease.sent_at + 3600, abs=1)


def test_queued_candidates_in_turn_share_the_time(world: Bench) -> None:
    world.full(A)
    world.full(B, for_s=3000)
    drafts, began = Drafts(world, A, B, through=queued), world.time
    lease = search(world, Search(drafts.make(), wait_s=4000))
    assert lease.name.zone == B and 3000 <= world.time - began < 4000
    terms = [each.request.queue for each in world.effects if isinstance(each, Create)]
    assert [each.valid_for_s for each in terms if each is not None] == pytest.approx([2000, 2000], rel=0.1)


def test_the_first_ready_slice_wins_the_race_and_the_others_are_deleted_at_once(world: Bench) -> None:
    world.full(A)
    world.full(B, for_s=600)
    world.full(C, for_s=900)
    owed = Obligations()
    lease = search(world, Search(Drafts(world, A, B, C, through=queued).make(), wait_s=7200, race=True), owed)
    assert lease.name.zone == B and len(owed.losers) == 2
    assert any("3 wait" in line and "then about $9.60/h" in line for line in world.told)
    assert world.count("Get") < 3 * (600 / 10 + 20), "calls count against a quota, too"
    assert world.names.index("DeleteAll") < world.names.index("SetLabels")
    losers = LoserRelease(owed, CAN)
    for _ in range(5):
        world.time += 15
        world.drive(losers.tick())
    assert owed.losers == [] and alive(world) == {B}


@pytest.mark.parametrize(("unanswered", "sent"), [(1, 3), (3, 5), (1000, 8)])
def test_deletes_without_a_reply_are_sent_again_before_the_winner_is_returned(
    world: Bench, monkeypatch: pytest.MonkeyPatch, unanswered: int, sent: int
) -> None:
    world.full(A, for_s=600)
    world.full(B, for_s=100)
    world.full(C, for_s=600)
    owed, deletes, outcome_of_call = Obligations(), [], FaultInjector.outcome_of_call

    def call(faults: FaultInjector, verb: str, *args: Any) -> CallOutcome:
        if "delete" in verb and "SetLabels" not in world.names:
            deletes.append(verb)
            if len(deletes) <= unanswered:
                return CallOutcome(error=errors.CloudUnavailable("503"), reaches=False)
        return outcome_of_call(faults, verb, *args)

    monkeypatch.setattr(FaultInjector, "outcome_of_call", call)
    lease = search(world, Search(Drafts(world, A, B, C, through=queued).make(), wait_s=7200, race=True), owed)
    assert len(deletes) == sent
    assert lease.name.zone == B and len(owed.losers) == 2, "of which the proof is owed, whatever was answered"


def test_the_proof_for_a_dropped_candidate_does_not_delay_the_winner(world: Bench) -> None:
    """Its delete comes to nothing for a long time: meanwhile the winner must not be billed for waiting."""
    world.full(A, for_s=10)
    world.full(B, for_s=100)

    def preempted_and_stuck(world: Bench) -> None:
        for name, node in world.nodes.items():
            if node.zone == A:
                world.preempt(name)
                world.plan.stuck.add(name)

    owed, began = Obligations(), world.time
    race = Search(Drafts(world, A, B, through=queued).make(), wait_s=7200, race=True)
    lease = world.drive(find(race, CAN, owed), between=preempted_and_stuck)
    assert lease.name.zone == B and world.time - began < 100 + world.plan.provision_s + 30
    assert [loser.name.zone for loser in owed.losers] == [A], "it is released while the winner works"


def test_a_zone_without_permission_to_list_is_left_out_without_an_obligation(
    world: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = CloudClient.list

    def forbidden(client: CloudClient, project: str, zone: str, queued: bool = False) -> Any:
        if zone == A:
            raise errors.AuthError("Permission denied")
        return listed(client, project, zone, queued)

    monkeypatch.setattr(CloudClient, "list", forbidden)
    owed, began = Obligations(), world.time
    lease = search(world, Search(Drafts(world, A, B, through=queued).make(), wait_s=7200, race=True), owed)
    assert lease.name.zone == B and owed.losers == [] and world.time - began < 120
    assert not any(name.endswith("0000000000") for _, name in world.calls)


def is_waiting(world: Bench) -> bool:
    return world.time > world.ledger.lease("0000000000").created_at + 60 if world.count("Create") else False


def is_ready(world: Bench) -> bool:
    return world.last == "Get" and any(node.state == "READY" for node in world.nodes.values())


@pytest.mark.parametrize(("when", "said"), [(is_waiting, "tpujob down"), (is_ready, "released meanwhile")])
def test_down_of_one_candidate_ends_the_race(world: Bench, when: Callable[[Bench], bool], said: str) -> None:
    if when is is_waiting:
        world.full(A, B)

    def another_terminal(world: Bench) -> None:
        if when(world) and world.ledger.lease("0000000000").down_at is None:
            world.ledger.record(ReleaseBegan("0000000000", world.time, "tpujob down"))

    race = Search(Drafts(world, A, B, through=queued).make(), wait_s=7200, race=True)
    with pytest.raises(errors.Vanished, match=said):
        world.drive(find(race, CAN, Obligations()), between=another_terminal)


@pytest.mark.parametrize("how", ["one by one", "in a race", "by another way"])
def test_a_create_that_failed_and_is_not_proven_gone_ends_the_search(world: Bench, how: str) -> None:
    """Of two slices, the second would be one too many."""
    drafts = Drafts(world, A, B, through=queued if how == "in a race" else lambda draft: draft)
    world.settings.forbid_external_ips = how == "by another way"
    if how != "by another way":
        world.plan.refusing = {A: errors.CapacityError("no capacity"), B: errors.CapacityError("no capacity")}
    world.settings.unreachable = [A, B]
    owed = Obligations()
    with pytest.raises(errors.TeardownUnproven, match="not proven gone"):
        search(world, Search(drafts.make(), wait_s=600, race=how == "in a race", drafter=drafts), owed)
    assert owed.unproven and len({*created(world)}) == (2 if how == "in a race" else 1)


def test_a_canceled_run_asks_for_no_other_candidate_and_keeps_which_were_tried(world: Bench) -> None:
    attempt = job(world).attempt
    for racing, canceled in ((False, False), (True, False), (False, True)):
        run = replace(job(world).run, id=f"run{racing}{canceled}")
        began = replace(attempt, id=f"{run.id}-1", run_id=run.id)
        world.ledger.record(Began(run, began))
        world.plan.refusing = {A: errors.CapacityError("none"), C: errors.CapacityError("none")}
        drafts = Drafts(world, A, C, B, through=queued if racing else lambda draft: draft)
        drafts.made = len(world.ledger.leases())
        if canceled:
            world.ledger.record(RunCanceled(run.id, world.time, "tpujob cancel"))
            with pytest.raises(errors.Canceled):
                search(world, Search(drafts.make(), attempt=began.id))
            assert created(world) == []
            return
        lease = search(world, Search(drafts.make(), wait_s=60, race=racing, attempt=began.id))
        kinds = [kind for _, kind, _ in world.ledger.events(began.id)]
        assert lease.name.zone == B and kinds.count("tried") == 2


def racers(*prices: float | None) -> tuple[Any, list[Draft]]:
    """Return a race, and drafts of these prices that wait in it."""
    drafts = [queued(lease_and_request(n)) for n in range(len(prices))]
    drafts = [Draft(replace(d.lease, usd_per_hour=price), d.request) for d, price in zip(drafts, prices, strict=True)]
    race = candidate_search._Race(candidate_search._SearchState(Search(()), CAN, Obligations(), 0.0))
    race.waiting = {draft.lease.id: draft for draft in drafts}
    return race, drafts


@pytest.mark.parametrize(("prices", "shown"), [
    ([9.6, 9.6], "about $9.60/h"), ([9.6, 4.8], "about $9.60/h at most"), ([9.6, None], format_usd_per_hour(None)),
])  # fmt: skip
def test_the_price_of_a_race_is_that_of_the_dearest(prices: list[float | None], shown: str) -> None:
    assert racers(*prices)[0].price == shown


@pytest.mark.parametrize(("late_s", "state", "recorded", "outcome"), [
    (-1.0, SliceState.CREATING, True, "waits"), (0.0, SliceState.CREATING, True, "dropped"),
    (0.0, SliceState.READY, True, "ready"), (0.0, None, False, "dropped"),
])  # fmt: skip
def test_a_racer_that_is_not_ready_in_time_is_dropped_at_once(
    late_s: float, state: SliceState | None, recorded: bool, outcome: str
) -> None:
    race, (draft,) = racers(9.6)
    cloud = ScriptedCloud({"DeleteAll": [(None,)]})
    ready_by = cloud.now - CAN.timings.provision_s - late_s
    lease = replace(draft.lease, state=LeaseState.CREATING, ready_by=ready_by, operation="c", sends=1, settled=True)
    race.waiting = {lease.id: Draft(lease, draft.request)}
    if state is not None:
        cloud.replies["Get"] = [SliceView(lease.name, state, state.name, "v5litepod-8", "r", {})]
    cloud.ledger = {lease.id: lease} if recorded else {}
    if recorded:
        check = cloud.drive(race.first_ready())
        assert (check is not None) is (outcome == "ready") and (lease.id in race.waiting) is (outcome != "dropped")
        assert ("DeleteAll" in cloud.calls) is (outcome == "dropped")
        assert not race.dropped or "was not ready in time" in race.dropped[lease.id][1]
    else:
        cloud.ledger_fails = errors.UnknownLease("it was never recorded")
        cloud.drive(race._drop(race.waiting[lease.id], errors.CapacityError("none")))
        assert cloud.calls == [] and [*race.dropped] == [lease.id]


@pytest.mark.parametrize("racing", [False, True])
def test_queued_candidates_are_asked_for_at_once_only_in_a_race_and_share_the_time_otherwise(
    world: Bench, racing: bool
) -> None:
    world.full(A, B)
    most: list[int] = []
    drafts = Drafts(world, A, B, through=queued)
    race = Search(drafts.make(), wait_s=600, race=racing)
    with pytest.raises(errors.CapacityError):
        world.drive(find(race, CAN, Obligations()), between=lambda world: most.append(len(alive(world))))
    valid = [
        each.request.queue.valid_for_s for each in world.effects if isinstance(each, Create) and each.request.queue
    ]
    assert max(most) == (2 if racing else 1)
    assert valid == [pytest.approx(each, abs=40) for each in ((600, 600) if racing else (300, 300))]


def test_what_one_place_lacks_of_one_type_excludes_no_other_type_there(world: Bench) -> None:
    small, large = Drafts(world, A, A).make()
    large = Draft(
        replace(large.lease, accelerator_type="v5litepod-16"), replace(large.request, accelerator_type="v5litepod-16")
    )
    world.plan.refusing = {A: errors.BadRequest("it has none", scope="place")}
    with pytest.raises(errors.BadRequest):
        search(world, Search((small, large)))
    assert len(created(world)) == 2


def test_down_while_a_race_begins_ends_it(world: Bench) -> None:
    drafts = Drafts(world, A, B, through=queued).make()

    def another_terminal(world: Bench) -> None:
        if world.last == "StartGuardian" and world.ledger.lease("0000000000").down_at is None:
            world.ledger.record(ReleaseBegan("0000000000", world.time, "tpujob down"))

    with pytest.raises(errors.Vanished, match="was released by another tpujob command"):
        world.drive(find(Search(drafts, wait_s=60, race=True), CAN, Obligations()), between=another_terminal)
    assert world.count("Create") == 0


def test_a_dropped_racer_that_is_gone_is_owed_no_more() -> None:
    race, (draft,) = racers(9.6)
    lease = replace(draft.lease, state=LeaseState.CREATING, operation="c", sends=1, settled=True)
    race.dropped, race.owed.losers = {lease.id: (Draft(lease, draft.request), "it is full")}, [lease]
    cloud = ScriptedCloud({"ListSlices": [Listing(())]}, ledger={lease.id: lease})
    cloud.drive(race.release_dropped(0.0))
    assert (race.dropped, race.owed.losers, cloud.unlocked) == ({}, [], [lease.id]) and cloud.calls[
        -1
    ] == "UnmaskSignals"
    assert cloud.log[-1] == "v5litepod-8 us-central1-a   it is full (released: absent)"


def test_losers_are_released_beside_the_job_one_pass_now_and_then() -> None:
    leases = [lease_and_request(n).lease for n in range(2)]
    leases = [replace(each, state=LeaseState.CREATING, operation="c", sends=1, settled=True) for each in leases]
    owed, cloud = Obligations(losers=list(leases)), ScriptedCloud(ledger={each.id: each for each in leases})
    there = SliceView(
        leases[1].name, SliceState.DELETING, "DELETING", "v5litepod-8", "r", {"tpujob-lease-id": leases[1].id}
    )
    cloud.replies = {"DeleteAll": [(None, None)], "Get": [None, there, there, None], "ListSlices": [Listing(())]}
    losers = LoserRelease(owed, CAN)
    cloud.drive(losers.tick())
    assert [each.id for each in owed.losers] == [leases[1].id] and cloud.unlocked == [leases[0].id]
    assert cloud.log[-1] == f"{leases[0].name.node} absent: out of the race, in us-central1-a"
    assert cloud.calls[-1] == "UnmaskSignals"
    calls = len(cloud.calls)
    cloud.drive(losers.tick())
    assert len(cloud.calls) == calls, "the last pass was a moment ago"
    for _ in range(2):
        cloud.now += candidate_search.LOOK_S
        cloud.drive(losers.tick())
    assert owed.losers == [] and cloud.unlocked == [each.id for each in leases]
    calls = len(cloud.calls)
    cloud.now += candidate_search.LOOK_S
    cloud.drive(losers.tick())
    assert len(cloud.calls) == calls


@pytest.mark.parametrize(("changed", "shown"), [
    ({}, "v5litepod-8 us-central1-a"), ({"spot": True}, "v5litepod-8 us-central1-a spot"),
    ({"reserved": True, "queue": QueueTerms(60.0, "x")}, "v5litepod-8 us-central1-a reserved, queued"),
    ({"queue": QueueTerms(60.0, "x", 3600.0)}, "v5litepod-8 us-central1-a flex-start"),
])  # fmt: skip
def test_a_candidate_is_shown_with_how_it_is_asked_for(changed: dict[str, Any], shown: str) -> None:
    assert candidate_search.describe_candidate(replace(lease_and_request().request, **changed)) == shown


def test_the_words_about_a_reservation_are_kept(world: Bench) -> None:
    world.plan.refusing = {A: errors.CapacityError("the reservation is full"), B: errors.CapacityError("no capacity")}
    plain, reserved = Drafts(world, A, B).make()
    for reserve in (False, True):
        asked = [plain, Draft(reserved.lease, replace(reserved.request, reserved=reserve))]
        with pytest.raises(errors.CapacityError) as raised:
            search(world, Search(tuple(asked)))
        assert ("the reservation is full" in raised.value.message) is reserve
        plain, reserved = (lease_and_request(n, zone=zone, now=world.time) for n, zone in ((7, A), (8, B)))


def test_a_zone_that_does_not_reply_is_followed_by_the_next(world: Bench) -> None:
    world.plan.refusing = {A: errors.CloudUnavailable("503")}
    assert search(world, Search(Drafts(world, A, B).make())).name.zone == B

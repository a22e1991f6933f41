"""The oracle: which nodes and queued requests exist, whether they are claimed, and which invariant was violated.

It records what processes, users and machines did (a process runs, a job runs, a signal was sent, the laptop sleeps), never
labels, and never what the programs under test believe. `bounds` says how late a delete may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cloud_tpu_emulator.model.records import Node, QueuedResource
from orchestrator.promise.lease.changes import (
    Detached,
    Extended,
    Gone,
    HeldUntil,
    Intent,
    LeaseEvent,
    Ready,
    ReleaseBegan,
)
from orchestrator.promise.lease.lease import Lease, LeaseState
from tests.simulation.oracle import bounds, claims, periods
from tests.simulation.oracle.claims import (
    DEADLINE,
    FOREVER,
    LOST_RACE,
    Claim,
    Resource,
    certainly_claimed,
    claim_end,
    is_ours,
    labels_of,
)
from tests.simulation.oracle.invariants import Invariant
from tests.simulation.oracle.logins import LoginOracle

if TYPE_CHECKING:
    from tests.simulation.model.faults import CallOutcome
    from tests.simulation.model.fleet import SimFleet
    from tests.simulation.model.hosts import NodeVms
    from tests.simulation.model.process import Process
    from tests.simulation.model.world import World

_ORDER = {state: rank for rank, state in enumerate(LeaseState)}
_FAILING = ("operation_fails", "operation_forgets", "delete_dropped", "refuse_delete", "stuck", "stalled")


class OracleOfLeases:
    """What holds of the leases of any cloud."""

    claims: Sequence[Any]

    def __init__(self, world: World) -> None:
        self.world, self.timeline = world, world.timeline
        self.intents: dict[str, Lease] = {}  # by node name
        self.called_gone_at: dict[str, float] = {}  # by lease
        self.reported_gone: dict[str, str] = {}  # lease → the process whose exit code says so
        self.logins = LoginOracle(world)

    def violated(self, invariant: str, text: str) -> None:
        self.world.violated(invariant, text)

    def signal_sent(self, process: Process) -> None:
        for claim in self.claims:
            if claim.owner is process:
                claim.ends.append((self.timeline.now, "a signal"))

    def check_not_gone(self, what: object, lease_id: str) -> None:
        """Check that the lease of what is created now was never said to be gone."""
        if lease_id in self.called_gone_at:
            late_s = self.timeline.now - self.called_gone_at[lease_id]
            self.violated(Invariant.GONE_IS_TRUE, f"{what} is created {late_s:.1f} s after its lease was GONE")
        if lease_id in self.reported_gone:
            by = self.reported_gone[lease_id]
            self.violated(Invariant.HONEST_EXIT_CODE, f"{what} is created after {by} reported it gone")

    def on_lease_change(self, event: LeaseEvent, before: Lease | None, after: Lease) -> None:
        """Check a committed change of a lease, in any ledger."""
        if self.world.trace is not None:
            self.world.log(f"ledger: {type(event).__name__} {after.name.node} → {after.state}")
        if before is not None and _ORDER[after.state] < _ORDER[before.state]:
            self.violated(Invariant.FORWARD_ONLY, f"{after.name.node} went from {before.state} back to {after.state}")
        if isinstance(event, Intent):
            if after.name.node in self.intents:
                self.violated(Invariant.INTENT_FIRST, f"the name {after.name.node} is used a second time")
            self.intents[after.name.node] = after
        elif isinstance(event, Gone):
            self.called_gone_at.setdefault(after.id, self.timeline.now)


class Oracle(OracleOfLeases):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.claims: list[Claim] = []
        self.resources: dict[str, Resource] = {}  # by uid; includes those that are gone
        self.intended_at: dict[str, float] = {}  # by node name: its wait for capacity begins then
        self.down_at: dict[str, float] = {}
        self.collected_at: dict[str, float] = {}  # by lease: when the collector of a detached run released it
        self.heartbeats: dict[str, float] = {}  # uid → the last
        self.billed_s = 0.0

    def claim_of(self, lease_id: str) -> Claim | None:
        return next((claim for claim in self.claims if lease_id in claim.drafted_at), None)

    def existing(self) -> list[Resource]:
        """Return the nodes and requests of tpujob that exist."""
        return [resource for resource in self.resources.values() if resource.gone_at is None and not resource.foreign]

    def nodes(self) -> list[Resource]:
        return [resource for resource in self.resources.values() if resource.request is None]

    # -- resources -------------------------------------------------------------------------------------------------------

    def node_created(self, node: Node) -> None:
        lease_id = labels_of(node).get("tpujob-lease-id", "")
        known = Resource(node.uid, node.node_id, lease_id, self.claim_of(lease_id), self.timeline.now)
        known.vm = self.world.cloud.vms[node.uid]
        self.world.log(f"{node.node_id} exists ({node.state})")
        if node.name in self.world.foreign:
            known.foreign = True
            self.resources[node.uid] = known
            return
        self._check_new(known, node)
        self.logins.created(node, known)
        for other in self.existing():
            if other.request is not None and other.lease_id == lease_id:
                other.node, other.vm = known, known.vm
            if other.claim is known.claim is not None and other.lease_id != lease_id:
                self._check_one_at_a_time(known, other)
        self.resources[node.uid] = known
        self.world.watch_resources()

    def request_created(self, row: QueuedResource) -> None:
        lease_id = labels_of(row).get("tpujob-lease-id", "")
        claim, now = self.claim_of(lease_id), self.timeline.now
        known = Resource(row.uid, row.queue_id, lease_id, claim, now, request=row)
        self.world.log(f"{row.queue_id} is queued ({row.state})")
        if claim is not None:
            claim.requested_at[lease_id] = now
            if row.valid_until is None or row.valid_until > now + claim.wait_s * 1.01 + 1.0:
                self.violated(Invariant.DEADLINE, f"{known} may wait until {row.valid_until}, longer than asked for")
            else:
                claim.waiting_until[lease_id] = self.intended_at.get(known.node_id, now) + row.valid_until - now
        self._check_new(known, row)
        for other in self.existing():
            if other.claim is claim is not None and other.lease_id != lease_id:
                self._check_one_at_a_time(known, other)
        self.resources[row.uid] = known
        self.world.watch_resources()

    def _check_new(self, known: Resource, found: Node | QueuedResource) -> None:
        if known.node_id not in self.intents:
            self.violated(Invariant.INTENT_FIRST, f"{known} exists, but no intent was committed before")
        if not is_ours(found) or not known.lease_id:
            self.violated(Invariant.INTENT_FIRST, f"{known} lacks the label or the name prefix: no list could find it")
        self.check_not_gone(known, known.lease_id)
        self.check_labels(found, known)

    def _check_one_at_a_time(self, known: Resource, other: Resource) -> None:
        """Outside a race a slice is asked for only after the one before is gone. `judge` bounds the race."""
        assert known.claim is not None
        race = known.claim.races.get(known.lease_id)
        if race is None or other.lease_id not in race.lease_ids:
            self.violated(Invariant.ONE_SLICE, f"{known} and {other} of one run exist at once")

    def check_labels(self, found: Node | QueuedResource, known: Resource | None = None) -> None:
        """No label may reach past the deadline that was asked for: a reader believes it, by the server's clock."""
        known = known or self.resources[found.uid]
        claim, label = known.claim, labels_of(found).get("tpujob-deadline", "")
        if claim is None or not label.isdigit():
            return
        over_s = int(label) - claim.final_at(known.lease_id)
        if over_s > 15.0:
            self.violated(Invariant.DEADLINE, f"the label of {known} reaches {over_s:.0f} s past its deadline")

    def resource_gone(self, uid: str) -> None:
        resource = self.resources[uid]
        resource.gone_at = self.timeline.now
        if resource.request is None:
            self.billed_s += (resource.billed_until or 0.0) - resource.created_at
        self.world.log(f"{resource} is absent")
        self.judge(resource)
        self.world.stop_when_done()

    def judge(self, resource: Resource) -> bool:
        """Check how long this resource has existed without a claim. Return whether it may still exceed its bound."""
        claim, now = resource.claim, self.timeline.now
        if claim is None:
            return False
        ended_at, why = claim_end(self, claim, resource)
        begin = max(ended_at, resource.created_at)
        until = now if resource.gone_at is None else resource.gone_at
        if until <= begin:
            return True
        if why == LOST_RACE and bounds.loser_delete_is_due(self.world, claim, resource):
            self.violated(Invariant.ONE_SLICE, f"{resource} lost its race, and no delete was sent")
        verdict = bounds.bound(self.world, claim, resource, begin)
        self.world.verdicts[resource.uid] = (until - begin, verdict)
        if until - begin > verdict.allowed_s:
            invariant = {DEADLINE: Invariant.DEADLINE, LOST_RACE: Invariant.ONE_SLICE}.get(why, Invariant.BILLING_BOUND)
            was = "was billed" if resource.request is None else "was listed"
            self.violated(
                invariant,
                f"{resource} {was} for {until - begin:.1f} s without a claim (since {why}); promised: "
                f"{verdict.allowed_s:.1f} s by {verdict.layer}",
            )
            return False
        return verdict.allowed_s < FOREVER

    # -- events ------------------------------------------------------------------------------------------------------

    def delete_arrived(self, found: Node | QueuedResource, caller: str, process: Process | None) -> None:
        """A delete of a node, or of a request and its node, arrived at the API."""
        known = self.resources[found.uid]
        self.world.log(f"delete of {known} by {process.name if process else caller} arrives")
        for resource in (known, known.node):
            if resource is not None and resource.gone_at is None:
                self._check_delete(resource, found, caller, process)

    def _check_delete(
        self, known: Resource, found: Node | QueuedResource, caller: str, process: Process | None
    ) -> None:
        known.first_delete_at = known.first_delete_at or self.timeline.now
        known.deleted_by = known.deleted_by or caller
        if known.foreign or not is_ours(found):
            self.violated(Invariant.OURS_ONLY, f"{caller} deletes {known}, which is not ours")
            return
        claim = known.claim
        if claim is not None and process is claim.owner:
            known.owner_deleted_at = known.owner_deleted_at or self.timeline.now
        if claim is not None and (process is None or process is not claim.owner) and caller != "user":
            if process is not None and process in self.world.authorized:
                return
            if certainly_claimed(self, claim, known, caller):
                who = process.name if process else caller
                self.violated(Invariant.CLAIM_RESPECTED, f"{who} deletes {known}, which {claim.label} certainly claims")

    def delete_accepted(self, found: Node | QueuedResource, outcome: CallOutcome) -> None:
        if outcome.effect is not None and outcome.effect.kind in _FAILING:
            known = self.resources[found.uid]
            for resource in self.resources.values():
                if resource is known or resource is known.node or resource.node is known:
                    resource.failed_deletes += 1
                    resource.slow_s += outcome.effect.seconds if "seconds" in outcome.effect.parameters else 0.0
                    resource.slow_s += periods.DELETE_AGAIN_S if outcome.effect.kind == "stalled" else 0.0

    def slice_lost(self, node: Node) -> None:
        known = self.resources[node.uid]
        known.lost_at = known.lost_at or self.timeline.now
        if node.state == "PREEMPTED":
            known.preempted_at = known.preempted_at or self.timeline.now
        for resource in self.existing():
            if resource.node is known:
                resource.lost_at = resource.lost_at or self.timeline.now

    def heartbeat(self, vm: NodeVms) -> None:
        self.heartbeats[vm.node.uid] = self.timeline.now

    def results_left_behind(self, vm: NodeVms) -> None:
        claim = self.resources[vm.node.uid].claim
        if claim is not None:
            claim.results_left = True

    def connection_made(self, fleet: SimFleet) -> None:
        known = self.resources[fleet.vm.node.uid]
        if known.claim is not None and known.claim.owner is fleet.process:
            known.connected_at = self.timeline.now

    def job_started(self, vm: NodeVms, ends_at: float) -> None:
        self.resources[vm.node.uid].job_ends_at = ends_at

    def on_lease_change(self, event: LeaseEvent, before: Lease | None, after: Lease) -> None:
        super().on_lease_change(event, before, after)
        now = self.timeline.now
        match event:
            case Intent():
                self.intended_at[after.name.node] = now
                self.logins.intended(self.claim_of(after.id), after)
            case Ready():
                claim = self.claim_of(after.id)
                if claim is not None:
                    claim.seen_ready.add(after.id)
                if claim is not None and after.id in claim.races:
                    race = claim.races[after.id]
                    race.winner, race.won_at = (race.winner, race.won_at) if race.winner else (after.id, now)
            case ReleaseBegan():
                self.logins.down_at.setdefault(after.id, now)
                claim, actor = self.claim_of(after.id), self.world.acting
                if (
                    claim is not None
                    and actor in self.world.authorized
                    and actor is not claim.down_processes.get(after.id)
                ):
                    claim.results_collected_at.setdefault(after.id, now)
                if actor is not None and actor.role == "collector":
                    self.collected_at.setdefault(after.id, now)
                if claim is None or actor is claim.owner or actor is claim.down_processes.get(after.id):
                    self.down_at.setdefault(after.id, now)  # only these may release it
            case Gone():
                self.logins.lease_gone(after)
                for resource in self.existing():
                    if resource.lease_id == after.id:
                        self.violated(Invariant.GONE_IS_TRUE, f"{resource} is called gone while it exists")
            case HeldUntil() | Extended() | Detached():
                self._moved(event, after, now)
                claim, was_held = self.claim_of(after.id), before is None or before.hold_until is not None
                if claim is not None and after.hold_until is not None and not was_held:
                    claim.held_at = now
        if type(event) is Gone:
            self.world.stop_when_done()

    def _moved(self, event: HeldUntil | Extended | Detached, lease: Lease, now: float) -> None:
        claim = self.claim_of(lease.id)
        if claim is None:
            return
        if isinstance(event, Detached):
            claim.detached_at, claim.kept = now, lease.id
            if not periods.could_be_armed(self.world):
                self.violated(
                    Invariant.ARMED_HANDOVER,
                    f"{lease.name.node} is handed over to a watchdog that never can have been armed",
                )
            return
        if isinstance(event, Extended):
            claim.extended_at, claim.extension_requested_s = now, 0.0
            claim.life_s, sure_s = (
                max(lease.deadline - lease.created_at, claim.certain_life_s or 0.0),
                claim.certain_life_s,
            )
            in_time = sure_s is None or now < claim.drafted_at[lease.id] + sure_s - claims.stop_margin_s(sure_s)
            claim.certain_life_s = claim.life_s if in_time else sure_s  # otherwise its job is being stopped already
            if claim.kept != lease.id or claim.hold_until is None:
                return
        writer = self.world.acting or self.world.laptop  # after a lost ledger each process has a time of its own
        ahead_s = max(lease.ends_at - writer.now(), 0.0)
        if isinstance(event, HeldUntil):
            claim.detached_at = None  # its job has ended, and its results have to be collected
        if isinstance(event, HeldUntil) and not claim.for_hold:
            timings = periods.periods(self.world)
            most_s = max(timings.linger_s, timings.ttl_s, claim.keep_s or 0.0) * 1.01 + 5.0
            if claim.kept == lease.id and claim.hold_until is not None:  # the user has extended it meanwhile
                most_s = max(most_s, claim.hold_until - now)
            if ahead_s > most_s:
                self.violated(
                    Invariant.DEADLINE,
                    f"{lease.name.node} is held for {ahead_s:.0f} s, its results or its user for at most {most_s:.0f} s",
                )
            for (
                taker
            ) in self.claims:  # the next run of a job that failed on it: its exit code speaks for this slice, too
                if taker.owner is not None and taker.owner is self.world.acting and lease.id not in taker.lease_ids:
                    taker.lease_ids.append(lease.id)
        claim.hold_s, claim.hold_until, claim.kept = ahead_s, now + ahead_s * 1.01, lease.id
        self.world.watch_resources()

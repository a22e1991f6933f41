"""What is really so: which nodes and requests exist, who has a claim on them and why, and whether an invariant was broken.

Claims are kept from what people and machines really did (a process lives, a job runs, a signal was sent, a lid was
closed), never from labels, and never from what the programs under test believe. The names I1 to I12 are those of the
design note; `promise` says how late a deletion may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.lease.lease import (
    Detached,
    Down,
    Extended,
    Gone,
    Held,
    Intent,
    Lease,
    LeaseEvent,
    LeaseState,
    Ready,
)
from orchestrator.emulator.model.queue_records import QueuedResource
from orchestrator.emulator.model.records import Node
from tests.simulation.oracle import bounds
from tests.simulation.oracle.claims import FOREVER, Claim, Resource, is_ours, labels_of
from tests.simulation.oracle.invariants import Invariant

if TYPE_CHECKING:
    from tests.simulation.model.faults import CallOutcome
    from tests.simulation.model.fleet import SimFleet
    from tests.simulation.model.hosts import NodeVms
    from tests.simulation.model.process import Process
    from tests.simulation.model.world import World

_ORDER = {state: rank for rank, state in enumerate(LeaseState)}
_FAILING = ("operation_fails", "operation_forgets", "delete_dropped", "refuse_delete", "stuck", "stalled")


class Oracle:
    def __init__(self, world: World) -> None:
        self.world, self.timeline = world, world.timeline
        self.claims: list[Claim] = []
        self.resources: dict[str, Resource] = {}  # by uid, those that are gone too
        self.intents: dict[str, Lease] = {}  # by node name
        self.intended_at: dict[
            str, float
        ] = {}  # by node name: from then on it waits, however often it has to be asked for
        self.called_gone_at: dict[str, float] = {}  # by lease
        self.down_at: dict[str, float] = {}
        self.collected_at: dict[str, float] = {}  # by lease: when whoever followed a detached run gave its slice up
        self.reported_gone: dict[str, str] = {}  # lease → who exited with a code that says so
        self.heartbeats: dict[str, float] = {}  # uid → the last
        self.billed_s = 0.0

    def claim_of(self, lease_id: str) -> Claim | None:
        return next((claim for claim in self.claims if lease_id in claim.drafted_at), None)

    def existing(self) -> list[Resource]:
        """Ours, those that nobody has seen gone: nodes and requests."""
        return [resource for resource in self.resources.values() if resource.gone_at is None and not resource.foreign]

    def nodes(self) -> list[Resource]:
        return [resource for resource in self.resources.values() if resource.request is None]

    def violated(self, invariant: str, text: str) -> None:
        self.world.violated(invariant, text)

    # -- births and deaths -------------------------------------------------------------------------------------------

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
                self.violated(Invariant.DEADLINE, f"{known} may wait until {row.valid_until}, longer than anybody said")
            else:
                claim.waiting_until[lease_id] = self.intended_at.get(known.node_id, now) + row.valid_until - now
        self._check_new(known, row)
        for other in self.existing():
            if other.claim is claim is not None and other.lease_id != lease_id:
                self._check_one_at_a_time(known, other)
        self.resources[row.uid] = known
        self.world.watch_resources()

    def _check_new(self, known: Resource, found: Node | QueuedResource) -> None:
        now, lease_id = self.timeline.now, known.lease_id
        if known.node_id not in self.intents:
            self.violated(Invariant.INTENT_FIRST, f"{known} exists, but no intent was committed before")
        if not is_ours(found) or not lease_id:
            self.violated(Invariant.INTENT_FIRST, f"{known} carries not both marks: a list alone could not find it")
        if lease_id in self.called_gone_at:
            self.violated(
                Invariant.GONE_IS_TRUE,
                f"{known} comes to life {now - self.called_gone_at[lease_id]:.1f} s after it was called gone",
            )
        if lease_id in self.reported_gone:
            self.violated(
                Invariant.HONEST_EXIT_CODE,
                f"{known} comes to life, though {self.reported_gone[lease_id]} said it was gone",
            )
        self.check_labels(found, known)

    def _check_one_at_a_time(self, known: Resource, other: Resource) -> None:
        """I6: outside a race the next one is not asked for before the one before is gone. `judge` bounds the race."""
        assert known.claim is not None
        race = known.claim.races.get(known.lease_id)
        if race is None or other.lease_id not in race.lease_ids:
            self.violated(Invariant.ONE_SLICE, f"{known} and {other} of one run are there at once")

    def check_labels(self, found: Node | QueuedResource, known: Resource | None = None) -> None:
        """I11: no label may promise more than the person did; whoever reads it by the server's clock would believe it."""
        known = known or self.resources[found.uid]
        claim, said = known.claim, labels_of(found).get("tpujob-deadline", "")
        if claim is None or not said.isdigit():
            return
        over_s = int(said) - claim.final_at(known.lease_id)
        if over_s > 15.0:
            self.violated(Invariant.DEADLINE, f"{known} is labelled to live {over_s:.0f} s too long")

    def resource_gone(self, uid: str) -> None:
        resource = self.resources[uid]
        resource.gone_at = self.timeline.now
        if resource.request is None:
            self.billed_s += (resource.billed_until or 0.0) - resource.created_at
        self.world.log(f"{resource} is absent")
        self.judge(resource)
        self.world.stop_when_done()

    def judge(self, resource: Resource) -> bool:
        """I1 and I11: was, or is, it there for longer than promised with nobody's claim? True: it may still come to that."""
        claim, now = resource.claim, self.timeline.now
        if claim is None:
            return False
        ended_at, why = self.claim_end(claim, resource)
        begin = max(ended_at, resource.created_at)
        until = now if resource.gone_at is None else resource.gone_at
        if until <= begin:
            return True
        if why == "another one was first" and bounds.loser_delete_is_due(self.world, claim, resource):
            self.violated(Invariant.ONE_SLICE, f"{resource} lost its race, and no delete of it has left")
        verdict = bounds.bound(self.world, claim, resource, begin)
        self.world.verdicts[resource.uid] = (until - begin, verdict)
        if until - begin > verdict.allowed_s:
            which = {"its deadline": Invariant.DEADLINE, "another one was first": Invariant.ONE_SLICE}.get(
                why, Invariant.BILLING_BOUND
            )
            was = "was billed" if resource.request is None else "was listed"
            self.violated(
                which,
                f"{resource} {was} for {until - begin:.1f} s without a claim (since {why}); promised: "
                f"{verdict.allowed_s:.1f} s by {verdict.layer}",
            )
            return False
        return verdict.allowed_s < FOREVER

    # -- claims ------------------------------------------------------------------------------------------------------

    def claim_end(self, claim: Claim, resource: Resource) -> tuple[float, str]:
        """When the last possible claim ended, and why; FOREVER while there is one."""
        lease_id, mode = resource.lease_id, claim.mode_of(resource.lease_id)
        ends = [(bounds.deadline_of(self.world, claim, resource), "its deadline")]
        if lease_id in claim.results_collected_at:
            ends.append((claim.results_collected_at[lease_id], "somebody came for its results"))
        downer = claim.down_processes.get(lease_id)
        if downer is not None and (downer.alive or lease_id in self.down_at or not downer.killed):
            ends.append((downer.started_at, "somebody said down"))
        if resource.lost_at is not None and mode != "hold":
            ends.append((resource.lost_at, "it was taken away"))
        if mode == "detached":
            if resource.on.job_ends_at is not None:
                ends.append((resource.on.job_ends_at + bounds.periods(self.world).linger_s * 1.01, "its job ended"))
        elif mode == "hold":
            ends.append(((claim.hold_until or 0.0) + claim.extension_requested_s, "its hold ended"))
        else:
            ends += claim.ends
            if claim.owner is not None and not claim.owner.alive:
                ends.append((claim.owner.ended_at, f"{claim.owner.name} ended"))
            if claim.owner is not None and claim.owner.frozen:
                ends.append((self.world.frozen_since, f"{claim.owner.name} stands still"))
            if resource.on.job_ends_at is not None and claim.keep_s is None:
                handing_over_s = bounds.HAND_OVER_S if claim.detach or claim.results_left else 0.0
                ends.append(
                    (bounds.collected_by(self.world, resource.on.job_ends_at) + handing_over_s, "its job ended")
                )
            if resource.owner_deleted_at is not None:
                ends.append((resource.owner_deleted_at, "its own delete"))
            if (down := self.down_at.get(lease_id)) is not None:
                ends.append((down, "it was given up"))
            if (won := self.won_by_another(claim, lease_id)) is not None:
                ends.append((won, "another one was first"))
            if (waited := bounds.request_expired_at(resource)) is not None:
                ends.append((waited, "its time to wait was over"))
        return min(ends)

    def won_by_another(self, claim: Claim, lease_id: str) -> float | None:
        """Since when it has lost its race: one of the others was READY, and stayed so until its command had to see it."""
        race = claim.races.get(lease_id)
        if race is None or race.winner == lease_id:
            return None
        ready = sorted(
            (resource.ready_at, resource.lease_id)
            for resource in self.resources.values()
            if resource.lease_id in race.lease_ids
            and resource.request is None
            and resource.ready_at is not None
            and (resource.lease_id == race.winner or (resource.lost_at is None and resource.gone_at is None))
        )
        if not race.winner and ready and ready[0][1] == lease_id:
            return None  # it should win
        return next((at for at, other in ready if other != lease_id), None)

    def certainly_claimed(self, claim: Claim, resource: Resource, caller: str) -> bool:
        """Is a deletion by this caller, now, friendly fire whatever the circumstances?"""
        now, mode = self.timeline.now, claim.mode_of(resource.lease_id)
        if any(other.lost_at is not None for other in self.resources.values() if other.lease_id == resource.lease_id):
            return False  # also of another one of its name, which a lost create made since
        if now >= bounds.certain_until(claim, resource, self.used_s(claim)):
            return False
        job_ended_at = resource.on.job_ends_at
        if (
            mode == "detached"
            and job_ended_at is not None
            and self.collected_at.get(resource.lease_id, 0.0) >= job_ended_at
        ):
            return False  # who brought its results home gave it up
        if mode != "run":
            ended_at, _ = self.claim_end(claim, resource)
            ended_at = min(ended_at, claim.hold_until) if claim.hold_until is not None else ended_at
            slack = (claim.hold_s or claim.life_s) * 0.02 + 3.0 + bounds.clock_uncertainty_s(self.world)
            if mode == "detached" and caller == "collector" and resource.on.job_ends_at is not None:
                return now < min(resource.on.job_ends_at, ended_at) and not bounds.job_was_lost(self.world)
            if caller.startswith("watchdog") and bounds.was_blind(self.world):
                return False
            if mode == "detached" and caller.startswith("watchdog"):
                return now < ended_at - slack and not bounds.job_was_lost(self.world)
            return now < ended_at - slack
        owner = claim.owner
        if (
            owner is None
            or not owner.alive
            or owner.frozen
            or claim.ends
            or resource.lease_id in {*self.down_at, *claim.down_processes}
            or self.won_by_another(claim, resource.lease_id) is not None
        ):
            return False
        if resource.owner_deleted_at is not None:
            return False
        if caller.startswith("watchdog"):
            return bounds.heartbeats_got_through(self.world, resource) and bounds.renewals_got_through(
                self.world, resource
            )
        return bounds.renewals_got_through(self.world, resource) if caller == "gc" else True

    def used_s(self, claim: Claim) -> float:
        """What slices that were lost took of the job's time."""
        lost = [resource for resource in self.nodes() if resource.claim is claim and resource.gone_at is not None]
        return sum((resource.gone_at or 0.0) - resource.ready_at for resource in lost if resource.ready_at is not None)

    # -- what happens ------------------------------------------------------------------------------------------------

    def delete_arrived(self, found: Node | QueuedResource, caller: str, process: Process | None) -> None:
        """Of a request: with its node, if it has one."""
        known = self.resources[found.uid]
        self.world.log(f"delete of {known} by {process.name if process else caller} arrives")
        for resource in (known, known.node):
            if resource is not None and resource.gone_at is None:
                self._to_be_deleted(resource, found, caller, process)

    def _to_be_deleted(
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
            if self.certainly_claimed(claim, known, caller):
                who = process.name if process else caller
                self.violated(Invariant.CLAIM_RESPECTED, f"{who} deletes {known}, which {claim.label} surely claims")

    def delete_accepted(self, found: Node | QueuedResource, outcome: CallOutcome) -> None:
        if outcome.effect is not None and outcome.effect.kind in _FAILING:
            known = self.resources[found.uid]
            for resource in self.resources.values():
                if resource is known or resource is known.node or resource.node is known:
                    resource.failed_deletes += 1
                    resource.slow_s += outcome.effect.seconds if "seconds" in outcome.effect.parameters else 0.0
                    resource.slow_s += bounds.DELETE_AGAIN_S if outcome.effect.kind == "stalled" else 0.0

    def taken_away(self, node: Node) -> None:
        known = self.resources[node.uid]
        known.lost_at = known.lost_at or self.timeline.now
        if node.state == "PREEMPTED":
            known.preempted_at = known.preempted_at or self.timeline.now
        for resource in self.existing():
            if resource.node is known:
                resource.lost_at = resource.lost_at or self.timeline.now

    def signal_sent(self, process: Process) -> None:
        for claim in self.claims:
            if claim.owner is process:
                claim.end(self.timeline.now, "a signal")

    def heartbeat(self, vm: NodeVms) -> None:
        self.heartbeats[vm.node.uid] = self.timeline.now

    def left_results(self, vm: NodeVms) -> None:
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
        """Every committed change of a lease, in any ledger."""
        now = self.timeline.now
        if self.world.trace is not None:
            self.world.log(f"ledger: {type(event).__name__} {after.name.node} → {after.state}")
        if before is not None and _ORDER[after.state] < _ORDER[before.state]:
            self.violated(Invariant.FORWARD_ONLY, f"{after.name.node} went from {before.state} back to {after.state}")
        match event:
            case Intent():
                if after.name.node in self.intents:
                    self.violated(Invariant.INTENT_FIRST, f"the name {after.name.node} is used a second time")
                self.intents[after.name.node], self.intended_at[after.name.node] = after, now
            case Ready():
                claim = self.claim_of(after.id)
                if claim is not None:
                    claim.seen_ready.add(after.id)
                if claim is not None and after.id in claim.races:
                    race = claim.races[after.id]
                    race.winner, race.won_at = (race.winner, race.won_at) if race.winner else (after.id, now)
            case Down():
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
                    self.down_at.setdefault(after.id, now)  # nobody else has the right to give it up
            case Gone():
                self.called_gone_at.setdefault(after.id, now)
                for resource in self.existing():
                    if resource.lease_id == after.id:
                        self.violated(Invariant.GONE_IS_TRUE, f"{resource} is called gone while it exists")
            case Held() | Extended() | Detached():
                self._moved(event, after, now)
        if type(event) is Gone:
            self.world.stop_when_done()

    def _moved(self, event: Held | Extended | Detached, lease: Lease, now: float) -> None:
        claim = self.claim_of(lease.id)
        if claim is None:
            return
        if isinstance(event, Detached):
            claim.detached_at, claim.kept = now, lease.id
            if not bounds.could_be_armed(self.world):
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
            in_time = sure_s is None or now < claim.drafted_at[lease.id] + sure_s - bounds.stop_margin_s(sure_s)
            claim.certain_life_s = claim.life_s if in_time else sure_s  # else its job is being stopped already
            if claim.kept != lease.id or claim.hold_until is None:
                return
        teller = self.world.acting or self.world.laptop  # with a lost ledger each keeps its own time
        ahead_s = max(lease.ends_at - teller.now(), 0.0)
        if isinstance(event, Held):
            claim.detached_at = None  # its job has ended, and its results are waited for
        if isinstance(event, Held) and not claim.for_hold and claim.keep_s is None:
            most_s = bounds.periods(self.world).linger_s * 1.01 + 5.0
            if ahead_s > most_s:
                self.violated(
                    Invariant.DEADLINE,
                    f"{lease.name.node} is held for {ahead_s:.0f} s, results may wait for {most_s:.0f} s",
                )
        claim.hold_s, claim.hold_until, claim.kept = ahead_s, now + ahead_s * 1.01, lease.id
        self.world.watch_resources()

"""The claim of each command, the nodes and queued requests that it is about, and when it really ended or has to end.

Kept from what users and machines did, never from labels. `oracle` updates and judges it, `bounds` turns it into seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cloud_tpu_emulator.model.records import Node, QueuedResource, State
from orchestrator.promise.obtain.drafts import Draft
from tests.simulation.model.faults import FOREVER as ALWAYS
from tests.simulation.model.faults import Window
from tests.simulation.oracle.periods import (
    COLLECT_S,
    EDGES,
    HAND_OVER_S,
    SEEN_S,
    SILENT_S,
    clock_uncertainty_s,
    job_was_lost,
    overlap,
    periods,
    was_blind,
)

if TYPE_CHECKING:
    from tests.simulation.model.hosts import NodeVms
    from tests.simulation.model.process import Process
    from tests.simulation.model.world import World
    from tests.simulation.oracle.oracle import Oracle


FOREVER = 1e18
COMING = (State.CREATING, State.WAITING, State.PROVISIONING)
PREFIX, MARK = "tpujob-", ("tpujob", "1")


@dataclass
class Claim:
    """One run, or one held slice: the names of its candidates, the process that owns it, and when that ends."""

    label: str
    life_s: float
    begun_at: float
    owner: Process | None = None
    for_hold: bool = False  # `up`: its VM gets no heartbeat; the labels are the claim
    certain_life_s: float | None = None  # while an extension is under way, the shorter of both
    keep_s: float | None = None
    detach: bool = False  # does its command hand the claim over to the job?
    saves_work: bool = False  # does it save the work of its job, to restart with it?
    wait_s: float = 0.0  # how long a queued request may wait
    lease_ids: list[str] = field(default_factory=list)
    drafted_at: dict[str, float] = field(default_factory=dict)  # lease → when its name was chosen
    races: dict[str, Race] = field(default_factory=dict)  # lease → the race that it is part of
    requested_at: dict[str, float] = field(default_factory=dict)  # lease → when its queued request was created
    waiting_until: dict[str, float] = field(default_factory=dict)  # lease → when the cloud ends that request
    seen_ready: set[str] = field(default_factory=set)  # leases whose slice the command has seen READY
    kept: str = ""  # the lease that outlasts its command, held or detached
    hold_until: float | None = None
    held_at: float = 0.0  # when it became a held slice
    hold_s: float | None = None
    extension_requested_s: float = 0.0  # may be in the labels before the ledger knows
    results_left: bool = False  # some results could not be collected
    results_collected_at: dict[str, float] = field(default_factory=dict)  # lease → when `tpujob collect` released it
    detached_at: float | None = None
    extended_at: float | None = None
    down_processes: dict[str, Process] = field(default_factory=dict)  # lease → its `tpujob down`
    ends: list[tuple[float, str]] = field(default_factory=list)  # when the claim of its owner ended, and why

    def end(self, at: float, why: str) -> None:
        self.ends.append((at, why))

    def ask_for(self, drafts: Sequence[Draft], now: float, *, race: bool = False) -> None:
        """Note the candidates of one attempt: each may be asked for from now on, in turn or at once."""
        racing = [lease.id for lease, request in drafts if request.queue is not None] if race else []
        together = Race(frozenset(racing))
        for lease, _ in drafts:
            self.lease_ids.append(lease.id)
            self.drafted_at[lease.id] = now
            if lease.id in racing and len(racing) > 1:
                self.races[lease.id] = together

    def final_at(self, lease_id: str) -> float:
        """Return the time past which nothing may exist. Clocks may run wrong by one percent."""
        asked_at = self.requested_at.get(lease_id)
        waiting_s = 0.0 if asked_at is None else asked_at - self.drafted_at[lease_id] + self.wait_s * 1.01
        return self.drafted_at.get(lease_id, self.begun_at) + waiting_s + self.life_s * 1.01

    def mode_of(self, lease_id: str) -> str:
        if lease_id != self.kept:
            return "run"
        return "detached" if self.detached_at is not None else "hold"


@dataclass
class Race:
    """Requests that wait at once; one of them may win."""

    lease_ids: frozenset[str]
    winner: str = ""  # the lease that the command chose
    won_at: float = 0.0


@dataclass
class Resource:
    """A node or a queued request: it may be billed, or hold quota."""

    uid: str
    node_id: str
    lease_id: str
    claim: Claim | None
    created_at: float
    vm: NodeVms | None = None  # of a request: the VMs of its node
    request: QueuedResource | None = None
    node: Resource | None = None  # of a request: its node
    foreign: bool = False  # not created by tpujob
    gone_at: float | None = None
    preempted_at: float | None = None  # from then on it is listed, not billed
    lost_at: float | None = None  # preempted, or deleted externally
    owner_deleted_at: float | None = None  # its owner sent a delete
    first_delete_at: float | None = None
    deleted_by: str = ""
    failed_deletes: int = 0
    slow_s: float = 0.0  # extra time that the cloud took for deletes
    job_ends_at: float | None = None
    connected_at: float | None = None

    @property
    def billed_until(self) -> float | None:
        """Return when billing ended; None while it goes on."""
        return self.gone_at if self.preempted_at is None else self.preempted_at

    @property
    def on(self) -> Resource:
        """Return the node on which its job runs."""
        return self.node or self

    @property
    def ready_at(self) -> float | None:
        return None if self.vm is None else self.vm.ready_at

    def may_still_get_node(self, now: float) -> bool:
        """Return whether this is a request that waits for capacity and has time left."""
        row = self.request
        return row is not None and row.state in COMING and self.node is None and (row.valid_until or FOREVER) > now

    def __str__(self) -> str:
        return self.node_id if self.request is None else f"the request {self.node_id}"


def labels_of(found: Node | QueuedResource) -> dict[str, str]:
    """Return the labels of a node, or those that the node of a request will have."""
    spec = found.spec if isinstance(found, Node) else found.node_specs[0].node
    return dict(spec.get("labels", {}))


def id_of(found: Node | QueuedResource) -> str:
    return found.node_id if isinstance(found, Node) else found.queue_id


def is_ours(found: Node | QueuedResource) -> bool:
    """Return whether it has the label and the name prefix of the documentation, not those of the code."""
    key, value = MARK
    return id_of(found).startswith(PREFIX) and labels_of(found).get(key) == value


DEADLINE, LOST_RACE = "its deadline", "it lost its race"
CALL_S = 15.0  # a call of the watchdog takes so long at most


def claim_end(oracle: Oracle, claim: Claim, resource: Resource) -> tuple[float, str]:
    """Return when the last possible claim ended, and why; FOREVER while there is one."""
    world, lease_id, mode = oracle.world, resource.lease_id, claim.mode_of(resource.lease_id)
    ends = [(deadline_of(world, claim, resource), DEADLINE)]
    if lease_id in claim.results_collected_at:
        ends.append((claim.results_collected_at[lease_id], "its results were collected"))
    down = claim.down_processes.get(lease_id)
    if down is not None and (down.alive or lease_id in oracle.down_at or not down.killed):
        ends.append((down.started_at, "tpujob down"))
    if resource.lost_at is not None and mode != "hold":
        ends.append((resource.lost_at, "it was lost"))
    job_ends_at = resource.on.job_ends_at
    if mode == "detached":
        if job_ends_at is not None:
            ends.append((job_ends_at + periods(world).linger_s * 1.01, "its job ended"))
    elif mode == "hold":
        ends.append(((claim.hold_until or 0.0) + claim.extension_requested_s, "the end of its hold"))
    else:
        ends += claim.ends
        if claim.owner is not None and not claim.owner.alive:
            ends.append((claim.owner.ended_at, f"{claim.owner.name} ended"))
        if claim.owner is not None and claim.owner.frozen:
            ends.append((world.frozen_since, f"{claim.owner.name} was stopped"))
        if job_ends_at is not None and claim.keep_s is None:
            hand_over_s = HAND_OVER_S if claim.detach or claim.results_left else 0.0
            ends.append((collected_by(world, job_ends_at) + hand_over_s, "its job ended"))
        if resource.owner_deleted_at is not None:
            ends.append((resource.owner_deleted_at, "the delete by its owner"))
        if (down_at := oracle.down_at.get(lease_id)) is not None:
            ends.append((down_at, "its lease was released"))
        if (lost_at := lost_race_at(oracle, claim, lease_id)) is not None:
            ends.append((lost_at, LOST_RACE))
        if (expired_at := request_expired_at(resource)) is not None:
            ends.append((expired_at, "its request expired"))
    return min(ends)


def lost_race_at(oracle: Oracle, claim: Claim, lease_id: str) -> float | None:
    """Return when another slice of the race was READY for so long that the command had to see it; None if this one may win."""
    race = claim.races.get(lease_id)
    if race is None or race.winner == lease_id:
        return None
    ready = sorted(
        (resource.ready_at, resource.lease_id)
        for resource in oracle.resources.values()
        if resource.lease_id in race.lease_ids
        and resource.request is None
        and resource.ready_at is not None
        and (resource.lease_id == race.winner or (resource.lost_at is None and resource.gone_at is None))
    )
    if not race.winner and ready and ready[0][1] == lease_id:
        return None  # it should win
    return next((at for at, other in ready if other != lease_id), None)


def certainly_claimed(oracle: Oracle, claim: Claim, resource: Resource, caller: str) -> bool:
    """Return whether a delete by this caller, now, would be wrong under all circumstances."""
    world, lease_id = oracle.world, resource.lease_id
    now, mode = world.timeline.now, claim.mode_of(lease_id)
    if any(other.lost_at is not None for other in oracle.resources.values() if other.lease_id == lease_id):
        return False  # also of another node of this name, which a lost create made since
    if now >= certain_until(claim, resource, _lost_s(oracle, claim)):
        return False
    job_ended_at = resource.on.job_ends_at
    if mode == "detached" and job_ended_at is not None and oracle.collected_at.get(lease_id, 0.0) >= job_ended_at:
        return False  # the collector released it
    if mode != "run":
        ended_at, _ = claim_end(oracle, claim, resource)
        ended_at = min(ended_at, claim.hold_until) if claim.hold_until is not None else ended_at
        slack_s = (claim.hold_s or claim.life_s) * 0.02 + 3.0 + clock_uncertainty_s(world)
        if mode == "detached" and caller == "collector" and job_ended_at is not None:
            return now < min(job_ended_at, ended_at) and not job_was_lost(world)
        if caller.startswith("watchdog") and was_blind(world):
            return False
        if caller.startswith("watchdog") and now - claim.held_at < CALL_S:
            # `up` sends no heartbeats: its labels have to say that the slice is held before the first silence is over.
            silent_at = (resource.ready_at or now) + periods(world).ttl_s
            late = claim.held_at > silent_at if claim.for_hold else not heartbeats_got_through(world, resource)
            if late:
                return False  # right by the labels that it read, before they said that the slice is held
        if mode == "detached" and caller.startswith("watchdog"):
            return now < ended_at - slack_s and not job_was_lost(world)
        return now < ended_at - slack_s
    owner = claim.owner
    if owner is None or not owner.alive or owner.frozen or claim.ends or resource.owner_deleted_at is not None:
        return False
    if lease_id in {*oracle.down_at, *claim.down_processes} or lost_race_at(oracle, claim, lease_id) is not None:
        return False
    if caller.startswith("watchdog"):
        return heartbeats_got_through(world, resource) and renewals_got_through(world, resource)
    return renewals_got_through(world, resource) if caller == "gc" else True


def _lost_s(oracle: Oracle, claim: Claim) -> float:
    """Return how much of the time of the job slices took that were lost."""
    lost = [resource for resource in oracle.nodes() if resource.claim is claim and resource.gone_at is not None]
    return sum((resource.gone_at or 0.0) - resource.ready_at for resource in lost if resource.ready_at is not None)


def deadline_of(world: World, claim: Claim, resource: Resource) -> float:
    """Return its deadline. The time of a queued slice starts when READY was seen."""
    final_at, origin = claim.final_at(resource.lease_id), world.faults.begun_at
    if resource.lease_id not in claim.requested_at or resource.ready_at is None:
        return final_at
    seen_by = resource.ready_at + SEEN_S
    for begin, end in sorted(world.plan.stopped + world.plan.asleep):
        if origin + begin < seen_by and resource.ready_at < origin + end:  # no command looked
            seen_by = origin + end + SEEN_S
    return min(final_at, seen_by + claim.life_s * 1.01)


def certain_until(claim: Claim, resource: Resource, used_s: float) -> float:
    """Return when its job may first be stopped for lack of time."""
    life_s = claim.certain_life_s or claim.life_s
    began = claim.drafted_at[resource.lease_id]
    if resource.lease_id in claim.requested_at:
        began = claim.waiting_until[
            resource.lease_id
        ]  # its time starts then at the latest; candidates in turn share the wait
        began = began if resource.ready_at is None else min(began, resource.ready_at)
    return began + (life_s - used_s) * 1.01 - stop_margin_s(life_s)


def request_expired_at(resource: Resource) -> float | None:
    """Return when a request without a node expired; None for all others."""
    return resource.request.valid_until if resource.request is not None and resource.node is None else None


def stop_margin_s(life_s: float) -> float:
    """Return how long before its deadline a job is stopped, so that its work can be saved."""
    return min(60.0, life_s / 10) + 0.02 * life_s + 3.0


def collected_by(world: World, job_ended_at: float) -> float:
    """Return when an attached command can have noticed the end of its job and collected the artifacts."""
    origin = world.faults.begun_at
    plan = world.plan
    windows = sorted(plan.cut.get("laptop-vm", []) + plan.stopped + plan.asleep + plan.vms_paused)
    at = job_ended_at - origin
    failed_s = sum(
        lasted for when, role, lasted in world.faults.failed_calls if role == "cli" and when >= job_ended_at - 60
    )
    for begin, end in windows:
        if begin - world.collect_s - 5.0 - failed_s <= at < end:
            at = min(end, at + SILENT_S)
    busy_s = SILENT_S + COLLECT_S if world.plan.worker_dies else 0.0
    return origin + at + world.collect_s + 5.0 + failed_s + busy_s


def heartbeats_got_through(world: World, resource: Resource) -> bool:
    """Return whether an attached command had every chance to send a heartbeat within the last time to live."""
    now, origin = world.timeline.now, world.faults.begun_at
    ready_at, connected_at = resource.ready_at, resource.on.connected_at
    if ready_at is None:
        return True
    if (pause := _just_resumed(world, now - origin)) is not None:
        now = origin + pause[0] - 0.001  # right after a pause, only what was before it counts
    back = now - origin - periods(world).ttl_s - 3 * periods(world).heartbeat_s
    plan = world.plan
    disturbed = plan.cut.get("laptop-vm", []) + plan.stopped + plan.asleep + plan.vms_paused
    disturbed += [(at, at + (back_s if back_s is not None else ALWAYS)) for _, at, back_s in plan.worker_dies]
    if overlap(disturbed, back, now - origin):
        return False
    if now - ready_at < periods(world).ttl_s * 0.98:
        return True
    return connected_at is not None and connected_at - ready_at < periods(world).ttl_s - 3 * periods(world).heartbeat_s


def _just_resumed(world: World, now: float) -> Window | None:
    """Return the pause of the VMs that ended less than a grace ago; None if there is none."""
    return next((w for w in world.plan.vms_paused if w[1] <= now < w[1] + 0.8 * periods(world).grace_s), None)


def renewals_got_through(world: World, resource: Resource) -> bool:
    """Return whether the command had every chance to renew its label in time."""
    now, origin, timings = world.timeline.now, world.faults.begun_at, periods(world)
    back = now - origin - timings.label_ttl_s
    plan = world.plan
    windows = [w for edge in EDGES["local"] for kind in (plan.cut, plan.forbidden) for w in kind.get(edge, ())]
    lost = sum(overlap(windows + plan.stopped + plan.asleep + plan.cut.get("laptop-vm", []), back, now - origin))
    felt = sum(
        lasted + 5.0
        for at, role, lasted in world.faults.failed_calls
        if role == "cli" and at >= now - timings.label_ttl_s
    )
    waited_s = (
        claim.wait_s if (claim := resource.claim) is not None and resource.lease_id in claim.requested_at else 0.0
    )
    if resource.on.connected_at is None and now - resource.created_at > timings.provision_s + waited_s:
        return False  # it still waits for SSH, and its first label has expired
    stuck = sum(fault.seconds for fault in plan.patch_effects if "seconds" in fault.parameters)
    return lost + felt + stuck < (timings.label_ttl_s - timings.renew_s) / 2

"""Agreed ends, and whether an attached command had every chance to prove that it is alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.model.faults import FOREVER as ALWAYS
from tests.simulation.model.faults import Window
from tests.simulation.oracle.disturbances import overlap
from tests.simulation.oracle.periods import COLLECT_S, EDGES, SEEN_S, SILENT_S, periods

if TYPE_CHECKING:
    from tests.simulation.model.world import World
    from tests.simulation.oracle.claims import Claim, Resource


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

"""How long a slice may be billed after its last claim ended, in this very world.

Every period is that of the table of promises. The rest is what the world really did: which layers lived, how long the API
was unreachable, how many calls failed. Nothing here reads labels or decisions of a program, so no mutant can loosen its own
bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.model.faults import FOREVER as ALWAYS
from tests.simulation.model.faults import TIMEOUT_S
from tests.simulation.model.scheduled_faults import guardians_killed_at
from tests.simulation.oracle.claims import deadline_of
from tests.simulation.oracle.periods import (
    COLLECT_S,
    COMMAND_OWN_S,
    COMMAND_S,
    CONNECT_S,
    GC_OWN_S,
    GUARDIAN_OWN_S,
    GUARDIAN_POLL_S,
    HAND_OVER_S,
    LOOK_S,
    NEVER,
    POLL_MOST_S,
    PULL_S,
    RACE_PAUSE_S,
    RELEASE_S,
    SEEN_S,
    SILENT_S,
    STOP_S,
    broken_until,
    clock_uncertainty_s,
    finish,
    may_be_provisioning,
    periods,
    unreachable_for_good,
    was_cut_off,
    was_disturbed,
)

if TYPE_CHECKING:
    from tests.simulation.model.process import Process
    from tests.simulation.model.world import World
    from tests.simulation.oracle.claims import Claim, Race, Resource


RESTARTED_S = 5.0  # by so much the clock of a machine that was restarted may be late


@dataclass(frozen=True, slots=True)
class Allowance:
    allowed_s: float
    layer: str


def bound(world: World, claim: Claim, resource: Resource, begin: float) -> Allowance:
    """Return the shortest bound of all layers that could act: any one of them keeps the promise."""
    layers = {
        "local": _local(world, claim, resource, begin),
        "watchdog": _watchdog(world, claim, resource, begin),
        "gc": _gc(world, claim, resource, begin),
    }
    layer = min(layers, key=lambda name: layers[name])
    allowed = layers[layer]
    return Allowance(allowed if allowed < NEVER / 2 else NEVER, layer if allowed < NEVER / 2 else "none")


def _local(world: World, claim: Claim, resource: Resource, begin: float) -> float:
    """Return the seconds from `begin` within which this machine must have deleted it; NEVER if it cannot."""
    machine = world.laptop
    down = claim.down_processes.get(resource.lease_id)
    owner = down or claim.owner
    until = world.timeline.now if resource.gone_at is None else resource.gone_at
    if not machine.on or machine.asleep or (owner is not None and owner.alive and owner.frozen):
        return NEVER
    if world.ledger_was_lost and (owner is None or not owner.alive):
        return NEVER  # only a process that opened the old file knows the slice
    awake_since = max(begin, machine.on_since, down.started_at if down is not None else begin)
    mode = claim.mode_of(resource.lease_id)
    if mode == "hold" and _waits_for_a_silent_vm(world, resource):
        return finish(world, "local", resource, begin, awake_since, SILENT_S + LOOK_S + STOP_S + COMMAND_OWN_S, until)
    if mode == "detached" and down is None and begin < claim.final_at(resource.lease_id):
        return _collector(world, resource, begin, awake_since, until)
    if owner is not None and owner.alive:
        start = max(awake_since, world.thawed_at)
        if mode == "hold" and down is None:
            # It releases the losers of its race; a held slice is its guardian's afterwards.
            need = RELEASE_S + GUARDIAN_POLL_S + GUARDIAN_OWN_S
            return finish(world, "local", resource, begin, start, need, until)
        return finish(world, "local", resource, begin, start, _own_s(world, claim, resource, begin), until)
    ended_at = begin if owner is None else owner.ended_at
    stays = mode != "hold" or down is not None  # a held slice is its guardian's, however long the command was busy
    left = owner is not None and stays and not owner.killed and owner.signals_received < 3
    if left and 0.0 <= ended_at - begin < RELEASE_S:
        return finish(world, "local", resource, begin, awake_since, COMMAND_OWN_S, until)  # it may not exit earlier
    # The guardian looks at once; at held and detached slices every so often.
    need = GUARDIAN_OWN_S if mode == "run" or down is not None else GUARDIAN_POLL_S + GUARDIAN_OWN_S
    return without_owner_s(world, resource, owner, begin, awake_since, until, lasting=mode != "run", guardian_s=need)


def without_owner_s(
    world: World,
    resource: Resource,
    owner: Process | None,
    begin: float,
    awake_since: float,
    until: float,
    *,
    lasting: bool,
    guardian_s: float,
) -> float:
    """Return how long this machine may take once the owner has ended: its guardian, the timer, or the next command.

    `lasting`: the claim outlasts its owner.
    """
    machine, plan = world.laptop, world.plan
    ended_at = begin if owner is None else owner.ended_at
    killed_at = guardians_killed_at(world, owner, any_guardian=lasting)
    if plan.guardian == "on" and world.layers.guardian and owner is not None and killed_at is None:
        return finish(world, "local", resource, begin, max(awake_since, ended_at), guardian_s, until)
    if machine.timer_s is not None:
        start = max(awake_since, killed_at or begin, ended_at)
        return finish(world, "local", resource, begin, start, machine.timer_s + GUARDIAN_OWN_S, until)
    # After a restart, its clock is set by the Date of an answer, in whole seconds, and never ahead of the cloud's.
    late_s = RESTARTED_S if machine.on_since > world.faults.begun_at else 0.0
    typed = [at for at in machine.command_times if at >= max(begin + late_s, ended_at, machine.on_since)]
    if not typed or resource.failed_deletes or was_disturbed(world, typed[0], typed[0] + COMMAND_S):
        return NEVER
    if may_be_provisioning(resource) and (resource.ready_at is None or resource.ready_at > begin):
        return NEVER  # it does not wait that long
    return finish(world, "local", resource, begin, max(typed[0], awake_since), COMMAND_S, until)


def _waits_for_a_silent_vm(world: World, resource: Resource) -> bool:
    """Return whether a second command works on the held slice, and its VM may not answer: the hold ends meanwhile (C6)."""
    user, plan = world.laptop.locks.get(resource.lease_id), world.plan
    silent = bool(plan.vms_paused or plan.worker_dies or plan.cut.get("laptop-vm"))
    return silent and user is not None and user.alive and user.role == "cli"


def _own_s(world: World, claim: Claim, resource: Resource, begin: float) -> float:
    """Return how long the running command takes to notice and to delete."""
    plan, need = world.plan, COMMAND_OWN_S
    if resource.lost_at is not None:
        busy = claim.detach or claim.keep_s is not None or resource.on.connected_at is None
        need += LOOK_S + STOP_S + (CONNECT_S if busy else 0.0) + (PULL_S if claim.saves_work else 0.0)
    gone_before = _node_died_at(resource) is not None
    if gone_before or plan.worker_dies or plan.vms_paused or plan.cut.get("laptop-vm"):
        need += STOP_S + (HAND_OVER_S if claim.detach else 0.0)
        need += LOOK_S if gone_before else 0.0  # the next look notices it
        need += CONNECT_S if gone_before and resource.on.connected_at is None else 0.0  # no look before workers answer
        need += PULL_S if gone_before and claim.saves_work else 0.0
    need += COLLECT_S if _lost_while_collected(resource) else 0.0
    if resource.ready_at is None:  # it looks periodically; the next look makes up for a failed one
        tries = sum(role == "cli" and at >= begin - RACE_PAUSE_S for at, role, _ in world.faults.failed_calls)
        need += RACE_PAUSE_S * (1 + tries)
    race = claim.races.get(resource.lease_id)
    if race is not None and race.winner != resource.lease_id:
        need += _lost_race_s(world, claim, resource, race)
    return need


def _lost_while_collected(resource: Resource) -> bool:
    """Return whether the slice was lost while its artifacts were being collected."""
    ended_at = resource.on.job_ends_at
    lost_at = _node_died_at(resource) if resource.lost_at is None else resource.lost_at
    return lost_at is not None and ended_at is not None and ended_at < lost_at + LOOK_S


def _node_died_at(resource: Resource) -> float | None:
    """Return when the node of a request ended that outlived it; None otherwise."""
    node = resource.node
    return None if node is None or node.gone_at == resource.gone_at else node.gone_at


def _lost_race_s(world: World, claim: Claim, resource: Resource, race: Race) -> float:
    """Return how long a loser may take: deletes leave when the winner is seen, and failures are retried once its job runs."""
    plan, need = world.plan, RACE_PAUSE_S + len(race.lease_ids)
    busy_s = world.boot_s + 5.0 + (CONNECT_S if plan.worker_dies or plan.vms_paused or plan.cut else 0.0)
    busy_s += periods(world).boot_s + HAND_OVER_S if claim.detach else HAND_OVER_S if claim.keep_s is not None else 0.0
    others = [
        other for other in world.oracle.resources.values() if other.lease_id in race.lease_ids - {resource.lease_id}
    ]
    if any(other.lost_at is not None or other.failed_deletes for other in others):  # those are released first
        delay_s = sum(other.failed_deletes * POLL_MOST_S + other.slow_s for other in others)
        busy_s += delay_s + world.settings.provision_s + plan.refuse_s + POLL_MOST_S
    winners = [other for other in others if other.lease_id == race.winner and other.lost_at is not None]
    if any(winner.on.connected_at is None for winner in winners):
        busy_s += CONNECT_S + LOOK_S + STOP_S  # the command waits for an answer of the lost slice
    return need + busy_s + (SILENT_S + COLLECT_S if plan.worker_dies else 0.0)


def _collector(world: World, resource: Resource, begin: float, awake_since: float, until: float) -> float:
    """Return the bound of a collector. Without one, a detached job is left to its watchdog until the deadline."""
    collector = next((process for process in world.laptop.processes if process.role == "collector"), None)
    if collector is None:
        return NEVER
    awake_since = max(awake_since, collector.started_at)  # its command may still be releasing the losers of a race
    origin, plan = world.faults.begun_at, world.plan
    for cut_at, back_at in plan.cut.get("laptop-vm", []) + plan.vms_paused:
        if cut_at < until - origin and back_at > begin - origin:
            awake_since = max(awake_since, origin + back_at)  # a job that cannot be reached from here may go on
    need = CONNECT_S + LOOK_S + COMMAND_OWN_S + (SILENT_S + COLLECT_S if world.plan.worker_dies else 0.0)
    need += COLLECT_S if _lost_while_collected(resource) else 0.0
    return finish(world, "local", resource, begin, awake_since, need, until)


def loser_delete_is_due(world: World, claim: Claim, resource: Resource) -> bool:
    """Return whether the delete of this loser had every chance to arrive after a winner was chosen."""
    race, until = claim.races[resource.lease_id], world.timeline.now if resource.gone_at is None else resource.gone_at
    owner, begin = claim.owner, race.won_at
    if resource.request is None or resource.created_at > begin or resource.first_delete_at is not None:
        return False
    if not race.winner or until < begin + GUARDIAN_OWN_S or owner is None:
        return False
    if not owner.alive or owner.frozen or world.thawed_at > begin or claim.ends:
        return False
    return not any(role == "cli" for _, role, _ in world.faults.failed_calls)


def _watchdog(world: World, claim: Claim, resource: Resource, begin: float) -> float:
    timings, plan, ready_at = periods(world), world.plan, resource.ready_at
    until = world.timeline.now if resource.gone_at is None else resource.gone_at
    if not (world.layers.watchdog and plan.script_runs) or ready_at is None or unreachable_for_good(world, "vm-api"):
        return NEVER
    if resource.request is not None and not _watchdog_deletes_request(world, resource, begin):
        return NEVER
    origin = world.faults.begun_at
    if resource.lost_at is not None:
        return NEVER
    broken = {
        worker: broken_until(plan.watchdog_dies + plan.worker_dies, worker, until - origin)
        for worker in range(world.workers)
    }
    start = max(begin, ready_at + world.boot_s)
    if claim.extended_at is not None:  # an extension counts as a heartbeat
        start = max(start, claim.extended_at + 1.0)
    mode = claim.mode_of(resource.lease_id)
    if resource.lease_id in claim.down_processes and mode == "run":  # the run goes on until it notices the `down`
        start = max(start, world.oracle.heartbeats.get(resource.on.uid, begin))
    candidates = []
    for worker, when in broken.items():
        if when == ALWAYS:
            continue
        since = max(start, origin + when + world.boot_s)
        if worker == 0:
            need = _by_mode(world, claim, resource, begin) + timings.watchdog_s
        else:
            need = (
                _label_s(world, claim, resource, begin)
                + 2 * timings.grace_s
                + worker * timings.stagger_s
                + 20 * timings.poll_s
                + timings.watchdog_s
            )
        by_label = worker > 0 or mode != "run" or _may_be_held(claim, resource)
        candidates.append(finish(world, "vm", resource, begin, since, need * 1.02, until, by_label=by_label))
    return min(candidates, default=NEVER)


def _watchdog_deletes_request(world: World, resource: Resource, begin: float) -> bool:
    """Return whether the watchdog deletes request and node in one call. If that call fails, it deletes the node alone."""
    node = resource.node
    if node is None or resource.failed_deletes or not world.plan.vm_may_delete_requests:
        return False
    if node.gone_at is not None and not node.deleted_by.startswith("watchdog"):
        return False
    since = min(begin, resource.ready_at or begin)  # it learns its request from the API
    return not any(role == "vm" and at >= since for at, role, _ in world.faults.failed_calls)


def _gc(world: World, claim: Claim, resource: Resource, begin: float) -> float:
    if world.gc_every_s is None or not world.layers.gc:
        return NEVER
    until = world.timeline.now if resource.gone_at is None else resource.gone_at
    need = _label_s(world, claim, resource, begin) + periods(world).margin_s + world.gc_every_s + GC_OWN_S
    return finish(world, "gc", resource, begin, begin, need, until)


def _by_mode(world: World, claim: Claim, resource: Resource, begin: float) -> float:
    """Return how long the watchdog on worker 0 waits after the end of the claim."""
    timings, mode = periods(world), claim.mode_of(resource.lease_id)
    run = timings.ttl_s + timings.grace_s
    detached = _job_s(claim, resource, begin) + timings.linger_s + timings.grace_s + 3 * timings.poll_s
    if mode == "detached":
        return detached
    if mode == "hold" or _may_be_held(claim, resource):
        # A watchdog that was cut off when the run became a hold learns of it late.
        late_s = timings.ttl_s if was_cut_off(world, begin - timings.ttl_s - timings.grace_s) else 0.0
        return _label_s(world, claim, resource, begin) + 2 * timings.grace_s + 3 * timings.poll_s + late_s
    if claim.detach:
        run = max(run, detached)  # the job may hold the claim already, unknown to its command
    # Its labels may say "held" although its command was killed before it knew.
    held_s = max(claim.keep_s or 0.0, timings.linger_s * 1.01 if claim.results_left else 0.0)
    return max(run, held_s + 2 * timings.grace_s + 3 * timings.poll_s) if held_s else run


def _may_be_held(claim: Claim, resource: Resource) -> bool:
    """Return whether `up` had seen its slice READY: from then on the labels may say "held"."""
    return claim.for_hold and resource.lease_id in claim.seen_ready


def _job_s(claim: Claim, resource: Resource, begin: float) -> float:
    """Return how long a job may go on that `down` could not reach."""
    final_at = claim.final_at(resource.lease_id)
    return max(min(resource.on.job_ends_at or final_at, final_at) - begin, 0.0)


def _label_s(world: World, claim: Claim, resource: Resource, begin: float) -> float:
    """Return by how much a label may outlast the claim."""
    timings, mode, final_at = periods(world), claim.mode_of(resource.lease_id), claim.final_at(resource.lease_id)
    first = resource.created_at + timings.provision_s + timings.boot_s + clock_uncertainty_s(world) + 5.0
    if resource.lease_id in claim.requested_at:  # the label grants the whole wait
        first += claim.requested_at[resource.lease_id] + claim.wait_s * 1.01 - resource.created_at
    # A request keeps the labels of its create call; those of its deleted node are gone.
    left_s = 0.0 if resource.request is None or resource.node is None else min(first, final_at) - begin
    if mode == "hold":
        return max((claim.hold_until or begin) - begin, 0.0, left_s) + final_at - deadline_of(world, claim, resource)
    if mode == "detached" or claim.detach:
        return max(final_at - begin, 0.0)
    if _saw_ready_undisturbed(world, claim, resource):  # its labels no longer grant the wait
        most_s = max(timings.label_ttl_s, timings.provision_s + timings.boot_s)
        first = min(first, (resource.ready_at or 0.0) + SEEN_S + RACE_PAUSE_S + most_s + clock_uncertainty_s(world))
    held_s = max(claim.keep_s or 0.0, timings.linger_s * 1.01 if claim.results_left else 0.0)
    return max(timings.label_ttl_s, first - begin, held_s) if begin < final_at else 0.0


def _saw_ready_undisturbed(world: World, claim: Claim, resource: Resource) -> bool:
    """Return whether the command had every chance to see its queued slice READY and to renew its labels."""
    plan, owner, ready_at = world.plan, claim.owner, resource.ready_at
    if ready_at is None or owner is None or resource.lease_id not in claim.requested_at:
        return False
    seen_by, origin = ready_at + SEEN_S + RACE_PAUSE_S, world.faults.begun_at
    if resource.request is not None or (not owner.alive and owner.ended_at < seen_by):
        return False
    if resource.lost_at is not None and resource.lost_at < seen_by:
        return False
    if plan.stopped or plan.asleep or plan.disk_full or plan.patch_effects or plan.lost_patches or plan.unreachable:
        return False
    windows = [window for kind in (plan.cut, plan.forbidden) for edge in kind.values() for window in edge]
    if any(origin + begin < seen_by for begin, _ in windows):
        return False
    calls = world.faults.failed_calls + world.faults.slow_calls
    return not any(role == "cli" and ready_at - TIMEOUT_S <= at <= seen_by for at, role, _ in calls)

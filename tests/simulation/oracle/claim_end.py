"""When a claim really ended, and whether a slice is certainly claimed: derived from what happened, never from labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.oracle.claims import Claim, Resource
from tests.simulation.oracle.deadlines import (
    certain_until,
    collected_by,
    deadline_of,
    heartbeats_got_through,
    renewals_got_through,
    request_expired_at,
)
from tests.simulation.oracle.disturbances import clock_uncertainty_s, job_was_lost, was_blind
from tests.simulation.oracle.periods import HAND_OVER_S, periods

if TYPE_CHECKING:
    from tests.simulation.oracle.oracle import Oracle

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

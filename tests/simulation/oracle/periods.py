"""Times that the bounds are made of: those of the table of promises and of the layers, and what slowed a layer in this world.

Every value is that of `orchestrator.drill.bounds` or of the documentation, never of the code under test. Layers are slowed by
outages, failed calls, slow deletes and dead workers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.drill import bounds
from tests.simulation.model.faults import FOREVER as ALWAYS
from tests.simulation.model.faults import Window

if TYPE_CHECKING:
    from tests.simulation.model.world import World
    from tests.simulation.oracle.claims import Resource


NEVER = 1e18
COMMAND_OWN_S = bounds.seconds("command")  # C0: the command itself
GUARDIAN_OWN_S = bounds.seconds("guardian")  # C1
GC_OWN_S = bounds.seconds("gc")  # C7: one run of gc
POLL_MOST_S = bounds.LOOK_S  # between two looks of a teardown that waits for a late create or an unreachable API
RELEASE_S = 590.0  # a command waits for the proof
GUARDIAN_POLL_S = 20.0
STALL_S = 60.0  # a worker that sends nothing for so long is given up
COLLECT_S = STALL_S + 5.0  # artifacts that do not arrive (row 59 of the fault matrix)
COMMAND_S = 20.0  # a command spends on older teardowns before its own work
RACE_PAUSE_S = 10.0  # between two looks at racing requests
SEEN_S = 15.0  # from READY until the command sees it
DELETE_AGAIN_S = 60.0  # until a delete whose operation is unknown is sent again
LOOK_S = 15.0  # C6: between two looks at a slice whose VM does not answer
CONNECT_S = 300.0  # C6: waiting for sshd of a fresh VM
HAND_OVER_S = 130.0  # a hand-over of the claim from the command to the job
PULL_S = 120.0  # saving the work of a job when a worker is gone
STOP_S = 60.0  # stopping a job when a worker does not answer
SILENT_S = 600.0  # C6: until a VM that does not answer is given up
EDGES = {"local": ("api", "laptop-api"), "vm": ("api", "vm-api"), "gc": ("api", "ci-api")}
LOCAL = ("cli", "guardian", "timer", "collector", "guardian loop")


@dataclass(frozen=True, slots=True)
class Periods:
    """The periods of the table of promises, at the speed of the world."""

    heartbeat_s: float
    poll_s: float
    ttl_s: float
    grace_s: float
    boot_s: float
    linger_s: float
    margin_s: float
    stagger_s: float
    renew_s: float
    label_ttl_s: float
    provision_s: float
    watchdog_s: float  # C3: its own time, beyond the periods


TERMS = {  # field → its term in `orchestrator.drill.bounds`
    "heartbeat_s": "heartbeat",
    "poll_s": "poll",
    "ttl_s": "ttl",
    "grace_s": "grace",
    "boot_s": "boot",
    "linger_s": "linger",
    "margin_s": "margin",
    "stagger_s": "stagger",
    "renew_s": "renew",
    "label_ttl_s": "label",
    "provision_s": "provision",
    "watchdog_s": "watchdog",
}


@functools.cache
def _periods(speed: float) -> Periods:
    return Periods(**{field: bounds.seconds(term, speed) for field, term in TERMS.items()})


def periods(world: World) -> Periods:
    """Return the periods that the page promises in this world, whatever the code does."""
    return _periods(world.speed)


def was_disturbed(world: World, begin: float, end: float) -> bool:
    """Return whether a call of this machine failed while a short-lived command worked."""
    return any(begin <= at <= end + 20.0 and role in LOCAL for at, role, _ in world.faults.failed_calls)


def was_cut_off(world: World, since: float) -> bool:
    """Return whether the VMs were cut off from the API."""
    windows = [w for kind in (world.plan.cut, world.plan.forbidden) for edge in EDGES["vm"] for w in kind.get(edge, ())]
    return bool(overlap(windows, since - world.faults.begun_at, world.faults.elapsed_s()))


def finish(
    world: World,
    layer: str,
    resource: Resource,
    begin: float,
    start: float,
    need: float,
    until: float,
    *,
    by_label: bool = False,
) -> float:
    """Return the layer's own time from `begin`, plus outages, failed calls and the slowness of the cloud."""
    plan = world.plan
    windows = [w for edge in EDGES[layer] for kind in (plan.cut, plan.forbidden) for w in kind.get(edge, ())]
    windows += plan.vms_paused if layer == "vm" else []
    silent = sum(rate for kind, rate in plan.rates.items() if kind != "slow") if by_label else 0.0
    if silent > 0.5 or (layer == "gc" and plan.unreachable > 0.5):
        windows.append((0.0, plan.rates_until))  # an API that answers less than every second call counts as unreachable
    outages = overlap(windows, start - world.faults.begun_at, until - world.faults.begun_at)
    if any(end >= ALWAYS and begin_ <= until - world.faults.begun_at for begin_, end in windows):
        return NEVER
    after = periods(world).grace_s + 3 * periods(world).poll_s if layer == "vm" else POLL_MOST_S
    need += sum(length for length in outages) + len(outages) * (after + 2.0)
    roles = {"local": LOCAL, "vm": ("vm",), "gc": ("gc",)}[layer]
    felt, slow = (
        [lasted for at, role, lasted in calls if role in roles and begin <= at + lasted and at <= until]
        for calls in (world.faults.failed_calls, world.faults.slow_calls)
    )
    need += sum(slow)
    if layer == "vm":
        need += _vm_failures_s(world, resource, need, start, until, by_label=by_label)
    else:
        need += sum(felt) + _backoff_s(len(felt))
    if plan.unreachable or plan.operations_gone:
        need += POLL_MOST_S
    delete_s = world.settings.delete_s + 1.0
    need += delete_s + resource.failed_deletes * (delete_s + POLL_MOST_S) + resource.slow_s
    if plan.while_creating is not None and (resource.ready_at is None or resource.ready_at > begin):
        need += world.settings.provision_s + plan.stuck_creates_s + POLL_MOST_S
    if may_be_provisioning(resource) and (resource.ready_at is None or resource.ready_at > begin):
        need += world.settings.provision_s + plan.refuse_s + POLL_MOST_S  # a PROVISIONING request is not deleted
        need += DELETE_AGAIN_S if plan.operations_gone else 0.0
    if resource.created_at >= begin:  # it was created when the layers looked rarely
        need += POLL_MOST_S
    if plan.stuck_creates_s:
        need += POLL_MOST_S
    return start - begin + need


def _vm_failures_s(
    world: World, resource: Resource, need: float, start: float, until: float, *, by_label: bool
) -> float:
    """Return the time that failed calls cost the watchdog. Heartbeats need no API, so only failures at the end count."""
    timings = periods(world)
    since = start if by_label else start + need - timings.grace_s - timings.watchdog_s
    felt = [lasted for at, role, lasted in world.faults.failed_calls if role == "vm" and since <= at <= until]
    # Of a slice that is to be held, only the labels say whether it is held already: without an answer nothing is urgent.
    reads_first = resource.claim is not None and resource.claim.for_hold
    delay_s = sum(felt) + len(felt) * (timings.poll_s if reads_first else timings.heartbeat_s / 2)
    if by_label:  # expiry counts successful polls: at worst every second one
        return min(delay_s + len(felt) * 2 * timings.poll_s, 80 * timings.poll_s)
    return delay_s


def may_be_provisioning(resource: Resource) -> bool:
    """Return whether its request was, or may become, PROVISIONING."""
    asked = resource.claim is not None and resource.lease_id in resource.claim.requested_at
    return asked and (resource.request is None or resource.node is not None)


def _backoff_s(failures: int) -> float:
    """Return the pauses after so many failures: 2, 4, 8, 16, then 30 s each."""
    return sum(min(2.0 * 2 ** min(n, 8), POLL_MOST_S) for n in range(failures))


def overlap(windows: list[Window], begin: float, end: float) -> list[float]:
    return [min(e, end) - max(b, begin) for b, e in windows if min(e, end) > max(b, begin)]


def broken_until(deaths: list[tuple[int, float, float | None]], worker: int, now: float) -> float:
    """Return when the last death of this worker's watchdog was repaired; ALWAYS if it never is."""
    latest = 0.0
    for index, at, back_s in deaths:
        if index == worker and at <= now:
            if back_s is None:
                return ALWAYS
            latest = max(latest, at + back_s)
    return latest


def could_be_armed(world: World) -> bool:
    """Return whether any watchdog could prove that it can delete."""
    plan = world.plan
    never = any(begin <= 0.0 and end >= ALWAYS for begin, end in plan.forbidden.get("vm-api", []))
    return plan.script_runs and not never


def unreachable_for_good(world: World, edge: str) -> bool:
    now = world.faults.elapsed_s()
    windows = [w for kind in (world.plan.cut, world.plan.forbidden) for w in kind.get(edge, ())]
    return any(end >= ALWAYS and begin <= now for begin, end in windows)


def clock_uncertainty_s(world: World) -> float:
    """Return the error of a corrected clock: a correction is as good as its answer was quick."""
    plan = world.plan
    if not plan.clock_offset_s:
        return 0.0
    return max((end - begin for begin, end in plan.asleep + plan.stopped), default=0.0) + (30.0 if plan.rates else 0.0)


def was_blind(world: World) -> bool:
    """Return whether the watchdog could not read the labels: it then uses its start-up configuration, which is no hold."""
    now = world.faults.elapsed_s()
    back = now - periods(world).ttl_s - periods(world).grace_s
    return bool(overlap(world.plan.forbidden.get("vm-api", []), back, now))


def job_was_lost(world: World) -> bool:
    return bool(world.plan.worker_dies)

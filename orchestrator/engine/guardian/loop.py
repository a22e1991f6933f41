"""The guardian loop: recover until nothing is overdue, and wait while slices are held.

It runs once the process that the guardian waits for has ended or is done (`process`). It is a program like the others: a
simulator can run it, crash it and let time pass.
"""

from dataclasses import dataclass
from typing import Protocol, cast

from orchestrator.core.lease.lease import Lease, LeaseState, release_reason
from orchestrator.engine.effects.base import Effect, IsLocked, Now, OpenLeases, Report, Sleep, World
from orchestrator.errors import TpujobError

POLL_S = 20.0  # while slices are held: `down`, `extend` or a new hold may have changed what is due
# The system closes the files of a killed process one after the other: a lock may be held for a moment after the pipe ended.
QUICK_LOOKS_S = (0.25, 0.5, 1.0, 2.0)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # between recoveries that could not prove everything gone


class GuardianPort(Protocol):
    """What the world of a guardian has beyond that of a command."""

    def recover(self) -> None: ...

    def take_lock(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Recover(Effect[None]):
    """Release everything that is overdue, in a process of its own. Returns when that one has ended, however it did."""

    def perform(self, world: World) -> None:
        cast(GuardianPort, world).recover()


@dataclass(frozen=True, slots=True)
class TakeGuardianLock(Effect[bool]):
    """Become the one guardian of this machine that waits for what is not due yet. False: another one is."""

    def perform(self, world: World) -> bool:
        return cast(GuardianPort, world).take_lock()


async def guardian_loop() -> None:
    """Return when nothing is open any more, or when another guardian waits for what is."""
    for pause_s in QUICK_LOOKS_S:
        if (due_in_s := await due()) is None:
            return
        if due_in_s <= 0:
            break
        await Sleep(pause_s)
    pause_s = FIRST_PAUSE_S
    has_lock = False
    while (due_in_s := await due()) is not None:
        if due_in_s <= 0:
            await Recover()
            due_in_s = await due()
            if due_in_s is not None and due_in_s <= 0:
                await Sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            continue
        # Nothing is overdue, but something will be. One guardian is enough to wait for that.
        has_lock = has_lock or await TakeGuardianLock()
        if not has_lock:
            return
        pause_s = FIRST_PAUSE_S
        await Sleep(min(due_in_s, POLL_S))


async def due() -> float | None:
    """Return the seconds until the first open lease is overdue (0: one is now); None when nothing is open."""
    try:
        leases = await OpenLeases()
        now = {cloud: await Now(cloud) for cloud in {lease.cloud for lease in leases}}
    except TpujobError as error:
        await Report("guardian", f"{error}; asking again")
        return POLL_S  # locked, or the disk is full: that may pass, and no other guardian may wait
    if not leases:
        return None
    for lease in leases:
        alive = await IsLocked(lease.id)
        if release_reason(lease, now=now[lease.cloud], owner_alive=alive) is not None:
            return 0.0
        if not alive and lease.is_waited_out(now[lease.cloud]):
            return 0.0  # the cloud is asked whether it waits still
    # A lease that a living process or the job on a VM claims is not overdue before its end.
    return max(min(_next(lease, now[lease.cloud]) - now[lease.cloud] for lease in leases), 1.0)


def _next(lease: Lease, now: float) -> float:
    """Return when the lease has to be looked at."""
    waits = lease.runs_detached and lease.state is LeaseState.CREATING and lease.ready_by is not None
    return min(lease.ready_by, lease.ends_at) if waits and lease.ready_by is not None else lease.ends_at

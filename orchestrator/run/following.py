"""Who follows a job and collects its results: one process on one machine, for which worker 0 keeps a lock; or none yet."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.errors import CloudUnavailable, TpujobError, UserError, Vanished
from orchestrator.hosts.fleet.effects import HoldAttempt
from orchestrator.promise.effects.base import Make, Now, Record, Sleep
from orchestrator.promise.effects.retry import pauses
from orchestrator.promise.lease.changes import Detached, Leased, NotAllowed
from orchestrator.promise.renewal import hand_over
from orchestrator.system.user import this_process

if TYPE_CHECKING:
    from orchestrator.hosts.fleet.crew import FleetPort
    from orchestrator.places.place import QueuedRun
    from orchestrator.promise.lease.cloud_api import Capabilities
    from orchestrator.promise.lease.lease import Lease
    from orchestrator.run.progress import JobProgress

START_S = 10.0  # a job of a queue that has not started so long after its slice was recorded as its own does not start
OWN_S = 75.0  # a lock of this process that worker 0 has not dropped yet, after a lost connection


async def hold_attempt(crew: FleetPort, attempt: str) -> None:
    """Lock the attempt for this process, or see that it still is. Raises UserError if another machine has it, RemoteError."""
    name, give_up_at = this_process(), await Now() + OWN_S
    for pause_s in pauses(first_s=0.1, longest_s=1.0):
        holder = await HoldAttempt(crew, attempt, name)
        if holder is None:
            return
        if holder != name or await Now() > give_up_at:
            raise UserError(
                f"{holder} follows the job and collects its results",
                hint="`tpujob logs --follow` shows its log here; `tpujob attach` takes over when that process has ended",
            )
        await Sleep(pause_s)


async def leave_unstarted(lease: Lease, progress: JobProgress) -> None:
    """Leave a job that the place starts by itself."""
    try:
        now = await Now()
        await Record(Leased(progress.attempt.id, now, lease.id), Detached(lease.id, now))
    except NotAllowed as error:
        raise Vanished(f"{lease.name.node} was released by another tpujob command") from error
    progress.detached, progress.lease = True, lease


async def give_slice(queued: QueuedRun, lease: Lease, progress: JobProgress, capabilities: Capabilities) -> None:
    """Pass the slice to the job of a queue before that starts: from then on it has begun, whenever this process dies.

    Whatever is raised from here on, the workers know whether it runs, and not this process: who looks after it sees that.
    """
    progress.lease = await hand_over(lease, capabilities)
    asked_at = await Now()
    try:
        await Make(partial(queued.before_start, progress.lease))
        if await Now() > asked_at + START_S:
            raise CloudUnavailable("the store of the queue answered too late for a start")
    except TpujobError:
        progress.detached = (
            True  # another runner has the turn, or the store is away: without a job its watchdog deletes it
        )
        with suppress(TpujobError):
            progress.detached = not await Make(queued.not_started)
        raise
    progress.detached = True

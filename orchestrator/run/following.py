"""Who follows a job and collects its results: one process on one machine, for which worker 0 keeps a lock; or none yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.errors import UserError, Vanished
from orchestrator.hosts.fleet.effects import HoldAttempt
from orchestrator.promise.effects.base import Now, Record, Sleep
from orchestrator.promise.effects.retry import pauses
from orchestrator.promise.lease.changes import Detached, Leased, NotAllowed
from orchestrator.system.user import this_process

if TYPE_CHECKING:
    from orchestrator.hosts.fleet.crew import FleetPort
    from orchestrator.promise.lease.lease import Lease
    from orchestrator.run.progress import JobProgress

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

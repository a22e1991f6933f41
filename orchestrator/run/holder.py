"""One machine follows a job and collects its results: worker 0 keeps a lock for it, which ends with its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.errors import UserError
from orchestrator.hosts.fleet.effects import HoldAttempt
from orchestrator.promise.effects.base import Now, Sleep
from orchestrator.promise.effects.retry import pauses
from orchestrator.system.user import this_process

if TYPE_CHECKING:
    from orchestrator.hosts.fleet.crew import FleetPort

OWN_S = 20.0  # a lock of this process that worker 0 has not dropped yet, after a lost connection


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

"""The end of a run by `tpujob cancel`: recorded in the ledger, and read there by the process that runs it."""

from __future__ import annotations

from orchestrator.core.lease.lease import CANCEL
from orchestrator.core.lease.run_and_attempt import RunCancelled
from orchestrator.engine.effects.base import Now, OpenAttempts, Record, Report, StartGuardian
from orchestrator.errors import Cancelled, TpujobError


async def record_cancel(run: str) -> None:
    """End the run of this id: its attempt has ended, its open slices are to be deleted, and it asks for no other one.

    One transaction: whatever is killed before or after it, no step of the run is left that creates a slice. A run that has
    ended stays as it is. Raises LedgerUnavailable.
    """
    await guard_teardown()
    await Record(RunCancelled(run, await Now(), CANCEL))


async def guard_teardown() -> None:
    """Start the guardian, before a claim is ended here: it goes on if this process is killed. Without one, warn and go on."""
    try:
        await StartGuardian()
    except TpujobError as error:
        await Report("warning", error.message)


async def check_attempt(attempt: str) -> None:
    """Raise Cancelled if another process has ended this attempt. Its own process calls this, before it records the end."""
    if all(each.id != attempt for each in await OpenAttempts()):
        raise Cancelled(CANCEL)

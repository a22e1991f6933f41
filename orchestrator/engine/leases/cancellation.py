"""The end of a run by `tpujob cancel`: recorded in the ledger, and read there by the process that runs it."""

from orchestrator.core.lease.lease import CANCEL
from orchestrator.core.lease.run_and_attempt import AttemptState, RunCanceled, recorded_error
from orchestrator.engine.effects.base import Now, ReadAttempt, Record
from orchestrator.engine.leases.release import try_start_guardian


async def record_cancel(run: str) -> None:
    """End the run of this id: its attempt has ended, its open slices are to be deleted, and it asks for no other one.

    One transaction: whatever is killed before or after it, no step of the run is left that creates a slice. A run that has
    ended stays as it is. Raises LedgerUnavailable.
    """
    await try_start_guardian()  # before the claim ends
    await Record(RunCanceled(run, await Now(), CANCEL))


async def check_attempt(attempt: str) -> None:
    """Raise Canceled if the user has ended this attempt from another process."""
    recorded = await ReadAttempt(attempt)
    error = recorded_error(recorded)
    if recorded.state is AttemptState.CANCELED and error is not None:
        raise error

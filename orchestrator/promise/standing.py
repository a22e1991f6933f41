"""Whether a job may go on: its slice is still there and its own, and its user has not ended it by `tpujob cancel`."""

from contextlib import suppress
from dataclasses import dataclass

from orchestrator import errors
from orchestrator.promise.effects.base import Now, ReadAttempt, ReadLease, Record, StoodStill
from orchestrator.promise.effects.cloud import Get, LapsesAfter
from orchestrator.promise.lease.changes import NotAllowed, RunCanceled
from orchestrator.promise.lease.cloud_api import SliceState, SliceView
from orchestrator.promise.lease.lease import CANCEL, Lease, LeaseState, Mode
from orchestrator.promise.lease.run_and_attempt import AttemptState, recorded_error
from orchestrator.promise.release import try_start_guardian
from orchestrator.promise.renewal import catch_up

CATCH_UP_S = 60.0  # before the end that is known here: another machine may have moved it
LOOK_S = 15.0  # between two questions to the API whether the slice is there, while all workers answer
SUSPENDING = "SUSPENDING"  # a queued request whose node was preempted, before it is SUSPENDED


@dataclass(frozen=True, slots=True)
class SliceProblem:
    """A problem of an existing slice, as the API shows it. `reason` is the one of SliceLost."""

    text: str
    reason: str


async def check_lease(lease: Lease) -> Lease:
    """Return the lease as the ledger has it now. Raises Vanished once another process has begun to release it."""
    current = await ReadLease(lease.id)
    if current.state in (LeaseState.DOWN, LeaseState.GONE, LeaseState.FORGOTTEN):
        raise errors.Vanished(f"{lease.name.node} was released by another tpujob command")
    return current


async def check_slice(lease: Lease) -> tuple[Lease, SliceProblem | None]:
    """Return the lease as it is now, and a problem of its slice.

    Raises Vanished when the slice was deleted, stopped or released, Preempted when it was preempted. An API that does not
    answer raises nothing.
    """
    current = await check_lease(lease)
    try:
        view = await Get(lease.name)
    except errors.CloudUnavailable:
        return current, None
    if await Now() > current.ends_at - CATCH_UP_S:
        with suppress(errors.CloudError, NotAllowed):
            current = await catch_up(current)
    if view is None:
        text = f"{lease.name.node} was deleted by another client while the job was running"
        raise await _lapsed(lease) or errors.Vanished(text)
    if view.state is SliceState.TOMBSTONE or view.native_state == SUSPENDING:
        if isinstance(view.error, errors.SliceLost):
            raise view.error
        raise errors.Preempted(f"{lease.name.node} was preempted while the job was running ({view.native_state})")
    if view.state is SliceState.QUEUED:
        raise errors.Preempted(
            f"{lease.name.node} was sent back to its queue while the job was running ({view.native_state})"
        )
    if view.state in (SliceState.STOPPED, SliceState.STOPPING, SliceState.DELETING):
        text = f"{lease.name.node} is {view.native_state} though the job is running"
        raise await _lapsed(lease) or errors.Vanished(text)
    return current, problem_of(view)


async def _lapsed(lease: Lease) -> errors.Vanished | None:
    """Return why a slice is gone whose claim may have ended while this program stood still; None if it did not for so long."""
    stood = await StoodStill()
    if stood is None or stood[0] < await LapsesAfter():
        return None
    if lease.mode is not Mode.RUN:
        return errors.Vanished(f"{lease.name.node} is gone: {stood[1]}, and its time may have ended meanwhile")
    why = "the claim ended at the last heartbeat, and the watchdog deleted the slice"
    hint = "a job of `tpujob submit` runs on without this machine"
    return errors.Vanished(f"{lease.name.node} is gone: {stood[1]}; {why}", hint=hint)


def problem_of(view: SliceView) -> SliceProblem | None:
    """Return the problem that the view shows; None for a healthy slice."""
    if "MAINTENANCE" in (view.health or ""):
        return SliceProblem("under maintenance", "maintenance")
    if view.state is SliceState.UNKNOWN:
        return SliceProblem(view.native_state, "host-failure")
    return None


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

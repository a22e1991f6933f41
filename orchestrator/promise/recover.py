"""Recovery: the first step of every tpujob command. Leases whose claim is over are released, orphaned attempts are closed.

As a database replays its log on start, it reads the obligations from the ledger and live processes from the locks, and
`promise.lease.lease.release_reason` decides. It may run twice at once.
"""

from typing import NamedTuple

from orchestrator.errors import CapacityError, CloudError, SliceLost, TpujobError, UnknownLease, Vanished
from orchestrator.promise.effects.base import (
    IsLocked,
    Lock,
    Now,
    OpenAttempts,
    OpenLeases,
    ReadAttempt,
    ReadLease,
    Report,
    Unlock,
)
from orchestrator.promise.effects.cloud import Get
from orchestrator.promise.lease.absence import Released, unchecked
from orchestrator.promise.lease.changes import AttemptEnded, NotAllowed, Ready
from orchestrator.promise.lease.cloud_api import Capabilities, SliceState, SliceView
from orchestrator.promise.lease.lease import Lease, LeaseState, Purpose, release_reason
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, state_after, what_ended_it
from orchestrator.promise.release import latest_lease, release_all, try_record
from orchestrator.promise.renewal import catch_up

KILLED = "the process that ran it was killed"  # what an attempt says whose process is gone


class Overdue(NamedTuple):
    """A lease whose claim is over, and why. `error`: what the cloud says of the end of its detached job, if anything.

    `unread`: why its labels could not be read. Another machine may have moved its end, so it is not released yet.
    """

    lease: Lease
    why: str
    error: CloudError | None = None
    unread: TpujobError | None = None


async def overdue(cloud: str, *, spare: str | None = None, look: bool = False) -> list[Overdue]:
    """Return the open leases of this cloud whose claim is over.

    `spare`: leave out this handle, which `up` takes over. `look`: also ask the cloud whether slices without a process still
    exist; their watchdog may have deleted them. Of a detached job that was to run by now, it is asked in any case.
    """
    found = []
    now = await Now()
    for lease in await OpenLeases():
        if lease.cloud != cloud:
            continue
        alive = await IsLocked(lease.id)
        why, unread = release_reason(lease, now=now, owner_alive=alive), None
        if why is not None and lease.state is LeaseState.READY and now >= lease.ends_at:
            lease, unread = await _as_moved(lease)  # noqa: PLW2901
            why = release_reason(lease, now=now, owner_alive=alive)
        each = None if why is None else Overdue(lease, why, unread=unread)
        # What became of a job of a queue is for the queue to see: whoever deletes its slice has to record why.
        of_queue = lease.purpose is Purpose.QUEUE and lease.runs_detached
        looks = look and not of_queue and (lease.state is LeaseState.READY or lease.runs_detached)
        if each is None and not alive and (looks or lease.is_waited_out(now)) and not await _is_followed(lease):
            each = await _ended_already(lease, now)
        if each is not None and not (lease.handle == spare and lease.down_at is None and now < lease.deadline):
            found.append(each)
    return found


async def _as_moved(lease: Lease) -> tuple[Lease, TpujobError | None]:
    """Return a lease whose time is over as its labels have it: another machine may have moved its end.

    With why they could not be read, where the cloud does not answer.
    """
    try:
        return await catch_up(lease), None
    except (Vanished, NotAllowed):
        return lease, None  # it is deleted, or was released
    except TpujobError as error:
        return lease, error


async def _is_followed(lease: Lease) -> bool:
    """Return whether another command follows the detached job of a lease: it sees itself how that ends."""
    return any([each.lease_id == lease.id and await IsLocked(each.id) for each in await OpenAttempts()])


async def _ended_already(lease: Lease, now: float) -> Overdue | None:
    """Return how the claim of a slice without a process has ended, if the cloud says that it has.

    Of a detached job whose pods run, it is recorded since when.
    """
    try:
        view = await Get(lease.name)
    except CloudError:
        return None  # an error proves nothing
    if view is None:
        return Overdue(lease, "it was deleted, by its watchdog or from outside")
    if view.state is SliceState.TOMBSTONE and lease.detached_at is not None:
        if view.error is not None:
            return Overdue(lease, view.error.message, view.error)
        return Overdue(lease, f"it was taken away while its job ran ({view.native_state})")
    if view.state in (SliceState.QUEUED, SliceState.CREATING) and lease.is_waited_out(now) and not view.ran:
        why = f"{lease.name.node} was not admitted, or not all of its pods ran, in time: it is {view.native_state}"
        return Overdue(lease, why, CapacityError(why))
    if view.state is SliceState.READY and lease.state is LeaseState.CREATING:
        await try_record(Ready(lease.id, ready_at(lease, view, now)))
    return None  # a held slice is replaced by `up`, with the user's consent


def ready_at(lease: Lease, view: SliceView, now: float) -> float:
    """Return since when the slice is READY, in ledger time: that of a job on a cluster may be seen long after it began."""
    return now if view.running_s is None else max(lease.sent_at or lease.created_at, now - view.running_s)


async def recover(
    cloud: str, capabilities: Capabilities, *, budget_s: float, spare: str | None = None, look: bool = False
) -> list[Released]:
    """Release the overdue leases within the budget. Return every result, also those that are not proven.

    One whose credentials the cloud refuses ends at once: while it holds the locks, no command with good ones takes over.
    """
    owed, unread = [], []
    for lease, why, error, silent in await overdue(cloud, spare=spare, look=look):
        if silent is not None:
            unread.append(unchecked(lease, silent))
            continue
        if not await Lock(lease.id) and await Now() < lease.deadline:
            continue  # another tpujob command handles it; past the deadline that no longer counts
        if await latest_lease(lease) != lease:
            await Unlock(lease.id)
            continue  # another process changed it since it was judged
        await Report("recover", f"{lease.name.node} ({lease.accelerator_type}, {lease.name.zone}): {why}; releasing it")
        owed.append((lease, why))
        if error is not None:
            await _record_end(lease, error)
    results = await release_all(owed, capabilities, budget_s=budget_s, yields=True)
    for lease, _ in owed:
        await Unlock(lease.id)
    return [*results, *unread]


async def _record_end(lease: Lease, error: CloudError) -> None:
    """Record how the detached job of a lease ended, for those who ask later."""
    for attempt in await OpenAttempts():
        if attempt.lease_id == lease.id and await _lock(attempt):
            end = what_ended_it(error)
            await try_record(AttemptEnded.by(attempt.id, await Now(), state_after(end), end))
            await Unlock(attempt.id)


async def close_attempts() -> None:
    """Close every attempt whose process is gone, whatever happens to its slice, unless its job continues detached."""
    for attempt in await OpenAttempts():
        # A detached job's is read without the lock: held even for a moment, it would tell an `attach` that another one follows.
        lease = await _lease_of(attempt)
        if (lease is None or not lease.runs_detached) and await _lock(attempt):
            await _close(await ReadAttempt(attempt.id))  # as the last holder of its lock left it
            await Unlock(attempt.id)


async def _lock(attempt: Attempt) -> bool:
    """Return whether no process works on the attempt, which alone records its end; if so, none begins before its `Unlock`."""
    return not await IsLocked(attempt.id) and await Lock(attempt.id)


async def _close(attempt: Attempt) -> None:
    lease = await _lease_of(attempt)
    if attempt.state.ended or (lease is not None and (lease.runs_detached or not lease.understood)):
        return
    ended_at = await Now(None if lease is None else lease.cloud)
    # A ledger that cannot be written must not delay the releases that follow.
    killed = SliceLost(KILLED)
    if lease is not None and lease.detached_at is not None:
        killed = SliceLost("its slice is gone, and its results were not collected here")
    await try_record(AttemptEnded.by(attempt.id, ended_at, AttemptState.INTERRUPTED, killed))


async def _lease_of(attempt: Attempt) -> Lease | None:
    try:
        return None if attempt.lease_id is None else await ReadLease(attempt.lease_id)
    except UnknownLease:
        return None

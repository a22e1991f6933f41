"""Recovery: what every tpujob command does first. Leases whose claim has ended are released, orphaned attempts closed.

Like a database that replays its log on start: the ledger says what we owe, the locks say who is alive, and `core.lease.lease`
decides. Running it twice at once is harmless.
"""

from __future__ import annotations

from orchestrator.core.lease.attempt import Attempt, AttemptEnded, AttemptState
from orchestrator.core.lease.lease import Lease, LeaseState, release_reason
from orchestrator.core.lease.slices import Capabilities, SliceState
from orchestrator.engine.effects.base import IsLocked, Lock, Now, OpenAttempts, OpenLeases, ReadLease, Report, Unlock
from orchestrator.engine.effects.cloud import Get
from orchestrator.engine.leases.release import Released, as_written, note, release_all
from orchestrator.errors import CloudError, UnknownLease


async def overdue(cloud: str, *, spare: str | None = None, look: bool = False) -> list[tuple[Lease, str]]:
    """The open leases of this cloud that nobody has a claim on, and why. `spare` names a handle that `up` will adopt.

    With `look` the cloud is asked whether slices that no process watches are still there: their switch may have acted.
    """
    found = []
    now = await Now()
    for lease in await OpenLeases():
        if lease.cloud != cloud:
            continue
        alive = await IsLocked(lease.id)
        why = release_reason(lease, now=now, owner_alive=alive)
        if look and why is None and not alive and lease.state is LeaseState.READY:
            why = await _gone_already(lease)
        if why is not None and not (lease.handle == spare and lease.down_at is None and now < lease.deadline):
            found.append((lease, why))
    return found


async def _gone_already(lease: Lease) -> str | None:
    try:
        view = await Get(lease.name)
    except CloudError:
        return None  # no answer says nothing
    if view is None:
        return "its switch, or somebody else, deleted it"
    if view.state is SliceState.TOMBSTONE and lease.detached_at is not None:
        return f"it was taken away while its job ran ({view.native_state})"
    return None  # a held one is for `up` to make again, which asks first


async def recover(
    cloud: str, capabilities: Capabilities, *, budget_s: float, spare: str | None = None, look: bool = False
) -> list[Released]:
    """Release what is overdue, within the budget. Answers with every verdict, also those that are not proven."""
    owed = []
    for lease, why in await overdue(cloud, spare=spare, look=look):
        if not await Lock(lease.id) and await Now() < lease.deadline:
            continue  # another tpujob command is on it; past the deadline that does not count any more
        if await as_written(lease) != lease:
            await Unlock(lease.id)
            continue  # somebody moved it on since it was judged
        await Report("recover", f"{lease.name.node} ({lease.accelerator_type}, {lease.name.zone}): {why}; releasing it")
        owed.append((lease, why))
    results = await release_all(owed, capabilities, budget_s=budget_s)
    for lease, _ in owed:
        await Unlock(lease.id)
    return results


async def close_attempts() -> None:
    """An attempt whose process is gone has ended, unless its job goes on detached; whatever becomes of its slice."""
    leases = {lease.id: lease for lease in await OpenLeases()}
    for attempt in await OpenAttempts():
        if await IsLocked(attempt.id):
            continue
        lease = leases.get(attempt.lease_id or "")
        if lease is not None and lease.detached_at is not None and lease.state is LeaseState.READY:
            continue
        lease = await _lease_of(attempt)
        ended_at = await Now(None if lease is None else lease.cloud)
        # A ledger that cannot be written must not keep the releases waiting that come next.
        await note(AttemptEnded(attempt.id, ended_at, AttemptState.INTERRUPTED, detail=_how_it_ended(lease)))


async def _lease_of(attempt: Attempt) -> Lease | None:
    try:
        return None if attempt.lease_id is None else await ReadLease(attempt.lease_id)
    except UnknownLease:
        return None


def _how_it_ended(lease: Lease | None) -> str:
    if lease is not None and lease.detached_at is not None:
        return "its slice is gone, and nobody brought its artifacts home"
    return "the process that ran it was killed"

"""Recovery: what every tpujob command does first. Leases whose claim has ended are released, orphaned attempts closed.

Like a database that replays its log on start: the ledger says what we owe, the locks say who is alive, and `core.lease`
decides. Running it twice at once is harmless.
"""

from __future__ import annotations

from orchestrator.core.attempt import AttemptState, Ended
from orchestrator.core.lease import Lease, dead_wood
from orchestrator.core.slices import Capabilities
from orchestrator.engine.effects import Claim, Disclaim, Now, OpenAttempts, OpenLeases, OwnerAlive, Record, Tell
from orchestrator.engine.release import Released, release


async def overdue(cloud: str, *, spare: str | None = None) -> list[tuple[Lease, str]]:
    """The open leases of this cloud that nobody has a claim on, and why. `spare` names a handle that `up` will adopt."""
    found = []
    now = await Now()
    for lease in await OpenLeases():
        if lease.cloud != cloud:
            continue
        why = dead_wood(lease, now=now, owner_alive=await OwnerAlive(lease.id))
        if why is not None and not (lease.handle == spare and lease.down_at is None and now < lease.deadline):
            found.append((lease, why))
    return found


async def recover(cloud: str, can: Capabilities, *, budget_s: float, spare: str | None = None) -> list[Released]:
    """Release what is overdue, the budget for each. Answers with every verdict, also those that are not proven."""
    results = []
    for lease, why in await overdue(cloud, spare=spare):
        if not await Claim(lease.id) and await Now() < lease.deadline:
            continue  # another tpujob command is on it; past the deadline that does not count any more
        await Tell("recover", f"{lease.name.node} ({lease.accelerator_type}, {lease.name.zone}): {why}; releasing it")
        results.append(await release(lease, can, reason=why, budget_s=budget_s))
        await Disclaim(lease.id)
    return results


async def close_attempts() -> None:
    """An attempt whose process is gone has ended, whatever became of its slice."""
    for attempt in await OpenAttempts():
        if not await OwnerAlive(attempt.id):
            ended = Ended(
                attempt.id, await Now(), AttemptState.INTERRUPTED, detail="the process that ran it was killed"
            )
            await Record(ended)

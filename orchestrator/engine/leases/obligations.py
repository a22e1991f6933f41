"""The time for which a program answers for slices: from the first candidate that exists to its release, or its keeping.

A `Obligations` always names every lease that is ours to end right now. One is added before its create leaves and taken off only
when its slice is proven gone, so whoever catches an exception knows what to release.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.core.lease.lease import Held, Lease
from orchestrator.core.lease.slices import Capabilities
from orchestrator.engine.effects.base import Now, ReadLease, Report, Unlock
from orchestrator.engine.leases.release import Released, release_all
from orchestrator.engine.leases.renewal import move
from orchestrator.errors import DeadlineExceeded, TpujobError, UnknownLease

RELEASE_S = 10 * 60.0  # after that the proof is left to the next tpujob command, loudly


@dataclass(slots=True)
class Obligations:
    lease: Lease | None = None
    losers: list[Lease] = field(default_factory=list)  # of a race: asked for beside the one that won, to be released
    released: Released | None = None  # the last release; when not `gone`, its lease may be billed
    kept_until: float | None = None
    release_s: float = 0.0  # time spent on proofs

    @property
    def unproven(self) -> bool:
        return self.released is not None and not self.released.gone


async def release_owed(owed: Obligations, capabilities: Capabilities, reason: str) -> None:
    """Release every lease, and keep the verdict: one that is not proven outweighs the others."""
    leases = [lease for lease in (owed.lease, *owed.losers) if lease is not None]
    began = await Now()
    written = [lease for lease in leases if await is_written(lease)]
    verdicts = await release_all([(lease, reason) for lease in written], capabilities, budget_s=RELEASE_S)
    for lease in leases:
        await Unlock(lease.id)
    losers = {lease.id for lease in owed.losers}
    for verdict in verdicts:
        if verdict.gone and verdict.lease.id in losers:
            await report_loser(verdict.lease)
    if verdicts:
        owed.released = next((verdict for verdict in verdicts if not verdict.gone), verdicts[0])
        owed.release_s += await Now() - began
    if owed and not owed.unproven:
        owed.lease, owed.losers = None, []


async def report_loser(loser: Lease) -> None:
    """One line for each that did not win, once it is proven gone."""
    await Report("race", f"{loser.name.node} absent: out of the race, in {loser.name.zone}")


async def is_written(lease: Lease) -> bool:
    """A draft whose intent never reached the ledger never reached the cloud either: the one is before the other."""
    try:
        await ReadLease(lease.id)
    except UnknownLease:
        return False
    except TpujobError:
        return True  # the ledger does not answer: better one release too many
    return True


async def keep(owed: Obligations, until: float, capabilities: Capabilities) -> Lease:
    """Let the slice outlive this process. Raises Vanished when it was given up meanwhile."""
    assert owed.lease is not None
    lease = await move(owed.lease, Held(owed.lease.id, await Now(), until), capabilities)
    if lease.ends_at <= await Now():  # this machine slept, or tpujob was stopped
        raise DeadlineExceeded(f"{lease.name.node} reached its end before it could be kept")
    owed.kept_until, owed.lease = lease.hold_until, None
    await Unlock(lease.id)
    return lease

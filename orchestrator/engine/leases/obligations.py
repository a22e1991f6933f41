"""The time for which a program answers for slices: from the first candidate that exists to its release, or its keeping.

A `Tenure` always names every lease that is ours to end right now. One is added before its create leaves and taken off only
when its slice is proven gone, so whoever catches an exception knows what to release.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.core.lease.lease import Held, Lease
from orchestrator.core.lease.slices import Capabilities, SliceRequest
from orchestrator.engine.effects.base import Disclaim, Now, ReadLease, Tell
from orchestrator.engine.leases.release import Released, release_all
from orchestrator.engine.leases.renewal import move
from orchestrator.errors import DeadlineExceeded, TpujobError, UnknownLease

RELEASE_S = 10 * 60.0  # after that the proof is left to the next tpujob command, loudly

Draft = tuple[Lease, SliceRequest]


@dataclass(slots=True)
class Tenure:
    lease: Lease | None = None
    losers: list[Lease] = field(default_factory=list)  # of a race: asked for beside the one that won, to be released
    released: Released | None = None  # the last release; when not `gone`, its lease may be billed
    kept_until: float | None = None
    release_s: float = 0.0  # time spent on proofs

    @property
    def unproven(self) -> bool:
        return self.released is not None and not self.released.gone


async def let_go(tenure: Tenure, can: Capabilities, reason: str) -> None:
    """Release every lease, and keep the verdict: one that is not proven outweighs the others."""
    owed = [lease for lease in (tenure.lease, *tenure.losers) if lease is not None]
    began = await Now()
    written = [lease for lease in owed if await is_written(lease)]
    verdicts = await release_all([(lease, reason) for lease in written], can, budget_s=RELEASE_S)
    for lease in owed:
        await Disclaim(lease.id)
    losers = {lease.id for lease in tenure.losers}
    for verdict in verdicts:
        if verdict.gone and verdict.lease.id in losers:
            await tell_out(verdict.lease)
    if verdicts:
        tenure.released = next((verdict for verdict in verdicts if not verdict.gone), verdicts[0])
        tenure.release_s += await Now() - began
    if owed and not tenure.unproven:
        tenure.lease, tenure.losers = None, []


async def tell_out(loser: Lease) -> None:
    """One line for each that did not win, once it is proven gone."""
    await Tell("race", f"{loser.name.node} absent: out of the race, in {loser.name.zone}")


async def is_written(lease: Lease) -> bool:
    """A draft whose intent never reached the ledger never reached the cloud either: the one is before the other."""
    try:
        await ReadLease(lease.id)
    except UnknownLease:
        return False
    except TpujobError:
        return True  # the ledger does not answer: better one release too many
    return True


async def keep(tenure: Tenure, until: float, can: Capabilities) -> Lease:
    """Let the slice outlive this process. Raises Vanished when it was given up meanwhile."""
    assert tenure.lease is not None
    lease = await move(tenure.lease, Held(tenure.lease.id, await Now(), until), can)
    if lease.ends_at <= await Now():  # this machine slept, or tpujob was stopped
        raise DeadlineExceeded(f"{lease.name.node} reached its end before it could be kept")
    tenure.kept_until, tenure.lease = lease.hold_until, None
    await Disclaim(lease.id)
    return lease

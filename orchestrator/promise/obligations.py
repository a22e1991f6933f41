"""The leases that a program has to release: from the create call of the first candidate until it is released or kept.

`Obligations` always has every lease that this program must end. A lease is added before its create leaves, and removed only
when its slice is proven gone or is kept, so that any error handler knows what to release.
"""

from dataclasses import dataclass, field

from orchestrator.errors import DeadlineExceeded, TpujobError, UnknownLease, exit_code
from orchestrator.promise.effects.base import Now, ReadLease, Report, Unlock
from orchestrator.promise.lease.absence import Released
from orchestrator.promise.lease.changes import HeldUntil
from orchestrator.promise.lease.cloud_api import Capabilities
from orchestrator.promise.lease.lease import HeldFor, Lease
from orchestrator.promise.release import release_all
from orchestrator.promise.renewal import move_claim

RELEASE_S = 10 * 60.0  # after that the next tpujob command continues the proof, and the user is warned


@dataclass(slots=True)
class Obligations:
    """The leases of one program. Times are ledger time."""

    lease: Lease | None = None
    losers: list[Lease] = field(default_factory=list)  # of a race: to be released beside the winner
    released: Released | None = None  # the last release; unless it is `gone`, its slice may be billed
    kept_until: float | None = None
    release_s: float = 0.0  # seconds spent on releases

    @property
    def unproven(self) -> bool:
        """Whether a slice was released without a proof of its absence."""
        return self.released is not None and not self.released.gone


@dataclass(slots=True)
class SliceOutcome:
    """How a program that creates a slice ended. `lease`: that of the slice; None if there is none."""

    lease: Lease | None = None
    error: TpujobError | None = None
    owed: Obligations = field(default_factory=Obligations)

    @property
    def exit_code(self) -> int:
        """75 while a slice may still be billed; else the code of the error, or 0."""
        return exit_code(self.error, unproven=self.owed.unproven)


async def release_owed(owed: Obligations, capabilities: Capabilities, reason: str) -> None:
    """Release every lease, and keep the result in `owed.released`: one that is unproven, if there is one."""
    leases = [lease for lease in (owed.lease, *owed.losers) if lease is not None]
    began = await Now()
    recorded = [lease for lease in leases if await is_recorded(lease)]
    verdicts = await release_all([(lease, reason) for lease in recorded], capabilities, budget_s=RELEASE_S)
    for lease in leases:
        await Unlock(lease.id)
    losers = {lease.id for lease in owed.losers}
    for verdict in verdicts:
        if verdict.gone and verdict.lease.id in losers:
            await report_loser(verdict.lease)
    if verdicts:
        owed.released = next((verdict for verdict in verdicts if not verdict.gone), verdicts[0])
        owed.release_s += await Now() - began
    if not owed.unproven:
        owed.lease, owed.losers = None, []


async def report_loser(loser: Lease) -> None:
    """Report that a loser of a race is proven gone."""
    await Report("race", f"{loser.name.node} absent: out of the race, in {loser.name.zone}")


async def is_recorded(lease: Lease) -> bool:
    """Return whether the lease is in the ledger. If not, its create never left: the intent is recorded before it."""
    try:
        await ReadLease(lease.id)
    except TpujobError as error:
        return not isinstance(error, UnknownLease)  # else the ledger fails: one release too many is safer
    return True


async def keep_slice(
    owed: Obligations, until: float, capabilities: Capabilities, held_for: HeldFor = HeldFor.USER
) -> Lease:
    """Hold the slice until `until`, so that it outlives this process. Raises Vanished if it was released meanwhile."""
    assert owed.lease is not None
    lease = await move_claim(owed.lease, HeldUntil(owed.lease.id, await Now(), until, held_for), capabilities)
    if lease.ends_at <= await Now():  # this machine slept, or tpujob was stopped
        raise DeadlineExceeded(f"{lease.name.node} reached its end before it could be kept")
    owed.kept_until, owed.lease = lease.hold_until, None
    await Unlock(lease.id)
    return lease

"""The time for which a program answers for a slice: from the first candidate that exists to its release, or its keeping.

A `Tenure` always names the lease that is ours to end right now. It is set before the create leaves and cleared only when
the slice is proven gone, so whoever catches an exception knows what to release.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.core.lease import Held, Lease, NotAllowed
from orchestrator.core.slices import Capabilities, SliceRequest
from orchestrator.engine.acquire import acquire
from orchestrator.engine.claim import move
from orchestrator.engine.effects import Disclaim, Now, ReadLease, Shield, Tell
from orchestrator.engine.release import Released, as_written, release
from orchestrator.errors import CapacityError, DeadlineExceeded, TeardownUnproven, TpujobError, UnknownLease, Vanished

NO_CAPACITY = "no capacity"
RELEASE_S = 10 * 60.0  # after that the proof is left to the next tpujob command, loudly

Draft = tuple[Lease, SliceRequest]


@dataclass(slots=True)
class Tenure:
    lease: Lease | None = None
    released: Released | None = None  # the last release; when not `gone`, its lease may be billed
    kept_until: float | None = None
    release_s: float = 0.0  # time spent on proofs

    @property
    def unproven(self) -> bool:
        return self.released is not None and not self.released.gone


async def first_available(drafts: Sequence[Draft], can: Capabilities, tenure: Tenure) -> Lease:
    """The first candidate that has capacity, READY. The next zone is asked only when this one is proven empty."""
    refused: CapacityError | None = None
    for draft, request in drafts:
        where = f"{request.accelerator_type} {request.name.zone}"
        await Tell("create", f"{where} as {request.name.node}", passing=True)
        tenure.lease = draft
        began = await Now()
        try:
            tenure.lease = await acquire(draft, request, can)
        except NotAllowed as error:
            raise Vanished(f"{draft.name.node} was released by another tpujob command") from error
        except CapacityError as error:
            refused = error
            await let_go(tenure, can, NO_CAPACITY)
            if tenure.unproven:
                raise TeardownUnproven(f"{where}: no capacity, but the failed create is not proven gone") from error
            reason = (await as_written(draft)).reason
            if reason != NO_CAPACITY:
                raise Vanished(f"{draft.name.node} was given up meanwhile: {reason}") from error
            await Tell("create", f"{where}   no capacity (released: absent) → next")
            await Shield(raised=False)
            continue
        await Tell("ready", f"{where} in {await Now() - began:.1f} s · {request.name.node}")
        return tenure.lease
    raise CapacityError(
        f"no capacity in any zone that was asked for ({', '.join(request.name.zone for _, request in drafts)})",
        hint="name more zones or a region, try spot, or try again later",
        details=refused.message if refused else None,
    )


async def let_go(tenure: Tenure, can: Capabilities, reason: str) -> None:
    """Release the lease, if there is one, and keep the verdict."""
    if tenure.lease is None:
        return
    began = await Now()
    if await _written(tenure.lease):
        tenure.released = await release(tenure.lease, can, reason=reason, budget_s=RELEASE_S)
        tenure.release_s += await Now() - began
    await Disclaim(tenure.lease.id)
    if not tenure.unproven:
        tenure.lease = None


async def _written(lease: Lease) -> bool:
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
    tenure.kept_until = lease.hold_until
    await Disclaim(lease.id)
    return lease

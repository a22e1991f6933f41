"""The proof of absence. Pure: evidence in, verdict out.

A slice is GONE when one and the same pass over the API shows all of: `get` answered 404, a complete list of its zone
(all pages, nothing unreachable) holds neither its name nor its run label, and the create call has *settled*, so that
nothing can bring the slice to life later. Timeouts, 5xx, 403 and partial lists prove nothing: unknown is never gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

from orchestrator.core.lease.lease import Lease
from orchestrator.core.lease.slices import Capabilities, Listing, Operation, SliceView
from orchestrator.core.text import names
from orchestrator.errors import CloudError


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one pass saw. A CloudError in place of an answer means: that question got no answer."""

    view: SliceView | CloudError | None
    listing: Listing[SliceView] | CloudError | None = None  # None: not asked, because the slice is still there
    creates: tuple[Operation, ...] | CloudError = ()  # every create operation on this name that the API knows
    seen: bool = False  # did the API show the slice, or take a delete of it, earlier in this teardown?


@dataclass(frozen=True, slots=True)
class Verdict:
    """`gone` only with an empty `missing`; else `missing` says in words what the proof still lacks."""

    gone: bool
    missing: tuple[str, ...] = ()
    last_seen: str = ""
    quiet_until: float | None = None  # nothing visible, but a late create could still land until then
    evidence: str = "get 404, complete list without it, create settled"  # of a `gone`, for the ledger


def settled(
    lease: Lease,
    creates: tuple[Operation, ...] | CloudError,
    now: float,
    capabilities: Capabilities,
    *,
    seen: bool = False,
) -> float | None:
    """None when no create of this lease can bring a slice to life any more, else the time at which that is certain.

    Any of these suffices: no create left that could have an effect; as many terminal create operations as creates left, if
    they failed or the slice was seen (one that succeeded a moment ago may not be visible yet; and a queued request that
    failed is there all the same); longer ago than the visibility bound, a complete list of operations in which none is
    under way; or longer ago than any create takes to settle. A create that was sent again after a lost reply counts twice:
    both may land, one after the other. One that the API says is still under way is never settled by time: `inf`.
    """
    if lease.sent_at is None or lease.sends <= 0 or lease.settled:
        return None
    bound = capabilities.settles_within_s
    if not isinstance(creates, CloudError):
        if not all(operation.done for operation in creates):
            return inf
        failed = all(operation.error is not None for operation in creates)
        known = seen or lease.ready_at is not None or (failed and not lease.name.queued)
        if len(creates) >= lease.sends and known:
            return None
        bound = capabilities.visible_within_s
    certain_at = lease.sent_at + bound
    return None if now >= certain_at else certain_at


def judge(lease: Lease, evidence: Evidence, now: float, capabilities: Capabilities) -> Verdict:
    missing: list[str] = []
    last_seen = "no slice visible"
    match evidence.view:
        case CloudError() as error:
            missing.append(f"get failed: {error.message}")
            last_seen = "unknown"
        case SliceView() as view:
            missing.append(f"still there: {view.native_state}")
            last_seen = view.native_state
        case None:
            pass
    match evidence.listing:
        case CloudError() as error:
            missing.append(f"list failed: {error.message}")
        case Listing() as listing if not listing.complete:
            missing.append(f"list incomplete: {', '.join(listing.unreachable)} unreachable")
        case Listing() as listing:
            missing += [f"still listed: {row.name.node}" for row in listing.rows if belongs(row, lease)]
        case None:
            if evidence.view is None:
                missing.append("not yet listed")
    certain_at = settled(lease, evidence.creates, now, capabilities, seen=evidence.seen)
    if certain_at is not None:
        missing.append(
            "the create call has not settled" if isfinite(certain_at) else "the create call is still under way"
        )
    return Verdict(
        gone=not missing,
        missing=tuple(missing),
        last_seen=last_seen,
        quiet_until=certain_at if evidence.view is None and certain_at != inf else None,
    )


def belongs(view: SliceView, lease: Lease) -> bool:
    return view.name.node == lease.name.node or view.labels.get(names.LEASE_ID) == lease.id


def ours(view: SliceView, lease: Lease) -> bool:
    """Is the slice under this name the one that this lease created? (Else it is not ours to adopt, nor to delete.)"""
    return view.name.node == lease.name.node and view.labels.get(names.LEASE_ID) == lease.id

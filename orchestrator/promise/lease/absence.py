"""The proof of absence. Pure: evidence in, verdict out.

A slice is GONE when one pass over the API shows all of: `get` answered 404; a complete list of its zone (all pages,
nothing unreachable) holds neither its name nor its lease-id label; and its create calls have *settled*, so that none can
create the slice later. Timeouts, 5xx, 403 and partial lists prove nothing: unknown is never gone.
"""

from dataclasses import dataclass
from math import inf

from orchestrator.errors import AuthError, CloudError, TpujobError
from orchestrator.promise.lease.cloud_api import Capabilities, Listing, Operation, SliceView
from orchestrator.promise.lease.lease import Lease
from orchestrator.text import names

# Every create operation on a name that the API knows; a CloudError when they could not be listed.
Creates = tuple[Operation, ...] | CloudError


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one pass over the API returned. A CloudError in place of a value means that this call failed."""

    view: SliceView | CloudError | None
    listing: Listing[SliceView] | CloudError | None = None  # None: not listed, because the slice still exists
    creates: Creates = ()
    seen: bool = False  # during this teardown the API showed the slice, or accepted a delete of it
    own_ended_at: float | None = None  # as `settles_at` has it


@dataclass(frozen=True, slots=True)
class Verdict:
    """`gone` only if `missing` is empty; otherwise `missing` lists what the proof still lacks."""

    gone: bool
    missing: tuple[str, ...] = ()
    last_seen: str = ""
    quiet_until: float | None = None  # nothing is visible, but a late create can still take effect until then
    evidence: str = "get 404, complete list without it, create settled"  # stored in the ledger with Gone


def settles_at(
    lease: Lease,
    creates: Creates,
    now: float,
    capabilities: Capabilities,
    *,
    seen: bool = False,
    own_ended_at: float | None = None,
) -> float | None:
    """Return when it is certain that no create of this lease can create a slice any more; None if it is certain now.

    `now` and the result are times of the ledger; `inf` while the API says that a create is under way. Any of these makes
    it certain: no create is left that can have an effect; there are as many finished create operations as creates left, and
    they failed or the slice was seen (a create that succeeded a moment ago may not be visible yet, and a queued request
    whose operation failed exists all the same); the last create left longer ago than `visible_within_s`, and a complete
    list of operations shows none under way; it left longer ago than `settles_within_s`. A create that is sent again after
    a lost reply counts twice: both calls may take effect, one after the other.

    `own_ended_at`: when the last create call of this process ended, `inf` while it is under way: a machine that slept may
    send the rest of it when it wakes.
    """
    if lease.sent_at is None or lease.sends <= 0 or lease.settled:
        return None
    bound_s = capabilities.settles_within_s
    if not isinstance(creates, CloudError):
        if not all(operation.done for operation in creates):
            return inf
        failed = all(operation.error is not None for operation in creates)
        conclusive = seen or lease.ready_at is not None or (failed and not lease.name.queued)
        if len(creates) >= lease.sends and conclusive:
            return None
        bound_s = capabilities.visible_within_s
    certain_at = max(lease.sent_at, own_ended_at or 0.0) + bound_s
    return None if now >= certain_at else certain_at


def judge(lease: Lease, evidence: Evidence, now: float, capabilities: Capabilities) -> Verdict:
    """Return whether the evidence proves that the lease's slice is gone, and what the proof lacks. `now`: ledger time."""
    missing: list[str] = []
    last_seen = "no slice visible"
    match evidence.view:
        case CloudError() as error:
            missing.append(f"get failed: {error.message}")
            last_seen = "unknown"
        case SliceView() as view:
            missing.append(f"still there: {view.native_state}")
            last_seen = view.native_state
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
    certain_at = settles_at(
        lease, evidence.creates, now, capabilities, seen=evidence.seen, own_ended_at=evidence.own_ended_at
    )
    if certain_at is not None:
        missing.append(f"the create call {'is still under way' if certain_at == inf else 'has not settled'}")
    quiet_until = certain_at if evidence.view is None and certain_at != inf else None
    return Verdict(gone=not missing, missing=tuple(missing), last_seen=last_seen, quiet_until=quiet_until)


def belongs(view: SliceView, lease: Lease) -> bool:
    """Return whether the slice has the lease's name or the lease's id as its label: either contradicts absence."""
    return view.name.node == lease.name.node or view.labels.get(names.LEASE_ID) == lease.id


def is_ours(view: SliceView, lease: Lease) -> bool:
    """Return whether this lease created the slice. If not, it must be neither adopted nor deleted."""
    return view.name.node == lease.name.node and view.labels.get(names.LEASE_ID) == lease.id


@dataclass(frozen=True, slots=True)
class Released:
    """How a release ended. Unless it is `gone`, the slice may still be billed, and `verdict` has what is missing.

    `refused`: the cloud last refused the credentials of this process, or what they may do.
    """

    lease: Lease
    gone: bool
    checked_at: float
    verdict: Verdict
    deletes_sent: int = 0
    answer: str = ""  # the cloud's reply to the last of them
    refused: bool = False


def unchecked(lease: Lease, error: TpujobError) -> Released:
    """Return a release without a proof, of a slice about which the cloud was not asked."""
    verdict = Verdict(gone=False, missing=(error.message,), last_seen="unknown")
    return Released(lease, False, 0.0, verdict, refused=isinstance(error, AuthError))

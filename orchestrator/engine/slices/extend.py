"""Extend a claim: the user moves the end of a slice, within its budget and at most 7 days from its creation."""

from orchestrator.core.lease.cloud_api import Capabilities
from orchestrator.core.lease.lease import Extended, Lease, LeaseState
from orchestrator.core.lease.timings import Timings
from orchestrator.core.text.durations import format_duration, format_usd
from orchestrator.engine.effects.base import Now
from orchestrator.engine.leases.renewal import move_claim
from orchestrator.errors import UserError

LONGEST_S = 7 * 86400.0


async def extend(lease: Lease, by_s: float, capabilities: Capabilities) -> Lease:
    """Move the end of the claim by `by_s` seconds, in labels and ledger. Return the lease.

    Raises UserError if the slice cannot be extended that far, Vanished if it was released meanwhile.
    """
    now, timings = await Now(), capabilities.timings
    return await move_claim(lease, lambda latest: Extended(lease.id, now, new_end(latest, by_s, timings)), capabilities)


def new_end(lease: Lease, by_s: float, timings: Timings) -> float:
    """Return the end that `extend` sets, in ledger time. Raises UserError with the reason if it is not allowed. Pure."""
    if lease.state is not LeaseState.READY:
        raise UserError(f"{lease.handle} is {lease.state}: only a slice that is READY can be extended")
    until = lease.ends_at + by_s
    if until - lease.created_at > LONGEST_S:
        left = format_duration(max(lease.created_at + LONGEST_S - lease.ends_at, 0.0))
        raise UserError(f"{lease.handle} would exist longer than 7 days", hint=f"it can be extended by {left} at most")
    if lease.budget_usd is not None and lease.usd_per_hour is not None:
        spent_then = lease.usd_per_hour * (until + timings.absent_s - lease.created_at) / 3600
        if spent_then > lease.budget_usd:
            cost = f"{format_usd(spent_then)} of {format_usd(lease.budget_usd)}"
            hint = "the budget of a run is final: run the job again with a larger limits.max_cost"
            raise UserError(f"by then {lease.handle} would have cost {cost}", hint=hint)
    return until

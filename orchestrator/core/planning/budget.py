"""A budget as a time: how long a slice may exist before it has cost what its owner wants to spend. Pure."""

from __future__ import annotations

from orchestrator.errors import UserError

SHORTEST_S = 60.0


def life_s(max_cost: float, usd_per_hour: float | None, *, absent_s: float, where: str) -> float:
    """Seconds from the create call to the delete, so that the bill of the last second is still within `max_cost` dollars.

    `absent_s` is what the cloud needs from a delete to absence; it is billed too. The price is the dated table's.
    """
    if usd_per_hour is None:
        raise UserError(
            f"limits.max_cost: the price table has no price for {where}, so the budget could not be kept",
            hint="use limits.max_duration, or a type and zone with a known price",
        )
    seconds = max_cost / usd_per_hour * 3600 - absent_s
    if seconds < SHORTEST_S:
        least = usd_per_hour * (SHORTEST_S + absent_s) / 3600
        raise UserError(
            f"limits.max_cost: {where} uses up ${max_cost:,.2f} within {max(seconds + absent_s, 0):.0f} s",
            hint=f"at about ${usd_per_hour:,.2f}/h and {absent_s:.0f} s for the deletion it takes ${least:,.2f} at least",
        )
    return seconds

"""What happened, from the emulator's own books: for how long a slice was billed without a claim, and who ended it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Deaths:
    """When, if ever, the CLI and then everything local was killed (unix seconds)."""

    cli_at: float | None = None
    local_at: float | None = None


def unclaimed_s(bills: list[dict[str, Any]], claim_ended_at: float, now: float) -> float:
    """Of all nodes there were: a second one, made by mistake, counts as well."""
    unclaimed = 0.0
    for bill in bills:
        until = now if bill["until"] is None else bill["until"]
        unclaimed += max(0.0, until - max(claim_ended_at, bill["since"]))
    return unclaimed


def finisher(deletes: list[dict[str, Any]], bills: list[dict[str, Any]], deaths: Deaths) -> str:
    """Whose delete was the last that the API accepted before the end: `CLI`, `guardian`, `switch`, `gc` or `nobody`.

    The request log tells a VM from a client. Clients are told apart by who was still alive to send it.
    """
    until = {bill["name"].rpartition("/")[2]: bill["until"] for bill in bills}
    if None in until.values():
        return "nobody"
    accepted = [row for row in deletes if row["status"] == 200 and row["at"] <= until.get(row["node"], 0.0)]
    if not accepted:
        return "nobody"
    last = max(accepted, key=lambda row: row["at"])
    if last["caller"] == "vm":
        return "switch"
    if deaths.local_at is not None and last["at"] > deaths.local_at:
        return "gc"
    return "guardian" if deaths.cli_at is not None and last["at"] > deaths.cli_at else "CLI"

"""Measures from the emulator's bills and request log: how long a slice was billed without a claim, and what ended it. Pure."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class KillTimes:
    """When the CLI, and when every local process, was killed (Unix seconds); None: never."""

    cli_at: float | None = None
    local_at: float | None = None


def unclaimed_s(bills: list[dict[str, Any]], claim_ended_at: float, now: float) -> float:
    """Return the seconds that all nodes together were billed after the end of the claim; `now` ends open bills."""
    unclaimed = 0.0
    for bill in bills:
        until = now if bill["until"] is None else bill["until"]
        unclaimed += max(0.0, until - max(claim_ended_at, bill["since"]))
    return unclaimed


def ended_by(deletes: list[dict[str, Any]], bills: list[dict[str, Any]], killed: KillTimes) -> str:
    """Return what sent the last delete that the API accepted before the end: CLI, guardian, watchdog, gc or nothing.

    The request log distinguishes VMs from clients; clients differ by what was still running to send the call.
    """
    until = {bill["name"].rpartition("/")[2]: bill["until"] for bill in bills}
    if None in until.values():
        return "nothing"
    accepted = [row for row in deletes if row["status"] == 200 and row["at"] <= until.get(row["node"], 0.0)]
    if not accepted:
        return "nothing"
    last = max(accepted, key=lambda row: row["at"])
    if last["caller"] == "vm":
        return "watchdog"
    if killed.local_at is not None and last["at"] > killed.local_at:
        return "gc"
    return "guardian" if killed.cli_at is not None and last["at"] > killed.cli_at else "CLI"

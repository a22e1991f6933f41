"""The billing meter: node-seconds and dollars of every node, from CREATING to absence or preemption.

Pure; `transitions` and `provider_events` open and close bills, `/_emulator/billing` shows them. Tests use it as the oracle
for leaks.
"""

from dataclasses import dataclass, replace
from typing import Any

KEEP = 500  # bills; beyond this many, closed ones are dropped


@dataclass(slots=True)
class Bill:
    """One period in which a node was billed. `usd_per_hour` is None if the catalog has no price."""

    uid: str
    name: str
    project: str
    zone: str
    accelerator_type: str
    spot: bool
    usd_per_hour: float | None
    since: float
    until: float | None = None  # None: still open

    def read(self, now: float) -> dict[str, Any]:
        """Return the bill as of `now`, for JSON."""
        seconds = max(0.0, (now if self.until is None else self.until) - self.since)
        usd = None if self.usd_per_hour is None else self.usd_per_hour * seconds / 3600
        shown = {name: getattr(self, name) for name in ("name", "uid", "project", "zone", "spot", "since", "until")}
        return shown | {"type": self.accelerator_type, "node_seconds": seconds, "usd": usd}


class Meter:
    """All bills, oldest first."""

    def __init__(self, bills: list[Bill] | None = None) -> None:
        self.bills = bills or []

    def open(self, bill: Bill) -> None:
        """Add a bill."""
        self.bills.append(bill)
        if len(self.bills) > KEEP:
            self.bills.remove(next(old for old in self.bills if old.until is not None or old is bill))

    def close(self, uid: str, now: float) -> None:
        """Close the open bill of a node, if there is one. A preempted node is closed before it is deleted."""
        bill = self._last(uid)
        if bill is not None and bill.until is None:
            bill.until = now

    def reopen(self, uid: str, now: float) -> None:
        """Open another bill for a node whose last one is closed."""
        if (bill := self._last(uid)) is not None and bill.until is not None:
            self.open(replace(bill, since=now, until=None))

    def _last(self, uid: str) -> Bill | None:
        return next((bill for bill in reversed(self.bills) if bill.uid == uid), None)

    def read(self, now: float) -> dict[str, Any]:
        """Return all bills and their totals as of `now`, for JSON."""
        rows = [bill.read(now) for bill in self.bills]
        return {
            "nodes": rows,
            "totals": {
                "nodes": len(rows),
                "running": sum(row["until"] is None for row in rows),
                "node_seconds": sum(row["node_seconds"] for row in rows),
                "usd": sum(row["usd"] or 0.0 for row in rows),
                "unpriced": sum(row["usd"] is None for row in rows),
            },
        }

"""The billing meter: node-seconds and dollars of every node, from CREATING to absence or preemption.

Pure; `cloud_state` opens and closes it, the admin path shows it. Tests take it as the oracle for leaks.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

KEEP = 2000  # closed rows are forgotten beyond this many


@dataclass(slots=True)
class Bill:
    """One node's meter, from CREATING to absence or preemption. `usd_per_hour` is None where the catalog knows no price."""

    uid: str
    name: str
    project: str
    zone: str
    accelerator_type: str
    spot: bool
    usd_per_hour: float | None
    since: float
    until: float | None = None

    def read(self, now: float) -> dict[str, Any]:
        seconds = max(0.0, (now if self.until is None else self.until) - self.since)
        usd = None if self.usd_per_hour is None else self.usd_per_hour * seconds / 3600
        return {
            "name": self.name,
            "uid": self.uid,
            "project": self.project,
            "zone": self.zone,
            "type": self.accelerator_type,
            "spot": self.spot,
            "since": self.since,
            "until": self.until,
            "node_seconds": seconds,
            "usd": usd,
        }


class Meter:
    """All bills, oldest first."""

    def __init__(self, bills: list[Bill] | None = None) -> None:
        self.bills = bills or []

    def open(self, bill: Bill) -> None:
        self.bills.append(bill)
        if len(self.bills) > KEEP:
            self.bills.remove(next(old for old in self.bills if old.until is not None or old is bill))

    def close(self, uid: str, now: float) -> None:
        """Once: what Google took away is not billed until it is deleted."""
        bill = self._last(uid)
        if bill is not None and bill.until is None:
            bill.until = now

    def reopen(self, uid: str, now: float) -> None:
        """It came back: a row of its own."""
        if (bill := self._last(uid)) is not None and bill.until is not None:
            self.open(replace(bill, since=now, until=None))

    def _last(self, uid: str) -> Bill | None:
        return next((bill for bill in reversed(self.bills) if bill.uid == uid), None)

    def read(self, now: float) -> dict[str, Any]:
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

    def dump(self) -> list[dict[str, Any]]:
        return [asdict(bill) for bill in self.bills]

    @classmethod
    def load(cls, rows: list[dict[str, Any]]) -> Meter:
        return cls([Bill(**row) for row in rows])

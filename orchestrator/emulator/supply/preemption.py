"""Which spot nodes Google takes back, and when: on schedule or at a seeded rate, as data.

Pure. `happenings` asks when a node is created and when it is READY; `supply` holds the rows, docs/emulator.md explains them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache

from orchestrator.emulator.faults.fault import Ranges, chosen, luck, ranges
from orchestrator.emulator.plain_data import BadData
from orchestrator.emulator.supply.demand import OURS, SPOT, Demand, fits

SINCE = ("READY", "CREATING")
HOUR_S = 3600.0


@lru_cache(maxsize=64)
def _numbers(text: str) -> Ranges:
    return ranges(text, "nth of a preemption")


@dataclass(slots=True, kw_only=True)
class Preemption:
    """`after_s` seconds, or on average so many times `per_hour`. `nth`: which of the nodes that fit, from 1."""

    zone: str = "*"
    type: str = "*"
    node: str = "*"
    nth: str | None = None
    since: str = field(default="READY", metadata={"choices": SINCE})
    after_s: float | None = None
    per_hour: float | None = None
    seed: int = 0
    notice_s: float | None = None  # None: as the setting says
    count: int = field(default=0, metadata=OURS)  # nodes that fitted

    def check(self) -> None:
        if (self.after_s is None) == (self.per_hour is None):
            raise BadData("A preemption needs either after_s or per_hour.")
        if self.per_hour == 0:
            raise BadData("per_hour of a preemption is more than 0.")
        if self.nth is not None:
            _numbers(self.nth)

    def draw(self, node_id: str, want: Demand, since: str) -> float | None:
        """In how many seconds it happens to this node; None: never. Asked once for each node."""
        if since != self.since or want.tier != SPOT or not fnmatchcase(node_id, self.node):
            return None
        if not fits(self.zone, self.type, want.zone, want.accelerator_type):
            return None
        self.count += 1
        if self.nth is not None and not chosen(_numbers(self.nth), self.count):
            return None
        if self.after_s is not None:
            return self.after_s
        assert self.per_hour is not None, "it was checked when it was read"
        return -math.log(1.0 - luck(self.seed, self.count)) * HOUR_S / self.per_hour

"""Which spot nodes the cloud preempts, and when: on schedule or at a seeded rate, as data.

Pure. `provider_events` asks when a node is created and when it becomes READY; docs/emulator.md explains the fields.
"""

import math
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache

from orchestrator.emulator.faults.fault import Ranges, in_ranges, parse_ranges, uniform
from orchestrator.emulator.plain_data import INTERNAL, BadData
from orchestrator.emulator.supply.demand import SPOT, Demand, matches

SINCE = ("READY", "CREATING")
HOUR_S = 3600.0


@lru_cache(maxsize=64)
def _numbers(text: str) -> Ranges:
    return parse_ranges(text, "nth of a preemption")


@dataclass(slots=True, kw_only=True)
class Preemption:
    """After `after_s` seconds, or on average `per_hour` times an hour. `nth`: which of the nodes that fit, from 1."""

    zone: str = "*"
    type: str = "*"
    node: str = "*"
    nth: str | None = None
    since: str = field(default="READY", metadata={"choices": SINCE})
    after_s: float | None = None
    per_hour: float | None = None
    seed: int = 0
    notice_s: float | None = None  # None: as in the settings
    count: int = field(default=0, metadata=INTERNAL)  # nodes that fitted

    def check(self) -> None:
        """Raise BadData if the fields contradict each other."""
        if (self.after_s is None) == (self.per_hour is None):
            raise BadData("A preemption needs either after_s or per_hour.")
        if self.per_hour == 0:
            raise BadData("per_hour of a preemption must be more than 0.")
        if self.nth is not None:
            _numbers(self.nth)

    def draw(self, node_id: str, demand: Demand, since: str) -> float | None:
        """Count the node, and return in how many seconds it is preempted; None: never. Call once for each node."""
        if since != self.since or demand.tier != SPOT or not fnmatchcase(node_id, self.node):
            return None
        if not matches(self.zone, self.type, demand.zone, demand.accelerator_type):
            return None
        self.count += 1
        if self.nth is not None and not in_ranges(_numbers(self.nth), self.count):
            return None
        if self.after_s is not None:
            return self.after_s
        assert self.per_hour is not None, "`check` has seen it"
        return -math.log(1.0 - uniform(self.seed, self.count)) * HOUR_S / self.per_hour

"""The bill of the nodes: from the creation of each to its deletion, whatever runs on it."""

import time
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Bill:
    """`began_at`, `ended_at`: unix seconds. `why` it ended: `scaled down`, `preempted`, …"""

    node: str
    pool: str
    shape: str
    namespace: str  # of the pods that it was made for
    began_at: float
    ended_at: float | None = None
    why: str = ""


class Meter:
    """Every node that there ever was, the oldest first."""

    def __init__(self) -> None:
        self._bills: dict[str, Bill] = {}

    def begin(self, node: str, pool: str, shape: str, namespace: str) -> None:
        self._bills[node] = Bill(node, pool, shape, namespace, time.time())

    def end(self, node: str, why: str) -> None:
        bill = self._bills[node]
        bill.ended_at, bill.why = bill.ended_at or time.time(), bill.why or why

    def rows(self) -> list[dict[str, Any]]:
        now = time.time()
        return [{**asdict(bill), "seconds": (bill.ended_at or now) - bill.began_at} for bill in self._bills.values()]

"""The request log: the newest calls to the API, who made them, what they got, and which faults they met. In memory.

The wire writes it, the admin path and `tpujob emulator requests` show it, tests take it as the oracle for what was sent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

KEPT = 5000


@dataclass(slots=True)
class Call:
    """One request. Without a status, it is being answered (no `seconds` yet) or got no answer."""

    number: int  # from 1 on, never used twice by one daemon
    at: float  # when it arrived
    caller: str  # client, vm, or nobody: it did not say who it is
    method: str
    path: str  # with its query
    operation: str | None
    resource: str | None
    status: int | None = None
    seconds: float | None = None
    faults: list[str] = field(default_factory=list)  # ids of those it met

    @property
    def node(self) -> str | None:
        name, _, node = (self.resource or "").rpartition("/nodes/")
        return node if name else None


class RequestLog:
    def __init__(self) -> None:
        self._calls: deque[Call] = deque(maxlen=KEPT)
        self._count = 0

    def begin(self, at: float, method: str, path: str, operation: str | None, resource: str | None) -> Call:
        self._count += 1
        call = Call(self._count, at, "nobody", method, path, operation, resource)
        self._calls.append(call)
        return call

    def rows(self, after: int = 0, node: str | None = None) -> list[dict[str, Any]]:
        """Those with a larger number than `after`, oldest first."""
        found = (call for call in self._calls if call.number > after and node in (None, call.node, call.resource))
        return [asdict(call) | {"node": call.node} for call in found]

"""The request log: the newest calls to the API, with caller, status and the faults that they met. In memory.

`fault_middleware` writes it, `/_emulator/requests` and `tpujob emulator requests` show it. Tests use it as the oracle for
what was sent.
"""

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

KEPT = 5000
UNAUTHENTICATED = "unauthenticated"


@dataclass(slots=True)
class Call:
    """One request. `status` None: it is under way (`seconds` None) or got no reply."""

    number: int  # from 1; not reused by a daemon
    at: float  # Unix seconds of its arrival, by the cloud's clock
    caller: str  # client, vm or unauthenticated
    method: str
    path: str  # with its query
    operation: str | None
    resource: str | None
    status: int | None = None
    seconds: float | None = None
    faults: list[str] = field(default_factory=list)  # ids of those it met
    note: str = ""  # what the caller should know of a call that succeeded

    @property
    def node(self) -> str | None:
        """The id of the node that the call names; None: it names none."""
        name, _, node = (self.resource or "").rpartition("/nodes/")
        return node if name else None


class RequestLog:
    """The newest KEPT calls."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque(maxlen=KEPT)
        self._count = 0

    def begin(self, at: float, method: str, path: str, operation: str | None, resource: str | None) -> Call:
        """Add a call that has arrived."""
        self._count += 1
        call = Call(self._count, at, UNAUTHENTICATED, method, path, operation, resource)
        self._calls.append(call)
        return call

    def rows(self, after: int = 0, node: str | None = None) -> list[dict[str, Any]]:
        """Return the calls with numbers above `after`, oldest first; `node`: only those about it (id or full name)."""
        found = (call for call in self._calls if call.number > after and node in (None, call.node, call.resource))
        return [asdict(call) | {"node": call.node} for call in found]

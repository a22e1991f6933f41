"""What a node and a queued resource have in common."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Resource:
    """Something with a place, and with an operation that ends with its present state."""

    uid: str  # the API's `id`: a decimal int64, never reused
    project: str
    zone: str
    due: float | None = field(default=None, kw_only=True)  # the present state does not end earlier; None: not by time
    operation: str | None = field(default=None, kw_only=True)  # the operation that ends with the present state
    # google.rpc.Status: with which that operation will fail, or with which a queued resource failed.
    failure: dict[str, Any] | None = field(default=None, kw_only=True)
    # Created with the token of tpujob's own client, and its startup-script not changed since: it runs on this machine.
    trusted: bool = field(default=False, kw_only=True)
    hidden_until: float | None = field(default=None, kw_only=True)  # not visible before; set by faults only

    def visible_at(self, then: float) -> bool:
        """Return whether clients can see it at this time, as long as it exists."""
        return self.hidden_until is None or self.hidden_until <= then

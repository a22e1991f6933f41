"""What the API server has allowed before: while it starts, it knows no roles yet, and refuses everything with 403."""

import time
from collections.abc import Callable

from orchestrator.errors import AuthError, CloudError, CloudUnavailable

PATIENCE_S = 300.0  # with a refusal of what was allowed before

Call = tuple[str, ...]


class Rights:
    """Tells a refusal that passes by itself from one that stays. For one user of one server; used from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._allowed: set[Call] = set()
        self._refused_since: dict[Call, float] = {}

    def allowed(self, method: str, path: str) -> None:
        """Note that the server has answered such a call."""
        call = _call(method, path)
        self._allowed.add(call)
        self._refused_since.pop(call, None)

    def judge(self, method: str, path: str, error: CloudError) -> CloudError:
        """Return CloudUnavailable in place of the refusal of what was allowed before, for PATIENCE_S; else the error."""
        call = _call(method, path)
        if not isinstance(error, AuthError) or call not in self._allowed:
            return error
        since = self._refused_since.setdefault(call, self._clock())
        if self._clock() - since >= PATIENCE_S:
            return error
        return CloudUnavailable(
            f"the API server refuses what it has allowed before: {error.message}", details=error.details
        )


def _call(method: str, path: str) -> Call:
    """What a role would name: the method, the kind of object, and whether it is one object or a list."""
    parts = path.strip("/").split("/")
    if "namespaces" in parts[:-2]:
        parts = parts[parts.index("namespaces") + 2 :]
        return method, parts[0], str(len(parts) > 1), *parts[2:]
    return method, parts[-1]

"""How many files this process may have open: a connection to a worker is one or more, and the soft limit may be 256."""

from __future__ import annotations

import resource
from pathlib import Path

UNLIMITED = 1 << 62


def allow(wanted: int) -> int:
    """Raise the limit of this process to `wanted`, or as far as the system lets it; return the limit that holds then.

    Programs that it starts inherit the limit, so it is never raised further than that.
    """
    soft, hard = (UNLIMITED if each == resource.RLIM_INFINITY else each for each in _limits())
    if soft >= wanted:
        return soft
    raised = min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, _limits()[1]))
    except (OSError, ValueError):  # macOS has a second limit, which it does not tell
        return soft
    return raised


def in_use() -> int:
    """Return how many are open now."""
    return sum(1 for _ in Path("/dev/fd").iterdir())


def _limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)

"""How many files this process may have open, and how much memory it may use: the soft limits may be low."""

import resource
from pathlib import Path

UNLIMITED = 1 << 62


def allow(wanted: int, kind: int = resource.RLIMIT_NOFILE) -> int:
    """Raise this limit of this process to `wanted`, or as far as the system lets it; return the limit that holds then.

    Programs that it starts inherit the limit, so it is never raised further than that.
    """
    limits = resource.getrlimit(kind)
    soft, hard = (UNLIMITED if each == resource.RLIM_INFINITY else each for each in limits)
    if soft >= wanted:
        return soft
    raised = min(wanted, hard)
    try:
        resource.setrlimit(kind, (raised, limits[1]))
    except (OSError, ValueError):  # macOS has a second limit, which it does not tell
        return soft
    return raised


def in_use() -> int:
    """Return how many are open now."""
    return sum(1 for _ in Path("/dev/fd").iterdir())

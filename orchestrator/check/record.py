"""What a stored check.json says, in words. Pure."""

from collections.abc import Mapping
from typing import Any

FILE = "check.json"
GIB = 1 << 30


def checked_text(found: Mapping[str, Any]) -> str:
    """Return a check in a sentence: when, for which accelerator, the verdict, and how much of a chip, or why."""
    needed = max((each["needed_bytes"] or 0 for each in found["graphs"]), default=0)
    of = f"at least {needed / GIB:.2f} of {found['hbm_bytes'] / GIB:.2f} GiB a chip" if found["hbm_bytes"] else ""
    about = found["why"][0] if found["why"] else of
    return f"{found['verdict']} {found['accelerator']}: {about} ({str(found['at'])[:10]})"

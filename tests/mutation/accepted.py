"""The mutants that may survive, each with its reason: `accepted.txt`.

A line that begins without spaces is a reason, and holds for the mutants below it; their lines have the module and function,
the text of the line, and the change, as the command prints them. A reason that begins with "open" is none yet.
"""

from functools import cache
from pathlib import Path


@cache
def accepted() -> dict[str, str]:
    """Return the reason of each mutant that may survive, by its key."""
    reason, found = "", {}
    for line in (Path(__file__).parent / "accepted.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            found[line.strip()] = reason
        elif line:
            reason = line
    return found

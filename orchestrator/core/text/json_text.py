"""JSON that comes from a worker, a job or an API: read as `json.loads` does, but for nesting that no such text needs. Pure.

The parser recurses with each level. At the limit of Python it fails, and so does every finalizer that happens to run there.
"""

import json
import re
from typing import Any

DEEPEST = 500  # levels; half of what Python allows
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{\]}]', re.DOTALL)


def loads(text: str | bytes, **options: Any) -> Any:
    """Return the value of a JSON text. `options`: those of `json.loads`. Raises ValueError for a deep one, too."""
    decoded = text.decode("utf-8-sig", "surrogatepass") if isinstance(text, bytes) else text
    if decoded.count("[") + decoded.count("{") > DEEPEST and _depth(decoded) > DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    return json.loads(decoded, **options)


def _depth(text: str) -> int:
    """Return the deepest level, which has to be right only for valid JSON."""
    deepest = level = 0
    for token in _TOKENS.finditer(text):
        mark = token[0]
        if mark in "[{":
            level += 1
            deepest = max(deepest, level)
        elif mark in "]}":
            level -= 1
    return deepest

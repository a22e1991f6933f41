"""Functions as a notebook defines them: in `__main__`, with a source that only `linecache` knows."""

import io
import itertools
import linecache
import textwrap
from typing import Any

_numbers = itertools.count(1)


def cell(text: str, **around: Any) -> dict[str, Any]:
    """Run the text as a cell of a notebook, after cells that defined `around`. Returns its globals."""
    text = textwrap.dedent(text)
    file = f"/tmp/ipykernel_1/{next(_numbers)}.py"
    linecache.cache[file] = (len(text), None, io.StringIO(text).readlines(), file)
    found: dict[str, Any] = {"__name__": "__main__", **around}
    exec(compile(text, file, "exec", dont_inherit=True), found)
    return found

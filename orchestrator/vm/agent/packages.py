"""The packages that the Python of a job has, as the script of the job found them: `artifacts/packages.json` of worker 0.

It runs beside the job with the job's own `python3` (text/scripts.py), and imports none of them.
"""

# Paths are text, as in `host`.
# ruff: noqa: PTH105, PTH108, PTH118, PTH120, PTH123
from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from importlib import metadata

NAME = "packages.json"
HEAD = b'{"schema":1,'
MOST = 5000


def job_packages(directory: str) -> None:
    """Write down names and versions, unless the job made a file of this name. Raises OSError for a full disk."""
    os.umask(0o022)  # as that of the job
    os.nice(19)
    found: dict[str, str] = {}
    for each in metadata.distributions():
        try:
            name, version = each.metadata["Name"], each.version
        except Exception:  # noqa: S112 - of a package that is damaged: the others count
            continue
        if isinstance(name, str) and isinstance(version, str) and len(found) < MOST:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)  # the first one in the path is imported
    python = ".".join(map(str, sys.version_info[:3]))
    told = {"schema": 1, "python": python, "packages": dict(sorted(found.items()))}
    path = os.path.join(directory, NAME)
    draft, text = os.path.join(os.path.dirname(directory), ".draft.packages"), json.dumps(told, separators=(",", ":"))
    try:
        with open(draft, "w") as file:  # which is never collected
            file.write(text)
        try:
            os.link(draft, path)
        except FileExistsError:
            with open(path, "rb") as there:
                is_ours = there.read(len(HEAD)) == HEAD
            if is_ours:  # that of the attempt before comes with the work it saved
                os.replace(draft, path)
        except OSError:  # the job has put its artifacts on another disk, or on one without links
            with open(path, "x") as file:
                file.write(text)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)

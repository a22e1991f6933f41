"""Copies the results of a run from the worker to Cloud Storage, without a client.

The script of a job with `bucket:` ends with this verb; in a pod, `pod_output` calls `copy`. It takes the same files as `pack`,
sends each in one request with the VM's service account, retries transient failures, and exits with a nonzero code when a file
did not arrive. Where file after file fails, the rest is not tried: TPUs are billed for each try.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..files.pack import place_of, rows
from ..files.phases import PhaseFiles
from .cloud_storage import Storage, split

INDEX = "index.json"  # beside the files of a worker, where there is one
INDEX_BYTES = 32 << 20  # of its rows: of 100,000 files and more, which are sent one by one, in an hour
MOST_FAILURES = 3  # of files, one after the other, for a reason that might have passed


def upload(attempt: str, destination: str, patterns: str, worker: str) -> None:
    """`destination` is gs://BUCKET/PREFIX, `patterns` a JSON list; the files go to PREFIX/worker<i>/…"""
    run = Path(PhaseFiles(attempt, "main").run)
    index = list(rows(str(run), json.loads(patterns)))
    left = [row for row in index if "why" in row]
    for row in left:
        _say(f"tpujob: {row['path']} was not copied: {row['why']}")
    files = [row for row in index if "why" not in row]
    failed = copy(run, files, destination, worker, Storage(), _say)
    _say(f"tpujob: {len(files) - len(failed)} of {len(files)} files copied to {destination}/worker{worker}/")
    sys.exit(1 if failed or not all(row.get("harmless") for row in left) else 0)


def copy(
    run: Path,
    files: Iterable[dict[str, Any]],
    destination: str,
    worker: str,
    storage: Storage,
    say: Callable[[str], None],
) -> list[tuple[str, str]]:
    """Copy files of the index; return the paths that did not arrive, each with why, and `say` so."""
    bucket, prefix = split(destination)
    failed: list[tuple[str, str]] = []
    problem: str | None = None
    for row in files:
        path = row["path"]
        name = "/".join(part for part in (prefix.strip("/"), f"worker{worker}", object_path(path)) if part)
        if storage.failures < MOST_FAILURES:
            problem = storage.send(bucket, name, Path(place_of(str(run), path)))
        if problem is not None:
            failed.append((path, problem))
            say(f"tpujob: {path} did not reach gs://{bucket}/{name}: {problem}")
    return failed


def object_path(path: str) -> str:
    """Return what a file is called in a bucket, where names are printable UTF-8: what is not is escaped as in a URL."""
    return "".join(char if char.isprintable() else quote(char, errors="surrogateescape") for char in path)


def _say(text: str) -> None:
    print(text.encode(errors="backslashreplace").decode(), flush=True)

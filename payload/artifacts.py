"""The files a run leaves: written whole or not at all, and listed, with their hashes, in manifest.json at the very end.

Where there is a manifest, the run ended well and every file is complete. README.md is the contract.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from payload import idx

SCHEMA = 1
MANIFEST = "manifest.json"
OURS = ("timing.jsonl", "metrics.json", "provenance.json", "checkpoint.pt", MANIFEST)


def prepare(directory: Path) -> None:
    """An empty place: what an earlier run left under our names would be taken for this one's."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in OURS:
        (directory / name).unlink(missing_ok=True)


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Under a temporary name, on the disk, then renamed: nobody ever sees half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_json(path: Path, value: Any) -> None:
    content = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_whole(path, lambda file: file.write(content.encode()))


def write_manifest(directory: Path) -> None:
    """Every file below `directory`, whoever wrote it."""
    files = [
        path
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.is_symlink() and path != directory / MANIFEST
    ]
    entries = [
        {"path": path.relative_to(directory).as_posix(), "size_bytes": path.stat().st_size, "sha256": idx.sha256(path)}
        for path in files
    ]
    write_json(directory / MANIFEST, {"schema": SCHEMA, "files": entries})


def provenance(**facts: Any) -> dict[str, Any]:
    """What somebody needs to do the same again."""
    return {
        "schema": SCHEMA,
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **facts,
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "machine": platform.machine(),
            "cpus": len(os.sched_getaffinity(0)),
        },
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in ("torch", "torch_xla", "libtpu", "numpy")},
        },
        "command": sys.argv,
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

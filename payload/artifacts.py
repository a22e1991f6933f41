"""Artifacts: written atomically, and listed with their hashes in manifest.json when the run has succeeded.

If there is a manifest, the run succeeded and every file is complete. README.md specifies the formats.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

SCHEMA = 1
MANIFEST = "manifest.json"
LOSSES = "losses.jsonl"
OF_TPUJOB = ("tpu-metrics.jsonl", "host.jsonl", "packages.json")  # what tpujob writes beside the training
RESULT, ERROR = "function-result.json", "function-error.json"  # of a function of the Python API (functions/call.py)
METRICS = "metrics.jsonl"
RESUMED = (
    "timing.jsonl",
    LOSSES,
    METRICS,
    "checkpoint.pt",
    "checkpoint.json",
)  # read or appended to by a resumed training
PROFILE, PROFILE_DRAFT = "profile", ".profile.tmp"  # directories: the trace (profile.py), and while it is written
RUN_FILES = (*RESUMED, "metrics.json", "provenance.json", RESULT, ERROR, MANIFEST)


def prepare(directory: Path, *, resume: bool = False) -> None:
    """Create `directory` and delete the artifacts of earlier runs in it, which could be mistaken for those of this run.

    With `resume`, keep what an unfinished training (one without a manifest) needs to continue. Raises OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    resumes = resume and not (directory / MANIFEST).exists()
    for path in (*(directory / name for name in RUN_FILES), *directory.glob("checkpoint-*.pt")):
        if not resumes or (path.name not in RESUMED and path.suffix != ".pt"):
            path.unlink(missing_ok=True)
    for name in (PROFILE_DRAFT, *(() if resumes else (PROFILE,))):
        shutil.rmtree(directory / name, ignore_errors=True)
    for path in directory.glob(".*.tmp"):  # left by a process killed during a write
        path.unlink(missing_ok=True)


def trim_losses(directory: Path, epoch: int) -> None:
    """Keep only complete lines of epochs before `epoch` in losses.jsonl: a resumed training repeats that epoch."""
    path = directory / LOSSES
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    kept = [line for line in lines if line.endswith("\n") and json.loads(line)["epoch"] < epoch]
    write_whole(path, lambda file: file.write("".join(kept).encode()))


def add_losses(directory: Path, epoch: int, losses: Sequence[float]) -> None:
    """Append the line of one epoch to losses.jsonl: the loss of each of its steps."""
    with (directory / LOSSES).open("a") as file:
        file.write(json.dumps({"epoch": epoch, "losses": list(losses)}, separators=(",", ":")) + "\n")


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Replace `path` atomically: write a temporary file, flush it to the disk, rename it. Raises OSError."""
    temporary = path.with_name(f".{path.name}.tmp")  # there is one writer at a time; the next one overwrites a leftover
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
    """Replace `path` atomically with `value` as JSON. Raises OSError, or ValueError for NaN and infinities."""
    content = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_whole(path, lambda file: file.write(content.encode()))


def write_manifest(directory: Path) -> None:
    """Write manifest.json: path, size and hash of every file below `directory`, including files of an `entry`.

    Without what tpujob writes beside the training, which may change until the training has ended.
    """
    left_out = {directory / name for name in (MANIFEST, *OF_TPUJOB)}
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and not path.is_symlink()]
    entries = [
        {"path": path.relative_to(directory).as_posix(), "size_bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in files
        if path not in left_out
    ]
    write_json(directory / MANIFEST, {"schema": SCHEMA, "files": entries})


def sha256(path: Path) -> str:
    """Return the hex SHA-256 of the file."""
    digest = hashlib.sha256()  # not hashlib.file_digest, which Python 3.10 lacks
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def provenance(**facts: Any) -> dict[str, Any]:
    """Return the contents of provenance.json: `facts`, host, package versions and command, to reproduce the run."""
    versions = {name: _version(name) for name in ("torch", "torch_xla", "libtpu", "numpy")}
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
        "versions": {"python": platform.python_version(), **versions},
        "command": sys.argv,
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from payload import idx

SCHEMA = 1
MANIFEST = "manifest.json"
LOSSES = "losses.jsonl"
RESUMED = ("timing.jsonl", LOSSES, "checkpoint.pt")  # what a training that goes on needs, or adds to
OURS = (*RESUMED, "metrics.json", "provenance.json", MANIFEST)


def prepare(directory: Path, *, resume: bool = False) -> None:
    """Without what an earlier run left under our names: it would be taken for this one's. Only a training that did not
    end (it has no manifest) may go on where it was."""
    directory.mkdir(parents=True, exist_ok=True)
    goes_on = resume and not (directory / MANIFEST).exists()
    for path in (*(directory / name for name in OURS), *directory.glob("checkpoint-*.pt")):
        if not goes_on or (path.name not in RESUMED and path.suffix != ".pt"):
            path.unlink(missing_ok=True)
    for path in directory.glob(".*.tmp"):  # of a process that was killed while it wrote
        path.unlink(missing_ok=True)


def trim_losses(directory: Path, epoch: int) -> None:
    """Leave only whole lines of the epochs before `epoch`, which is about to be trained, perhaps for the second time."""
    path = directory / LOSSES
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    kept = [line for line in lines if line.endswith("\n") and json.loads(line)["epoch"] < epoch]
    write_whole(path, lambda file: file.write("".join(kept).encode()))


def add_losses(directory: Path, epoch: int, losses: Sequence[float]) -> None:
    """One line for each epoch, with the loss of each of its steps."""
    with (directory / LOSSES).open("a") as file:
        file.write(json.dumps({"epoch": epoch, "losses": list(losses)}, separators=(",", ":")) + "\n")


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Under a temporary name, on the disk, then renamed: nobody ever sees half a file."""
    temporary = path.with_name(f".{path.name}.tmp")  # one writer at a time: the next one takes its place
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

"""Brings a run's artifacts home: asks the packer on each worker, extracts with suspicion, checks against the manifest.

Files land in a fresh directory that is renamed to `worker<i>` when the worker's part is complete, so what carries the
name was checked. A refused or damaged file never costs the others.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import RemoteError
from orchestrator.remote.call import Call
from orchestrator.remote.extract import Damaged, Extracted, Limits, Promise, Read, extract
from orchestrator.remote.link import Link
from orchestrator.remote.terminal import printable

SILENCE_S = 60.0
MANIFEST = "artifacts/manifest.json"
MANIFEST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class CollectedFile:
    worker: int
    path: str  # relative to the worker's directory: artifacts/… or work/…
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Problem:
    worker: int
    path: str  # printable
    why: str

    def __str__(self) -> str:
        return f"worker{self.worker}: {self.path}: {self.why}"


@dataclass(frozen=True, slots=True)
class CollectResult:
    files: tuple[CollectedFile, ...] = ()
    refused: tuple[Problem, ...] = ()  # not taken
    broken: tuple[Problem, ...] = ()  # promised by a manifest, but missing or with another content

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def problems(self) -> tuple[Problem, ...]:
        return self.refused + self.broken

    @classmethod
    def of(cls, parts: Sequence[CollectResult]) -> CollectResult:
        return cls(
            tuple(file for part in parts for file in part.files),
            tuple(problem for part in parts for problem in part.refused),
            tuple(problem for part in parts for problem in part.broken),
        )


@dataclass(frozen=True, slots=True)
class Collector:
    attempt: str
    destination: Path
    patterns: tuple[str, ...]
    limits: Limits

    def collect(self, link: Link, deadline_s: float) -> CollectResult:
        """One worker's part. Unreachable when the connection was cut: try again, nothing is left of the first try."""
        return self.take(link.worker.index, lambda fresh, result: self._fetch(link, fresh, deadline_s, result))

    def take(self, index: int, fetch: Callable[[Path, Extracted], None]) -> CollectResult:
        """What `fetch` brings into an empty directory, checked against its manifest and put in its place."""
        self.destination.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".worker{index}-", dir=self.destination))
        try:
            result = Extracted()
            fetch(fresh, result)
            broken = check_manifest(fresh, result.files)
            _put_in_place(fresh, self.destination / f"worker{index}")
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return CollectResult(
            tuple(CollectedFile(index, path, found.size_bytes, found.sha256) for path, found in result.files.items()),
            tuple(Problem(index, path, why) for path, why in result.refused),
            tuple(Problem(index, path, why) for path, why in broken),
        )

    def _fetch(self, link: Link, into: Path, deadline_s: float, result: Extracted) -> None:
        with Call(link, "pack", silence_s=max(SILENCE_S, deadline_s / 2), timeout_s=deadline_s) as call:
            call.send(json.dumps(self.request()).encode())
            call.end_input()
            self.receive(call.answer(), call.read, into, result)

    def request(self) -> dict[str, Any]:
        """What the packer has to be told."""
        return {
            "attempt": self.attempt,
            "patterns": self.patterns,
            "max_files": self.limits.files,
            "max_bytes": self.limits.size_bytes,
        }

    def receive(self, index: Mapping[str, Any], read: Read, into: Path, result: Extracted) -> None:
        """The files that the packer announced in its `index`, out of the archive that it sent after it."""
        promised, refused = read_index(index)
        result.refused += refused
        try:
            extract(read, into, promised, self.limits, result)
        except Damaged as damage:
            result.refused.append(("(the archive)", str(damage)))
        named = {path for path, _ in result.refused}
        missing = [path for path in promised if path not in result.files and printable(path) not in named]
        result.refused += [(printable(path), "it is in the index, but did not come") for path in missing]


def read_index(said: Mapping[str, Any]) -> tuple[dict[str, Promise], list[tuple[str, str]]]:
    """The packer's announcement, which is data from the worker like everything else."""
    try:
        promised = {str(row["path"]): Promise(int(row["size_bytes"]), str(row["sha256"])) for row in said["files"]}
        refused = [(printable(str(row["path"])), printable(str(row["why"]))) for row in said["refused"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RemoteError(f"the index of the artifacts makes no sense: {error!r}") from error
    return promised, refused


def check_manifest(root: Path, files: Mapping[str, Promise]) -> list[tuple[str, str]]:
    """What `manifest.json` promises and is not so. Without a manifest nothing was promised."""
    if MANIFEST not in files:
        return []
    try:
        if files[MANIFEST].size_bytes > MANIFEST_BYTES:
            raise ValueError("too large")
        manifest = json.loads((root / MANIFEST).read_bytes())
        if manifest["schema"] != 1:
            raise ValueError(f"schema {manifest['schema']!r} is not known")
        rows = [(str(row["path"]), Promise(int(row["size_bytes"]), str(row["sha256"]))) for row in manifest["files"]]
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        return [(MANIFEST, printable(f"the manifest cannot be read: {error!r}"))]
    broken = []
    for path, promise in rows:
        found = files.get(f"artifacts/{path}")
        if found is None:
            broken.append((printable(f"artifacts/{path}"), "the manifest promises it, but it did not come"))
        elif found != promise:
            broken.append((printable(f"artifacts/{path}"), "its content is not what the manifest says"))
    return broken


def _put_in_place(fresh: Path, final: Path) -> None:
    """Replaces what an earlier collection of the same run brought."""
    fresh.chmod(0o755)
    if final.exists():
        old = final.with_name(f".{final.name}-old-{time.time_ns()}")
        final.rename(old)
        fresh.rename(final)
        shutil.rmtree(old, ignore_errors=True)
    else:
        fresh.rename(final)

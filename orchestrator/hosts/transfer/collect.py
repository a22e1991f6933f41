"""What to collect of the workers of a job, and what came: requests, results, and how far a collection is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.hosts.transfer.extract import IndexEntry
from orchestrator.text.artifacts import patterns, takes_all
from orchestrator.text.terminal import spelled

MOST_BESIDE = 2_000_000_000  # of a run
EVERYTHING, THE_REST = "(everything)", "(the rest)"  # names for what a worker did not send
WRITTEN_TO = "was written to while it was read: it may be incomplete"


@dataclass(frozen=True, slots=True)
class Beside:
    """What of the files that a job wrote beside its artifacts is collected, the smallest first. None: no such limit."""

    most_bytes: int | None = None  # of a run
    most_s: float | None = 300.0  # while they are sent
    only: str | None = None  # a pattern
    once: bool = True  # what is equal on several workers comes from one


@dataclass(frozen=True, slots=True)
class CollectRequest:
    """What to collect, and where to."""

    attempt: str  # "": the attempt of the fleet
    destination: Path
    patterns: tuple[str, ...] | None  # besides the artifacts; None: no artifacts
    beside: Beside | None = field(default=None, kw_only=True)  # None: nothing
    # Worker and path of files that were collected to another place.
    elsewhere: Set[tuple[int, str]] = field(default=frozenset(), kw_only=True)
    read_bytes: int | None = field(default=None, kw_only=True)  # of a worker: no more is read there; None: all
    # By worker and path: where a file of this size and hash lies here, and need not be sent.
    at_hand: Mapping[int, Mapping[str, tuple[Path, IndexEntry]]] = field(default_factory=dict, kw_only=True)
    most_bytes: int | None = None  # of all workers together; None: as much as fits on the disk
    passes: int = 2  # files that changed while they were packed are requested again; with 1, nothing changes there
    runs: str | None = None  # directory of the attempts, if not that of a worker
    # By worker: files of the destination that this process has written; one in its place is not read again to compare it.
    known: Mapping[int, Mapping[str, IndexEntry]] = field(default_factory=dict)

    @classmethod
    def of_job(
        cls, artifacts: Sequence[str], attempt: str, destination: Path, most_bytes: int | None = None, **more: Any
    ) -> CollectRequest:
        """Return what to collect of a job with this value of `artifacts:`."""
        beside = Beside(MOST_BESIDE) if takes_all(artifacts) else None
        return cls(attempt, destination, patterns(artifacts), most_bytes, **{"beside": beside, **more})


@dataclass(frozen=True, slots=True)
class CollectedFile:
    worker: int
    path: str  # on the worker: artifacts/… or work/…
    size_bytes: int
    sha256: str
    place: str = ""  # where it lies in the worker's directory, if not under that path
    beside: bool = False  # no artifact, nor named by the job


@dataclass(frozen=True, slots=True)
class Problem:
    worker: int
    path: str  # on the worker, as it is
    why: str
    size_bytes: int = 0  # 0: unknown

    def __str__(self) -> str:
        return f"worker{self.worker}: {spelled(self.path)}: {self.why}"


@dataclass(frozen=True, slots=True)
class CollectResult:
    files: tuple[CollectedFile, ...] = ()
    refused: tuple[Problem, ...] = ()  # for good: no try brings it any more
    broken: tuple[Problem, ...] = ()  # listed in the manifest, but missing or different
    waiting: tuple[Problem, ...] = ()  # still on the worker; a later collection may get it
    notes: tuple[Problem, ...] = ()  # no results: what is left behind, and harms nothing
    left: tuple[Problem, ...] = ()  # beside the artifacts, still on the worker: no promise is broken
    unmatched: tuple[str, ...] = ()  # patterns that match nothing on any worker
    equal: Set[tuple[int, str]] = frozenset()  # worker and path of what came from another worker

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def problems(self) -> tuple[Problem, ...]:
        return self.refused + self.broken + self.waiting

    @classmethod
    def of(cls, parts: Sequence[CollectResult]) -> CollectResult:
        unmatched = tuple(sorted(set.intersection(*(set(part.unmatched) for part in parts)))) if parts else ()
        names = ("files", "refused", "broken", "waiting", "notes", "left")
        joined: dict[str, Any] = {name: tuple(row for part in parts for row in getattr(part, name)) for name in names}
        return cls(**joined, unmatched=unmatched)

    @property
    def uncollected(self) -> tuple[Problem, ...]:
        """What another collection may get from the slice, promised or not."""
        return self.waiting + self.left


@dataclass(frozen=True, slots=True)
class CollectionProgress:
    """How far a collection is. `result` is None until it has ended."""

    result: CollectResult | None = None
    files: int = 0
    total_files: int = 0
    size_bytes: int = 0
    total_bytes: int = 0
    hashed_bytes: int = 0  # on the workers for the index, and here to compare
    activity: int = 0  # how often data arrived

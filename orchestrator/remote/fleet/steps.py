"""What the steps of a fleet take and give, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.remote.fleet.follow import WorkerState, WorkerStatus


@dataclass(frozen=True, slots=True)
class StartRequest:
    """What to run, detached, on every worker. `env_by_worker` may hold secrets: it never gets into an argument list."""

    attempt: str
    phase: str  # "setup" or "main"
    script: str  # bash, run in runs/<attempt>/work
    env_by_worker: Sequence[Mapping[str, str]]
    bundle_sha256: str | None = None
    saved_by_worker: Sequence[str | None] = ()  # sha256 of what an earlier attempt left for each worker


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    index: int
    home: str
    python: str
    host: str
    address: str  # where other workers reach it
    free_port: int


@dataclass(frozen=True, slots=True)
class PushResult:
    index: int
    skipped: bool  # it was there already
    seconds: float


@dataclass(frozen=True, slots=True)
class FleetStatus:
    workers: tuple[WorkerStatus, ...]

    @property
    def failed(self) -> bool:
        return any(worker.failed for worker in self.workers)

    @property
    def all_succeeded(self) -> bool:
        return all(worker.final and worker.rc == 0 for worker in self.workers)

    @property
    def ended(self) -> bool:
        return all(worker.final for worker in self.workers)

    @property
    def first_failure(self) -> tuple[int, int | None]:
        """Worker and exit code (None: lost) of the one that failed first, as far as we saw; one that we stopped is last."""
        failed = [worker for worker in self.workers if worker.failed]
        first = min(failed, key=lambda worker: (worker.stopped, worker.since))
        return first.index, first.rc

    @property
    def log_bytes(self) -> int:
        return sum(worker.log_bytes for worker in self.workers)

    def silent_s(self, now: float) -> float:
        """How long the worker that is unreachable for longest has been so."""
        return max((now - w.since for w in self.workers if w.state is WorkerState.UNREACHABLE), default=0.0)

"""Run a job: from a job file to proven absence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.client.events import RunResult

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.jobfile.model import JobSpec

__all__ = ["RunOptions", "RunResult", "start_run"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a job, beside what its file says."""

    keep_s: float | None = None  # hold the slice for so long after a success
    max_duration_s: float | None = None  # instead of the file's `limits.max_duration`
    detach: bool = False  # return once the job has started
    bench: Mapping[str, str] | None = None  # the comparison that this run is a variant of


def start_run(session: Session, spec: JobSpec, env: Mapping[str, str], path: Path, options: RunOptions) -> RunResult:
    """Run a job and return its result; with `options.detach`, return once it has started.

    `path` is the job file, or any path in the directory to which `code:` is relative.
    """
    raise NotImplementedError

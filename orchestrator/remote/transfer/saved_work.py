"""Saved work: what a job has written so far, copied here while it runs and restored for its next attempt.

A preempted slice takes its disks with it. So the files of a run that may restart are copied periodically, as a whole; a file
that cannot be read completely is kept from the copy before, so that a checkpoint is never lost to a bad moment.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.remote.transfer.bundle import Bundle, make_bundle
from orchestrator.remote.transfer.collect import EVERYTHING, THE_REST, CollectRequest, CollectResult

if TYPE_CHECKING:
    from orchestrator.remote.fleet.fleet import Fleet

MAX_BYTES = 64 << 30


@dataclass(frozen=True, slots=True)
class SavedWork:
    """`directory/worker<i>/{artifacts,work}/…`, each file from the last time that it arrived complete."""

    directory: Path
    patterns: tuple[str, ...]

    def pull(self, fleet: Fleet, deadline_s: float) -> CollectResult:
        """Copy the work of all workers. A worker whose copy is incomplete keeps the last one. Raises RemoteError."""
        draft = self.directory / ".draft"
        shutil.rmtree(draft, ignore_errors=True)
        try:
            # The job continues: a file that it is writing now is left for the next time.
            pulled = fleet.collect(CollectRequest("", draft, self.patterns, passes=1)).within(deadline_s)
            for fresh in sorted(draft.glob("worker*")):
                left = [problem.path for problem in pulled.refused + pulled.waiting if fresh.name == problem.of]
                if EVERYTHING in left or THE_REST in left:
                    continue
                last = self.directory / fresh.name
                _keep_from_before(fresh, last, left)
                shutil.rmtree(last, ignore_errors=True)
                fresh.rename(last)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return pulled

    def bundles(self, workers: int, into: Path) -> tuple[Bundle | None, ...]:
        """Return one bundle for each worker of the next attempt; None where nothing was saved."""
        return tuple(self._bundle(self.directory / f"worker{index}", into) for index in range(workers))

    @staticmethod
    def _bundle(directory: Path, into: Path) -> Bundle | None:
        parts = {name: directory / name for name in ("artifacts", "work") if (directory / name).is_dir()}
        return make_bundle(parts, into, max_bytes=MAX_BYTES) if parts else None


def _keep_from_before(fresh: Path, last: Path, paths: Iterable[str]) -> None:
    for path in paths:
        before, now = last / path, fresh / path
        if ".." not in Path(path).parts and before.is_file() and not now.exists():
            now.parent.mkdir(parents=True, exist_ok=True)
            os.link(before, now)

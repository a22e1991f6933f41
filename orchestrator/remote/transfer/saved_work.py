"""What a job has made so far, brought here while it runs and given to its next attempt on other workers.

A slice that is taken away takes its disks with it. So a run that may be restarted is pulled now and then, as a whole, and
what could not be read in one piece this time is kept from the time before: a checkpoint is never lost to a bad moment.
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
    """`directory/worker<i>/{artifacts,work}/…`, as of the last time that each file came whole."""

    directory: Path
    patterns: tuple[str, ...]

    def pull(self, fleet: Fleet, deadline_s: float) -> CollectResult:
        """Raises what the collecting raises; then everything is as it was, as it is for a worker that was cut off."""
        draft = self.directory / ".draft"
        shutil.rmtree(draft, ignore_errors=True)
        try:
            # The job goes on: what it writes at this moment is left for the next time.
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
        """One for each worker of the next attempt; None where there is nothing to give."""
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

"""What a run is made of before it starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.lease.attempt import Attempt, AttemptState, RunRecord
from orchestrator.core.lease.lease import Lease
from orchestrator.engine.provision.drafts import Draft, Drafter

if TYPE_CHECKING:
    from orchestrator.remote.fleet.fleet import StartRequest
    from orchestrator.remote.transfer.bundle import Bundle
    from orchestrator.remote.transfer.collect import CollectRequest
    from orchestrator.remote.transfer.saved_work import SavedWork


@dataclass(frozen=True, slots=True)
class JobPhase:
    """One supervised script on every worker. `request` builds it once the addresses of all are known, and where they meet."""

    name: str
    state: AttemptState
    request: Callable[[Attempt, Lease, Sequence[str], str], StartRequest]


@dataclass(frozen=True, slots=True)
class JobRun:
    """Everything `run_job` needs, decided beforehand."""

    run: RunRecord
    attempt: Attempt
    drafts: tuple[Draft, ...]  # candidates in order, names already chosen
    held: Lease | None  # a slice that `up` brought and that fits
    bundle: Bundle | None
    phases: tuple[JobPhase, ...]
    artifacts: tuple[str, ...]
    directory: Path
    sink: Callable[[int, bytes], None]
    max_duration_s: float
    keep_s: float | None = None  # hold the slice for so long after the run
    detach: bool = False  # leave once the job has started: the claim passes to it
    wait_s: float = 0.0  # for capacity
    race: bool = False  # queued candidates all at once
    max_restarts: int = 0  # after so many slices that were lost
    drafter: Drafter | None = None  # makes the same candidates again, under new names
    saved_work: SavedWork | None = None  # what goes from attempt to attempt
    stall_s: float | None = None  # a job that prints nothing for so long hangs
    linger_s: float | None = None  # results that are not at home wait for so long; None: as the cloud's pace says
    most_bytes: int | None = None  # of results; None: as much as the disk takes

    def order(self, attempt: Attempt) -> CollectRequest:
        """What is brought home of this attempt."""
        from orchestrator.remote.transfer.collect import CollectRequest

        return CollectRequest(attempt.id, self.directory, self.artifacts, self.most_bytes)

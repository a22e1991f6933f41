"""The input of a run: everything `run_job` needs, decided before it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.lease.lease import Lease
from orchestrator.core.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.places.place import Phase, Stay
from orchestrator.run.lane import Lane

if TYPE_CHECKING:
    from orchestrator.remote.shipping.shipment import Shipment
    from orchestrator.remote.transfer.collect import CollectRequest
    from orchestrator.remote.transfer.saved_work import SavedWork

Sink = Callable[[int, bytes], None]


@dataclass(frozen=True, slots=True)
class JobRun:
    """A job, its stay at a place, and its limits."""

    run: RunRecord
    attempt: Attempt
    stay: Stay
    phases: tuple[Phase, ...]
    artifacts: tuple[str, ...]  # as in the job file
    directory: Path
    sink: Sink  # of the log
    max_duration_s: float
    metrics: Sink | None = None  # the sink of metrics.jsonl
    attached_to: Lease | None = None  # of a job that runs detached: the program begins in the middle
    held: Lease | None = (
        None  # a held slice that fits: of `tpujob up`, or of this job since it failed, to be taken over
    )
    lane: Lane | None = field(default=None, kw_only=True)  # of a run that is one of several on the same slice
    shipment: Shipment | None = None  # None: nothing is sent once the workers are there
    keep_s: float | None = None  # hold the slice for so long after a success
    keep_on_failure_s: float | None = None  # hold the slice for so long after the job or its setup has failed
    detach: bool = False  # end once the job has started: the claim passes to it
    max_restarts: int = 0  # after the loss of a slice
    saved_work: SavedWork | None = None  # passed from attempt to attempt
    stall_s: float | None = None  # a job without output for so long hangs; None: never
    linger_s: float | None = None  # hold the slice for uncollected results; None: the cloud's timings
    most_bytes: int | None = None  # of results; None: as much as the disk takes
    ports: tuple[int, ...] = ()  # of worker 0, to be forwarded while the job runs

    def collect_request(self, attempt: Attempt) -> CollectRequest:
        """Return what to collect of this attempt, and where to."""
        from orchestrator.remote.transfer.collect import CollectRequest

        at_hand = {} if self.saved_work is None else self.saved_work.at_hand()
        return CollectRequest.of_job(self.artifacts, attempt.id, self.directory, self.most_bytes, at_hand=at_hand)

"""The input of a run, decided before it starts: everything `run_job` needs, and the lane in which runs pass on a slice.

Between two runs the slice is claimed as during a run: by the lock and the heartbeats of its process. Nothing holds it: if the
process dies, the guardian deletes it at once, else its watchdog. Each run has it for as long as if the run had created it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import TpujobError
from orchestrator.hosts.fleet.effects import Disconnect
from orchestrator.hosts.transfer.collect import CollectRequest
from orchestrator.places.place import Phase, QueuedRun, Stay
from orchestrator.promise.effects.base import MaskSignals
from orchestrator.promise.lease.cloud_api import Capabilities
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord, SavedState
from orchestrator.promise.obligations import Obligations, release_owed

if TYPE_CHECKING:
    from orchestrator.hosts.fleet.crew import Crew
    from orchestrator.hosts.fleet.saved_work import SavedWork
    from orchestrator.hosts.shipping.shipment import Shipment
    from orchestrator.run.progress import JobProgress


@dataclass(slots=True)
class Lane:
    """What one run leaves to the next one.

    `reserve_next` is called when a job has ended: it reserves the slice for another run, or returns False where none wants it.
    """

    reserve_next: Callable[[], bool]
    lease: Lease | None = None
    losers: list[Lease] = field(default_factory=list)  # of the race that it won, not proven gone yet
    crew: Crew | None = None
    collected: str | None = None  # the attempt before, whose files on the workers are not needed any more
    # Called when a job has ended, before its slice is released or passed on: with its state and its error.
    ended: Callable[[AttemptState, TpujobError | None], object] | None = None

    def hand_to(self, progress: JobProgress) -> None:
        """From here on, the run owes the slice, and the losers of its race that are not proven gone yet."""
        progress.owed.lease, progress.owed.losers, progress.crew = self.lease, self.losers, self.crew
        self.lease, self.losers, self.crew = None, [], None


async def release_lane(lane: Lane, capabilities: Capabilities) -> Obligations:
    """Release the slice that no run takes over; return how that ended."""
    await MaskSignals()
    owed = Obligations(lane.lease, lane.losers)
    if lane.crew is not None:
        await Disconnect(lane.crew)
    lane.lease, lane.losers, lane.crew = None, [], None
    await release_owed(owed, capabilities, "no run follows on it")
    return owed


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
    queued: QueuedRun | None = None  # of a queue: the claim passes to it before it starts
    # A held slice that fits: of `tpujob up`, or of this job since it failed, to be taken over.
    held: Lease | None = None
    lane: Lane | None = field(default=None, kw_only=True)  # of a run that is one of several on the same slice
    shipment: Shipment | None = None  # None: nothing is sent once the workers are there
    keep_s: float | None = None  # hold the slice for so long after a success
    keep_on_failure_s: float | None = None  # hold the slice for so long after the job or its setup has failed
    detach: bool = False  # end once the job has started: the claim passes to it
    max_restarts: int = 0  # after the loss of a slice
    saved_work: SavedWork | None = None  # passed from attempt to attempt
    resumed: SavedState | None = (
        None  # what another process, perhaps on another machine, left of this run in its bucket
    )
    stall_s: float | None = None  # a job without output for so long hangs; None: never
    linger_s: float | None = None  # hold the slice for uncollected results; None: the cloud's timings
    most_bytes: int | None = None  # of results; None: as much as the disk takes
    ports: tuple[int, ...] = ()  # of worker 0, to be forwarded while the job runs

    def collect_request(self, attempt: Attempt) -> CollectRequest:
        """Return what to collect of this attempt, and where to."""
        at_hand = {} if self.saved_work is None else self.saved_work.at_hand()
        return CollectRequest.of_job(self.artifacts, attempt.id, self.directory, self.most_bytes, at_hand=at_hand)

"""The input of a run: everything `run_job` needs, decided before it starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.lease.lease import Lease
from orchestrator.core.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.engine.provision.drafts import Draft, Drafter
from orchestrator.run.lane import Lane

if TYPE_CHECKING:
    from orchestrator.remote.fleet.fleet import StartRequest
    from orchestrator.remote.shipping.shipment import Shipment
    from orchestrator.remote.transfer.collect import CollectRequest
    from orchestrator.remote.transfer.saved_work import SavedWork


@dataclass(frozen=True, slots=True)
class JobPhase:
    """One supervised script on every worker.

    `request(attempt, lease, hosts, coordinator)` returns the start request, once the addresses are known.
    """

    name: str
    state: AttemptState
    request: Callable[[Attempt, Lease, Sequence[str], str], StartRequest]


@dataclass(frozen=True, slots=True)
class JobRun:
    """A job, its candidates and its limits."""

    run: RunRecord
    attempt: Attempt
    drafts: tuple[Draft, ...]  # candidates in order, names already chosen
    held: Lease | None  # a held slice that fits: of `tpujob up`, or of this job since it failed, to be taken over
    lane: Lane | None = field(default=None, kw_only=True)  # of a run that is one of several on the same slice
    shipment: Shipment | None
    phases: tuple[JobPhase, ...]
    artifacts: tuple[str, ...]  # as in the job file
    directory: Path
    sink: Callable[[int, bytes], None]  # of the log
    max_duration_s: float
    metrics: Callable[[int, bytes], None] | None = None  # the sink of metrics.jsonl
    keep_s: float | None = None  # hold the slice for so long after a success
    keep_on_failure_s: float | None = None  # hold the slice for so long after the job or its setup has failed
    detach: bool = False  # end once the job has started: the claim passes to it
    wait_s: float = 0.0  # for capacity
    race: bool = False  # ask for all queued candidates at once
    max_restarts: int = 0  # after the loss of a slice
    drafter: Drafter | None = None  # makes the same candidates again, under new names
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

"""What a run is made of before it starts, and what has become of it when it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.lease.attempt import Attempt, AttemptState, RunRecord
from orchestrator.core.lease.lease import Lease
from orchestrator.engine.effects.base import Now
from orchestrator.engine.leases.obligations import Obligations
from orchestrator.engine.provision.drafts import Draft, Drafter
from orchestrator.errors import CloudError, TeardownUnproven, TpujobError

if TYPE_CHECKING:
    from orchestrator.remote.fleet.fleet import Fleet, StartRequest
    from orchestrator.remote.transfer.bundle import Bundle
    from orchestrator.remote.transfer.collect import CollectRequest, CollectResult
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


@dataclass(frozen=True, slots=True)
class Loss:
    """An attempt that ended because its slice was lost."""

    attempt: Attempt
    lease: Lease | None
    reason: str
    at: float


@dataclass(slots=True)
class Outcome:
    """What became of a run. `error` is None on success."""

    run: RunRecord
    attempt: Attempt  # the last one
    state: AttemptState = AttemptState.PENDING
    error: TpujobError | None = None
    lease: Lease | None = None  # the one that the job ran on
    owed: Obligations = field(default_factory=Obligations)
    collected: CollectResult | None = None
    started_at: float = 0.0
    ended_at: float = 0.0
    spans: dict[str, float] = field(default_factory=dict)  # seconds
    fleet: Fleet | None = None
    detached: bool = False  # the job goes on without this process
    losses: list[Loss] = field(default_factory=list)
    used_s: float = 0.0  # of the job's time, by attempts whose slices were lost; less what `extend` added to it
    spent_usd: float = 0.0
    _span: tuple[str, float] | None = None

    async def enter(self, span: str | None) -> None:
        """The span that was open ends now, and this one begins (None: none does)."""
        now = await Now()
        if self._span is not None:
            name, began = self._span
            self.spans[name] = self.spans.get(name, 0.0) + now - began
        self._span = None if span is None else (span, now)

    @property
    def own_code(self) -> int:
        """The attempt's, whatever became of its slice."""
        if isinstance(self.error, TeardownUnproven):
            return CloudError.exit_code  # it took long, but it is proven now
        return self.error.exit_code if self.error else 0

    @property
    def exit_code(self) -> int:
        return TeardownUnproven.exit_code if self.owed.unproven else self.own_code

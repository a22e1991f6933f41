"""What becomes of a run: `JobProgress` while it goes on, `Outcome` once it has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator import errors
from orchestrator.promise.effects.base import Now
from orchestrator.promise.lease.absence import Released
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord, state_after
from orchestrator.promise.obligations import Obligations

if TYPE_CHECKING:
    from orchestrator.hosts.fleet.crew import Crew
    from orchestrator.hosts.transfer.collect import CollectResult, Problem


@dataclass(frozen=True, slots=True)
class Loss:
    """An attempt that ended because its slice was lost."""

    attempt: Attempt
    lease: Lease | None
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, or was left. `error` is None after a success. Times by the ledger's clock of the run's cloud."""

    run: RunRecord
    attempt: Attempt  # the last one
    state: AttemptState = AttemptState.PENDING
    error: errors.TpujobError | None = None
    lease: Lease | None = None  # the one that the job ran on; also one that never became READY
    released: Released | None = None  # the last release; of several, one that is not proven
    kept_until: float | None = None  # the slice stays until then
    collected: CollectResult | None = None
    ended_at: float = 0.0
    spans: Mapping[str, float] = field(default_factory=dict)  # seconds
    detached: bool = False  # the job goes on without this process
    losses: tuple[Loss, ...] = ()
    passed_on: bool = False  # the slice goes to the next run of this process
    unsaved: tuple[Problem, ...] = ()  # as of the progress
    took_s: float | None = None  # `collect` alone, after the end of the run, if `spans` are its own

    @property
    def started_at(self) -> float:
        """When the run began, also if another process began it."""
        return self.run.created_at

    @property
    def unproven(self) -> bool:
        """Whether a slice may still be billed though it should be gone."""
        return self.released is not None and not self.released.gone

    @property
    def exit_code(self) -> int:
        """The exit code of the command: that of the attempt, or 75."""
        return errors.exit_code(self.error, unproven=self.unproven)


@dataclass(slots=True)
class JobProgress:
    """A run that goes on. Its programs write here; whatever ends them, this says what is owed and what to report."""

    run: RunRecord
    attempt: Attempt  # the current one
    lease: Lease | None = None  # of the current attempt
    state: AttemptState = AttemptState.PENDING
    error: errors.TpujobError | None = None
    is_bug: bool = False  # the error is a bug of tpujob
    detached: bool = False
    passed_on: bool = False  # to the next run, with the obligation
    owed: Obligations = field(default_factory=Obligations)
    crew: Crew | None = None  # connected
    collected: CollectResult | None = None
    spans: dict[str, float] = field(default_factory=dict)  # seconds
    losses: list[Loss] = field(default_factory=list)
    taken_over_at: float | None = None  # the slice of another run; None: it has none, or one of its own
    used_s: float = 0.0  # of the job's time, by attempts whose slices were lost; less what `extend` added to it
    spent_usd: float = 0.0
    follows: float | None = None  # when the attempt before was lost, until it is said from where this one goes on
    saved_at: float | None = None  # when the last complete copy of the job's work was begun
    unsaved: tuple[Problem, ...] = ()  # what that copy has not, or not whole, of a slice that went
    _span: tuple[str, float] | None = None

    async def enter(self, span: str | None) -> None:
        """End the open span and begin this one; None begins none."""
        now = await Now()
        if self._span is not None:
            name, began = self._span
            self.spans[name] = self.spans.get(name, 0.0) + now - began
        self._span = None if span is None else (span, now)

    def fail(self, error: errors.TpujobError) -> None:
        """The attempt ended with this error."""
        self.error, self.state = error, state_after(error)

    def fail_with_bug(self, error: Exception) -> None:
        """The attempt ended with an exception that is no TpujobError."""
        self.error = errors.TpujobError(f"a bug in tpujob: {type(error).__name__}: {error}", hint="please report it")
        self.error.__cause__ = error
        self.state, self.is_bug = AttemptState.ERROR, True

    def outcome(self, ended_at: float) -> Outcome:
        both: dict[str, Any] = {name: getattr(self, name) for name in Outcome.__slots__ if hasattr(self, name)}
        both |= {"spans": dict(self.spans), "losses": tuple(self.losses)}
        return Outcome(**both, released=self.owed.released, kept_until=self.owed.kept_until, ended_at=ended_at)

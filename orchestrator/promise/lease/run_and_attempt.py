"""Runs and attempts: their values, events and transitions, and what was saved of one whose slice was lost. Pure.

A run is one execution of a job; an attempt is one try of it on one lease. An attempt ends when the outcome of the payload
is known. The run's state is that of its last attempt.

What was saved is measured by `hosts.fleet.saved_work`; `run.restart` reports it and records it in the ledger.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from orchestrator import errors
from orchestrator.errors import Canceled, Interrupted, PayloadFailed, TpujobError, exit_code
from orchestrator.promise.lease.lease import HeldFor, Lease, LeaseEvent, LeaseState, NotAllowed, ReleaseBegan
from orchestrator.promise.lease.run_spec import RunSpec
from orchestrator.text.units import format_duration, format_size

AT_LIMIT = "deadline"  # the reason of a SliceLost: the time of the job was over
LIMIT = "limits.max_duration"
LOCAL = "local"  # the cloud of a run that has none: `on: local`


class AttemptState(StrEnum):
    """The states of an attempt, in order; the last five are final."""

    PENDING = "pending"  # no slice yet
    SETUP = "setup"
    RUNNING = "running"
    COLLECTING = "collecting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the payload failed: see `rc`
    CANCELED = "canceled"  # by `tpujob cancel`, or by `tpujob down` of its slice
    INTERRUPTED = "interrupted"  # by a signal, by the loss of its slice, or because the process was killed
    ERROR = "error"  # tpujob or the cloud failed: see `detail`

    @property
    def ended(self) -> bool:
        """Whether the attempt is over, however it ended."""
        return self not in _UNDER_WAY


_UNDER_WAY = {AttemptState.PENDING, AttemptState.SETUP, AttemptState.RUNNING, AttemptState.COLLECTING}


@dataclass(frozen=True)
class RunRecord:
    """A run as the ledger stores it. Times are unix seconds of the ledger."""

    id: str
    name: str
    job_path: str  # of a job without a file: a name in the directory to which its paths are relative
    cloud: str
    created_at: float
    directory: str  # local directory of its logs and artifacts
    spec: RunSpec = field(default_factory=RunSpec)  # the resolved job, without environment values


def job_file(path: str) -> str | None:
    """Return this path as the ledger has it; None where it stands for a job without a file (`Job(NAME)`)."""
    return None if path.rpartition("/")[2].startswith("Job(") else path


@dataclass(frozen=True)
class Attempt:
    """An attempt as the ledger stores it. Times are unix seconds of the ledger."""

    id: str
    run_id: str
    lease_id: str | None = None
    state: AttemptState = AttemptState.PENDING
    rc: int | None = None
    detail: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None  # of the command that ended it; None: it has not ended
    error: str = ""  # the class of the error that ended it, one of `orchestrator.errors`; empty: no error
    hint: str = ""  # of that error


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """How a phase of a job ended on one worker. `exit_code`: None if its supervisor is gone.

    `stopped`: it ended because it was asked to.
    """

    worker: int
    exit_code: int | None
    stopped: bool = False

    @property
    def failed(self) -> bool:
        """Whether it ended with an error of its own."""
        return self.exit_code != 0 and not self.stopped


@dataclass(frozen=True)
class Began:
    """The attempt begins; the first attempt also begins its run."""

    run: RunRecord
    attempt: Attempt
    at: float | None = None  # None: the first attempt, which began with its run


@dataclass(frozen=True)
class AttemptChange:
    """Base of the events of an attempt that has begun. `at`: ledger time."""

    attempt_id: str
    at: float


@dataclass(frozen=True)
class Continued(AttemptChange):
    """The attempt follows one that lost its slice. `text` says from where it goes on, or that it begins anew, and why.

    `step`: of the saved checkpoint, None where unknown; `saved_s`: from the copy to the loss, None where nothing was copied.
    """

    text: str
    files: int
    size_bytes: int
    step: int | None
    saved_s: float | None


@dataclass(frozen=True)
class Tried(AttemptChange):
    """A candidate was requested and could not be had; its lease is proven gone."""

    lease_id: str
    where: str  # accelerator type, zone and provisioning, for display
    why: str


@dataclass(frozen=True)
class Leased(AttemptChange):
    """The attempt uses this lease from now on; it may have lost an earlier one to a stockout."""

    lease_id: str


@dataclass(frozen=True)
class Moved(AttemptChange):
    """The attempt entered this state."""

    state: AttemptState


@dataclass(frozen=True)
class _End(AttemptChange):
    """Base of the events that say how an attempt ended; the fields are those of `Attempt`."""

    state: AttemptState
    detail: str = ""
    exit_code: int | None = None
    error: str = ""
    hint: str = ""

    @classmethod
    def by(cls, attempt_id: str, at: float, state: AttemptState, error: TpujobError | None, **more: Any) -> Self:
        """Return the event of an end with this error, from which `recorded_error` makes it again; None: a success."""
        told: dict[str, Any] = {"exit_code": exit_code(error), **more}
        if error is not None:
            told |= {"detail": error.message, "error": type(error).__name__, "hint": error.hint or ""}
        return cls(attempt_id, at, state, **told)


@dataclass(frozen=True)
class AttemptEnded(_End):
    """The attempt ended. `rc`: the payload's code; `exit_code`: that of the command.

    `workers`: how a job that failed ended on each of them.
    """

    rc: int | None = None
    cause: str = ""  # of an attempt whose slice was lost: preempted, maintenance, host-failure, unreachable, hung
    workers: tuple[WorkerEnd, ...] = ()


class ResultsCollected(_End):
    """After its end, the attempt's results were collected from its slice; this replaces how it had ended."""


@dataclass(frozen=True)
class RunCanceled:
    """The user ended the run. The ledger stores what `events_of_cancel` makes of it, in one transaction."""

    run_id: str
    at: float
    by: str  # `promise.lease.lease.CANCEL`


AttemptEvent = Began | AttemptChange | RunCanceled


class RunEnded(NotAllowed):
    """The run was canceled: it begins no attempt and asks for no slice any more."""

    def __init__(self, attempt: Attempt, event: LeaseEvent | Began) -> None:
        Exception.__init__(self, f"run {attempt.run_id} was canceled: {type(event).__name__} does not apply")


class SweepEnded(NotAllowed):
    """The sweep was canceled: it begins no run any more."""

    def __init__(self, sweep: str) -> None:
        Exception.__init__(self, f"sweep {sweep} was canceled: it begins no run")


def check_not_canceled(last: Attempt | None, event: LeaseEvent | Began) -> None:
    """Raise RunEnded if `last`, the last attempt of the run of this event, was canceled."""
    if last is not None and last.state is AttemptState.CANCELED:
        raise RunEnded(last, event)


def events_of_cancel(event: RunCanceled, last: Attempt, leases: list[Lease]) -> list[LeaseEvent | AttemptChange]:
    """Return the events that end the run: of its last attempt, and of `leases`, its open ones. Empty if it has ended.

    While the slice of the job is being released, the attempt stays open: the job has its result, which its process records,
    or that process reads the reason before it begins another attempt.
    """
    if last.state.ended:
        return []
    events: list[LeaseEvent | AttemptChange] = [ReleaseBegan(lease.id, event.at, event.by) for lease in leases]
    if any(lease.id == last.lease_id and lease.state is LeaseState.DOWN for lease in leases):
        return events
    if last.lease_id is None and leases:
        events.append(Leased(last.id, event.at, leases[-1].id))
    return [*events, AttemptEnded.by(last.id, event.at, AttemptState.CANCELED, Canceled(event.by))]


def apply(attempt: Attempt, event: AttemptChange) -> Attempt:
    """Return the attempt after the event. An ended attempt changes only with `ResultsCollected`."""
    if isinstance(event, ResultsCollected):
        return _ended(attempt, event)
    if attempt.state.ended:
        return attempt
    match event:
        case Leased(lease_id=lease_id):
            return replace(attempt, lease_id=lease_id)
        case Moved(at=at, state=state):
            started = attempt.started_at or (at if state is AttemptState.RUNNING else None)
            return replace(attempt, state=state, started_at=started)
        case AttemptEnded(at=at, rc=rc):
            return _ended(replace(attempt, rc=rc, ended_at=at), event)
    return attempt  # Tried, Continued: only the event is stored


def _ended(attempt: Attempt, event: _End) -> Attempt:
    code, error, hint = event.exit_code, event.error, event.hint
    return replace(attempt, state=event.state, detail=event.detail, exit_code=code, error=error, hint=hint)


def recorded_error(attempt: Attempt) -> TpujobError | None:
    """Return the error that ended the attempt, of the class that its process had; None after a success, or before the end."""
    if not attempt.error:
        return None
    kind: type[TpujobError] = getattr(errors, attempt.error, TpujobError)
    error = kind.__new__(kind)  # the constructors take more than is recorded
    TpujobError.__init__(error, attempt.detail, hint=attempt.hint or None, exit_code=attempt.exit_code)
    if isinstance(error, PayloadFailed):
        error.rc = attempt.rc or error.exit_code
        error.workers = ()
    if isinstance(error, Interrupted):
        error.signum = error.exit_code - Interrupted.BASE
    return error


def end_text(state: str, detail: str) -> str:
    """Return how an attempt ended, such as `failed: the job failed on worker0 with code 7`."""
    return detail if detail.startswith(state) else ": ".join(filter(None, (state, detail)))


def what_ended_it(error: errors.TpujobError) -> errors.TpujobError:
    """Return how a job ended whose slice ended with this error: the limit, if the control plane of a cluster kept it."""
    if isinstance(error, errors.SliceLost) and error.reason == AT_LIMIT:
        return errors.DeadlineExceeded(f"the job reached {LIMIT}, and {error.message}", hint=f"raise {LIMIT}")
    return error


def state_after(error: errors.TpujobError) -> AttemptState:
    """Return the state of an attempt that ended with this error."""
    if isinstance(error, errors.PayloadFailed | errors.DeadlineExceeded | errors.ArtifactError):
        return AttemptState.FAILED
    if isinstance(error, errors.Canceled):
        return AttemptState.CANCELED
    interrupted = isinstance(error, errors.Interrupted | errors.Vanished | errors.SliceLost)
    return AttemptState.INTERRUPTED if interrupted else AttemptState.ERROR


def has_uncollected_results(attempt: Attempt, lease: Lease) -> bool:
    """Return whether the slice is held for results of the attempt that are not collected yet."""
    held = lease.state is LeaseState.READY and lease.held_for is HeldFor.RESULTS
    return attempt.state.ended and held and attempt.lease_id == lease.id and lease.run == attempt.run_id


@dataclass(frozen=True, slots=True)
class SavedState:
    """The saved work of all workers. `step`: of its checkpoint, `metrics_step`: of its last metrics; None where unknown.

    `has_checkpoint`: there is a file with the name that the built-in training uses.
    """

    files: int = 0
    size_bytes: int = 0
    has_checkpoint: bool = False
    step: int | None = None
    metrics_step: int | None = None

    def text(self, saved_s: float | None, *, built_in: bool) -> str:
        """Return what an attempt does with it: `goes on at step 80, saved 4 s before the loss`.

        `saved_s`: seconds from the copy to the loss. `built_in`: the built-in training, which needs a checkpoint to go on.
        """
        count, size = f"{self.files:,} file{'s' if self.files != 1 else ''}", format_size(self.size_bytes)
        if not self.files:
            return "begins at step 0: nothing was saved"
        if built_in and not self.has_checkpoint:
            return f"begins at step 0: no checkpoint was saved, only {count} ({size})"
        if self.step is not None:
            place = f"at step {self.step:,}"
        else:
            metrics = "" if self.metrics_step is None else f", metrics up to step {self.metrics_step:,}"
            place = f"from {count} ({size}{metrics})"
        saved = "" if saved_s is None else f", saved {format_duration(saved_s)} before the loss"
        return f"goes on {place}{saved}"

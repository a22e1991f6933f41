"""Runs and attempts: their values, and what was saved of one whose slice was lost. Pure.

A run is one execution of a job; an attempt is one try of it on one lease. An attempt ends when the outcome of the payload
is known. The run's state is that of its last attempt. What changes them is in `promise.lease.changes`.

What was saved is measured by `hosts.fleet.saved_work`; `run.restart` reports it and records it in the ledger.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator import errors
from orchestrator.errors import Interrupted, PayloadFailed, TpujobError
from orchestrator.promise.lease.lease import HeldFor, Lease, LeaseState
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

    @property
    def number(self) -> int:
        """Which attempt of its run it is, counted from 1."""
        return int(self.id.rpartition("-")[2])


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

    `has_checkpoint`: there is a file with the name that the built-in training uses. `url`: the bucket that has it; this machine
    may not be able to read that, and then knows nothing of what is there. `at`: when it was saved there.
    """

    files: int = 0
    size_bytes: int = 0
    has_checkpoint: bool = False
    step: int | None = None
    metrics_step: int | None = None
    url: str = ""
    at: float | None = None

    def is_of_use(self, *, built_in: bool) -> bool:
        """Return whether an attempt goes on from it: the built-in training needs a checkpoint."""
        return bool(self.files) and (self.has_checkpoint or not built_in)

    def text(self, saved_s: float | None, *, built_in: bool) -> str:
        """Return what an attempt does with it: `goes on at step 80, saved 4 s before the loss`.

        `saved_s`: seconds from the copy to the loss.
        """
        count, size = f"{self.files:,} file{'s' if self.files != 1 else ''}", format_size(self.size_bytes)
        if not self.files:
            if self.url and self.at is None:
                return f"goes on from what is in {self.url}, which this machine cannot read"
            return "begins at step 0: nothing was saved"
        if not self.is_of_use(built_in=built_in):
            return f"begins at step 0: no checkpoint was saved, only {count} ({size})"
        if self.step is not None:
            place = f"at step {self.step:,}"
        else:
            metrics = "" if self.metrics_step is None else f", metrics up to step {self.metrics_step:,}"
            place = f"from {count} ({size}{metrics})"
        saved = "" if saved_s is None else f", saved {format_duration(saved_s)} before the loss"
        return f"goes on {place}{saved}{f', in {self.url}' if self.url else ''}"

"""Runs and attempts: their values, events and transitions. Pure.

A run is one execution of a job; an attempt is one try of it on one lease. An attempt ends when the outcome of the payload
is known. The run's state is that of its last attempt.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from orchestrator.core.lease.lease import Down, Lease, LeaseEvent, LeaseState, NotAllowed
from orchestrator.errors import Cancelled

LOCAL = "local"  # the cloud of a run that has none: `on: local`


class AttemptState(StrEnum):
    """The states of an attempt, in order; the last five are final."""

    PENDING = "pending"  # no slice yet
    SETUP = "setup"
    RUNNING = "running"
    COLLECTING = "collecting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the payload failed: see `rc`
    CANCELLED = "cancelled"  # by `tpujob cancel`, or by `tpujob down` of its slice
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
    job_path: str
    cloud: str
    created_at: float
    directory: str  # local directory of its logs and artifacts
    spec: dict[str, Any] = field(default_factory=dict)  # the resolved job, without environment values


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
class AttemptEnded(AttemptChange):
    """The attempt ended. `rc`: the payload's code; `exit_code`: that of the command."""

    state: AttemptState
    rc: int | None = None
    detail: str = ""
    exit_code: int | None = None
    cause: str = ""  # of an attempt whose slice was lost: preempted, maintenance, host-failure, unreachable, hung


@dataclass(frozen=True)
class ResultsCollected(AttemptChange):
    """After its end, the attempt's results were collected from its slice; `state` replaces how it had ended."""

    state: AttemptState
    detail: str = ""
    exit_code: int | None = None


@dataclass(frozen=True)
class RunCancelled:
    """The user ended the run. The ledger stores what `events_of_cancel` makes of it, in one transaction."""

    run_id: str
    at: float
    by: str  # `core.lease.lease.CANCEL`


AttemptEvent = Began | AttemptChange | RunCancelled


class RunEnded(NotAllowed):
    """The run was cancelled: it begins no attempt and asks for no slice any more."""

    def __init__(self, attempt: Attempt, event: LeaseEvent | Began) -> None:
        Exception.__init__(self, f"run {attempt.run_id} was cancelled: {type(event).__name__} does not apply")


def check_not_cancelled(last: Attempt | None, event: LeaseEvent | Began) -> None:
    """Raise RunEnded if `last`, the last attempt of the run of this event, was cancelled."""
    if last is not None and last.state is AttemptState.CANCELLED:
        raise RunEnded(last, event)


def events_of_cancel(event: RunCancelled, last: Attempt, leases: list[Lease]) -> list[LeaseEvent | AttemptChange]:
    """Return the events that end the run: of its last attempt, and of `leases`, its open ones. Empty if it has ended.

    While the slice of the job is being released, the attempt stays open: the job has its result, which its process records,
    or that process reads the reason before it begins another attempt.
    """
    if last.state.ended:
        return []
    events: list[LeaseEvent | AttemptChange] = [Down(lease.id, event.at, event.by) for lease in leases]
    if any(lease.id == last.lease_id and lease.state is LeaseState.DOWN for lease in leases):
        return events
    if last.lease_id is None and leases:
        events.append(Leased(last.id, event.at, leases[-1].id))
    error = Cancelled(event.by)
    state = AttemptState.CANCELLED
    events.append(AttemptEnded(last.id, event.at, state, detail=error.message, exit_code=error.exit_code))
    return events


def apply(attempt: Attempt, event: AttemptChange) -> Attempt:
    """Return the attempt after the event. An ended attempt changes only with `ResultsCollected`."""
    if isinstance(event, ResultsCollected):
        return replace(attempt, state=event.state, detail=event.detail, exit_code=event.exit_code)
    if attempt.state.ended:
        return attempt
    match event:
        case Leased(lease_id=lease_id):
            return replace(attempt, lease_id=lease_id)
        case Moved(at=at, state=state):
            started = attempt.started_at or (at if state is AttemptState.RUNNING else None)
            return replace(attempt, state=state, started_at=started)
        case AttemptEnded(at=at, state=state, rc=rc, detail=detail, exit_code=exit_code):
            return replace(attempt, state=state, rc=rc, detail=detail, ended_at=at, exit_code=exit_code)
    return attempt  # Tried: only its event is stored


def end_text(state: str, detail: str) -> str:
    """Return how an attempt ended, such as `failed: the job failed on worker0 with code 7`."""
    return detail if detail.startswith(state) else ": ".join(filter(None, (state, detail)))


def has_uncollected_results(attempt: Attempt, lease: Lease) -> bool:
    """Return whether the slice is held only for results of the attempt that are not collected yet.

    A slice that is kept after a success is held for its user instead.
    """
    ended = attempt.state.ended and attempt.state is not AttemptState.SUCCEEDED
    held = lease.state is LeaseState.READY and lease.hold_until is not None
    return ended and held and attempt.lease_id == lease.id and lease.run == attempt.run_id

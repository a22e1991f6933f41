"""Runs and attempts. Pure: what a run is made of and how its state is derived.

A run is one execution of a job; an attempt is one try of it on one lease. An attempt ends when the payload's fate is
known. The run's state is its last attempt's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from orchestrator.core.lease.lease import Lease, LeaseState

LOCAL = "local"  # the cloud of a run that has none: `on: local`


class AttemptState(StrEnum):
    PENDING = "pending"  # no slice yet
    SETUP = "setup"
    RUNNING = "running"
    COLLECTING = "collecting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the payload's own failure: `rc` tells
    INTERRUPTED = "interrupted"  # by a signal, by `tpujob down`, or because the process was killed
    ERROR = "error"  # ours or the cloud's: `detail` tells

    @property
    def ended(self) -> bool:
        return self in _ENDED


_ENDED = {AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.INTERRUPTED, AttemptState.ERROR}


@dataclass(frozen=True)
class RunRecord:
    id: str
    name: str
    job_path: str
    cloud: str
    created_at: float
    directory: str  # local directory of its logs and artifacts
    spec: dict[str, Any] = field(default_factory=dict)  # the job as it was resolved; environment values left out


@dataclass(frozen=True)
class Attempt:
    id: str
    run_id: str
    lease_id: str | None = None
    state: AttemptState = AttemptState.PENDING
    rc: int | None = None
    detail: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None  # of the command that ended it; None: it was killed, or it has not ended


@dataclass(frozen=True)
class Began:
    run: RunRecord
    attempt: Attempt
    at: float | None = None  # of an attempt after the first; that one began with its run


@dataclass(frozen=True)
class Tried:
    """A candidate was asked for and could not be had; its lease is proven gone."""

    attempt_id: str
    at: float
    lease_id: str
    where: str  # accelerator type, zone and way of provisioning, in words
    why: str


@dataclass(frozen=True)
class Leased:
    """The attempt uses this lease from now on (a stockout may have cost it an earlier one)."""

    attempt_id: str
    at: float
    lease_id: str


@dataclass(frozen=True)
class Moved:
    attempt_id: str
    at: float
    state: AttemptState


@dataclass(frozen=True)
class AttemptEnded:
    attempt_id: str
    at: float
    state: AttemptState
    rc: int | None = None
    detail: str = ""
    exit_code: int | None = None
    cause: str = ""  # of an attempt whose slice was lost: preempted, maintenance, host-failure, unreachable, hung


@dataclass(frozen=True)
class ResultsCollected:
    """After its end: the results of the attempt, which had stayed on its slice, are at home. So this is how it ended."""

    attempt_id: str
    at: float
    state: AttemptState
    detail: str = ""
    exit_code: int | None = None


AttemptEvent = Began | Tried | Leased | Moved | AttemptEnded | ResultsCollected


def apply(attempt: Attempt, event: Tried | Leased | Moved | AttemptEnded | ResultsCollected) -> Attempt:
    """The attempt after the event. What has ended stays ended: of later events only `UpOutcome` says more of its end."""
    if isinstance(event, ResultsCollected):
        return replace(attempt, state=event.state, detail=event.detail, exit_code=event.exit_code)
    if attempt.state.ended:
        return attempt
    match event:
        case Tried():
            return attempt
        case Leased(lease_id=lease_id):
            return replace(attempt, lease_id=lease_id)
        case Moved(at=at, state=state):
            started = attempt.started_at or (at if state is AttemptState.RUNNING else None)
            return replace(attempt, state=state, started_at=started)
        case AttemptEnded(at=at, state=state, rc=rc, detail=detail, exit_code=exit_code):
            return replace(attempt, state=state, rc=rc, detail=detail, ended_at=at, exit_code=exit_code)


def results_wait(attempt: Attempt, lease: Lease) -> bool:
    """Is the slice held only because results of the attempt are still on it? (Kept after a success it is a person's.)"""
    ended = attempt.state.ended and attempt.state is not AttemptState.SUCCEEDED
    held = lease.state is LeaseState.READY and lease.hold_until is not None
    return ended and held and attempt.lease_id == lease.id and lease.run == attempt.run_id

"""The error with which an attempt ended, from what the ledger has of it: state, exit codes and detail. Pure."""

from __future__ import annotations

import re

from orchestrator.core.lease.lease import CANCEL, DOWN
from orchestrator.core.lease.run_and_attempt import Attempt, AttemptState
from orchestrator.errors import (
    ArtifactError,
    AuthError,
    Cancelled,
    CloudError,
    DeadlineExceeded,
    Interrupted,
    PayloadFailed,
    Preempted,
    RemoteError,
    SliceLost,
    TpujobError,
    UserError,
    Vanished,
    WatchdogNotArmed,
)

PAYLOAD_LOST = 63  # the code of a payload whose own code is not known
SIGNAL = 128  # the exit code of an interrupted command is this and the number of the signal
_STOPPED_BY = re.compile(r"the job reached (\S+) and was stopped")
_ON_WORKER = re.compile(r"\bon worker(\d+)\b")
# All of these end with exit code 71; the first that the detail contains decides, and SliceLost if none does.
_LOSSES: tuple[tuple[str, type[TpujobError]], ...] = (
    ("preempted", Preempted),
    ("was released by", Vanished),
    ("was deleted by", Vanished),
    ("though the job is running", Vanished),
)
_FAILURES = {kind.exit_code: kind for kind in (DeadlineExceeded, ArtifactError)}
_ERRORS = {kind.exit_code: kind for kind in (UserError, CloudError, RemoteError, WatchdogNotArmed, AuthError)}


def recorded_error(attempt: Attempt) -> TpujobError | None:
    """Return the error that ended the attempt, as its process raised it; None after a success, or before its end."""
    if not attempt.state.ended or attempt.state is AttemptState.SUCCEEDED:
        return None
    error = _error(attempt)
    error.message = attempt.detail or "how it ended is not recorded"
    error.args = (error.message,)
    if attempt.exit_code is not None:
        error.exit_code = attempt.exit_code
    return error


def _error(attempt: Attempt) -> TpujobError:
    code, detail = attempt.exit_code or 0, attempt.detail  # 0: not recorded
    match attempt.state:
        case AttemptState.CANCELLED:
            return Cancelled(DOWN if DOWN in detail else CANCEL)
        case AttemptState.FAILED if code in _FAILURES:
            stopped = _STOPPED_BY.search(detail)
            return _FAILURES[code](detail, hint=deadline_hint(stopped[1]) if stopped else None)
        case AttemptState.FAILED:
            on = _ON_WORKER.search(detail)
            hint = logs_hint(attempt.run_id, int(on[1]) if on else None)
            return PayloadFailed(detail, rc=attempt.rc or code or PAYLOAD_LOST, hint=hint)
        case AttemptState.INTERRUPTED if code > SIGNAL:
            return Interrupted(code - SIGNAL)
        case AttemptState.INTERRUPTED:
            return next((kind for words, kind in _LOSSES if words in detail), SliceLost)(detail)
    return _ERRORS.get(code, TpujobError)(detail)


def logs_hint(run: str, worker: int | None) -> str:
    """Return the hint for a job that failed: on this worker, or on this machine (None)."""
    if worker is None:
        return f"`tpujob logs {run}` prints what it wrote"
    return f"`tpujob logs {run} --worker {worker}` prints what worker{worker} wrote"


def deadline_hint(limit: str) -> str:
    """Return the hint for a job that was stopped at this limit, such as `limits.max_duration`."""
    return f"raise {limit}"

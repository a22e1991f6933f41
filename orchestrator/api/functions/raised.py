"""The error that a call of the Python API raises: of a run, of a function in it, or of a slice that is not proven absent."""

from dataclasses import replace

from orchestrator.api.functions.outcome import remote_error
from orchestrator.api.session.events import RunResult, SweepResult
from orchestrator.api.session.session import Session
from orchestrator.errors import PayloadFailed, TeardownUnproven, TpujobError

UNPROVEN_HINT = "every call of the client goes on with the proof first; `Client.status` shows what is left"


def successful(session: Session, result: RunResult) -> RunResult:
    """Return the result of a success; raise the error of any other run, with the result. TeardownUnproven outranks it."""
    error = result.error
    if isinstance(error, PayloadFailed):
        error = remote_error(result, error, session.reporter.secrets.hide) or error
        result = replace(result, error=error)
    _raise(error, _unproven(session) if session.unproven else None, result)
    return result


def swept(result: SweepResult) -> SweepResult:
    """Return the result of a sweep that was not stopped; raise what ended it early. TeardownUnproven outranks it."""
    unproven = None
    if result.exit_code == TeardownUnproven.exit_code:
        unproven = TeardownUnproven("a slice is not proven absent, and may still be billed", hint=UNPROVEN_HINT)
    _raise(result.error, unproven, result)
    return result


def check_released(session: Session) -> None:
    """Raise TeardownUnproven if a release of this session is not proven."""
    if session.unproven:
        raise _unproven(session)


def _raise(error: TpujobError | None, unproven: TeardownUnproven | None, result: RunResult | SweepResult) -> None:
    """Raise `unproven`, caused by the error, or the error; nothing if there is neither."""
    if unproven is not None:
        unproven.__cause__ = error
        error = unproven
    if error is not None:
        error.result = result
        raise error


def _unproven(session: Session) -> TeardownUnproven:
    nodes = ", ".join(released.lease.name.node for released in session.unproven.values())
    return TeardownUnproven(f"not proven absent, and may still be billed: {nodes}", hint=UNPROVEN_HINT)

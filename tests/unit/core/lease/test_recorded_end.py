"""The error of a run that another process followed: the one that this process would have raised."""

from __future__ import annotations

import signal

import pytest

from orchestrator.core.lease.lease import CANCEL, DOWN
from orchestrator.core.lease.recorded_end import deadline_hint, logs_hint, recorded_error
from orchestrator.core.lease.run_and_attempt import Attempt, AttemptState
from orchestrator.engine.jobs.progress import state_after
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
    Vanished,
    WatchdogNotArmed,
)

RUN = "0j0jgxf50f"


def recorded(error: TpujobError) -> Attempt:
    """The attempt as the ledger has it after this error."""
    rc = error.rc if isinstance(error, PayloadFailed) else None
    state = state_after(error)
    return Attempt(f"{RUN}-1", RUN, state=state, rc=rc, detail=error.message, exit_code=error.exit_code)


@pytest.mark.parametrize(
    "error",
    [
        PayloadFailed("the job failed on worker2 with code 3", rc=3, hint=logs_hint(RUN, 2)),
        PayloadFailed("the setup failed on worker0 with code 100", rc=100, hint=logs_hint(RUN, 0)),
        PayloadFailed("the job failed with code 3", rc=3, hint=logs_hint(RUN, None)),
        DeadlineExceeded("the job reached limits.max_cost and was stopped", hint=deadline_hint("limits.max_cost")),
        ArtifactError("a.bin differs from its hash"),
        Cancelled(CANCEL),
        Cancelled(DOWN),
        Interrupted(signal.SIGINT),
        Interrupted(signal.SIGTERM),
        Preempted("tpujob-x-y was preempted while the job was running (PREEMPTED)"),
        Vanished("tpujob-x-y was deleted by another client while the job was running"),
        Vanished("tpujob-x-y is STOPPED though the job is running"),
        SliceLost("a worker of tpujob-x-y does not answer since 600 s, though the API lists it"),
        CloudError("no capacity in any zone"),
        AuthError("no permission"),
        RemoteError("worker0 cannot be reached"),
        WatchdogNotArmed("its watchdog is not armed"),
        TpujobError("a bug in tpujob"),
    ],
    ids=lambda error: f"{type(error).__name__}: {error.message[:30]}",
)
def test_an_error_comes_back_from_the_ledger_as_it_was(error: TpujobError) -> None:
    again = recorded_error(recorded(error))
    assert again is not None and type(again) is type(error)
    assert (again.message, str(again), again.exit_code, again.hint) == (
        error.message,
        error.message,
        error.exit_code,
        error.hint,
    )
    if isinstance(error, PayloadFailed):
        assert isinstance(again, PayloadFailed) and again.rc == error.rc


def test_a_success_and_a_run_that_goes_on_have_no_error() -> None:
    for state in (AttemptState.SUCCEEDED, AttemptState.RUNNING, AttemptState.PENDING):
        assert recorded_error(Attempt(f"{RUN}-1", RUN, state=state, exit_code=0)) is None


def test_an_end_of_which_only_the_state_is_recorded_counts_as_a_loss() -> None:
    error = recorded_error(Attempt(f"{RUN}-1", RUN, state=AttemptState.INTERRUPTED))
    assert type(error) is SliceLost and error.exit_code == 71 and error.message == "how it ended is not recorded"

"""The error of a run that another process followed: the one that this process would have raised."""

import signal

import pytest

from orchestrator import errors
from orchestrator.core.lease.lease import CANCEL, DOWN
from orchestrator.core.lease.run_and_attempt import (
    Attempt,
    AttemptEnded,
    AttemptState,
    ResultsCollected,
    apply,
    recorded_error,
    state_after,
)

RUN = "0j0jgxf50f"


def recorded(error: errors.TpujobError) -> Attempt:
    """The attempt as the ledger has it after this error."""
    rc = error.rc if isinstance(error, errors.PayloadFailed) else None
    return apply(Attempt(f"{RUN}-1", RUN), AttemptEnded.by(f"{RUN}-1", 1.0, state_after(error), error, rc=rc))


@pytest.mark.parametrize("error", [
    errors.PayloadFailed("the job failed on worker2 with code 3", rc=3, hint="`tpujob logs` prints it"),
    errors.PayloadFailed("the setup failed on worker0 with code 100", rc=100, hint="look"),
    errors.PayloadFailed("the job failed with code 3", rc=3),
    errors.DeadlineExceeded("the job reached limits.max_cost and was stopped", hint="raise limits.max_cost"),
    errors.ArtifactError("a.bin differs from its hash"),
    errors.Canceled(CANCEL), errors.Canceled(DOWN), errors.Interrupted(signal.SIGINT),
    errors.Interrupted(signal.SIGTERM),
    errors.Preempted("tpujob-x-y was preempted while the job was running (PREEMPTED)"),
    errors.Vanished("tpujob-x-y was deleted by another client while the job was running"),
    errors.Vanished("tpujob-x-y is STOPPED though the job is running"),
    errors.SliceLost("a worker of tpujob-x-y does not answer since 600 s, though the API lists it"),
    errors.CapacityError("no capacity in any zone", hint="try another zone"),
    errors.QuotaError("TPUS_PER_PROJECT is used up"),
    errors.CloudUnavailable("503", retry_after_s=3.0),
    errors.Unreachable("worker0 cannot be reached"),
    errors.CommandFailed(["pack"], 2, "no space left"),
    errors.AuthError("no permission"),
    errors.RemoteError("worker0 cannot be reached"),
    errors.WatchdogNotArmed("its watchdog is not armed"),
    errors.TpujobError("a bug in tpujob"),
], ids=lambda error: f"{type(error).__name__}: {error.message[:30]}")  # fmt: skip
def test_an_error_comes_back_from_the_ledger_as_it_was(error: errors.TpujobError) -> None:
    again = recorded_error(recorded(error))
    assert again is not None and type(again) is type(error)
    assert (again.message, str(again), again.exit_code, again.hint) == (
        error.message, error.message, error.exit_code, error.hint,
    )  # fmt: skip
    for code in ("rc", "signum"):
        if not isinstance(error, errors.CommandFailed):  # its exit code is not recorded
            assert getattr(again, code, None) == getattr(error, code, None)


def test_a_success_and_a_run_that_goes_on_have_no_error() -> None:
    for state in (AttemptState.SUCCEEDED, AttemptState.RUNNING, AttemptState.PENDING):
        assert recorded_error(Attempt(f"{RUN}-1", RUN, state=state, exit_code=0)) is None


def test_the_results_that_are_collected_later_take_the_place_of_the_error() -> None:
    missing = recorded(errors.ArtifactError("a.bin did not come"))
    again = apply(missing, ResultsCollected.by(missing.id, 2.0, AttemptState.SUCCEEDED, None))
    assert recorded_error(again) is None and (again.state, again.exit_code) == (AttemptState.SUCCEEDED, 0)


def test_an_error_of_another_version_is_a_plain_one() -> None:
    error = recorded_error(Attempt(f"{RUN}-1", RUN, state=AttemptState.ERROR, detail="?", exit_code=76, error="Newer"))
    assert type(error) is errors.TpujobError and (error.message, error.exit_code) == ("?", 76)

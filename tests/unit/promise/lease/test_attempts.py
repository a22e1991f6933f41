"""Runs and attempts as values: what a cancel ends, which state follows from an error, and how an end reads."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.promise.lease.changes import (
    Leased,
    Moved,
    ReleaseBegan,
    RunCanceled,
    apply_to_attempt,
    events_of_cancel,
)
from orchestrator.promise.lease.lease import DOWN, HeldFor, LeaseState
from orchestrator.promise.lease.run_and_attempt import (
    AT_LIMIT,
    Attempt,
    AttemptState,
    SavedState,
    end_text,
    has_uncollected_results,
    job_file,
    state_after,
    what_ended_it,
)
from tests.fakes.leases import lease_and_request

FIRST, SECOND = (replace(lease_and_request(n).lease, state=LeaseState.READY) for n in range(2))
RUNNING = Attempt("r-1", "r", state=AttemptState.RUNNING, lease_id=FIRST.id)
UNDER_WAY = {"PENDING", "SETUP", "RUNNING", "COLLECTING"}


@pytest.mark.parametrize("state", list(AttemptState))
def test_which_states_are_final(state: AttemptState) -> None:
    assert state.ended is (state.name not in UNDER_WAY)


@pytest.mark.parametrize(("attempt", "leases", "ended"), [
    (RUNNING, (FIRST, SECOND), True), (RUNNING, (), True), (RUNNING, (FIRST,), True),
    (RUNNING, (replace(FIRST, state=LeaseState.DOWN), SECOND), False),  # its process records the result that it has
    (RUNNING, (FIRST, replace(SECOND, state=LeaseState.DOWN)), True),
])  # fmt: skip
def test_a_cancel_releases_every_slice_and_ends_the_attempt_but_during_its_teardown(
    attempt: Attempt, leases: tuple[Any, ...], ended: bool
) -> None:
    released = [ReleaseBegan(each.id, 9.0, DOWN) for each in leases]
    found = events_of_cancel(RunCanceled("r", 9.0, DOWN), attempt, [*leases])
    assert found[: len(leases)] == released and len(found) == len(leases) + ended
    if ended:
        last: Any = found[-1]
        assert (last.attempt_id, last.at, last.state, last.error) == ("r-1", 9.0, AttemptState.CANCELED, "Canceled")


def test_a_cancel_before_the_attempt_has_a_slice_names_the_one_that_it_waits_for() -> None:
    pending = replace(RUNNING, state=AttemptState.PENDING, lease_id=None)
    found = events_of_cancel(RunCanceled("r", 9.0, DOWN), pending, [FIRST, SECOND])
    assert found[2] == Leased("r-1", 9.0, SECOND.id) and len(found) == 4
    assert len(events_of_cancel(RunCanceled("r", 9.0, DOWN), pending, [])) == 1
    assert events_of_cancel(RunCanceled("r", 9.0, DOWN), replace(RUNNING, state=AttemptState.FAILED), [FIRST]) == []


def test_an_attempt_has_started_since_its_job_ran_first() -> None:
    setup = apply_to_attempt(replace(RUNNING, state=AttemptState.PENDING), Moved("r-1", 3.0, AttemptState.SETUP))
    first = apply_to_attempt(setup, Moved("r-1", 4.0, AttemptState.RUNNING))
    again = apply_to_attempt(
        apply_to_attempt(first, Moved("r-1", 5.0, AttemptState.COLLECTING)), Moved("r-1", 6.0, AttemptState.RUNNING)
    )
    assert [each.started_at for each in (setup, first, again)] == [None, 4.0, 4.0]


@pytest.mark.parametrize(("error", "state"), [
    (errors.PayloadFailed("x", rc=1), "FAILED"), (errors.DeadlineExceeded("x"), "FAILED"),
    (errors.ArtifactError("x"), "FAILED"),
    (errors.Canceled(DOWN), "CANCELED"), (errors.Interrupted(signal.SIGINT), "INTERRUPTED"),
    (errors.Vanished("x"), "INTERRUPTED"),
    (errors.SliceLost("x"), "INTERRUPTED"), (errors.CapacityError("x"), "ERROR"),
])  # fmt: skip
def test_the_state_after_an_error(error: errors.TpujobError, state: str) -> None:
    assert state_after(error) is AttemptState[state]


def test_the_limit_that_a_control_plane_kept_is_the_end_of_the_job() -> None:
    lost = errors.SliceLost("its pods were stopped", reason=AT_LIMIT)
    limit = what_ended_it(lost)
    assert type(limit) is errors.DeadlineExceeded and "its pods were stopped" in limit.message
    assert what_ended_it(errors.SliceLost("x", reason="preempted")).message == "x"


@pytest.mark.parametrize(("state", "detail", "text"), [
    ("failed", "the job failed", "failed: the job failed"),
    ("failed", "failed at once", "failed at once"), ("failed", "", "failed"),
])  # fmt: skip
def test_an_end_is_said_once(state: str, detail: str, text: str) -> None:
    assert end_text(state, detail) == text


@pytest.mark.parametrize(
    ("path", "file"), [("jobs/a.yaml", "jobs/a.yaml"), ("/x/Job(mnist)", None), ("Job(x)/a", "Job(x)/a")]
)
def test_a_job_without_a_file_has_none(path: str, file: str | None) -> None:
    assert job_file(path) == file


@pytest.mark.parametrize(("saved", "built_in", "text"), [
    (SavedState(), False, "begins at step 0: nothing was saved"),
    (SavedState(2, 2000), True, "begins at step 0: no checkpoint was saved, only 2 files (2 KB)"),
    (SavedState(1, 2000), False, "goes on from 1 file (2 KB), saved 4 s before the loss"),
    (SavedState(1, 2000, has_checkpoint=True), True, "goes on from 1 file (2 KB), saved 4 s before the loss"),
    (SavedState(1, 2000, metrics_step=1000), False,
     "goes on from 1 file (2 KB, metrics up to step 1,000), saved 4 s before the loss"),
    (SavedState(1, 2000, step=80), False, "goes on at step 80, saved 4 s before the loss"),
])  # fmt: skip
def test_from_where_an_attempt_goes_on(saved: SavedState, built_in: bool, text: str) -> None:
    assert saved.text(4.0, built_in=built_in) == text and "before the loss" not in saved.text(None, built_in=built_in)


@pytest.mark.parametrize("change", ["", "running", "another slice", "another run", "not held", "released"])
def test_results_wait_on_the_slice_that_is_held_for_them(change: str) -> None:
    lease = replace(FIRST, held_for=HeldFor.RESULTS, run="another" if change == "another run" else "r")
    lease = replace(lease, held_for=HeldFor.USER) if change == "not held" else lease
    lease = replace(lease, state=LeaseState.DOWN) if change == "released" else lease
    state = AttemptState.COLLECTING if change == "running" else AttemptState.FAILED
    attempt = replace(RUNNING, state=state, lease_id="another" if change == "another slice" else lease.id)
    assert has_uncollected_results(attempt, lease) is (change == "")

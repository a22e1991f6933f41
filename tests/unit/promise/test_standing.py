"""Whether a job may go on, as the API shows its slice; and what the server's clock says of this machine's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import Canceled, CloudError, CloudUnavailable, Preempted, SliceLost, Vanished
from orchestrator.promise.effects.base import SetServerTime
from orchestrator.promise.lease.changes import RunCanceled
from orchestrator.promise.lease.cloud_api import Listing, SliceState, SliceView
from orchestrator.promise.lease.lease import Lease, LeaseState
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState
from orchestrator.promise.server_time import ask_time, clock_skew
from orchestrator.promise.standing import SliceProblem, check_attempt, check_slice, record_cancel
from tests.fakes.leases import lease_and_request
from tests.simulation.model.bench import driven

LEASE = replace(lease_and_request().lease, state=LeaseState.READY)
STOOD = (1000.0, "this machine slept")
LOST = SliceLost("its disk failed")


def seen(state: SliceState, native: str = "", **fields: Any) -> SliceView:
    return SliceView(LEASE.name, state, native or state.name, "v5litepod-8", "r", {}, **fields)


def checked(lease: Lease, says: Any, stood: tuple[float, str] | None = None) -> tuple[Lease, SliceProblem | None]:
    """Return what `check_slice` does, 900 seconds after whose last heartbeat a claim is over."""
    answers = {"ReadLease": lease, "Get": says, "StoodStill": stood, "LapsesAfter": 900.0, "Now": lease.created_at}

    def answer(effect: Any) -> Any:
        reply = answers[type(effect).__name__]
        if isinstance(reply, CloudError):
            raise reply
        return reply

    return driven(check_slice(lease), answer)


@pytest.mark.parametrize(("says", "problem"), [
    (seen(SliceState.READY), None), (seen(SliceState.CREATING), None), (CloudUnavailable("503"), None),
    (seen(SliceState.UNKNOWN, "REPAIRING"), SliceProblem("REPAIRING", "host-failure")),
    (seen(SliceState.READY, health="UNHEALTHY_MAINTENANCE"), SliceProblem("under maintenance", "maintenance")),
    (seen(SliceState.READY, health="HEALTHY"), None),
])  # fmt: skip
def test_a_job_goes_on_while_its_slice_exists(says: Any, problem: SliceProblem | None) -> None:
    assert checked(LEASE, says) == (LEASE, problem)


@pytest.mark.parametrize(("says", "stood", "error", "words"), [
    (None, None, Vanished, "was deleted by another client"), (None, (899.0, "x"), Vanished, "by another client"),
    (None, STOOD, Vanished, "this machine slept; the claim ended at the last heartbeat"),
    *((seen(state), None, Vanished, f"is {state.name} though the job is running")
      for state in (SliceState.STOPPED, SliceState.STOPPING, SliceState.DELETING)),
    (seen(SliceState.DELETING), STOOD, Vanished, "the claim ended at the last heartbeat"),
    (seen(SliceState.TOMBSTONE, "PREEMPTED"), None, Preempted, "was preempted while the job was running (PREEMPTED)"),
    (seen(SliceState.UNKNOWN, "SUSPENDING"), None, Preempted, "was preempted"),
    (seen(SliceState.TOMBSTONE, error=LOST), None, SliceLost, "its disk failed"),
    (seen(SliceState.QUEUED, "WAITING_FOR_RESOURCES"), None, Preempted, "was sent back to its queue"),
])  # fmt: skip
def test_a_job_whose_slice_is_gone_ends_with_the_reason(
    says: Any, stood: tuple[float, str] | None, error: type[CloudError], words: str
) -> None:
    with pytest.raises(error) as raised:
        checked(LEASE, says, stood)
    assert type(raised.value) is error and words in raised.value.message


def test_a_slice_whose_time_may_have_ended_meanwhile_is_told_so() -> None:
    for lease in (replace(LEASE, hold_until=LEASE.deadline), replace(LEASE, detached_at=1.0)):
        with pytest.raises(Vanished, match="its time may have ended meanwhile"):
            checked(lease, None, STOOD)


@pytest.mark.parametrize("state", [LeaseState.DOWN, LeaseState.GONE, LeaseState.FORGOTTEN])
def test_a_slice_that_another_command_releases_is_not_asked_for(state: LeaseState) -> None:
    with pytest.raises(Vanished, match="was released by another tpujob command"):
        checked(replace(LEASE, state=state), seen(SliceState.READY))


def test_a_cancel_is_recorded_behind_a_guardian_and_ends_the_attempt_elsewhere() -> None:
    seen: list[Any] = []

    def answer(effect: Any) -> Any:
        seen.extend(getattr(effect, "events", [type(effect).__name__]))
        return 7.0

    driven(record_cancel("r"), answer)
    assert seen == ["StartGuardian", "Now", RunCanceled("r", 7.0, "tpujob cancel")]
    running = Attempt("a-1", "a")
    ended = replace(running, state=AttemptState.CANCELED, error="Canceled", detail="the user ended it")
    driven(check_attempt("a-1"), lambda effect: running)
    driven(check_attempt("a-1"), lambda effect: replace(ended, state=AttemptState.FAILED))
    with pytest.raises(Canceled, match="the user ended it"):
        driven(check_attempt("a-1"), lambda effect: ended)


# -- the server's clock --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("server_now", "asked_at", "skew_s", "warns"), [
    (None, 990.0, 0.0, False), (1000.0, 999.0, 0.0, False),
    (1004.0, 999.0, 0.0, False), (996.0, 999.0, 0.0, False),  # less than is worth it
    (1000.0, 100.0, 0.0, False),  # a reply that took long is no skew
    (1040.0, 999.0, 40.0, False), (1100.0, 999.0, 100.0, True), (1100.0, 100.0, 100.0, True),
    (960.0, 999.0, -39.0, False), (900.0, 999.0, -99.0, True),
])  # fmt: skip
def test_how_far_the_servers_clock_is_ahead(
    server_now: float | None, asked_at: float, skew_s: float, warns: bool
) -> None:
    told: list[str] = []

    def answer(effect: Any) -> Any:
        told.extend(filter(None, [getattr(effect, "text", None)]))
        return 1000.0

    listing: Listing[SliceView] = Listing((), (), server_now)
    assert driven(clock_skew(listing, asked_at=asked_at), answer) == skew_s and told == []
    assert driven(clock_skew(listing, asked_at=asked_at, warn=True), answer) == skew_s
    assert [("behind" in line, "ahead of" in line) for line in told] == [(skew_s > 0, skew_s < 0)] * warns


@pytest.mark.parametrize(("certain", "reply", "set_to"), [
    (True, 5000.0, None), (False, 5000.0, 5000.0), (False, None, None), (False, CloudUnavailable("503"), None),
])  # fmt: skip
def test_after_a_restart_the_cloud_is_asked_how_much_time_has_passed(
    certain: bool, reply: Any, set_to: float | None
) -> None:
    effects: list[Any] = []

    def answer(effect: Any) -> Any:
        effects.append(effect)
        match type(effect).__name__:
            case "IsTimeCertain":
                return certain
            case "ListSlices" if isinstance(reply, CloudError):
                raise reply
            case "ListSlices":
                return Listing((), (), reply)
            case _:
                return 1000.0

    driven(ask_time(LEASE), answer)
    assert len(effects) == 1 or not certain
    assert [each for each in effects if isinstance(each, SetServerTime)] == (
        [] if set_to is None else [SetServerTime(set_to, 1000.0)]
    )

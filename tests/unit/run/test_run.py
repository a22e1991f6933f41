"""What ends a run besides its own success, and that its slice ends with it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.core.lease.lease import Down, LeaseState, Purpose
from orchestrator.core.lease.run_and_attempt import AttemptState
from orchestrator.engine.effects.base import StoodStill
from orchestrator.errors import AuthError, Canceled, DeadlineExceeded, PayloadFailed, Unreachable, Vanished
from orchestrator.ledger.file import LedgerUnavailable
from orchestrator.run import finish
from tests.leases import ZONE, queued
from tests.simulation.model.bench import CAN, Bench, asking, held, job
from tests.simulation.model.cloud_client import CloudClient
from tests.simulation.model.fleet import SimCollection, SimFleet
from tests.simulation.model.process import Process


def while_running(act: Callable[[Bench], Any]) -> Callable[[Bench], None]:
    """Do something once, twenty seconds into the job."""
    done = []

    def between(world: Bench) -> None:
        if not done and world.ran_s() >= 20:
            done.append(True)
            act(world)

    return between


def test_a_job_that_fails_passes_its_code_and_stops_the_other_workers(
    world: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "hint", Mock(side_effect=ZeroDivisionError))  # which costs no result
    world.workers = 2
    outcome = world.ran(between=while_running(lambda world: world.fail(1, 7)))
    assert isinstance(outcome.error, PayloadFailed) and outcome.exit_code == 7
    assert world.names.count("StopPhase") == 1 and world.nodes == {}


def test_a_job_that_reaches_its_limit_is_stopped_and_its_slice_deleted(world: Bench) -> None:
    world.lasts_s = 1e6
    began = world.time
    outcome = world.ran(replace(job(world), max_duration_s=3600))
    assert isinstance(outcome.error, DeadlineExceeded) and outcome.exit_code == 124
    assert world.nodes == {} and world.time - began <= 3600


def test_the_wait_in_googles_queue_is_not_part_of_the_duration(world: Bench) -> None:
    """Also without `wait:`, where a request may stand in the queue for an hour."""
    world.full(ZONE, for_s=3000)
    assert (
        world.ran(replace(asking(job(world), *map(queued, job(world).stay.drafts)), max_duration_s=1800)).exit_code == 0
    )


def test_a_job_that_might_wait_for_capacity_has_its_whole_duration_on_a_slice_that_was_held_before(
    world: Bench,
) -> None:
    lease = held(world, 9)
    world.time += 7200
    assert world.ran(replace(asking(job(world, held=lease), wait_s=21600), max_duration_s=3600)).exit_code == 0


TOO_SHORT_S = CAN.timings.ttl_s - CAN.timings.heartbeat_s - 1


@pytest.mark.parametrize("stood", [None, (TOO_SHORT_S, "this machine slept"), (2220.0, "this machine slept")])
def test_a_slice_that_is_gone_ends_the_run_and_a_sleep_of_this_machine_is_named(
    world: Bench, monkeypatch: pytest.MonkeyPatch, stood: tuple[float, str] | None
) -> None:
    monkeypatch.setattr(StoodStill, "perform", lambda *_: stood)
    outcome = world.ran(between=while_running(lambda world: world.vanish()))
    lapsed = "is gone: this machine slept; the claim ended at the last heartbeat, and the watchdog deleted the slice"
    why = lapsed if stood is not None and stood[0] > TOO_SHORT_S else "was deleted by another client"
    assert isinstance(outcome.error, Vanished) and outcome.exit_code == 71 and why in outcome.error.message
    assert outcome.released is not None and outcome.released.gone


def test_a_down_in_another_terminal_ends_the_run(world: Bench) -> None:
    def say_down(world: Bench) -> None:
        (lease,) = world.ledger.open_leases()
        world.ledger.record(Down(lease.id, world.time, "tpujob down"))

    outcome = world.ran(between=while_running(say_down))
    assert isinstance(outcome.error, Canceled) and outcome.error.message == "canceled by `tpujob down`"
    assert (outcome.state, outcome.exit_code) == (AttemptState.CANCELED, 71) and world.nodes == {}


def test_a_held_slice_is_used_and_stays(world: Bench) -> None:
    lease = held(world, 9)
    outcome = world.ran(job(world, held=lease))
    assert outcome.exit_code == 0 and outcome.kept_until is not None
    assert set(world.nodes) == {"tpujob-owner0-0000000009"}
    assert world.ledger.open_leases()[0].state is LeaseState.READY


def test_an_interrupted_job_on_a_held_slice_is_stopped_there(world: Bench) -> None:
    outcome = world.ran(job(world, held=held(world, 9)), signalled_at="WaitForWorkers")
    assert outcome.exit_code == 130 and world.names.count("StopPhase") == 1
    assert len(world.nodes) == 1


def test_a_kept_slice_is_held_until_then(world: Bench) -> None:
    outcome = world.ran(replace(job(world), keep_s=1800))
    assert outcome.exit_code == 0 and outcome.kept_until == pytest.approx(world.time + 1800, abs=5)
    assert len(world.nodes) == 1
    (lease,) = world.ledger.open_leases()
    assert lease.purpose is Purpose.HOLD


def test_a_bug_of_ours_releases_the_slice_too(world: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(SimFleet, "facts", broken)
    outcome = world.ran()
    assert outcome.exit_code == 70 and outcome.error is not None and "a bug in tpujob" in outcome.error.message
    assert world.nodes == {}


def test_a_down_between_intent_and_create_is_no_bug_of_ours(world: Bench) -> None:
    def say_down(world: Bench) -> None:
        if world.names[-1] == "StartGuardian":
            (lease,) = world.ledger.open_leases()
            world.ledger.record(Down(lease.id, world.time, "tpujob down"))

    outcome = world.ran(between=say_down)
    assert isinstance(outcome.error, Vanished) and world.nodes == {}


def test_a_held_slice_that_was_released_meanwhile_is_not_said_to_be_kept(world: Bench) -> None:
    lease = held(world, 9)

    def say_down(world: Bench) -> None:
        world.ledger.record(Down(lease.id, world.time, "tpujob down"))

    outcome = world.ran(job(world, held=lease), between=while_running(say_down))
    assert outcome.exit_code == 71 and outcome.kept_until is None
    assert world.names.count("StopPhase") == 0, "nothing is left to stop"


def test_a_failing_ledger_at_the_end_changes_neither_result_nor_code(
    world: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = world.ledger.record

    def broken(*events: object) -> None:
        if type(events[0]).__name__ == "Ended":
            raise LedgerUnavailable("disk full")
        record(*events)  # type: ignore[arg-type]

    monkeypatch.setattr(world.ledger, "record", broken)
    outcome = world.ran()
    assert outcome.exit_code == 0 and outcome.state is AttemptState.SUCCEEDED


def test_an_interrupted_run_says_where_its_time_went(world: Bench) -> None:
    outcome = world.ran(job(world), signalled_at="WaitForWorkers")
    assert outcome.spans["wait"] >= 60 and "main" in outcome.spans
    assert sum(outcome.spans.values()) == pytest.approx(outcome.ended_at - outcome.started_at, abs=1)


def test_a_worker_that_cannot_be_told_to_stop_does_not_hide_the_jobs_own_code(
    world: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise Unreachable("worker1: the connection was cut")

    monkeypatch.setattr(SimFleet, "stop", unreachable)
    world.workers = 2
    outcome = world.ran(between=while_running(lambda world: world.fail(1, 7)))
    assert outcome.exit_code == 7 and world.nodes == {}
    assert any("may still be running" in line for line in world.told)


def test_a_second_look_that_fails_hides_no_worker_that_is_not_reached(
    world: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expired(*_: object) -> None:
        raise AuthError("the credentials have expired")

    def connecting(world: Bench) -> None:
        if world.names[-1] == "Connect":
            monkeypatch.setattr(CloudClient, "get", expired)

    world.cut_off("laptop-vm")
    assert isinstance(world.ran(between=connecting).error, Unreachable)


def test_results_that_do_not_come_hide_no_failure_of_the_job_and_are_named(
    world: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: SimCollection, process: Process, token: int, deadline: float) -> None:
        process.answered(token, None, AuthError("the credentials have expired"))

    monkeypatch.setattr(SimCollection, "advance", broken)
    world.rc = 7
    assert world.ran().exit_code == 7 and world.nodes == {}
    assert "warning the results were not collected: the credentials have expired" in world.told


def test_the_end_of_a_long_job_is_announced_twice_and_that_of_a_short_one_never(world: Bench) -> None:
    world.lasts_s = 1e6
    world.ran(replace(job(world), max_duration_s=3 * 3600))
    assert sum(line.startswith("limit ") for line in world.told) == 2
    other = Bench()
    other.lasts_s = 1e6
    other.ran(replace(job(other), max_duration_s=900))
    assert not any(line.startswith("limit ") for line in other.told)

"""What ends a run besides its own success, and that its slice ends with it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.core.lease.cloud_api import QueueTerms
from orchestrator.core.lease.lease import CANCEL, Down, Lease, LeaseState, Purpose
from orchestrator.core.lease.run_and_attempt import AttemptState
from orchestrator.engine.effects.base import StoodStill
from orchestrator.engine.provision.drafts import Draft
from orchestrator.engine.slices.up_and_down import UpRequest, down, up
from orchestrator.errors import (
    AuthError,
    Canceled,
    DeadlineExceeded,
    PayloadFailed,
    TeardownUnproven,
    Unreachable,
    Vanished,
)
from orchestrator.ledger.file import LedgerUnavailable
from orchestrator.run import log_hints
from orchestrator.run.job_run import JobRun
from orchestrator.run.program import run_job
from orchestrator.run.progress import Outcome
from tests.unit.engine.virtual import CAN, ZONE, VirtualWorld, asking, job, lease_and_request


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    return VirtualWorld(tmp_path)


def run(
    world: VirtualWorld, prepared: JobRun | None = None, between: Callable[[VirtualWorld], None] | None = None
) -> Outcome:
    return world.drive(run_job(prepared or job(world), CAN), between=between)


def held_slice(world: VirtualWorld) -> Lease:
    drafts = (lease_and_request(9, now=world.time, purpose=Purpose.HOLD),)
    held = world.drive(up(UpRequest("alice", drafts, None, 36000), CAN)).lease
    assert held is not None
    return held


def while_running(act: Callable[[VirtualWorld], Any]) -> Callable[[VirtualWorld], None]:
    """Do something once, twenty seconds into the job."""
    done = []

    def between(world: VirtualWorld) -> None:
        if not done and world.fleet.ends_at and world.time >= world.fleet.ends_at - 80:
            done.append(True)
            act(world)

    return between


def test_a_job_that_fails_passes_its_code_and_stops_the_other_workers(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_hints, "hint", Mock(side_effect=ZeroDivisionError))  # which costs no result
    world.fleet.rc = 7
    outcome = run(world)
    assert isinstance(outcome.error, PayloadFailed) and outcome.exit_code == 7
    assert world.fleet.stopped == 1 and world.cloud.nodes == {}


def test_a_job_that_reaches_its_limit_is_stopped_and_its_slice_deleted(world: VirtualWorld) -> None:
    world.fleet.phase_s = 1e6
    began = world.time
    outcome = run(world, replace(job(world), max_duration_s=3600))
    assert isinstance(outcome.error, DeadlineExceeded) and outcome.exit_code == 124
    assert world.cloud.nodes == {} and world.time - began <= 3600


def test_the_wait_in_googles_queue_is_not_part_of_the_duration(world: VirtualWorld) -> None:
    """Also without `wait:`, where a request may stand in the queue for an hour."""
    prepared = job(world)
    ((lease, request),) = prepared.stay.drafts
    name = replace(lease.name, queued=True)
    queued = Draft(replace(lease, name=name), replace(request, name=name, queue=QueueTerms(3600.0, "id")))
    world.cloud.queue_s[ZONE] = 3000.0
    assert run(world, replace(asking(prepared, queued), max_duration_s=1800)).exit_code == 0


def test_a_job_that_might_wait_for_capacity_has_its_whole_duration_on_a_slice_that_was_held_before(
    world: VirtualWorld,
) -> None:
    held = held_slice(world)
    world.time += 7200
    assert run(world, replace(asking(job(world, held=held), wait_s=21600), max_duration_s=3600)).exit_code == 0


TOO_SHORT_S = CAN.timings.ttl_s - CAN.timings.heartbeat_s - 1


@pytest.mark.parametrize("stood", [None, (TOO_SHORT_S, "this machine slept"), (2220.0, "this machine slept")])
def test_a_slice_that_is_gone_ends_the_run_and_a_sleep_of_this_machine_is_named(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch, stood: tuple[float, str] | None
) -> None:
    monkeypatch.setattr(StoodStill, "perform", lambda *_: stood)
    outcome = run(world, between=while_running(lambda world: world.cloud.nodes.clear()))
    lapsed = "is gone: this machine slept; the claim ended at the last heartbeat, and the watchdog deleted the slice"
    why = lapsed if stood is not None and stood[0] > TOO_SHORT_S else "was deleted by another client"
    assert isinstance(outcome.error, Vanished) and outcome.exit_code == 71 and why in outcome.error.message
    assert outcome.released is not None and outcome.released.gone


def test_a_down_in_another_terminal_ends_the_run(world: VirtualWorld) -> None:
    def say_down(world: VirtualWorld) -> None:
        (lease,) = world.ledger.open_leases()
        world.ledger.record(Down(lease.id, world.time, "tpujob down"))

    outcome = run(world, between=while_running(say_down))
    assert isinstance(outcome.error, Canceled) and outcome.error.message == "canceled by `tpujob down`"
    assert (outcome.state, outcome.exit_code) == (AttemptState.CANCELED, 71) and world.cloud.nodes == {}


def test_a_run_that_is_canceled_while_it_releases_its_slice_keeps_its_result(world: VirtualWorld) -> None:
    def cancel(world: VirtualWorld) -> None:
        for lease in world.ledger.open_leases():
            if lease.reason == "the run ended":
                world.drive(down((lease,), CAN, reason=CANCEL))

    outcome = run(world, between=cancel)
    ((_, attempt),) = world.ledger.runs()
    assert (outcome.state, attempt.state, outcome.exit_code) == (AttemptState.SUCCEEDED, AttemptState.SUCCEEDED, 0)
    (lease,) = world.ledger.leases()
    assert lease.reason == CANCEL and world.cloud.nodes == {}


def test_after_a_stockout_the_next_zone_is_asked_only_when_the_first_is_proven_empty(world: VirtualWorld) -> None:
    world.cloud.full_zones = {ZONE}
    world.cloud.unreachable = (ZONE,)
    outcome = run(world, job(world, zones=(ZONE, "us-central1-b")))
    assert isinstance(outcome.error, TeardownUnproven) and outcome.exit_code == 75
    assert [node for call, node in world.cloud.calls if call == "create"] == ["tpujob-owner0-0000000000"]


def test_a_held_slice_is_used_and_stays(world: VirtualWorld) -> None:
    held = held_slice(world)
    outcome = run(world, job(world, held=held))
    assert outcome.exit_code == 0 and outcome.kept_until is not None
    assert set(world.cloud.nodes) == {"tpujob-owner0-0000000009"}
    assert world.ledger.open_leases()[0].state is LeaseState.READY


def test_an_interrupted_job_on_a_held_slice_is_stopped_there(world: VirtualWorld) -> None:
    held = held_slice(world)
    world.effects.clear()
    prepared = job(world, held=held)
    at = world_effect(world, prepared, "WaitForWorkers")
    world.effects.clear()
    again = replace(
        prepared,
        run=replace(prepared.run, id="1111111111"),
        attempt=replace(prepared.attempt, id="1-1", run_id="1111111111"),
    )
    stopped = world.fleet.stopped
    outcome = world.drive(run_job(again, CAN), interrupt_at=at)
    assert outcome.exit_code == 130 and world.fleet.stopped == stopped + 1
    assert len(world.cloud.nodes) == 1


def world_effect(world: VirtualWorld, prepared: JobRun, name: str) -> int:
    """At which effect of this run the first one of that name comes."""
    world.drive(run_job(prepared, CAN))
    return world.effects.index(name)


def test_a_kept_slice_is_held_until_then(world: VirtualWorld) -> None:
    outcome = run(world, replace(job(world), keep_s=1800))
    assert outcome.exit_code == 0 and outcome.kept_until == pytest.approx(world.time + 1800, abs=5)
    assert len(world.cloud.nodes) == 1
    (lease,) = world.ledger.open_leases()
    assert lease.purpose is Purpose.HOLD


def test_a_bug_of_ours_releases_the_slice_too(world: VirtualWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(shipment: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(world.fleet, "facts", broken)
    outcome = run(world)
    assert outcome.exit_code == 70 and outcome.error is not None and "a bug in tpujob" in outcome.error.message
    assert world.cloud.nodes == {}


def test_a_down_between_intent_and_create_is_no_bug_of_ours(world: VirtualWorld) -> None:
    def say_down(world: VirtualWorld) -> None:
        if world.effects[-1] == "StartGuardian":
            (lease,) = world.ledger.open_leases()
            world.ledger.record(Down(lease.id, world.time, "tpujob down"))

    outcome = run(world, between=say_down)
    assert isinstance(outcome.error, Vanished) and world.cloud.nodes == {}


def test_a_held_slice_that_was_released_meanwhile_is_not_said_to_be_kept(world: VirtualWorld) -> None:
    held = held_slice(world)

    def say_down(world: VirtualWorld) -> None:
        world.ledger.record(Down(held.id, world.time, "tpujob down"))

    outcome = run(world, job(world, held=held), between=while_running(say_down))
    assert outcome.exit_code == 71 and outcome.kept_until is None
    assert world.fleet.stopped == 0, "nothing is left to stop"


def test_a_failing_ledger_at_the_end_changes_neither_result_nor_code(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = world.ledger.record

    def broken(*events: object) -> None:
        if type(events[0]).__name__ == "Ended":
            raise LedgerUnavailable("disk full")
        record(*events)  # type: ignore[arg-type]

    monkeypatch.setattr(world.ledger, "record", broken)
    outcome = run(world)
    assert outcome.exit_code == 0 and outcome.state is AttemptState.SUCCEEDED


def test_an_interrupted_run_says_where_its_time_went(world: VirtualWorld) -> None:
    outcome = world.drive(run_job(job(world), CAN), interrupt_at=world_effect_of(world, "WaitForWorkers"))
    assert outcome.spans["wait"] >= 60 and "main" in outcome.spans
    assert sum(outcome.spans.values()) == pytest.approx(outcome.ended_at - outcome.started_at, abs=1)


def world_effect_of(world: VirtualWorld, name: str) -> int:
    (world.ledger.path.parent / "other").mkdir()
    other = VirtualWorld(world.ledger.path.parent / "other")
    other.drive(run_job(job(other), CAN))
    return other.effects.index(name) + 3


def test_a_worker_that_cannot_be_told_to_stop_does_not_hide_the_jobs_own_code(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(grace_s: float) -> None:
        raise Unreachable("worker1: the connection was cut")

    monkeypatch.setattr(world.fleet, "stop", unreachable)
    world.fleet.rc = 7
    outcome = run(world)
    assert outcome.exit_code == 7 and world.cloud.nodes == {}
    assert any("may still be running" in line for line in world.told)


def test_a_second_look_that_fails_hides_no_worker_that_is_not_reached(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any) -> Any:
        world.cloud.get_error = AuthError("the credentials have expired")
        raise Unreachable("worker1 could not be reached")

    monkeypatch.setattr(world, "connect", unreachable)
    assert isinstance(run(world).error, Unreachable)


def test_results_that_do_not_come_hide_no_failure_of_the_job_and_are_named(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise AuthError("the credentials have expired")

    monkeypatch.setattr("tests.unit.engine.virtual.VirtualCollection.wait", broken)
    world.fleet.rc = 7
    assert run(world).exit_code == 7 and world.cloud.nodes == {}
    assert "warning the results were not collected: the credentials have expired" in world.told


def test_the_end_of_a_long_job_is_announced_twice_and_that_of_a_short_one_never(world: VirtualWorld) -> None:
    world.fleet.phase_s = 1e6
    run(world, replace(job(world), max_duration_s=3 * 3600))
    assert sum(line.startswith("limit ") for line in world.told) == 2
    (world.ledger.path.parent / "other").mkdir()
    other = VirtualWorld(world.ledger.path.parent / "other")
    other.fleet.phase_s = 1e6
    run(other, replace(job(other), max_duration_s=900))
    assert not any(line.startswith("limit ") for line in other.told)

"""The slice of a failed job that is held, and the next run of the job, which takes it over."""

import math
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.lease.lease import Down, HeldFor, Lease, LeaseState, release_reason
from orchestrator.core.lease.run_and_attempt import has_uncollected_results
from orchestrator.errors import PayloadFailed
from orchestrator.report import costs
from orchestrator.run.job_run import JobRun
from tests.simulation.model.bench import CAN, Bench, asking, job

HOLD_S = 1800.0
NODE = "tpujob-owner0-0000000000"


def first(world: Bench) -> JobRun:
    return replace(job(world), keep_on_failure_s=HOLD_S)


def again(world: Bench, held: Lease, number: int = 1, **changes: Any) -> JobRun:
    """The next run of the same job, with candidates of its own."""
    made = job(world, zones=("us-west4-a",), held=held)
    run = replace(made.run, id=str(number) * 10, created_at=world.time)
    lease, request = made.stay.drafts[0]
    name = replace(lease.name, node=f"tpujob-owner0-{number * 11:010}")
    draft = made.stay.drafts[0]._replace(
        lease=replace(lease, id=f"{number * 11:010}", name=name, run=run.id), request=replace(request, name=name)
    )
    attempt = replace(made.attempt, id=f"{run.id}-1", run_id=run.id)
    return replace(asking(made, draft), run=run, attempt=attempt, **changes)


def failed(world: Bench) -> Lease:
    """The slice that the first run left."""
    world.rc = 7
    outcome = world.ran(first(world))
    assert isinstance(outcome.error, PayloadFailed) and outcome.exit_code == 7
    (lease,) = world.ledger.open_leases()
    world.rc = 0
    return lease


@pytest.fixture
def lease(world: Bench) -> Lease:
    return failed(world)


def test_the_slice_of_a_failed_job_is_held_for_that_time(world: Bench, lease: Lease) -> None:
    assert (lease.state, lease.held_for) == (LeaseState.READY, HeldFor.FAILURE)
    assert lease.hold_until == pytest.approx(world.time + HOLD_S, abs=5) and set(world.nodes) == {NODE}
    assert lease.id not in world.locked
    ((_, attempt),) = world.ledger.runs()
    assert not has_uncollected_results(attempt, lease)
    assert release_reason(lease, now=world.time + HOLD_S + 5, owner_alive=False), "then it ends without this process"


@pytest.mark.parametrize(("keep_s", "rc", "signal", "code"), [
    (HOLD_S, 0, "", 0), (None, 7, "", 7), (HOLD_S, 7, "WaitForWorkers", 130),
], ids=["it succeeds", "without the key", "it is interrupted"])  # fmt: skip
def test_a_job_that_ends_otherwise_leaves_nothing(
    world: Bench, keep_s: float | None, rc: int, signal: str, code: int
) -> None:
    world.rc = rc
    prepared = replace(job(world), keep_on_failure_s=keep_s)
    assert world.ran(prepared, signalled_at=signal).exit_code == code and world.nodes == {}


def test_a_slice_that_is_lost_with_its_job_is_not_held(world: Bench) -> None:
    world.lasts_s = 1000

    def preempt(world: Bench) -> None:
        if world.ran_s() >= 500:
            world.preempt()

    outcome = world.ran(first(world), preempt)
    assert outcome.exit_code == 71 and world.nodes == {} and outcome.kept_until is None


def test_with_results_that_are_not_collected_the_longer_reason_counts_and_collect_finds_them(
    world: Bench,
) -> None:
    world.no_room_until = math.inf
    lease = failed(world)
    ((_, attempt),) = world.ledger.runs()
    assert has_uncollected_results(attempt, lease) and CAN.timings.linger_s > HOLD_S
    assert lease.hold_until == pytest.approx(world.time + CAN.timings.linger_s, abs=5)


def test_the_next_run_takes_the_slice_over_and_releases_it(world: Bench, lease: Lease) -> None:
    world.time += 600
    outcome = world.ran(again(world, lease))
    assert outcome.exit_code == 0 and outcome.lease is not None and outcome.lease.id == lease.id
    assert outcome.released is not None and outcome.released.gone
    assert world.nodes == {} and world.ledger.open_leases() == []
    assert [node for call, node in world.calls if call == "Create"] == [NODE]


@pytest.mark.ci
def test_a_long_job_on_it_is_not_cut_off_by_the_end_of_the_hold(world: Bench, lease: Lease) -> None:
    world.time += 600
    world.lasts_s = 4 * HOLD_S
    ahead: list[float] = []

    def look(world: Bench) -> None:
        for each in world.ledger.open_leases():
            if each.state is LeaseState.READY:
                ahead.append(each.ends_at - world.time)

    assert world.ran(again(world, lease), look).exit_code == 0
    assert world.nodes == {} and min(ahead) > 0
    assert max(ahead[len(ahead) // 2 :]) <= CAN.timings.ttl_s + 1, "a killed process leaves it for no longer"


def test_when_the_next_run_fails_too_the_slice_is_held_anew_for_the_one_after(world: Bench, lease: Lease) -> None:
    world.time += 1200
    world.rc = 3
    assert world.ran(again(world, lease, keep_on_failure_s=HOLD_S)).exit_code == 3
    (held,) = world.ledger.open_leases()
    assert (held.id, held.held_for) == (lease.id, HeldFor.FAILURE)
    assert held.hold_until == pytest.approx(world.time + HOLD_S, abs=5)
    world.rc = 0
    assert world.ran(again(world, held, 2)).exit_code == 0 and world.nodes == {}


def test_a_next_run_that_does_not_ask_for_it_releases_the_slice_when_it_fails(world: Bench, lease: Lease) -> None:
    world.rc = 3
    assert world.ran(again(world, lease)).exit_code == 3 and world.nodes == {}


def test_a_slice_that_is_released_before_it_is_taken_over_is_replaced(world: Bench, lease: Lease) -> None:

    def down(world: Bench) -> None:
        if world.names[-1] == "Get" and world.ledger.lease(lease.id).state is LeaseState.READY:
            world.ledger.record(Down(lease.id, world.time, "tpujob down"))

    outcome = world.ran(again(world, lease), down)
    assert outcome.exit_code == 0 and outcome.lease is not None and outcome.lease.id != lease.id


def test_the_cost_of_a_run_does_not_count_the_hold_nor_the_runs_after_it(world: Bench, lease: Lease) -> None:
    (first_run, attempt) = world.ledger.runs()[0]
    alone = costs.of_run(world.ledger, first_run, world.time)
    world.time += 900
    began = world.time
    second = again(world, lease)
    world.ran(second)
    assert lease.usd_per_hour is not None and attempt.ended_at is not None
    assert costs.of_run(world.ledger, first_run, world.time) == pytest.approx(alone)
    expected = lease.usd_per_hour * (world.time - began) / 3600
    assert costs.of_run(world.ledger, second.run, world.time) == pytest.approx(expected, rel=0.05)

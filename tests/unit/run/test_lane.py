"""A slice that goes from run to run: claimed all the time, also after a job failed, released when no run follows."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import PayloadFailed, TeardownUnproven, Unreachable
from orchestrator.hosts.fleet.effects import StartPhase
from orchestrator.promise.lease.changes import HandedToNextRun, HeldUntil, NotAllowed, ReleaseBegan, apply
from orchestrator.promise.lease.lease import HeldFor, Lease, LeaseState, Mode, release_reason
from orchestrator.promise.lease.run_and_attempt import AttemptState, has_uncollected_results
from orchestrator.promise.obligations import Obligations
from orchestrator.promise.recover import recover
from orchestrator.report.rows import costs
from orchestrator.run.job_run import JobRun, Lane, release_lane
from orchestrator.run.program import run_job
from tests.fakes.leases import ZONE, lease_and_request, queued
from tests.simulation.model.bench import CAN, Bench, asking, job
from tests.simulation.model.faults import cloud_fault
from tests.simulation.model.fleet import SimFleet

OTHER_ZONE = "us-west4-a"


def lane_of(runs: int) -> Lane:
    """A lane with so many runs: each but the last leaves its slice to the next one."""
    ended = iter(range(1, 1000))
    return Lane(lambda: next(ended) < runs)


@pytest.fixture
def lane() -> Lane:
    return lane_of(2)


@pytest.fixture
def passed(world: Bench, lane: Lane) -> Lane:
    """A lane of two runs, the first of which has left its slice to the second."""
    world.ran(nth_job(world, lane, 1))
    return lane


def nth_job(world: Bench, lane: Lane, number: int, zone: str = ZONE, life_s: float = 24 * 3600) -> JobRun:
    """The n-th run of the lane, with candidates of its own."""
    made = job(world, zones=(zone,))
    run = replace(made.run, id=f"{number:010d}", name=f"sweep-{number}")
    draft = lease_and_request(number, zone=zone, now=world.time)
    lease = replace(draft.lease, run=run.id, handle=run.name, deadline=world.time + life_s)
    attempt = replace(made.attempt, id=f"{run.id}-1", run_id=run.id)
    return replace(asking(made, draft._replace(lease=lease)), run=run, attempt=attempt, lane=lane)


def creates(world: Bench) -> int:
    return sum(call == "Create" for call, _ in world.calls)


def test_all_runs_of_a_lane_have_one_slice_which_the_last_one_releases(world: Bench) -> None:
    lane = lane_of(3)
    outcomes = [world.ran(nth_job(world, lane, number)) for number in (1, 2, 3)]
    assert [outcome.state for outcome in outcomes] == [AttemptState.SUCCEEDED] * 3
    assert [outcome.passed_on for outcome in outcomes] == [True, True, False]
    assert creates(world) == 1 and world.nodes == {}
    assert outcomes[2].released is not None and outcomes[2].released.gone
    assert lane.lease is None and world.names.count("Connect") == 1


def test_each_run_has_the_workers_delete_the_files_of_the_one_before_whose_results_are_collected(
    world: Bench,
) -> None:
    lane = lane_of(3)
    for number in (1, 2, 3):
        world.ran(nth_job(world, lane, number))
    assert [each.request.delete for each in world.effects if isinstance(each, StartPhase)] == [
        None,
        "0000000001-1",
        "0000000002-1",
    ]


def test_between_two_runs_the_process_claims_the_slice_with_its_lock_and_its_heartbeats(
    world: Bench, lane: Lane
) -> None:

    async def look_after_it() -> None:
        await run_job(nth_job(world, lane, 1), CAN)
        assert lane.lease is not None and lane.lease.mode is Mode.RUN, "not held: the watchdog expects heartbeats"
        assert not world.fleets[-1].disconnected and "SendHeartbeats" in world.names
        assert world.drive(recover("emulated", CAN, budget_s=60)) == [], "another command leaves it alone"

    world.drive(look_after_it())


def test_each_run_has_the_slice_for_as_long_as_if_it_had_created_it(world: Bench) -> None:
    lane, ends = lane_of(3), []

    def note(world: Bench) -> None:
        (lease,) = world.ledger.open_leases()
        labels = next(iter(world.nodes.values())).spec["labels"]
        ends.append((lease.run, lease.handle, lease.deadline - world.time, labels.get("tpujob-name")))

    for number, life_s in ((1, 7200.0), (2, 3600.0), (3, 86400.0)):
        world.ran(
            nth_job(world, lane, number, life_s=life_s),
            lambda world: world.job and note(world),
        )
    first = {run: (handle, round(left_s, -3), name) for run, handle, left_s, name in reversed(ends)}
    assert first["0000000002"] == ("sweep-2", 4000.0, "sweep-2")
    assert first["0000000003"] == ("sweep-3", 86000.0, "sweep-3")


@pytest.mark.parametrize("rc", [7, 63])
def test_a_run_that_fails_leaves_the_slice_to_the_next_one(rc: int, world: Bench, lane: Lane) -> None:
    world.rc = rc
    failed = world.ran(nth_job(world, lane, 1))
    assert isinstance(failed.error, PayloadFailed) and failed.passed_on
    world.rc = 0
    assert world.ran(nth_job(world, lane, 2)).state is AttemptState.SUCCEEDED
    assert creates(world) == 1 and world.nodes == {}


def keep(world: Bench) -> None:
    """It is there; the next job asks for another zone."""


def refuse_labels(world: Bench) -> None:
    world.plan.patch_effects = [cloud_fault("operation_fails", "nodes.patch")] * 1000


@pytest.mark.parametrize(("spoil", "zone"), [
    (Bench.preempt, ZONE), (Bench.vanish, ZONE), (refuse_labels, ZONE), (keep, OTHER_ZONE),
])  # fmt: skip
def test_a_slice_that_the_next_run_cannot_use_is_proven_gone_before_another_one_is_created(
    world: Bench, passed: Lane, spoil: Callable[[Bench], None], zone: str
) -> None:
    spoil(world)
    before = len(world.calls)
    assert world.ran(nth_job(world, passed, 2, zone=zone)).state is AttemptState.SUCCEEDED
    kinds = [kind for kind, _ in world.calls[before:] if kind in ("Create", "Delete")]
    assert kinds[:2] == ["Delete", "Create"] or spoil is Bench.vanish
    assert creates(world) == 2 and world.nodes == {}
    assert [lease.state for lease in world.ledger.leases()] == [LeaseState.GONE] * 2


def test_without_the_proof_no_other_slice_is_created(world: Bench, passed: Lane) -> None:
    world.settings.unreachable = [ZONE]
    outcome = world.ran(nth_job(world, passed, 2, zone=OTHER_ZONE))
    assert isinstance(outcome.error, TeardownUnproven) and outcome.exit_code == 75 and creates(world) == 1


def test_a_worker_that_does_not_answer_ends_the_slice(
    world: Bench, monkeypatch: pytest.MonkeyPatch, lane: Lane
) -> None:

    def unreachable(*_: object) -> None:
        raise Unreachable("worker0 is silent")

    monkeypatch.setattr(SimFleet, "facts", unreachable)
    outcome = world.ran(nth_job(world, lane, 1))
    assert not outcome.passed_on and lane.lease is None and world.nodes == {}


def test_results_that_cannot_be_collected_keep_the_slice_for_themselves(world: Bench, lane: Lane) -> None:
    world.no_room_until = math.inf
    outcome = world.ran(nth_job(world, lane, 1))
    assert not outcome.passed_on and lane.lease is None and outcome.kept_until is not None


def test_a_slice_at_its_end_is_not_passed_on(world: Bench, lane: Lane) -> None:
    world.lasts_s, world.collect_s = 100.0, 80.0
    outcome = world.ran(nth_job(world, lane, 1, life_s=250.0))
    assert outcome.state is AttemptState.SUCCEEDED and not outcome.passed_on and world.nodes == {}


def test_the_slice_that_no_run_takes_over_is_released(world: Bench, passed: Lane) -> None:
    owed = world.drive(release_lane(passed, CAN))
    assert owed.released is not None and owed.released.gone and world.nodes == {} and "Disconnect" in world.names
    assert world.drive(release_lane(passed, CAN)) == Obligations(), "there is none any more"


def test_a_loser_of_its_race_that_no_delete_removes_yet_delays_no_run_of_the_lane(world: Bench, lane: Lane) -> None:
    world.full(OTHER_ZONE, for_s=600)
    prepared = nth_job(world, lane, 1)
    winner, loser = (queued(prepared.stay.drafts[0]), queued(lease_and_request(9, zone=OTHER_ZONE, now=world.time)))
    world.plan.stuck = {loser.lease.name.node}
    world.ran(asking(prepared, winner, loser, wait_s=3600.0, race=True))
    assert [each.id for each in lane.losers] == [loser.lease.id]
    ended_at = world.time

    following = nth_job(world, lane, 2)
    queued_one = asking(following, queued(following.stay.drafts[0]))
    outcome = world.ran(queued_one, between=freed_once_it_runs)
    assert outcome.error is None and world.nodes == {} and lane.losers == []
    assert outcome.released is not None and outcome.released.lease.id == winner.lease.id
    assert world.time - ended_at < 2 * world.lasts_s


def freed_once_it_runs(world: Bench) -> None:
    """Let deletes take effect as soon as the second run has started its job."""
    if world.last == "StartPhase":
        world.plan.stuck.clear()


def test_only_a_slice_that_its_process_claims_is_passed_on() -> None:
    ready = replace(lease_and_request().lease, state=LeaseState.READY)
    passed = HandedToNextRun(ready.id, 1.0, "run", "name", 99.0)
    assert apply(ready, passed).deadline == 99.0
    with pytest.raises(NotAllowed):
        apply(apply(ready, HeldUntil(ready.id, 1.0, 500.0)), passed)
    with pytest.raises(NotAllowed):
        apply(replace(ready, state=LeaseState.DOWN), passed)


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


def test_results_that_the_next_run_leaves_are_of_that_run(world: Bench, lease: Lease) -> None:
    world.no_room_until = math.inf
    second = again(world, lease)
    world.ran(second)
    (held,) = world.ledger.open_leases()
    assert (held.id, held.held_for, held.run) == (lease.id, HeldFor.RESULTS, second.run.id)
    waiting = [run.id for run, attempt in world.ledger.runs() if has_uncollected_results(attempt, held)]
    assert waiting == [second.run.id]


def test_a_next_run_that_does_not_ask_for_it_releases_the_slice_when_it_fails(world: Bench, lease: Lease) -> None:
    world.rc = 3
    assert world.ran(again(world, lease)).exit_code == 3 and world.nodes == {}


def test_a_slice_that_is_released_before_it_is_taken_over_is_replaced(world: Bench, lease: Lease) -> None:

    def down(world: Bench) -> None:
        if world.names[-1] == "Get" and world.ledger.lease(lease.id).state is LeaseState.READY:
            world.ledger.record(ReleaseBegan(lease.id, world.time, "tpujob down"))

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

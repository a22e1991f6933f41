"""A slice that goes from run to run: created once, claimed by its process all the time, released when no run follows."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.core.lease.lease import CANCEL, Down, Held, LeaseState, Mode, NotAllowed, Passed, apply
from orchestrator.core.lease.run_and_attempt import AttemptState
from orchestrator.engine.leases.obligations import Obligations
from orchestrator.engine.leases.recover import recover
from orchestrator.errors import Canceled, CloudUnavailable, PayloadFailed, TeardownUnproven, Unreachable
from orchestrator.remote.transfer.collect import Problem
from orchestrator.run.job_run import JobRun
from orchestrator.run.lane import Lane, release_lane
from orchestrator.run.program import run_job
from orchestrator.run.progress import Outcome
from tests.unit.engine.provision.test_candidate_search import queued
from tests.unit.engine.virtual import CAN, ZONE, VirtualWorld, asking, job, lease_and_request

OTHER_ZONE = "us-central1-b"


def lane_of(runs: int) -> Lane:
    """A lane with so many runs: each but the last leaves its slice to the next one."""
    ended = iter(range(1, 1000))
    return Lane(lambda: next(ended) < runs)


def nth_job(world: VirtualWorld, lane: Lane, number: int, zone: str = ZONE, life_s: float = 24 * 3600) -> JobRun:
    """The n-th run of the lane, with candidates of its own."""
    made = job(world, zones=(zone,))
    run = replace(made.run, id=f"{number:010d}", name=f"sweep-{number}")
    draft = lease_and_request(number, zone=zone, now=world.time)
    lease = replace(draft.lease, run=run.id, handle=run.name, deadline=world.time + life_s)
    attempt = replace(made.attempt, id=f"{run.id}-1", run_id=run.id)
    return replace(asking(made, draft._replace(lease=lease)), run=run, attempt=attempt, lane=lane)


def drive(world: VirtualWorld, prepared: JobRun, between: Callable[[VirtualWorld], None] | None = None) -> Outcome:
    return world.drive(run_job(prepared, CAN), between=between)


def creates(world: VirtualWorld) -> int:
    return sum(call == "create" for call, _ in world.cloud.calls)


def test_all_runs_of_a_lane_have_one_slice_which_the_last_one_releases(world: VirtualWorld) -> None:
    lane = lane_of(3)
    outcomes = [drive(world, nth_job(world, lane, number)) for number in (1, 2, 3)]
    assert [outcome.state for outcome in outcomes] == [AttemptState.SUCCEEDED] * 3
    assert [outcome.passed_on for outcome in outcomes] == [True, True, False]
    assert creates(world) == 1 and world.cloud.nodes == {}
    assert outcomes[2].released is not None and outcomes[2].released.gone
    assert lane.lease is None and world.effects.count("Connect") == 1


def test_each_run_has_the_workers_delete_the_files_of_the_one_before_whose_results_are_collected(
    world: VirtualWorld,
) -> None:
    lane = lane_of(3)
    for number in (1, 2, 3):
        drive(world, nth_job(world, lane, number))
    assert [request.delete for request in world.fleet.requests] == [None, "0000000001-1", "0000000002-1"]


def test_between_two_runs_the_process_claims_the_slice_with_its_lock_and_its_heartbeats(world: VirtualWorld) -> None:
    lane = lane_of(2)
    drive(world, nth_job(world, lane, 1))
    assert lane.lease is not None and lane.lease.mode is Mode.RUN, "not held: the watchdog expects heartbeats"
    assert world.locks.is_locked(lane.lease.id) and world.fleet.beating and not world.fleet.canceled
    assert world.drive(recover("emulated", CAN, budget_s=60)) == [], "another command leaves it alone"


def test_each_run_has_the_slice_for_as_long_as_if_it_had_created_it(world: VirtualWorld) -> None:
    lane, ends = lane_of(3), []

    def note(world: VirtualWorld) -> None:
        (lease,) = world.ledger.open_leases()
        labels = next(iter(world.cloud.nodes.values())).request.labels
        ends.append((lease.run, lease.handle, lease.deadline - world.time, labels.get("tpujob-name")))

    for number, life_s in ((1, 7200.0), (2, 3600.0), (3, 86400.0)):
        drive(
            world,
            nth_job(world, lane, number, life_s=life_s),
            lambda world: world.fleet.ends_at > world.time and note(world),
        )
    first = {run: (handle, round(left_s, -3), name) for run, handle, left_s, name in reversed(ends)}
    assert first["0000000002"] == ("sweep-2", 4000.0, "sweep-2")
    assert first["0000000003"] == ("sweep-3", 86000.0, "sweep-3")


@pytest.mark.parametrize("rc", [7, 63])
def test_a_run_that_fails_leaves_the_slice_to_the_next_one(rc: int, world: VirtualWorld) -> None:
    lane = lane_of(2)
    world.fleet.rc = rc
    failed = drive(world, nth_job(world, lane, 1))
    assert isinstance(failed.error, PayloadFailed) and failed.passed_on and world.fleet.stopped == 1
    world.fleet.rc = 0
    assert drive(world, nth_job(world, lane, 2)).state is AttemptState.SUCCEEDED
    assert creates(world) == 1 and world.cloud.nodes == {}


def test_a_slice_that_was_preempted_in_between_is_proven_gone_before_another_one_is_created(
    world: VirtualWorld,
) -> None:
    lane = lane_of(2)
    drive(world, nth_job(world, lane, 1))
    next(iter(world.cloud.nodes.values())).preempted = True
    outcome = drive(world, nth_job(world, lane, 2))
    assert outcome.state is AttemptState.SUCCEEDED
    assert creates(world) == 2 and world.cloud.nodes == {}
    assert [lease.state for lease in world.ledger.leases()] == [LeaseState.GONE] * 2


def test_a_slice_that_was_deleted_from_outside_is_replaced(world: VirtualWorld) -> None:
    lane = lane_of(2)
    drive(world, nth_job(world, lane, 1))
    world.cloud.nodes.clear()
    assert drive(world, nth_job(world, lane, 2)).state is AttemptState.SUCCEEDED and creates(world) == 2


def test_a_slice_that_does_not_fit_the_next_job_is_proven_gone_first(world: VirtualWorld) -> None:
    lane = lane_of(2)
    drive(world, nth_job(world, lane, 1))
    calls = len(world.cloud.calls)
    assert drive(world, nth_job(world, lane, 2, zone=OTHER_ZONE)).state is AttemptState.SUCCEEDED
    kinds = [call for call, _ in world.cloud.calls[calls:] if call in ("create", "delete")]
    assert kinds[:2] == ["delete", "create"] and world.cloud.nodes == {}


def test_without_the_proof_no_other_slice_is_created(world: VirtualWorld) -> None:
    lane = lane_of(2)
    drive(world, nth_job(world, lane, 1))
    world.cloud.unreachable = (ZONE,)
    outcome = drive(world, nth_job(world, lane, 2, zone=OTHER_ZONE))
    assert isinstance(outcome.error, TeardownUnproven) and outcome.exit_code == 75 and creates(world) == 1


def test_a_worker_that_does_not_answer_ends_the_slice(world: VirtualWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = lane_of(2)

    def unreachable(worker: int) -> None:
        raise Unreachable("worker0 is silent")

    monkeypatch.setattr(world.fleet, "facts", unreachable)
    outcome = drive(world, nth_job(world, lane, 1))
    assert not outcome.passed_on and lane.lease is None and world.cloud.nodes == {}


def test_a_run_that_is_canceled_takes_its_slice_with_it(world: VirtualWorld) -> None:
    lane = lane_of(2)
    done: list[bool] = []

    def cancel(world: VirtualWorld) -> None:
        if not done and world.fleet.ends_at > world.time:
            done.append(True)
            (lease,) = world.ledger.open_leases()
            world.ledger.record(Down(lease.id, world.time, CANCEL))

    outcome = drive(world, nth_job(world, lane, 1), cancel)
    assert isinstance(outcome.error, Canceled) and not outcome.passed_on
    assert world.cloud.nodes == {} and lane.lease is None


def test_results_that_cannot_be_collected_keep_the_slice_for_themselves(world: VirtualWorld) -> None:
    lane = lane_of(2)
    world.fleet.stays = (Problem(0, "big.bin", "there is no room"),)
    outcome = drive(world, nth_job(world, lane, 1))
    assert not outcome.passed_on and lane.lease is None and outcome.kept_until is not None


def test_a_slice_at_its_end_is_not_passed_on(world: VirtualWorld) -> None:
    lane = lane_of(2)
    world.fleet.phase_s, world.fleet.collect_s = 100.0, 80.0
    outcome = drive(world, nth_job(world, lane, 1, life_s=250.0))
    assert outcome.state is AttemptState.SUCCEEDED and not outcome.passed_on and world.cloud.nodes == {}


def test_the_slice_that_no_run_takes_over_is_released(world: VirtualWorld) -> None:
    lane = lane_of(2)
    drive(world, nth_job(world, lane, 1))
    owed = world.drive(release_lane(lane, CAN))
    assert owed.released is not None and owed.released.gone and world.cloud.nodes == {} and world.fleet.canceled
    assert world.drive(release_lane(lane, CAN)) == Obligations(), "there is none any more"


def test_a_loser_of_its_race_that_no_delete_removes_yet_delays_no_run_of_the_lane(world: VirtualWorld) -> None:
    lane = lane_of(2)
    world.cloud.queue_s = {ZONE: 10.0, OTHER_ZONE: 600.0}
    prepared = nth_job(world, lane, 1)
    winner, loser = (queued(prepared.stay.drafts[0]), queued(lease_and_request(9, zone=OTHER_ZONE, now=world.time)))
    world.cloud.stuck = {loser.lease.name.node}
    drive(world, asking(prepared, winner, loser, wait_s=3600.0, race=True))
    assert [each.id for each in lane.losers] == [loser.lease.id]
    ended_at = world.time

    following = nth_job(world, lane, 2)
    queued_one = asking(following, queued(following.stay.drafts[0]))
    outcome = drive(world, queued_one, between=freed_once_it_runs(world.cloud.stuck))
    assert outcome.error is None and world.cloud.nodes == {} and lane.losers == []
    assert outcome.released is not None and outcome.released.lease.id == winner.lease.id
    assert world.time - ended_at < 2 * world.fleet.phase_s


def freed_once_it_runs(stuck: set[str]) -> Callable[[VirtualWorld], None]:
    """Let deletes take effect as soon as the second run has started its job."""

    def free(world: VirtualWorld) -> None:
        if len(world.fleet.requests) > 1:
            stuck.clear()

    return free


def test_only_a_slice_that_its_process_claims_is_passed_on() -> None:
    ready = replace(lease_and_request().lease, state=LeaseState.READY)
    passed = Passed(ready.id, 1.0, "run", "name", 99.0)
    assert apply(ready, passed).deadline == 99.0
    with pytest.raises(NotAllowed):
        apply(apply(ready, Held(ready.id, 1.0, 500.0)), passed)
    with pytest.raises(NotAllowed):
        apply(replace(ready, state=LeaseState.DOWN), passed)


def test_labels_that_cannot_be_written_end_the_slice(world: VirtualWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = lane_of(2)
    drive(world, nth_job(world, lane, 1))

    def refuse(*_: object) -> None:
        raise CloudUnavailable("503")

    with monkeypatch.context() as context:
        context.setattr(world.cloud, "set_labels", refuse)
        outcome = drive(world, nth_job(world, lane, 2))
    assert outcome.state is AttemptState.SUCCEEDED and creates(world) == 2 and world.cloud.nodes == {}

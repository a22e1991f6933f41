"""A detached job on a cluster: nothing here keeps it alive, and `attach` tells how it ended, whenever it comes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.lease.lease import LeaseState
from orchestrator.core.lease.run_and_attempt import AttemptState
from orchestrator.engine.guardian.loop import due
from orchestrator.engine.leases.recover import close_attempts, recover
from orchestrator.remote.transfer.collect import Problem
from orchestrator.run.program import run_job
from orchestrator.run.progress import Outcome
from tests.unit.engine.virtual import VirtualWorld, attempt_of
from tests.unit.places.gke.virtual_cluster import (
    CAN,
    KUEUE,
    MAX_S,
    WAIT_S,
    PodEnd,
    VirtualCluster,
    at_deadline,
    attachment,
    cluster_world,
    job,
    pods,
    taken_away,
)

Made = tuple[VirtualWorld, VirtualCluster]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return submitted(tmp_path)


def submitted(directory: Path) -> Made:
    world, cluster = cluster_world(directory)
    outcome = world.drive(run_job(job(world, detach=True), CAN))
    assert outcome.detached and outcome.exit_code == 0
    return world, cluster


def attach(world: VirtualWorld, **how: Any) -> Outcome:
    return world.drive(run_job(attachment(world), CAN), **how)


def next_command(world: VirtualWorld) -> None:
    world.locks.held.clear()
    world.drive(close_attempts())
    world.drive(recover("gke", CAN, budget_s=7200, look=True))
    world.drive(close_attempts())


def nothing_is_left(world: VirtualWorld, cluster: VirtualCluster) -> bool:
    return not cluster.jobsets and not world.ledger.open_leases()


def test_a_submitted_job_is_left_alone_by_every_later_command_until_its_deadline(made: Made) -> None:
    world, cluster = made
    assert not world.locks.held
    for _ in range(5):
        next_command(world)
        world.time += 600.0
    (lease,) = world.ledger.open_leases()
    assert lease.runs_detached and cluster.jobsets and not attempt_of(world).state.ended
    world.time = lease.deadline + 1
    next_command(world)
    assert nothing_is_left(world, cluster)


@pytest.mark.parametrize("later_s", [0.0, 60.0, 3000.0])
def test_attaching_ends_like_a_run_that_was_followed_from_its_start(made: Made, later_s: float) -> None:
    world, cluster = made
    world.time += later_s
    outcome = attach(world)
    assert (outcome.exit_code, outcome.detached) == (0, False)
    assert attempt_of(world).state is AttemptState.SUCCEEDED and nothing_is_left(world, cluster)


def test_attaching_a_second_time_ends_the_same_way(made: Made) -> None:
    world, cluster = made
    outcome = attach(world, interrupt_at=_steps_to("WaitForWorkers"))
    assert outcome.detached and outcome.exit_code == 130
    assert world.ledger.lease(attempt_of(world).lease_id).state is LeaseState.READY
    assert attach(world).exit_code == 0 and nothing_is_left(world, cluster)


def test_the_code_of_a_failed_job_is_returned(made: Made) -> None:
    world, cluster = made
    pods(world).ends = [PodEnd(50.0, 7), PodEnd(51.0, None, "stopped")]
    world.time += 600.0
    assert attach(world).exit_code == 7 and nothing_is_left(world, cluster)


@pytest.mark.parametrize("by_pods", [True, False], ids=["by its pods", "by the control plane"])
@pytest.mark.parametrize("seen", [False, True], ids=["never seen running", "seen running"])
def test_a_job_that_was_ended_at_its_limit_ends_with_124(made: Made, seen: bool, by_pods: bool) -> None:
    world, cluster = made
    pods(world).ends = [PodEnd(MAX_S, 124, "deadline")] * 2
    if seen:
        assert attach(world, interrupt_at=_steps_to("WaitForWorkers")).detached
    if not by_pods:
        cluster.ended_by, cluster.pods_gone = at_deadline(MAX_S), 2
    world.time += MAX_S + 60
    outcome = attach(world)
    assert outcome.exit_code == 124 and nothing_is_left(world, cluster)


@pytest.mark.parametrize("seen", [False, True], ids=["never seen running", "seen running"])
def test_a_pod_that_was_taken_away_ends_with_71(made: Made, seen: bool) -> None:
    world, cluster = made
    if seen:
        assert attach(world, interrupt_at=_steps_to("WaitForWorkers")).detached
    cluster.ended_by = taken_away(500.0)
    world.time += 600.0
    outcome = attach(world)
    assert outcome.exit_code == 71 and "Evicted" in str(outcome.error) and nothing_is_left(world, cluster)


def test_an_image_that_does_not_exist_ends_with_64_and_leaves_nothing(made: Made) -> None:
    world, cluster = made
    cluster.no_image = True
    world.time += 60.0
    outcome = attach(world)
    assert (outcome.exit_code, outcome.detached) == (64, False) and nothing_is_left(world, cluster)


def test_a_job_that_was_not_admitted_in_time_ends_with_69_and_cannot_start_later(made: Made) -> None:
    world, cluster = made
    cluster.queue_s = 1e9
    world.time += WAIT_S + 60
    outcome = attach(world)
    assert outcome.exit_code == 69 and KUEUE in str(outcome.error) and nothing_is_left(world, cluster)


def test_a_job_that_is_not_admitted_in_time_is_deleted_by_the_guardian_and_ends_with_69(made: Made) -> None:
    world, cluster = made
    cluster.queue_s = 1e9
    begun = world.time
    due_in_s = world.drive(due())
    assert due_in_s == pytest.approx(WAIT_S, abs=1.0)
    world.time += due_in_s
    assert world.drive(due()) == 0.0
    world.drive(recover("gke", CAN, budget_s=7200))
    assert nothing_is_left(world, cluster) and world.time < begun + WAIT_S + 60.0
    assert attempt_of(world).exit_code == 69


def test_a_job_that_is_admitted_in_time_is_left_alone_at_the_end_of_the_wait_and_billed_from_its_start(
    made: Made,
) -> None:
    world, cluster = made
    (jobset,) = cluster.jobsets.values()
    started_at = cluster.started_at(jobset)
    world.time += WAIT_S + 5
    world.drive(recover("gke", CAN, budget_s=7200))
    (lease,) = world.ledger.open_leases()
    assert cluster.jobsets and lease.state is LeaseState.READY
    assert lease.billed_from == started_at and world.drive(due()) == pytest.approx(lease.deadline - world.time)


def test_a_cluster_that_does_not_answer_at_the_end_of_the_wait_is_asked_again(made: Made) -> None:
    world, cluster = made
    cluster.queue_s = 1e9
    world.time += WAIT_S + 5
    cluster.away = [(world.time, world.time + 100.0)]
    world.drive(recover("gke", CAN, budget_s=7200))
    assert cluster.jobsets and world.drive(due()) == 0.0
    world.time += 200.0
    world.drive(recover("gke", CAN, budget_s=7200))
    assert nothing_is_left(world, cluster)


def test_a_job_that_another_command_follows_is_not_judged_by_recovery(made: Made) -> None:
    world, cluster = made
    cluster.no_image = True
    world.time += 60.0
    world.locks.held.add(attempt_of(world).id)
    world.drive(recover("gke", CAN, budget_s=7200, look=True))
    assert cluster.jobsets and world.ledger.open_leases()


@pytest.mark.parametrize("why", ["failed", "StartError"])
def test_a_job_that_could_not_begin_ends_with_71_and_leaves_nothing(made: Made, why: str) -> None:
    world, cluster = made
    pods(world).ends = [PodEnd(50.0, None, why), PodEnd(51.0, None, "stopped")]
    world.time += 600.0
    outcome = attach(world)
    assert (outcome.exit_code, outcome.detached) == (71, False) and nothing_is_left(world, cluster)


@pytest.mark.parametrize("seen", [False, True], ids=["never seen running", "seen running"])
def test_a_jobset_that_the_cluster_deleted_before_ends_with_71(made: Made, seen: bool) -> None:
    """Its time to live after the job is over, or it was deleted by hand."""
    world, cluster = made
    if seen:
        assert attach(world, interrupt_at=_steps_to("WaitForWorkers")).detached
    cluster.jobsets.clear()
    outcome = attach(world)
    assert (outcome.exit_code, outcome.detached) == (71, False) and nothing_is_left(world, cluster)
    assert attempt_of(world).state.ended


@pytest.mark.parametrize("seen", [False, True], ids=["never seen running", "seen running"])
def test_a_jobset_that_the_cluster_deleted_is_noticed_by_the_next_command(made: Made, seen: bool) -> None:
    world, cluster = made
    if seen:
        assert attach(world, interrupt_at=_steps_to("WaitForWorkers")).detached
    cluster.jobsets.clear()
    next_command(world)
    assert nothing_is_left(world, cluster) and attempt_of(world).state is AttemptState.INTERRUPTED


@pytest.mark.parametrize(
    ("ended_by", "state", "code"),
    [(at_deadline(MAX_S), AttemptState.FAILED, 124), (taken_away(500.0), AttemptState.INTERRUPTED, 71)],
)
def test_the_next_command_records_how_the_cluster_ended_a_job_that_was_not_followed(
    made: Made, ended_by: Any, state: AttemptState, code: int
) -> None:
    world, cluster = made
    cluster.ended_by, cluster.pods_gone = ended_by, 2
    world.time += MAX_S + 60
    next_command(world)
    attempt = attempt_of(world)
    assert (attempt.state, attempt.exit_code) == (state, code) and nothing_is_left(world, cluster)


def test_of_a_job_whose_pods_are_gone_the_bucket_with_its_results_is_named(made: Made) -> None:
    world, cluster = made
    cluster.pods_gone = 1
    to = attachment(world, f"gs://b/runs/{attempt_of(world).run_id}")
    outcome = world.drive(run_job(to, CAN))
    assert outcome.exit_code == 65 and outcome.error is not None
    assert outcome.error.hint == f"its results are in gs://b/runs/{to.run.id}/"


def test_a_job_that_ended_and_whose_pods_went_with_their_nodes_says_that_its_results_are_gone(made: Made) -> None:
    world, cluster = made
    world.time += 600.0
    cluster.pods_gone = 1
    outcome = attach(world)
    assert (outcome.exit_code, outcome.detached) == (65, False) and "1 of 2 pods" in str(outcome.error)
    assert nothing_is_left(world, cluster)


def test_a_job_that_is_failing_while_attach_connects_ends_with_its_own_code(made: Made) -> None:
    """The pods that the cluster has stopped are gone; the JobSet says a moment later that it failed."""
    world, cluster = made
    assert attach(world, interrupt_at=_steps_to("WaitForWorkers")).detached
    pods(world).ends = [PodEnd(50.0, 7)]
    world.time += 60.0
    cluster.pods_gone, cluster.pods_back_at = 1, world.time + 5.0
    cluster.unsettled_until = world.time + 5.0
    assert attach(world).exit_code == 7 and nothing_is_left(world, cluster)


def test_a_pod_that_is_gone_while_the_cluster_says_nothing_more_is_lost(made: Made) -> None:
    world, cluster = made
    assert attach(world, interrupt_at=_steps_to("WaitForWorkers")).detached
    cluster.pods_gone, cluster.unsettled_until = 1, 1e12
    outcome = attach(world)
    assert outcome.exit_code == 71 and "1 of 2 pods" in str(outcome.error) and nothing_is_left(world, cluster)


def test_an_api_server_that_is_away_is_no_reason_to_end_the_job(made: Made) -> None:
    world, cluster = made
    assert attach(world, interrupt_at=_steps_to("WaitForWorkers")).detached
    cluster.away = [(world.time, world.time + 3000.0)]
    pods(world).ends = [PodEnd(1e6)] * 2
    outcome = attach(world)
    assert outcome.detached and outcome.exit_code == 69
    world.time += 3000.0
    assert cluster.jobsets and world.ledger.lease(attempt_of(world).lease_id).runs_detached


def test_results_for_which_there_is_no_room_stay_for_the_next_attach(made: Made) -> None:
    world, cluster = made
    pods(world).stays = (Problem(0, "artifacts/model.pt", "no room"),)
    outcome = attach(world)
    assert outcome.detached and outcome.exit_code == 65 and cluster.jobsets
    pods(world).stays = ()
    assert attach(world).exit_code == 0 and nothing_is_left(world, cluster)


def test_a_run_that_is_attached_to_while_it_is_released_ends_with_it(made: Made) -> None:
    world, cluster = made
    stale = attachment(world)
    next_command(replace_deadline(world))
    assert nothing_is_left(world, cluster)
    outcome = world.drive(run_job(stale, CAN))
    assert outcome.exit_code == 71 and not outcome.detached


def replace_deadline(world: VirtualWorld) -> VirtualWorld:
    """Let the time of the lease be over."""
    (lease,) = world.ledger.open_leases()
    world.time = replace(lease).deadline + 1
    return world


def _steps_to(effect: str) -> int:
    """Return the number of the first effect of this kind in an `attach`."""
    world, _ = submitted(Path("/nowhere"))
    before = len(world.effects)
    attach(world)
    return world.effects[before:].index(effect)

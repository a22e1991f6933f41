"""A job on a cluster: how each end of it is told, by code and in words, and that nothing of it is left."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.lease.lease import LeaseState
from orchestrator.core.lease.run_and_attempt import AttemptState
from orchestrator.engine.leases.cancellation import record_cancel
from orchestrator.errors import BadRequest, QuotaError, Unreachable
from orchestrator.places.gke.stay import ClusterStay
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
    cluster_world,
    job,
    pods,
    taken_away,
)

Made = tuple[VirtualWorld, VirtualCluster]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return cluster_world(tmp_path)


def play(world: VirtualWorld, **how: Any) -> Outcome:
    return world.drive(run_job(job(world), CAN), **how)


def nothing_is_left(world: VirtualWorld, cluster: VirtualCluster) -> bool:
    return not cluster.jobsets and not cluster.left and not world.ledger.open_leases()


def test_a_job_that_succeeds_leaves_nothing(made: Made) -> None:
    world, cluster = made
    outcome = world.drive(run_job(job(world, phases=("setup", "main")), CAN))
    assert (outcome.exit_code, outcome.state, outcome.detached) == (0, AttemptState.SUCCEEDED, False)
    assert pods(world).attached == ["setup", "main"] and len(pods(world).collections) == 1
    assert attempt_of(world).state is AttemptState.SUCCEEDED and attempt_of(world).lease_id
    assert nothing_is_left(world, cluster)


def test_nothing_is_said_of_labels_which_a_jobset_does_not_have(made: Made) -> None:
    """The wait that was not used shortens the claim, which on a slice is in its labels."""
    world, _ = made
    assert play(world).exit_code == 0
    assert not [text for text in world.told if text.startswith("warning")]


def test_a_job_that_fails_ends_with_its_own_code_and_its_results_are_collected(made: Made) -> None:
    world, cluster = made
    # Once a pod fails, the cluster stops the other one.
    pods(world).ends = [PodEnd(50.0, 7), PodEnd(51.0, None, "stopped")]
    outcome = play(world)
    assert (outcome.exit_code, attempt_of(world).rc) == (7, 7)
    assert len(pods(world).collections) == 1 and nothing_is_left(world, cluster)


def test_a_setup_that_fails_ends_the_job_before_its_main_phase(made: Made) -> None:
    world, cluster = made
    pods(world).ends = [PodEnd(5.0, 3, phase="setup")] * 2
    outcome = world.drive(run_job(job(world, phases=("setup", "main")), CAN))
    assert outcome.exit_code == 3 and "the setup" in str(outcome.error)
    assert pods(world).attached == ["setup"] and nothing_is_left(world, cluster)


def test_a_job_that_its_pods_end_at_the_limit_ends_with_124(made: Made) -> None:
    world, cluster = made
    pods(world).ends = [PodEnd(MAX_S, 124, "deadline"), PodEnd(MAX_S + 1, None, "stopped")]
    outcome = play(world)
    assert outcome.exit_code == 124 and attempt_of(world).state is AttemptState.FAILED
    assert len(pods(world).collections) == 1 and nothing_is_left(world, cluster)


def test_a_job_that_ends_itself_with_124_has_failed(made: Made) -> None:
    world, _ = made
    pods(world).ends = [PodEnd(50.0, 124)] * 2
    assert play(world).exit_code == 63


def test_a_job_that_the_control_plane_ends_at_its_deadline_ends_with_124(made: Made) -> None:
    world, cluster = made
    pods(world).ends = [PodEnd(120.0, None, "gone")] * 2
    cluster.ended_by = at_deadline(120.0)
    outcome = play(world)
    assert outcome.exit_code == 124 and "longer than specified deadline" in str(outcome.error)
    assert nothing_is_left(world, cluster)


def test_pods_that_nothing_ends_are_stopped_from_here(made: Made) -> None:
    world, cluster = made
    pods(world).ends = [PodEnd(1e9)] * 2
    began = world.time
    assert play(world).exit_code == 124
    assert nothing_is_left(world, cluster) and world.time - began < MAX_S + 300


def test_a_jobset_that_is_not_admitted_in_time_ends_with_69_and_says_what_kueue_says(made: Made) -> None:
    world, cluster = made
    cluster.queue_s = 1e9
    began = world.time
    outcome = play(world)
    assert outcome.exit_code == 69 and KUEUE in str(outcome.error)
    assert WAIT_S <= world.time - began < WAIT_S + 60 and nothing_is_left(world, cluster)
    assert attempt_of(world).lease_id, "show has the JobSet that it waited for"


def test_pods_that_got_no_nodes_until_the_deadline_of_their_job_end_with_69_and_the_reason(made: Made) -> None:
    world, cluster = made
    cluster.queue_s, cluster.start_s = 5.0, 1e9
    cluster.ended_by = at_deadline(300.0)
    asked = job(world)
    outcome = world.drive(run_job(asked, CAN))
    assert outcome.exit_code == 69 and "0 of 2 pods run" in str(outcome.error) and nothing_is_left(world, cluster)
    assert isinstance(asked.stay, ClusterStay)
    assert asked.stay.seen.nodes == ("node-0", "node-1"), "they are billed, though no pod ran"


def test_a_job_that_may_have_run_while_nothing_answered_is_not_said_to_have_never_started(made: Made) -> None:
    world, cluster = made
    cluster.queue_s, cluster.start_s = 5.0, 100.0
    cluster.away = [(world.time + 50.0, world.time + 500.0)]
    cluster.ended_by = at_deadline(300.0)
    outcome = play(world)
    assert outcome.exit_code == 124 and nothing_is_left(world, cluster), outcome.error


def test_an_api_server_that_is_away_while_pods_are_connected_to_ends_nothing(made: Made) -> None:
    world, cluster = made
    connect = world.connect

    def connect_after_an_outage(*of: Any) -> Any:
        world.connect = connect  # type: ignore[method-assign]
        cluster.away = [(world.time, world.time + 300.0)]
        world.time += 60.0
        raise Unreachable("worker0 of 2: the API server does not answer, for 60 s")

    world.connect = connect_after_an_outage  # type: ignore[method-assign]
    pods(world).ends = [PodEnd(2000.0)] * 2
    outcome = play(world)
    assert outcome.exit_code == 0 and cluster.away and nothing_is_left(world, cluster), outcome.error


def test_pods_that_do_not_start_after_the_admission_are_given_up(made: Made) -> None:
    world, cluster = made
    cluster.start_s = 1e9
    outcome = play(world)
    assert outcome.exit_code == 69 and "ContainerCreating" in str(outcome.error)
    assert nothing_is_left(world, cluster)


def test_an_image_that_does_not_exist_ends_with_64(made: Made) -> None:
    world, cluster = made
    cluster.no_image = True
    outcome = play(world)
    assert outcome.exit_code == 64 and "ErrImagePull" in str(outcome.error) and nothing_is_left(world, cluster)


@pytest.mark.parametrize("refusal", [BadRequest("denied by Warden"), QuotaError("exceeded quota")])
def test_what_the_cluster_refuses_was_never_there(made: Made, refusal: Any) -> None:
    world, cluster = made
    cluster.refuses = refusal
    outcome = play(world)
    assert outcome.exit_code == refusal.exit_code and nothing_is_left(world, cluster)


@pytest.mark.parametrize("starts_late", [False, True], ids=["while it runs", "before it runs"])
def test_a_pod_that_is_taken_away_ends_with_71(made: Made, starts_late: bool) -> None:
    world, cluster = made
    cluster.ended_by = taken_away(60.0)
    if starts_late:
        cluster.start_s = 100.0
    pods(world).ends = [PodEnd(1e6), PodEnd(50.0, None, "Evicted")]
    outcome = play(world)
    assert outcome.exit_code == 71 and "Evicted" in str(outcome.error) and nothing_is_left(world, cluster)


def test_a_pod_that_is_lost_before_the_api_says_so_ends_with_71(made: Made) -> None:
    world, cluster = made
    pods(world).ends = [PodEnd(1e6), PodEnd(50.0, None, "NodeLost")]
    outcome = play(world)
    assert outcome.exit_code == 71 and "NodeLost" in str(outcome.error) and nothing_is_left(world, cluster)


def test_a_container_that_takes_too_much_memory_is_a_failure_of_the_job(made: Made) -> None:
    world, _ = made
    pods(world).ends = [PodEnd(50.0, None, "OOMKilled")] * 2
    outcome = play(world)
    assert outcome.exit_code == 63 and "OOMKilled" in str(outcome.error)


def test_a_jobset_that_kueue_sends_back_to_its_queue_ends_with_71(made: Made) -> None:
    world, cluster = made
    cluster.sent_back_after_s = 60.0
    pods(world).ends = [PodEnd(1e6)] * 2
    outcome = play(world)
    assert outcome.exit_code == 71 and "sent back" in str(outcome.error) and nothing_is_left(world, cluster)


@pytest.mark.parametrize("at_s", [10.0, 35.0, 70.0], ids=["queued", "starting", "running"])
def test_a_jobset_that_is_deleted_from_outside_ends_the_run_soon(made: Made, at_s: float) -> None:
    world, cluster = made
    began = world.time
    pods(world).ends = [PodEnd(1e6)] * 2

    def delete(world: VirtualWorld) -> None:
        if world.time >= began + at_s:
            for each in cluster.jobsets.values():
                each.deleted_at = each.deleted_at or world.time

    outcome = play(world, between=delete)
    assert outcome.exit_code == 71 and nothing_is_left(world, cluster)
    assert world.time - began < at_s + 120


def test_a_finalizer_that_stays_ends_with_75(made: Made) -> None:
    world, cluster = made
    cluster.stuck = True
    outcome = play(world)
    assert outcome.exit_code == 75 and outcome.released is not None
    assert "finalizer" in outcome.released.verdict.last_seen
    (lease,) = world.ledger.open_leases()
    assert lease.state is LeaseState.DOWN


def world_steps_to(world: VirtualWorld, cluster: VirtualCluster, effect: str) -> int:
    """Return the number of the first effect of this kind, from a run in a world of its own."""
    other, _ = cluster_world(Path("/nowhere"))
    other.drive(run_job(job(other), CAN))
    return other.effects.index(effect)


@pytest.mark.parametrize("away_s", [40.0, 300.0, 900.0])
@pytest.mark.parametrize("at_s", [5.0, 38.0, 60.0], ids=["queued", "starting", "running"])
def test_an_api_server_that_is_away_for_minutes_does_not_end_a_job(made: Made, at_s: float, away_s: float) -> None:
    world, cluster = made
    cluster.away = [(world.time + at_s, world.time + at_s + away_s)]
    pods(world).ends = [PodEnd(2000.0)] * 2
    assert play(world).exit_code == 0 and nothing_is_left(world, cluster)


def test_pods_of_which_nothing_is_heard_run_on_while_the_cluster_has_them(made: Made) -> None:
    world, _ = made
    pods(world).silent_since = world.time
    began = world.time

    def heard(world: VirtualWorld) -> None:
        if world.time > began + 1800:
            pods(world).silent_since = None

    pods(world).ends = [PodEnd(2000.0)] * 2
    assert play(world, between=heard).exit_code == 0


@pytest.mark.parametrize(("end", "code"), [(PodEnd(200.0), 0), (PodEnd(MAX_S, 124, "deadline"), 124)])
def test_pods_of_which_nothing_is_heard_at_the_limit_are_asked_again_once_the_cluster_answers(
    made: Made, end: PodEnd, code: int
) -> None:
    world, cluster = made
    began = world.time
    cluster.away = [(began + 150.0, began + MAX_S + 400.0)]
    pods(world).ends = [end] * 2

    def listen(world: VirtualWorld) -> None:
        pods(world).silent_since = began + 150.0 if cluster.away[0][0] <= world.time < cluster.away[0][1] else None

    assert play(world, between=listen).exit_code == code and nothing_is_left(world, cluster)


@pytest.mark.parametrize(("end", "code"), [
    (PodEnd(200.0), 0), (PodEnd(200.0, 7), 7), (PodEnd(200.0, None, "Evicted"), 71),
    (PodEnd(MAX_S, 124, "deadline"), 124),
])  # fmt: skip
def test_a_machine_that_sleeps_past_the_limit_asks_how_the_job_has_ended_before_it_says_so(
    made: Made, end: PodEnd, code: int
) -> None:
    """It falls asleep with a status that says that the pods run."""
    world, cluster = made
    pods(world).ends = [end] * 2
    wakes_at = world.time + MAX_S + 130.0

    def sleep(world: VirtualWorld) -> None:
        if world.effects.count("WaitForWorkers") == 3 and world.effects[-1] == "WaitForWorkers":
            world.time = max(world.time, wakes_at)

    assert play(world, between=sleep).exit_code == code and nothing_is_left(world, cluster)


def test_nothing_is_said_of_a_limit_if_the_cluster_is_away_to_the_end(made: Made) -> None:
    world, cluster = made
    began = world.time
    cluster.away = [(began + 150.0, began + 1e6)]

    def listen(world: VirtualWorld) -> None:
        pods(world).silent_since = began + 150.0 if world.time >= began + 150.0 else None

    pods(world).ends = [PodEnd(200.0)] * 2
    outcome = play(world, between=listen)
    assert outcome.exit_code == 75 and "how the job ended is not known" in str(outcome.error)
    (lease,) = world.ledger.open_leases()
    assert lease.state is LeaseState.DOWN


@pytest.mark.parametrize("at", ["Create", "Get", "WaitForWorkers", "WaitForCollection"])
def test_a_run_that_is_canceled_elsewhere_ends_so_and_leaves_nothing(made: Made, at: str) -> None:
    world, cluster = made
    steps = world_steps_to(world, cluster, at)
    count = 0

    def cancel(world: VirtualWorld) -> None:
        nonlocal count
        count += 1
        if count == steps + 1:
            world.drive(record_cancel("0123456789"))

    outcome = play(world, between=cancel)
    assert outcome.exit_code == 71 and attempt_of(world).state is AttemptState.CANCELED
    assert nothing_is_left(world, cluster)

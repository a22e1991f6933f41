"""How a cluster ends a job, and what stands in the way: each is told by its code and its words, on each side that follows it.

That no end is told that was none, and that nothing holds a TPU for too long, the oracle of the world says.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.errors import BadRequest, QuotaError
from orchestrator.places.gke.api import words
from orchestrator.places.gke.objects.manifest import Deadlines, deadlines
from orchestrator.places.gke.stay import ClusterStay, Seen
from orchestrator.promise.lease.lease import LeaseState
from orchestrator.promise.lease.run_and_attempt import AttemptState
from tests.places.ground import Job
from tests.places.simulated_grounds import SimulatedJobSet
from tests.places.test_promises import nothing_is_left
from tests.simulation.model.cluster import Cluster
from tests.simulation.model.cluster_world import ClusterWorld
from tests.simulation.model.jobsets import JobSet, Pod
from tests.simulation.scenarios import clusters
from tests.simulation.scenarios.clusters import ClusterWorkload

QUEUED, STARTING, RUNNING = 1.0, 6.0, 30.0  # seconds after the start
WAITS, FAILS, SHORT = Job(waits=True), Job(waits=True, code=7), Job(is_short=True)
Plan = dict[str, Any]


@pytest.fixture
def cluster() -> SimulatedJobSet:
    return SimulatedJobSet()


def taken(how: str) -> Plan:
    return {"taken": [(RUNNING, 1, how)]}


def away(since: float, seconds: float) -> Plan:
    return {"cut": {"api": [(since, since + seconds)]}}


ENDS: dict[str, tuple[Job, Plan, int, str]] = {
    "its own failure": (FAILS, {}, 7, "failed on 2 workers, first on worker0 with code 7"),
    "its limit, by its pods": (SHORT, {}, 124, "reached limits.max_duration"),
    "its limit, by the control plane": (SHORT, {"hangs": True}, 124, "reached limits.max_duration"),
    "never admitted": (WAITS, {"admitted_after": None}, 69, "in time: it is still Suspended"),
    "no nodes": (WAITS, {"nodes_s": inf}, 69, "2 of 2 pods have no node"),
    "images that take too long": (WAITS, {"pull_s": 3600.0}, 69, "Starting (0 of 2 pods run: ContainerCreating)"),
    "no image": (WAITS, {"no_image": True}, 64, "ErrImagePull"),
    "evicted": (WAITS, taken("evicted"), 71, "worker1"),
    "a deleted pod": (WAITS, taken("deleted"), 71, "worker1"),
    "a lost node": (WAITS, taken("lost"), 71, "worker1 was taken away: NodeLost"),
    "sent back": (WAITS, {"evictions": [(RUNNING, None)]}, 71, "was sent back to its queue while the job was running"),
    "deleted while queued": (WAITS, {"deleted_at": QUEUED}, 71, "was deleted"),
    "deleted while starting": (WAITS, {"deleted_at": STARTING}, 71, "was deleted"),
    "deleted while running": (WAITS, {"deleted_at": RUNNING}, 71, "was deleted by another client"),
}
STANDS: dict[str, tuple[Job, Plan, int]] = {
    **{
        f"away for {seconds:.0f} s while {when}": (WAITS, away(since, seconds), 0)
        for when, since in (("queued", QUEUED), ("starting", STARTING), ("connected to", 8.0), ("running", RUNNING))
        for seconds in (40.0, 300.0)
    },
    "away for longer than any patience": (WAITS, away(RUNNING, 900.0), 0),
    "away past its limit": (SHORT, away(RUNNING, 400.0), 124),
    "away from its start past its limit": (SHORT, away(8.3, 300.0), 124),
    "asleep past its end": (WAITS, {"asleep": [(RUNNING, 400.0)]}, 0),
    "asleep past its failure": (FAILS, {"asleep": [(RUNNING, 400.0)]}, 7),
    "asleep past its limit": (SHORT, {"asleep": [(RUNNING, 400.0)]}, 124),
    "asleep past the loss of a pod": (WAITS, {**taken("evicted"), "asleep": [(20.0, 400.0)]}, 71),
}


@pytest.mark.parametrize("why", ENDS)
def test_each_end_has_its_code_and_its_words(cluster: SimulatedJobSet, why: str) -> None:
    job, plan, code, words = ENDS[why]
    cluster.job(job, **plan)
    ended, said = cluster.play("run")
    assert (ended, words in said) == (code, True), said
    nothing_is_left(cluster, cluster.attempt().state, code)


@pytest.mark.parametrize("why", STANDS)
def test_an_api_server_or_a_machine_that_is_away_ends_nothing(cluster: SimulatedJobSet, why: str) -> None:
    job, plan, code = STANDS[why]
    cluster.job(job, **plan)
    assert cluster.play("run")[0] == code
    nothing_is_left(cluster, cluster.attempt().state, code)
    assert not [told for told in cluster.world.trace or [] if ": warning " in told], (
        "such as of labels, which it has none of"
    )


def never(*_: Any) -> None:
    """Do nothing."""


def patient(of: ClusterWorkload) -> Deadlines:
    """It waits for longer than its Job lasts."""
    return deadlines(of.max_s, wait_s=3600.0, linger_s=of.linger_s, queued=of.queued)


def alone(cluster: Cluster, jobset: JobSet, pod: Pod) -> None:
    """Only the first pod gets a node."""
    if not pod.worker:
        SCHEDULE(cluster, jobset, pod)


def failing_alone(cluster: Cluster, jobset: JobSet, pod: Pod) -> None:
    """It fails before the others have nodes."""
    START(cluster, jobset, pod)
    cluster.timeline.after(20.0, cluster._end, jobset, pod, 7, "")


SCHEDULE, START = Cluster._schedule, Cluster._start
NO_LIMITS = {"_pod_is_late": never, "_job_is_late": never, "_exceeded": never}
LATE, UNSEEN = {"pull_s": 1e6}, {"pull_s": 30.0, "hangs": True}
ENDED = "did not start in time, and the cluster ended it"
NO_NODE = "Pending: 1 of 2 pods have no node"
DENIED, FULL = Mock(side_effect=BadRequest("denied by Warden")), Mock(side_effect=QuotaError("exceeded quota"))


@pytest.mark.parametrize(("does", "job", "plan", "code", "words", "least_s", "most_s"), [
    (NO_LIMITS, SHORT, {"hangs": True}, 124, "reached limits.max_duration", 60, 600),
    (NO_LIMITS, SHORT, LATE, 69, "0 of 2 pods run: ContainerCreating", 60, 1800),
    ({"_pod_is_late": never, "deadlines_of": patient}, SHORT, LATE, 69, f"{ENDED}: it was Starting (0 of 2", 900, 1800),
    # It may have run: the API server is away, or this machine sleeps, from just after it began.
    ({"_pod_is_late": never}, SHORT, UNSEEN | away(36.0, 1000.0), 124, "reached limits.max_duration", 60, 1200),
    ({"_pod_is_late": never}, SHORT, UNSEEN | {"asleep": [(36.0, 1036.0)]}, 124, "limits.max_duration", 60, 1200),
    ({"_run": never, "jobs_json": lambda _: []}, WAITS, {}, 69, words.NO_JOB, 30, 60),
    ({"_schedule": alone}, WAITS, {}, 69, f"in time: it is still {NO_NODE}, 1 run: no node", 60, 1800),
    ({"_schedule": alone, "_start": failing_alone}, WAITS, {}, 7, f"ran: before it failed, it was {NO_NODE}", 20, 60),
    ({"post": DENIED}, WAITS, {}, 64, "denied by Warden", 0, 60),
    ({"post": FULL}, WAITS, {}, 69, "exceeded quota", 0, 60),
])  # fmt: skip
def test_a_cluster_that_does_not_do_its_part_ends_the_run_in_time(
    cluster: SimulatedJobSet, monkeypatch: pytest.MonkeyPatch, does: dict[str, Any], job: Job, plan: Plan, code: int,
    words: str, least_s: float, most_s: float,
) -> None:  # fmt: skip
    """No limit of it holds, it makes no Job and says nothing, it has too few nodes, or it refuses."""
    for name, done in does.items():
        monkeypatch.setattr({"jobs_json": JobSet, "deadlines_of": clusters}.get(name, Cluster), name, done)
    monkeypatch.setattr(ClusterWorld, "violated", never)  # its oracle trusts in the limits
    cluster.job(job, **plan)
    began = cluster.world.timeline.now
    ended, said = cluster.play("run")
    assert (ended, words in said) == (code, True), said
    assert least_s <= cluster.world.timeline.now - began < most_s
    nothing_is_left(cluster, cluster.attempt().state, code)


def test_a_jobset_that_is_being_deleted_is_no_longer_waited_for(cluster: SimulatedJobSet) -> None:
    cluster.job(WAITS, deleted_at=QUEUED, finalizer_until=400.0)
    run, began = cluster.start("run"), cluster.world.timeline.now
    cluster.until(cluster.is_releasing)
    assert cluster.world.timeline.now - began < 60 and run.code() == 71


def test_nodes_are_remembered_though_no_pod_ran_on_them(
    cluster: SimulatedJobSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen()
    monkeypatch.setattr(clusters, "ClusterStay", partial(ClusterStay, seen=seen))
    cluster.job(WAITS, pull_s=3600.0)
    assert cluster.play("run")[0] == 69 and seen.nodes == ("node-0", "node-1")


@pytest.mark.parametrize("at", [0.1, QUEUED, STARTING, RUNNING, 108.0])
def test_a_run_is_canceled_elsewhere_at_any_time(cluster: SimulatedJobSet, at: float) -> None:
    cluster.job(WAITS)
    run, began = cluster.start("run"), cluster.world.timeline.now
    cluster.until(lambda: cluster.world.timeline.now >= began + at and cluster.owes())
    cluster.play("cancel")
    assert run.code() == 71
    nothing_is_left(cluster, AttemptState.CANCELED, 71)


# -- detached --------------------------------------------------------------------------------------------------------------


def submitted(cluster: SimulatedJobSet, job: Job, *, seen: bool = False, **plan: Any) -> None:
    cluster.job(job, **plan)
    assert cluster.play("submit")[0] == 0
    if seen:
        (attach := cluster.start("attach")).until_begun()
        attach.press()
        assert attach.code() == 130


@pytest.mark.parametrize("why", ENDS)
def test_who_attaches_at_once_is_told_the_same(cluster: SimulatedJobSet, why: str) -> None:
    job, plan, code, _ = ENDS[why]
    submitted(cluster, job, **plan)
    assert cluster.play("attach")[0] == code
    nothing_is_left(cluster, cluster.attempt().state, code)


FOLLOWED_BY_NOBODY = [
    (why, seen) for why in [*list(ENDS)[:3], "evicted", "deleted while running"] for seen in (False, True)
]


@pytest.mark.parametrize(("why", "seen"), [*FOLLOWED_BY_NOBODY, ("no image", False)])
def test_a_job_that_no_command_followed_ends_the_same_way(cluster: SimulatedJobSet, why: str, seen: bool) -> None:
    """The next command tells, unless the job waits for who attaches."""
    job, plan, code, _ = ENDS[why]
    submitted(cluster, job, seen=seen, **plan)
    cluster.later(150.0)
    cluster.next_commands()
    if cluster.owes():
        assert cluster.play("attach")[0] == code
    nothing_is_left(cluster, cluster.attempt().state, code)


def test_a_detached_job_is_left_alone_by_every_command_until_its_time_is_over(cluster: SimulatedJobSet) -> None:
    submitted(cluster, WAITS)
    for _ in range(5):
        cluster.later(20.0)
        cluster.next_commands()
        assert cluster.left() and not cluster.attempt().state.ended
    cluster.later(1000.0)
    code, said = cluster.play("attach")
    assert code == 71 and "was released by another tpujob command" in said
    nothing_is_left(cluster, AttemptState.INTERRUPTED, 71)


@pytest.mark.parametrize("plan", [{}, away(50.0, 100.0)], ids=["that answers", "that is away at the end of the wait"])
def test_a_job_that_was_never_admitted_is_deleted_without_any_command(cluster: SimulatedJobSet, plan: Plan) -> None:
    submitted(cluster, WAITS, admitted_after=None, **plan)
    cluster.until(lambda: not cluster.owes())
    nothing_is_left(cluster, AttemptState.ERROR, 69)


@pytest.mark.parametrize("followed", [False, True], ids=["by the guardian", "by who attaches"])
def test_a_job_is_billed_from_its_start_however_late_that_is_seen(cluster: SimulatedJobSet, followed: bool) -> None:
    """The guardian asks once the wait for its admission is over."""
    submitted(cluster, WAITS)
    cluster.later(40.0)
    assert cluster.ledger.open_leases()[0].state is LeaseState.CREATING
    if followed:
        cluster.start("attach")
    cluster.until(lambda: cluster.ledger.open_leases()[0].state is LeaseState.READY)
    started_at = max(pod.started_at for each in cluster.world.cluster.sets for pod in each.pods)
    assert cluster.ledger.open_leases()[0].billed_from == pytest.approx(started_at, abs=2.0)


def test_an_api_server_that_is_away_is_no_reason_to_end_a_job_that_goes_on(cluster: SimulatedJobSet) -> None:
    submitted(cluster, WAITS, seen=True, **away(RUNNING, 700.0))
    cluster.later(30.0)
    attach = cluster.start("attach")
    assert attach.code() == 69 and attach.process.result.detached and cluster.owes()


def test_results_for_which_there_is_no_room_stay_for_the_next_attach(cluster: SimulatedJobSet) -> None:
    submitted(cluster, Job())
    cluster.world.no_room_until = cluster.world.timeline.now + 60.0
    assert cluster.play("attach")[0] == 65 and cluster.owes()
    cluster.later(60.0)
    assert cluster.play("attach")[0] == 0
    nothing_is_left(cluster, AttemptState.SUCCEEDED, 0)


@pytest.mark.parametrize(("bucket", "code"), [(None, 65), ("gs://b/runs/x", 0)])
def test_results_that_went_with_their_nodes_are_in_the_bucket_if_there_is_one(
    cluster: SimulatedJobSet, monkeypatch: pytest.MonkeyPatch, bucket: str | None, code: int
) -> None:
    submitted(cluster, Job(), nodes_gone_s=2.0)
    monkeypatch.setattr(clusters, "ClusterStay", partial(ClusterStay, bucket=bucket, pods=2))
    cluster.later(60.0)
    attach = cluster.start("attach")
    assert attach.code() == code and ("what its pods wrote is gone with them" in attach.said) == (bucket is None)
    nothing_is_left(cluster, AttemptState.FAILED if code else AttemptState.SUCCEEDED, code)


@pytest.mark.parametrize("at", [98.0 + 0.5 * step for step in range(20)])
def test_a_job_that_fails_as_attach_connects_ends_with_its_own_code(cluster: SimulatedJobSet, at: float) -> None:
    submitted(cluster, FAILS, seen=True)
    cluster.later(at)
    assert cluster.play("attach")[0] == 7
    nothing_is_left(cluster, AttemptState.FAILED, 7)


def test_a_pod_that_is_gone_while_the_cluster_says_nothing_more_is_lost(
    cluster: SimulatedJobSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(cluster, WAITS, seen=True)
    monkeypatch.setattr(Cluster, "_look", lambda *_: None)
    cluster.world.cluster.take(1, "deleted")
    cluster.later(40.0)
    attach = cluster.start("attach")
    cluster.until(cluster.is_releasing)
    monkeypatch.undo()
    assert attach.code() == 71 and "1 of 2 pods" in attach.said
    nothing_is_left(cluster, AttemptState.INTERRUPTED, 71)

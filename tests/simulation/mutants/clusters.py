"""Jobs on a cluster: what is absent, what may be deleted, what the control plane keeps, and how a job is said to have ended."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from orchestrator.core.lease.cloud_api import Listing, Operation, SliceName, SliceState, SliceView
from orchestrator.errors import AlreadyExists, CloudUnavailable
from orchestrator.places.gke import stay
from orchestrator.places.gke.api import client
from orchestrator.places.gke.api.client import ClusterCloud
from orchestrator.places.gke.api.kube_api import NotFound, Rows, path_of
from tests.simulation.model.cluster import ClusterPlan
from tests.simulation.model.cluster_world import ClusterWorld
from tests.simulation.model.world import GUARDIAN_ONLY, NO_LAYER, Layers, Result
from tests.simulation.mutants.registry import Plays, mutant, power_cut, replaces, scenario
from tests.simulation.scenarios import clusters
from tests.simulation.scenarios.clusters import ClusterWorkload
from tests.simulation.scenarios.random_worlds import Workload

RUN = ClusterWorkload(Workload("run", lasts_s=10.0))
FAILING = replace(RUN, job=replace(RUN.job, rc=7), fails_on=1)
SUBMIT = replace(RUN, detach=True)


def on_cluster(workload: ClusterWorkload, layers: Layers = GUARDIAN_ONLY, **plan: Any) -> Callable[[], Result]:
    """Return the function that plays one world with this workload and these faults."""
    return lambda: ClusterWorld(1, workload, ClusterPlan(**deepcopy(plan)), layers=layers).run()


# -- scenarios -------------------------------------------------------------------------------------------------------


@scenario
def what_a_jobset_leaves() -> Plays:
    """It goes, or was deleted as by `kubectl delete --cascade=background`, while its pods end."""
    yield "deleted in the console", on_cluster(RUN, deleted_at=12.0, deleted_how="Background", pod_stop_s=60.0)
    yield "collected late", on_cluster(RUN, collects_s=5.0)


@scenario
def slow_to_go() -> Plays:
    yield "a finalizer", on_cluster(RUN, finalizer_until=100.0)
    yield "pods that take a minute", on_cluster(RUN, pod_stop_s=60.0, signals=[9.0])


@scenario
def another_of_its_name() -> Plays:
    yield "while it runs", on_cluster(RUN, replaced_at=9.0)


@scenario
def another_of_its_name_at_any_moment() -> Plays:
    """Before its delete arrives, in steps that are shorter than a call."""
    world = ClusterWorld(1, RUN, ClusterPlan(), layers=NO_LAYER, trace=True)
    arrives_at = float(next(line for line in world.run().trace if "delete of" in line).split()[0])
    for hundredths in range(30):
        at = arrives_at - hundredths / 100
        yield f"at {at:.3f} s", on_cluster(RUN, NO_LAYER, replaced_at=at)


@scenario
def posts_that_arrive_late() -> Plays:
    for there_s in (20.0, 40.0, 70.0):
        yield f"after {there_s} s", on_cluster(RUN, late_posts=[there_s] * 5, signals=[16.5])


@scenario
def replies_to_posts_are_lost() -> Plays:
    yield "of the JobSet", on_cluster(SUBMIT, lost_posts={"jobsets": 1})


@scenario
def left_to_the_control_plane() -> Plays:
    """The machine dies, and what runs in the pods hangs."""
    yield "queued", on_cluster(RUN, NO_LAYER, hangs=True, **power_cut(20.0))
    late = replace(RUN, queued=False)
    yield "without a queue, nodes come late", on_cluster(late, NO_LAYER, hangs=True, nodes_s=1000.0, **power_cut(20.0))
    back = [(200.0 + 300.0 * time, 10.0) for time in range(8)]
    yield "evicted again and again", on_cluster(RUN, NO_LAYER, hangs=True, evictions=back, **power_cut(20.0))


@scenario
def a_job_that_fails_on_a_cluster() -> Plays:
    yield "and the other pod is stopped", on_cluster(FAILING)


@scenario
def away_at_the_end() -> Plays:
    yield "from the middle of the job to its limit", on_cluster(RUN, cut={"api": [(12.0, 500.0)]})


@scenario
def away_while_attached() -> Plays:
    """The first `attach` is killed; while the second one asks, nothing answers."""
    long = replace(SUBMIT, job=replace(SUBMIT.job, lasts_s=1500.0), max_s=3000.0, attach_at=(3.0, 100.0))
    yield "for a quarter of an hour", on_cluster(long, crashes=[("attach", 250, "cli")], cut={"api": [(90.0, 900.0)]})


# -- mutants: absence ------------------------------------------------------------------------------------------------


@replaces(ClusterCloud, "_listed", "what_a_jobset_leaves")
def pods_are_not_looked_for(
    real: Any, self: ClusterCloud, project: str, kind: str, namespace: str, labels: str
) -> Rows:
    """Pods of a JobSet that is gone are not looked for."""
    found = real(self, project, kind, namespace, labels)
    return Rows((), found.server_now) if kind in ("jobs", "pods") else found


@mutant("what_a_jobset_leaves")
def config_maps_are_not_looked_for() -> Any:
    """What needs no TPU is not looked for, though it may be."""
    return patch.object(client, "KINDS", ("jobsets", "jobs", "pods"))


@mutant("slow_to_go")
def deleting_is_gone() -> Iterator[None]:
    """A JobSet that is being deleted counts as absent."""
    get, listed = ClusterCloud.get, ClusterCloud.list

    def hasty(self: ClusterCloud, name: SliceName) -> SliceView | None:
        view = get(self, name)
        return None if view is not None and view.state is SliceState.DELETING else view

    def hasty_list(self: ClusterCloud, project: str, zone: str, queued: bool = False) -> Listing[SliceView]:
        found = listed(self, project, zone, queued)
        return replace(found, rows=tuple(view for view in found.rows if view.state is not SliceState.DELETING))

    with patch.object(ClusterCloud, "get", hasty), patch.object(ClusterCloud, "list", hasty_list):
        yield


@mutant("posts_that_arrive_late")
def posts_settle_at_once() -> Any:
    """A create that was not answered has settled at once."""
    return patch.object(client, "SETTLES_S", 0.0)


# -- mutants: what may be deleted --------------------------------------------------------------------------------------


@replaces(ClusterCloud, "delete", "another_of_its_name")
def the_name_is_enough(_: Any, self: ClusterCloud, name: Any) -> Operation | None:
    """A JobSet is deleted by its name alone."""
    try:
        self.api(name.project).delete(path_of("jobsets", name.zone, name.node), "")
    except NotFound:
        return self._delete_left(name)
    return Operation("jobset/x", done=False, verb="delete", target=name.node)


@mutant("another_of_its_name_at_any_moment")
def deletes_name_no_uid() -> Any:
    """A delete has no precondition: what was looked at is not what it hits."""
    return patch.object(client.views, "uid_of", lambda found: "")


# -- mutants: the hand-over, and what the control plane keeps ------------------------------------------------------------


@replaces(ClusterCloud, "create", "replies_to_posts_are_lost")
def creates_are_not_continued(real: Any, self: ClusterCloud, request: Any) -> Operation:
    """A create that finds its JobSet does not make what the pods need."""
    name = request.name
    try:
        self.api(name.project).post(path_of("jobsets", name.zone), request.manifests[0])
    except AlreadyExists:
        return Operation("jobset/x", done=True, verb="create", target=name.node)
    return real(self, request)


@contextmanager
def _without(change: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Patch the manifests of all jobs, of which the scenarios keep some."""
    real = clusters.documents

    def changed(job: Any) -> tuple[dict[str, Any], ...]:
        made = deepcopy(real(job))
        change(made[0])
        return made

    clusters._objects.cache_clear()
    try:
        with patch.object(clusters, "documents", changed):
            yield
    finally:
        clusters._objects.cache_clear()


def _job(jobset: dict[str, Any]) -> dict[str, Any]:
    job: dict[str, Any] = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    return job


@mutant("left_to_the_control_plane")
def pods_without_a_deadline() -> Iterator[None]:
    """Pods have no deadline of their own."""
    with _without(lambda jobset: _job(jobset)["template"]["spec"].pop("activeDeadlineSeconds")):
        yield


@mutant("left_to_the_control_plane")
def jobs_without_a_deadline() -> Iterator[None]:
    """Jobs have no deadline: pods that start late end late."""
    with _without(lambda jobset: _job(jobset).pop("activeDeadlineSeconds")):
        yield


@mutant("left_to_the_control_plane")
def no_limit_over_evictions() -> Iterator[None]:
    """Kueue may admit a job again and again."""
    with _without(lambda jobset: jobset["metadata"]["labels"].pop("kueue.x-k8s.io/max-exec-time-seconds", None)):
        yield


# -- mutants: how a job is said to have ended ------------------------------------------------------------------------------


@mutant("a_job_that_fails_on_a_cluster")
def a_stopped_pod_is_the_cause() -> Any:
    """The pod that is known first is the cause, though the cluster stopped it."""
    return patch.object(stay, "_precedence", lambda worker: worker.index)


@replaces(stay.ClusterStay, "_watch", "away_at_the_end")
async def silence_is_a_limit(_: Any, self: Any, watch: Any, standing: Any, crew: Any) -> None:
    """A job of which nothing is heard has reached its limit."""
    await watch(standing.end)


@mutant("away_while_attached")
def an_outage_ends_what_is_attached() -> Any:
    """An API server that is away ends the job of a detached run."""
    return patch.object(stay, "OVER", (*stay.OVER, CloudUnavailable))

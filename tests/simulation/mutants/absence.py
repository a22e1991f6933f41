"""Absence: its proof, and the command that waits for it; also of jobs on a cluster, whose control plane keeps more."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from orchestrator.errors import AlreadyExists, AuthError, CloudError, CloudUnavailable
from orchestrator.places.gke import stay
from orchestrator.places.gke.api import client
from orchestrator.places.gke.api.client import ClusterCloud
from orchestrator.places.gke.api.kube_api import NotFound, Rows, path_of
from orchestrator.promise import obligations, recover, release
from orchestrator.promise.effects.base import Now
from orchestrator.promise.lease import absence
from orchestrator.promise.lease.absence import Verdict
from orchestrator.promise.lease.changes import Settled
from orchestrator.promise.lease.cloud_api import CREATE, Listing, Operation, SliceState, SliceView
from orchestrator.promise.lease.lease import SliceName
from orchestrator.run import finish, restart
from orchestrator.run import program as run
from tests.simulation.model.cluster import ClusterPlan
from tests.simulation.model.cluster_world import ClusterWorld
from tests.simulation.model.faults import FOREVER, cloud_fault
from tests.simulation.model.world import GUARDIAN_ONLY, NO_LAYER, Layers, Result
from tests.simulation.mutants.registry import RUN, NoEffect, Plays, mutant, one, power_cut, replaces, scenario
from tests.simulation.scenarios import clusters
from tests.simulation.scenarios.clusters import ClusterWorkload
from tests.simulation.scenarios.random_worlds import Workload

# -- scenarios -------------------------------------------------------------------------------------------------------


@scenario
def command_only() -> Plays:
    """No other layer would finish a teardown."""
    for at in (0.5, 2.0, 4.0, 8.0, 12.0):
        failing = [cloud_fault("operation_fails", "nodes.delete")]
        yield f"Ctrl-C twice at {at} s", one(RUN, layers=NO_LAYER, signals=[at, at + 0.3], delete_effects=failing)
        slow: dict[str, Any] = {"rates": {"e503": 0.5}, "rates_until": 60.0, "signals": [at]}
        yield f"Ctrl-C at {at} s, the API stutters", one(RUN, layers=NO_LAYER, **slow)
        gone: dict[str, Any] = {"forbidden": {"laptop-api": [(at, at + 60.0)]}, "signals": [at + 0.5]}
        yield f"no permission from {at} s on", one(RUN, layers=NO_LAYER, **gone)


@scenario
def create_seen_late() -> Plays:
    late = [cloud_fault("hidden", "nodes.create", seconds=8.0)]
    for down_at in (3.0, 4.0, 5.0, 6.0, 7.0):
        workload = replace(RUN, down_at=down_at)
        yield f"down at {down_at} s", one(workload, layers=NO_LAYER, create_effects=late)
        crash: dict[str, Any] = {"crashes": [(None, down_at, "cli")], "command_after_s": 0.5}
        yield f"killed at {down_at} s", one(RUN, layers=NO_LAYER, create_effects=late, **crash)


@scenario
def failing_deletes() -> Plays:
    for kind in ("operation_fails", "operation_forgets"):
        effects = [cloud_fault(kind, "nodes.delete")] * 2
        yield kind, one(RUN, layers=NO_LAYER, delete_effects=effects)


@scenario
def stalled_delete() -> Plays:
    """The delete is accepted, the node is DELETING, and nothing happens until the next delete."""
    for times in (1, 2):
        stalled = [cloud_fault("stalled", "nodes.delete")] * times
        yield f"{times} times", one(RUN, layers=NO_LAYER, delete_effects=stalled)


@scenario
def create_operation_unlisted() -> Plays:
    """The create is under way, its node is not visible, and the list of operations is partial."""
    unlisted = [("operations.list", (0.0, 30.0), cloud_fault("unreachable", "operations.list"))]
    hidden = {"create_effects": [cloud_fault("hidden", "nodes.create", seconds=35.0)], "provision_s": 40.0}
    for tenth in range(2, 6):
        rest: dict[str, Any] = {"lost_creates": 9, "signals": [tenth / 10], "spoiled": unlisted, **hidden}
        yield f"Ctrl-C at {tenth / 10} s", one(RUN, layers=NO_LAYER, **rest)


@scenario
def create_with_unknown_verb() -> Plays:
    """The list of operations is complete, and the verb of the create is unknown."""
    hidden = {"create_effects": [cloud_fault("hidden", "nodes.create", seconds=35.0)], "provision_s": 40.0}
    for tenth in range(2, 6):
        rest: dict[str, Any] = {"lost_creates": 9, "signals": [tenth / 10], "create_verb": "provision", **hidden}
        yield f"Ctrl-C at {tenth / 10} s", one(RUN, layers=NO_LAYER, **rest)


@scenario
def create_lands_between_replies() -> Plays:
    """The node is created while the reply that shows no create is on its way; the list that follows is stale."""
    stale = [("nodes.list", (5.0, 60.0), cloud_fault("stale_list", "nodes.list", seconds=20.0))]
    for late_s in (9.0, 11.0, 13.0, 14.0):
        late = [cloud_fault("late", "nodes.create", seconds=late_s)] * 9
        rest: dict[str, Any] = {"create_effects": late, "spoiled": stale, "slow_replies": {"operations.list": 4.0}}
        yield f"{late_s} s late", one(RUN, layers=NO_LAYER, signals=[0.4], **rest)


@scenario
def permission_revoked() -> Plays:
    for at in (3.0, 8.0):
        yield f"from {at} s on", one(RUN, layers=NO_LAYER, forbidden={"laptop-api": [(at, FOREVER)]})


# -- mutants ---------------------------------------------------------------------------------------------------------


@replaces(release._Teardown, "one_pass", "worlds")
async def accepted_delete_is_done(_: Any, self: Any, capabilities: Any) -> Verdict:
    """An accepted delete counts as done (dstack)."""
    await self._delete(await Now())
    return Verdict(gone=self._deleted_at is not None)


@replaces(absence, "judge", "deaths")
def one_404_is_gone(_: Any, lease: Any, evidence: Any, now: float, capabilities: Any) -> Verdict:
    """A 404 counts as gone while a create may still land (dstack)."""
    return Verdict(gone=evidence.view is None)


@mutant("deaths")
def unsettled_create_ignored() -> Any:
    """The proof does not wait for creates to settle."""
    return patch.object(absence, "settles_at", lambda *_, **__: None)


@replaces(absence, "settles_at", "create_seen_late")
def invisible_create_settled(real: Any, *args: Any, **named: Any) -> Any:
    """A successful create counts as settled before its node is visible."""
    return real(*args, **{**named, "seen": True})


@replaces(release._Teardown, "one_pass", "deaths")
async def stale_proof(_: Any, self: Any, capabilities: Any) -> Verdict:
    """Get and list are asked before the create has settled."""
    now = await Now()
    view = await self._ask(release.Get(self.lease.name))
    if view is not None and not isinstance(view, release.CloudError) and await self._should_delete(view, now):
        await self._delete(now)
        view = await self._ask(release.Get(self.lease.name))
    listing = await self._ask(release.ListSlices(*release._place(self.lease))) if view is None else None
    creates = await self._creates() if view is None else ()
    evidence = release.Evidence(view, listing, creates, self._seen)
    return absence.judge(self.lease, evidence, await Now(), capabilities)


@replaces(release._Teardown, "_creates", "create_operation_unlisted")
async def partial_operations_complete(whole: Any, self: Any) -> Any:
    """A partial list of operations counts as complete."""
    if self.lease.sends == 1 and self.lease.operation is not None:
        return await whole(self)
    listing = await self._ask(release.ListOperations(*release._place(self.lease)))
    return listing if isinstance(listing, CloudError) else tuple(filter(self._is_our_create, listing.rows))


@replaces(release._Teardown, "_is_our_create", "create_with_unknown_verb")
def unknown_verb_ignored(ours: Any, self: Any, operation: Any) -> bool:
    """An operation with an unknown verb does not count as a create."""
    return operation.verb == CREATE and ours(self, operation)


@mutant("create_lands_between_replies")
def single_look() -> Iterator[None]:
    """The proof does not look again after the create has settled."""
    ask, note = release._Teardown._ask, release.try_record
    settled: set[Any] = set()

    async def noted(event: Any) -> None:
        await note(event)
        if isinstance(event, Settled):
            settled.add(event.lease_id)

    async def asked(self: Any, question: Any) -> Any:
        if isinstance(question, release.Get) and self.lease.id in settled:
            settled.discard(self.lease.id)
            return None  # the view of a moment ago
        return await ask(self, question)

    with patch.object(release, "try_record", noted), patch.object(release._Teardown, "_ask", asked):
        yield


@mutant("stalled_delete")
def stalled_delete_not_repeated() -> Any:
    """A delete under way is never sent again."""
    return patch.object(release, "DELETE_AGAIN_S", float("inf"))


@mutant("worlds", "command_only")
def forbidden_is_gone() -> Iterator[None]:
    """403 is read as "not there" (SkyPilot, tpuz)."""
    ask = release._Teardown._ask

    async def asked(self: Any, question: Any) -> Any:
        answer = await ask(self, question)
        return None if isinstance(answer, AuthError) else answer

    judge = absence.judge

    def judged(lease: Any, evidence: Any, now: float, capabilities: Any) -> Verdict:
        listing = evidence.listing or Listing(())
        return judge(lease, replace(evidence, listing=listing), now, capabilities)

    with patch.object(release._Teardown, "_ask", asked), patch.object(absence, "judge", judged):
        yield


@replaces(release._Teardown, "_should_delete", "failing_deletes")
async def failed_delete_not_repeated(_: Any, self: Any, view: Any, now: float) -> bool:
    """A delete is sent once, and the failure of its operation is never read."""
    return bool(self._deleted_at is None)


@replaces(obligations, "release_all", "permission_revoked", also=recover)
async def gives_up_as_gone(real: Any, owed: Any, capabilities: Any, *, budget_s: float) -> Any:
    """The teardown gives up after a time and records the slice as gone (dstack: 15 minutes)."""
    results = await real(owed, capabilities, budget_s=budget_s)
    for released in results:
        if not released.gone:
            await release.try_record(release.Gone(released.lease.id, await Now(), evidence="gave up"))
    return [replace(released, gone=True) for released in results]


@mutant("command_only")
def leaves_early() -> Any:
    """The command exits after the first failed look."""
    return patch.object(obligations, "RELEASE_S", 0.0)


@mutant("command_only")
def second_signal_interrupts() -> Iterator[None]:
    """A second signal interrupts the teardown."""
    with (
        patch.object(release, "MaskSignals", NoEffect),
        patch.object(run, "MaskSignals", NoEffect),
        patch.object(restart, "MaskSignals", NoEffect),
        patch.object(finish, "MaskSignals", NoEffect),
    ):
        yield


CLUSTER_RUN = ClusterWorkload(Workload("run", lasts_s=10.0))
FAILING = replace(CLUSTER_RUN, job=replace(CLUSTER_RUN.job, rc=7), fails_on=1)
SUBMIT = replace(CLUSTER_RUN, detach=True)


def on_cluster(workload: ClusterWorkload, layers: Layers = GUARDIAN_ONLY, **plan: Any) -> Callable[[], Result]:
    """Return the function that plays one world with this workload and these faults."""
    return lambda: ClusterWorld(1, workload, ClusterPlan(**deepcopy(plan)), layers=layers).run()


# -- scenarios on a cluster ------------------------------------------------------------------------------------------


@scenario
def what_a_jobset_leaves() -> Plays:
    """It goes, or was deleted as by `kubectl delete --cascade=background`, while its pods end."""
    yield "deleted in the console", on_cluster(CLUSTER_RUN, deleted_at=12.0, deleted_how="Background", pod_stop_s=60.0)
    yield "collected late", on_cluster(CLUSTER_RUN, collects_s=5.0)


@scenario
def slow_to_go() -> Plays:
    yield "a finalizer", on_cluster(CLUSTER_RUN, finalizer_until=100.0)
    yield "pods that take a minute", on_cluster(CLUSTER_RUN, pod_stop_s=60.0, signals=[9.0])


@scenario
def another_of_its_name() -> Plays:
    yield "while it runs", on_cluster(CLUSTER_RUN, deleted_at=9.0, deleted_how="Replaced")


@scenario
def another_of_its_name_at_any_moment() -> Plays:
    """Before its delete arrives, in steps that are shorter than a call."""
    world = ClusterWorld(1, CLUSTER_RUN, ClusterPlan(), layers=NO_LAYER, trace=True)
    arrives_at = float(next(line for line in world.run().trace if "delete of" in line).split()[0])
    for hundredths in range(30):
        at = arrives_at - hundredths / 100
        yield f"at {at:.3f} s", on_cluster(CLUSTER_RUN, NO_LAYER, deleted_at=at, deleted_how="Replaced")


@scenario
def posts_that_arrive_late() -> Plays:
    for there_s in (20.0, 40.0, 70.0):
        yield f"after {there_s} s", on_cluster(CLUSTER_RUN, late_posts=[there_s] * 5, signals=[16.5])


@scenario
def replies_to_posts_are_lost() -> Plays:
    yield "of the JobSet", on_cluster(SUBMIT, late_posts=[0.05])


@scenario
def left_to_the_control_plane() -> Plays:
    """The machine dies, and what runs in the pods hangs."""
    yield "queued", on_cluster(CLUSTER_RUN, NO_LAYER, hangs=True, **power_cut(20.0))
    late = replace(CLUSTER_RUN, queued=False)
    yield "without a queue, nodes come late", on_cluster(late, NO_LAYER, hangs=True, nodes_s=1000.0, **power_cut(20.0))
    back = [(200.0 + 300.0 * time, 10.0) for time in range(8)]
    yield "evicted again and again", on_cluster(CLUSTER_RUN, NO_LAYER, hangs=True, evictions=back, **power_cut(20.0))


@scenario
def a_job_that_fails_on_a_cluster() -> Plays:
    yield "and the other pod is stopped", on_cluster(FAILING)


@scenario
def away_at_the_end() -> Plays:
    yield "from the middle of the job to its limit", on_cluster(CLUSTER_RUN, cut={"api": [(12.0, 500.0)]})


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
def creates_are_not_continued(real: Any, self: ClusterCloud, request: Any, in_time: Any) -> Operation:
    """A create that finds its JobSet does not make what the pods need."""
    name = request.name
    try:
        self.api(name.project).post(path_of("jobsets", name.zone), request.manifests[0])
    except AlreadyExists:
        return Operation("jobset/x", done=True, verb="create", target=name.node)
    return real(self, request, in_time)


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

"""A cluster under virtual time: a store with the calls of its API, and what Kueue, JobSet, the scheduler and kubelets do.

The store is linearizable, as etcd is. Controllers stop while the API server is away; the kubelets' own limits do not. The
facts are those that `tests/cluster` shows of the real controllers.
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from orchestrator.errors import AlreadyExists, WrongState
from orchestrator.places.gke.api.kube_api import NotFound, Rows
from tests.simulation.model.faults import FaultPlan
from tests.simulation.model.jobsets import LATE, MAX_EXEC, NAMESPACE, JobSet, Pod, Stored

if TYPE_CHECKING:
    from tests.simulation.model.cluster_world import ClusterWorld
    from tests.simulation.model.process import Process

GRACE_S = 60.0  # of a pod that is asked to end, at most
TOLERATED_S = 300.0  # how long a pod stays on a node that is lost
SETTLE_S = 0.3  # from an event to the controller that acts on it


@dataclass
class ClusterPlan(FaultPlan):
    """Times are seconds after the start, or after what they follow."""

    admitted_after: float | None = 2.0  # None: Kueue never admits it
    nodes_s: float = 3.0  # until its pods have nodes
    pull_s: float = 2.0  # until their containers run
    no_image: bool = False
    evictions: list[tuple[float, float | None]] = field(default_factory=list)  # by Kueue, and when it is admitted again
    # When, and of which worker the pod is taken: evicted, deleted, lost.
    taken: list[tuple[float, int, str]] = field(default_factory=list)
    node_removed_s: float = 400.0  # from the loss of a node
    pod_stop_s: float = 1.0  # that a pod takes to end once asked
    collects_s: float = 0.5  # the garbage collector of the cluster
    finalizer_until: float | None = None  # of another controller, on every JobSet
    deleted_at: float | None = None  # by its user, in the console
    # Foreground, Background, or Replaced: at once another JobSet of that name is created, which is not ours.
    deleted_how: str = "Foreground"
    hangs: bool = False  # neither the job nor the program in its pods ends
    late_posts: list[float] = field(default_factory=list)  # the first posts take so long, and their replies are lost
    nodes_gone_s: float | None = None  # from the end of a pod: its node, and so its object and its log, are gone


class Cluster:
    def __init__(self, world: ClusterWorld, plan: ClusterPlan) -> None:
        self.world, self.timeline, self.plan = world, world.timeline, plan
        self.sets: list[JobSet] = []  # all that ever were
        self.owned: list[Stored] = []  # that exist
        self.under_way = 0  # posts that have not arrived
        self.arrives_late = False  # the call that arrives now was under way for long: its caller may have given it up
        self._uids = map("uid-{}".format, itertools.count(1))

    # -- calls of the API ----------------------------------------------------------------------------------------------

    def get(self, path: str) -> dict[str, Any]:
        kind, name = _parts(path)
        for row in self._rows(kind, ""):
            if row["metadata"]["name"] == name:
                return row
        raise NotFound(f"{kind} {name!r} not found")

    def list(self, path: str, labels: str, *, contents: bool) -> Rows:
        kind, _ = _parts(path)
        rows = [row if contents else {"metadata": row["metadata"]} for row in self._rows(kind, labels)]
        return Rows(tuple(rows), float(int(self.timeline.now)))

    def _rows(self, kind: str, selector: str) -> builtins.list[dict[str, Any]]:
        key, _, value = selector.partition("=")
        if kind == "namespaces":
            return [{"metadata": {"name": NAMESPACE}}]
        if kind == "workloads":
            return [each.workload_json() for each in self.sets if each.exists and each.uid == value and each.queued]
        rows = [each.as_json() for each in self.owned if each.kind == kind]
        for each in self.sets:
            if kind == "jobsets" and each.exists:
                rows.append(each.jobset_json(self._finalizers()))
            elif kind == "jobs":
                rows += each.jobs_json()
            elif kind == "pods":
                rows += [pod.as_json(each.labels_of_pods) for pod in each.pods]
        return [row for row in rows if not selector or row["metadata"]["labels"].get(key) == value]

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        kind, _ = _parts(path)
        name = body["metadata"]["name"]
        if any(row["metadata"]["name"] == name for row in self._rows(kind, "")):
            raise AlreadyExists(f"{kind} {name!r} already exists")
        if kind == "jobsets":
            return self._new_jobset(body).as_json()
        made = Stored(kind, next(self._uids), body, self.timeline.now)
        self.owned.append(made)
        self.world.judge.check_not_gone(f"{kind} {name}", made.lease_id)
        if made.owners and not any(each.exists and each.uid in made.owners for each in self.sets):
            self.act(self.plan.collects_s + 30.0, self._remove_owned, made)
        return made.as_json()

    def delete(self, path: str, uid: str, *, foreground: bool, process: Process) -> None:
        kind, name = _parts(path)
        stored = [*(each for each in self.sets if each.exists), *self.owned]
        found = next((each for each in stored if (each.kind, each.name) == (kind, name)), None)
        if found is not None:
            if uid and uid != found.uid:
                raise WrongState(f"the UID in the precondition ({uid}) does not match that of the object")
            if found.deleting_at is None:
                self.world.judge.delete_arrived(found, process)
            if isinstance(found, JobSet):
                self.delete_jobset(found, "Foreground" if foreground else "Background")
            else:
                self.act(SETTLE_S, self._remove_owned, found)
            return None
        for each in self.sets:
            for pod in each.pods:
                if (kind, name) == ("pods", pod.name):
                    return self._terminate(each, pod)
            if each.has_jobs and (kind, name) == ("jobs", f"{each.name}-slice-0"):
                return self._end_jobs(each)
        raise NotFound(f"{kind} {name!r} not found")

    # -- JobSets and Kueue ---------------------------------------------------------------------------------------------

    def _new_jobset(self, body: Mapping[str, Any]) -> JobSet:
        made = JobSet(next(self._uids), body, self.timeline.now)
        self.sets.append(made)
        self.world.judge.jobset_created(made)
        if not made.queued:
            self.act(SETTLE_S, self._run, made)
        elif self.plan.admitted_after is not None:
            self.act(self.plan.admitted_after, self._admit, made)
        return made

    def _admit(self, jobset: JobSet) -> None:
        if jobset.going_on and jobset.suspended:
            jobset.suspended = False
            self.world.log(f"Kueue admits {jobset.name}")
            if MAX_EXEC in jobset.labels:
                left_s = float(jobset.labels[MAX_EXEC]) - jobset.used_s
                self.act(max(left_s, 0.0), self._exceeded, jobset, jobset.epoch + 1)
            self._run(jobset)

    def _exceeded(self, jobset: JobSet, epoch: int) -> None:
        if jobset.epoch == epoch and not jobset.finished and jobset.exists and not jobset.suspended:
            self.world.log(f"Kueue suspends {jobset.name} for good: its time is over")
            jobset.deactivated = jobset.at_limit = True
            self._suspend(jobset)

    def evict(self, jobset: JobSet, again_s: float | None) -> None:
        if jobset.going_on and not jobset.suspended and jobset.queued:
            self.world.log(f"Kueue sends {jobset.name} back to its queue")
            jobset.last_words = "preempted by a workload of higher priority"
            self.world.judge.lost(jobset, "it was sent back to its queue")
            self._suspend(jobset)
            if again_s is not None:
                self.act(again_s, self._admit, jobset)

    def _suspend(self, jobset: JobSet) -> None:
        jobset.used_s, jobset.suspended = jobset.admitted_s(self.timeline.now), True
        for pod in list(jobset.pods):
            self._terminate(jobset, pod)

    def _run(self, jobset: JobSet) -> None:
        if not jobset.exists or jobset.deleting_at is not None:
            return
        jobset.epoch, jobset.admitted_at = jobset.epoch + 1, self.timeline.now
        limit = jobset.job.get("activeDeadlineSeconds")
        if limit is not None:
            self.act(float(limit), self._job_is_late, jobset, jobset.epoch)
        for worker in range(jobset.workers):
            piece, host = divmod(worker, jobset.hosts)
            name = f"{jobset.name}-slice-{piece}-{host}-{jobset.epoch:05}"
            pod = Pod(next(self._uids), name, worker, host, piece, jobset.epoch, self.timeline.now)
            jobset.pods.append(pod)
            if self.plan.nodes_s < inf:
                self.act(self.plan.nodes_s + 0.1 * worker, self._schedule, jobset, pod)

    def _job_is_late(self, jobset: JobSet, epoch: int) -> None:
        if jobset.epoch == epoch and not (jobset.suspended or jobset.ends) and jobset.has_jobs:
            self.world.log(f"the time of the Jobs of {jobset.name} is over")
            jobset.at_limit = True
            self._fail(jobset, LATE)

    def _fail(self, jobset: JobSet, reason: str) -> None:
        """End a JobSet whose Job has failed; it says so once no pod of it is active."""
        jobset.failing, jobset.job_reason = True, reason
        for pod in list(jobset.pods):
            if pod.ended_at is None:
                self._terminate(jobset, pod)
        self._look(jobset)

    def _look(self, jobset: JobSet) -> None:
        """What the controllers do after any change of a pod."""
        if jobset.deleting_at is not None:
            jobset.has_jobs &= bool(jobset.pods)
            if not jobset.has_jobs:
                self._remove_jobset(jobset)
        if jobset.deleting_at is not None or jobset.finished or jobset.suspended:
            return
        of_run = [pod for pod in jobset.pods if pod.epoch == jobset.epoch]
        ended = all(pod.ended_at is not None for pod in of_run)
        if jobset.failing and ended:
            self._finished(jobset, "Failed")
        elif not jobset.failing and (len(of_run) < jobset.workers or any(pod.rc for pod in of_run)):
            self._fail(jobset, "BackoffLimitExceeded")
        elif not jobset.failing and ended:
            self._finished(jobset, "Completed")

    def _finished(self, jobset: JobSet, how: str) -> None:
        jobset.finished = how
        self.world.log(f"{jobset.name} has {how}")
        self.world.judge.changed(jobset)
        ttl = jobset.body["spec"].get("ttlSecondsAfterFinished")
        if ttl is not None:
            self.act(float(ttl), self.delete_jobset, jobset, "Foreground")

    def delete_jobset(self, jobset: JobSet, how: str) -> None:
        if not jobset.exists or jobset.deleting_at is not None:
            return
        jobset.deleting_at = self.timeline.now
        self.world.log(f"{jobset.name} is being deleted")
        self.world.judge.changed(jobset)
        if how != "Foreground" and not self._finalizers():
            self._remove_jobset(jobset)
        self.act(self.plan.collects_s, self._end_jobs, jobset)

    def _end_jobs(self, jobset: JobSet) -> None:
        for pod in list(jobset.pods):
            self._terminate(jobset, pod)
        jobset.has_jobs &= jobset.exists
        self._look(jobset)

    def _finalizers(self) -> builtins.list[str]:
        until = self.plan.finalizer_until
        held = until is not None and self.timeline.now < self.world.faults.begun_at + until
        return ["example.com/slow"] if held else []

    def _remove_jobset(self, jobset: JobSet) -> None:
        if jobset.exists and self._finalizers():
            self.act(1.0, self._look, jobset)
            return
        jobset.exists = False
        self.world.log(f"{jobset.name} does not exist any more, but for {len(jobset.pods)} pods")
        for each in self.owned:
            if jobset.uid in each.owners:
                self.act(self.plan.collects_s, self._remove_owned, each)
        self.world.judge.changed(jobset)

    def _remove_owned(self, owned: Stored) -> None:
        if owned in self.owned:
            self.owned.remove(owned)
            self.world.stop_when_done()

    # -- pods ----------------------------------------------------------------------------------------------------------

    def _schedule(self, jobset: JobSet, pod: Pod) -> None:
        if pod.gone or pod.deleting_at is not None:
            return
        pod.node, jobset.node_at = f"node-{pod.worker}", jobset.node_at or self.timeline.now
        limit = jobset.job["template"]["spec"].get("activeDeadlineSeconds")
        if limit is not None:
            self.timeline.after(float(limit), self._pod_is_late, jobset, pod)
        if self.plan.no_image:
            pod.no_image = True
            self.world.judge.lost(jobset, "its image does not exist")
        else:
            self.act(self.plan.pull_s, self._start, jobset, pod)

    def _start(self, jobset: JobSet, pod: Pod) -> None:
        if pod.gone or pod.deleting_at is not None or pod.ended_at is not None:
            return
        if not any((each.kind, each.name) == ("configmaps", jobset.name) for each in self.owned):
            self.act(2.0, self._start, jobset, pod)  # FailedMount: the kubelet tries again
            return
        pod.started_at = self.timeline.now
        of_run = [each for each in jobset.pods if each.epoch == jobset.epoch]
        workload = self.world.workloads[jobset.lease_id]
        job = workload.job
        if not self.plan.hangs:
            self.timeline.after(workload.max_s, self._end, jobset, pod, 124, "deadline")
        if len(of_run) == jobset.workers and all(each.started_at is not None for each in of_run):
            jobset.ran_at, jobset.ended_at = self.timeline.now, None  # also once it was sent back and admitted again
            for each in of_run if not self.plan.hangs else ():
                rc = job.rc if each.worker == workload.fails_on else 0
                late_s = 0.0 if rc else 0.2 * each.worker + (5.0 if job.rc else 0.0)
                self.timeline.after(job.lasts_s + late_s, self._end, jobset, each, rc, "")

    def _pod_is_late(self, jobset: JobSet, pod: Pod) -> None:
        """The kubelet ends a pod at its own deadline, and takes as long as the pod needs."""
        if not pod.gone and pod.ended_at is None:
            jobset.at_limit = True
            self.timeline.after(min(self.plan.pod_stop_s, GRACE_S), self._end, jobset, pod, 137, "stopped", LATE)

    def _end(self, jobset: JobSet, pod: Pod, rc: int, note: str, reason: str = "") -> None:
        """The container of a pod ends."""
        if not pod.holds_tpu or (pod.deleting_at is not None and note != "stopped"):
            return
        jobset.at_limit |= note == "deadline"
        pod.ended_at, pod.rc, pod.note, pod.reason = self.timeline.now, rc, note, reason
        jobset.codes[pod.worker] = rc
        self.world.judge.pod_ended(jobset, pod)
        if self.plan.nodes_gone_s is not None:
            self.act(self.plan.nodes_gone_s, self._remove_pod, jobset, pod)
        self.act(SETTLE_S, self._look, jobset)

    def _terminate(self, jobset: JobSet, pod: Pod) -> None:
        """Delete a pod: it is asked to end, and its object goes once its kubelet has said that it has."""
        if pod.deleting_at is not None or pod.gone:
            return
        pod.deleting_at = self.timeline.now
        if pod.is_lost:
            pod.disruption = "DeletionByTaintManager"
            return  # until its node is removed
        if pod.started_at is None or pod.ended_at is not None:
            self.act(0.1, self._remove_pod, jobset, pod)
            return
        stop_s = min(self.plan.pod_stop_s, GRACE_S)
        self.timeline.after(stop_s, self._end, jobset, pod, 143, "stopped")
        self.act(stop_s + 0.1, self._remove_pod, jobset, pod)

    def _remove_pod(self, jobset: JobSet, pod: Pod) -> None:
        if pod.gone:
            return
        held, pod.gone = pod.holds_tpu, True
        if held:
            self.world.judge.pod_ended(jobset, pod)
        jobset.pods.remove(pod)
        if not jobset.finished or jobset.deleting_at is not None:
            self._look(jobset)
        self.world.judge.changed(jobset)

    def take(self, worker: int, how: str) -> None:
        """Take away a pod that runs."""
        for jobset in self.sets:
            for pod in list(jobset.pods):
                if pod.worker != worker or not pod.started_at or pod.ended_at or pod.deleting_at or pod.is_lost:
                    continue
                self.world.log(f"{pod.name} is taken away: {how}")
                known_s = min(TOLERATED_S, self.plan.node_removed_s) if how == "lost" else 0.0
                self.world.judge.lost(jobset, f"a pod was taken away ({how})", known_s)
                pod.disruption = "EvictionByEvictionAPI" if how == "evicted" else ""
                if how == "lost":
                    pod.is_lost = True
                    self.world.judge.pod_ended(jobset, pod)
                    self.act(TOLERATED_S, self._terminate, jobset, pod)
                    self.act(self.plan.node_removed_s, self._remove_pod, jobset, pod)
                else:
                    self._terminate(jobset, pod)

    # -- time ----------------------------------------------------------------------------------------------------------

    def act(self, delay_s: float, do: Callable[..., None], *args: Any) -> None:
        """Let a controller do something, once the API server is there."""
        self.timeline.after(delay_s, self._act, do, args)

    def _act(self, do: Callable[..., None], args: tuple[Any, ...]) -> None:
        elapsed_s = self.world.faults.elapsed_s()
        ends = [end for begin, end in self.plan.cut.get("api", ()) if begin <= elapsed_s < end]
        if ends:
            self.timeline.after(max(ends) - elapsed_s + SETTLE_S, self._act, do, args)
        else:
            do(*args)


def _parts(path: str) -> tuple[str, str]:
    """Return kind and name of a path: of one namespace, or of all."""
    _, _, rest = path.partition(f"/namespaces/{NAMESPACE}/")
    kind, _, name = (rest or path.rpartition("/")[2]).partition("/")
    return kind, name

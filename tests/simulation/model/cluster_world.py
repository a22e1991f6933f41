"""One simulated world with a cluster in the place of Cloud TPU, as its processes reach it, with all other parts alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from orchestrator.errors import CloudError, CloudUnavailable, Unreachable
from orchestrator.hosts.fleet.crew import FleetStatus
from orchestrator.hosts.fleet.effects import Connect, StopPhase, WaitForWorkers
from orchestrator.hosts.fleet.follow import WorkerState, WorkerStatus
from orchestrator.places.gke.api import client
from orchestrator.places.gke.api.client import ClusterCloud
from orchestrator.places.gke.api.kube_api import KubeApi, path_of
from orchestrator.promise.lease.cloud_api import WorkerAddress
from tests.simulation.model.cloud_client import CallNeeded, Replayed
from tests.simulation.model.cluster import Cluster, ClusterPlan
from tests.simulation.model.faults import TIMEOUT_S, TRAVEL_S, CallOutcome
from tests.simulation.model.fleet import LOCAL_S, SimCrew
from tests.simulation.model.jobsets import LATE, NAMESPACE, JobSet, Pod
from tests.simulation.model.world import World
from tests.simulation.oracle.clusters import ClusterOracle

if TYPE_CHECKING:
    from tests.simulation.model.cluster import Cluster
    from tests.simulation.model.process import Process, Token


class ClusterWorld(World):
    cloud_kind = "gke"

    def __init__(self, seed: int, workload: Callable[[Any], None], plan: ClusterPlan, **options: Any) -> None:
        super().__init__(seed, workload, plan, speed=1.0, **options)
        self.capabilities = ClusterCloud(cast(Any, None)).capabilities
        self.timings = self.capabilities.timings  # those of Google Cloud
        self.cluster_plan = plan
        self.workloads: dict[str, Any] = {}  # by lease: what the pods do; also of "", as all have that are not ours
        self.oracle = self.judge = ClusterOracle(self)  # type: ignore[assignment]
        self.cluster = Cluster(self, plan)

    def client(self, process: Process) -> ClusterClient:
        return ClusterClient(self.cluster, process)

    def ask_workers(self, process: Process, effect: Any, token: int) -> None:
        SimPods.begin(process, effect, token)

    def _supply(self) -> None:
        plan, cluster = self.cluster_plan, self.cluster
        for at, again_s in plan.evictions:
            self.at(at, lambda again_s=again_s: [cluster.evict(each, again_s) for each in list(cluster.sets)])
        for at, worker, how in plan.taken:
            self.at(at, cluster.take, worker, how)
        if plan.deleted_at is not None:
            self.at(plan.deleted_at, self.user_deletes, plan.deleted_how)
        if plan.finalizer_until is not None:
            self.at(plan.finalizer_until, lambda: None)

    def user_deletes(self, how: str) -> None:
        """Delete every JobSet in the console."""
        for each in [each for each in self.cluster.sets if each.exists and each.deleting_at is None]:
            self.judge.lost(each, "its user deleted it")
            self.cluster.delete_jobset(each, how)
            if how == "Replaced" and not each.exists:
                self.create_foreign(each.body, each.name)

    def create_foreign(self, body: Mapping[str, Any], name: str) -> None:
        """Create a JobSet that tpujob did not make."""
        self.foreign.add(name)
        foreign = {**body, "metadata": {"name": name, "labels": {"owner": "friend"}}}
        self.cluster.post(path_of("jobsets", NAMESPACE), foreign)

    def creates_under_way(self) -> bool:
        return self.cluster.under_way > 0

    def _at_the_end(self) -> None:
        for each in self.cluster.sets:
            self.judge.judge(each)
            for pod in filter(lambda pod: pod.holds_tpu, each.pods):
                self.judge.pod_ended(each, pod)

    def _pending(self) -> list[bool]:
        """What is over or foreign holds no TPU, and no layer promised to delete it."""
        sets = self.cluster.sets
        going_on = [each.exists and each.claim is not None and not each.over for each in sets]
        return [*map(self.judge.judge, sets), *going_on]

    def check_exit(self, process: Process, code: int) -> None:
        self.judge.check_exit(process, code)


class ClusterClient:
    """What a process has of the cluster."""

    def __init__(self, cluster: Cluster, process: Process) -> None:
        self.cluster, self.process = cluster, process
        self.capabilities = process.world.capabilities

    def send(self, verb: str, effect: Any, token: Token) -> None:
        self.process.world.count_call(self.process)
        Question(self.cluster, self.process, effect, token).advance()


class Question(Replayed, KubeApi):
    """One effect on the cloud: a `KubeApi` whose calls travel."""

    def __init__(self, cluster: Cluster, process: Process, effect: Any, token: Token) -> None:
        super().__init__(process, token)
        self.server = "k8s.test"
        self.cluster, self.effect = cluster, effect
        self.cloud = ClusterCloud(lambda project: self)  # of the world on which the effect is performed
        self.own_creates, began = process.own_creates, process.now()
        self.now = lambda: began  # an effect is performed again and again, until all its calls are answered
        self.asked_at = cluster.timeline.now

    def _question(self) -> Any:
        times = iter([self.asked_at])  # when a create begins, however often it is performed
        clock = SimpleNamespace(monotonic=lambda: next(times, self.cluster.timeline.now))
        with patch.object(client, "time", clock):
            return self.effect.perform(self)

    # -- KubeApi -------------------------------------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        return self._ask("get", {"path": path})

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._ask("post", {"path": path, "body": body})

    def delete(self, path: str, uid: str, *, foreground: bool = True) -> None:
        self._ask("delete", {"path": path, "uid": uid, "foreground": foreground, "process": self.process})

    def list(self, path: str, *, labels: str = "", fields: str = "", contents: bool = True) -> Any:
        return self._ask("list", {"path": path, "labels": labels, "contents": contents})

    # -- one call ------------------------------------------------------------------------------------------------------

    def _outcome_of(self, question: CallNeeded) -> CallOutcome:  # type: ignore[override]
        process, world = self.process, self.cluster.world
        outcome = world.faults.outcome_of_call(f"cluster.{question.call}", "client", process.machine.edge, process)
        if not outcome.reaches:
            return outcome
        if question.call == "post":
            self.cluster.under_way += 1
            if outcome.error is None and (late := self.cluster.plan.late_posts):
                outcome.there_s, outcome.back_s = late.pop(0), TIMEOUT_S
                outcome.error = CloudUnavailable("timed out")
        if outcome.error is not None:
            lasted = CallOutcome(0.0, min(outcome.there_s + outcome.back_s, TIMEOUT_S))
            world.faults.note_failed_call(process, lasted)
            world.timeline.after(lasted.back_s, self._heard, outcome.error)
        return outcome

    def _arrive(self, question: CallNeeded, outcome: CallOutcome) -> None:  # type: ignore[override]
        process, world = self.process, self.cluster.world
        self.cluster.under_way -= question.call == "post"
        self.cluster.arrives_late = outcome.there_s > TRAVEL_S
        try:
            answer = getattr(self.cluster, question.call)(**question.request)
        except CloudError as refusal:
            answer = refusal
        if outcome.error is not None:
            world.stop_when_done()
            return
        if not (process.alive and world.passes_crash_point(process)):
            world.timeline.after(outcome.back_s, self._heard, answer)


class SimPods(SimCrew):
    """The pods of `places.gke.pods.fleet.PodFleet`."""

    vm = None  # there is none

    def __init__(self, process: Process, jobset: JobSet, workers: tuple[WorkerAddress, ...]) -> None:
        super().__init__(process)
        self.jobset, self.workers = jobset, workers
        hosts = {each.host for each in workers} - {""}
        self.pods = [pod for pod in jobset.pods if not hosts or pod.name in hosts]
        self.stored = not hosts  # what they left is in a bucket
        self._ends: dict[int, WorkerStatus] = {}

    def _begin(self, token: int, effect: Any) -> None:
        wait_s = 10.0 if type(effect) is StopPhase else LOCAL_S
        if type(effect) is WaitForWorkers:
            known = effect.timeout_s and any(each.failed for each in self.statuses())
            wait_s = LOCAL_S if known else max(effect.timeout_s, LOCAL_S)
        self.world.timeline.after(wait_s, self._do, token, effect)

    @classmethod
    def _try_connect(cls, process: Process, effect: Connect, token: int, deadline: float) -> None:
        world, hosts = process.world, {each.host for each in effect.workers} - {""}
        sets = world.cluster.sets  # type: ignore[attr-defined]
        found = next((each for each in sets if hosts <= {pod.name for pod in each.pods}), None)
        if found is not None and not world.faults.is_cut("api", process.machine.edge):
            process.answer_later(LOCAL_S, token, cls(process, found, effect.workers), None)
        elif world.timeline.now >= deadline:
            process.answer_later(0.0, token, None, Unreachable("worker0: no pod is there"))
        else:
            process.timeline.after(1.0, cls._try_connect, process, effect, token, deadline)

    def cut(self) -> bool:
        return self.world.faults.is_cut("api", self.machine.edge)

    # -- methods of the fleet ------------------------------------------------------------------------------------------

    def send_heartbeats(self, every_s: float, *, everywhere: bool = False) -> None:
        pass

    def stop(self, grace_s: float) -> None:
        pass

    def wait(self, timeout_s: float) -> FleetStatus:
        return FleetStatus(self.statuses())

    def statuses(self) -> tuple[WorkerStatus, ...]:
        self.reached_at = self.reached_at if self.cut() else self.world.timeline.now
        return tuple(self._ends.get(pod.worker) or self._status(pod) for pod in self.pods)

    def _status(self, pod: Pod) -> WorkerStatus:
        now = self.world.timeline.now
        if self.cut():
            return WorkerStatus(pod.worker, WorkerState.UNREACHABLE, self.reached_at, 0)
        if pod.ended_at is None and not pod.gone:
            return WorkerStatus(pod.worker, WorkerState.RUNNING, now, 0)
        if pod.gone and not self.stored and (pod.ended_at is None or now - pod.ended_at > 5.0):
            made = WorkerStatus(pod.worker, WorkerState.LOST, now, 0, why="gone", detail="its pod was deleted")
        elif pod.note == "deadline" or pod.reason == LATE:
            made = WorkerStatus(pod.worker, WorkerState.EXITED, now, 0, 124, True, why="deadline")
        elif pod.note == "stopped":
            made = WorkerStatus(pod.worker, WorkerState.LOST, now, 0, why=pod.reason or "stopped")
        else:
            made = WorkerStatus(pod.worker, WorkerState.EXITED, now, 0, pod.rc)
        self._ends[pod.worker] = made
        return made

"""One simulated world with a cluster in the place of Cloud TPU: the same machines, processes and faults of this side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from orchestrator.core.lease.cloud_api import Capabilities
from orchestrator.places.gke.api import client
from orchestrator.places.gke.api.client import ClusterCloud
from tests.simulation.model.cluster import Cluster, ClusterPlan
from tests.simulation.model.cluster_client import CLOCK, ClusterClient, SimPods
from tests.simulation.model.world import Layers, Result, World
from tests.simulation.oracle.clusters import ClusterOracle

if TYPE_CHECKING:
    from tests.simulation.model.process import Process

GOOGLE_SPEED = 1.0  # the programs have the timings of Google Cloud on a cluster


@dataclass(frozen=True, slots=True)
class PodJob:
    """What the pods of a run do. `fails_on`: the worker on which it ends with `rc`."""

    lasts_s: float
    max_s: float
    rc: int = 0
    fails_on: int = 0


class ClusterWorld(World):
    cloud_kind = "gke"

    def __init__(
        self,
        seed: int,
        workload: Callable[[Any], None],
        plan: ClusterPlan,
        *,
        layers: Layers | None = None,
        trace: bool = False,
    ) -> None:
        super().__init__(seed, workload, plan, layers=layers, speed=GOOGLE_SPEED, trace=trace)
        known = _capabilities()
        self.capabilities, self.timings = known, known.timings
        self.cluster_plan = plan
        self.jobs: dict[str, PodJob] = {}  # by lease
        self.lost_nodes: dict[str, float] = {}  # by uid of the pod
        self.oracle = self.judge = ClusterOracle(self)  # type: ignore[assignment]
        self.cluster = Cluster(self, plan)

    def client(self, process: Process) -> ClusterClient:
        return ClusterClient(self.cluster, process)

    def ask_workers(self, process: Process, effect: Any, token: int) -> None:
        SimPods.begin(process, effect, token)

    def run(self) -> Result:
        with patch.object(client, "time", CLOCK):
            return super().run()

    def _supply(self) -> None:
        plan, cluster = self.cluster_plan, self.cluster
        for at, again_s in plan.evictions:
            self.at(at, lambda again_s=again_s: [cluster.evict(each, again_s) for each in list(cluster.sets)])
        for at, worker, how in plan.taken:
            self.at(at, cluster.take, worker, how)
        if plan.deleted_at is not None:
            self.at(plan.deleted_at, self.user_deletes, plan.deleted_how)
        if plan.replaced_at is not None:
            self.at(plan.replaced_at, self.replace)
        if plan.finalizer_until is not None:
            self.at(plan.finalizer_until, lambda: None)

    def job_of(self, lease_id: str) -> PodJob:
        return self.jobs.get(lease_id, PodJob(10.0, 60.0))

    def user_deletes(self, how: str) -> None:
        """Delete every JobSet in the console."""
        for each in list(self.cluster.sets):
            if each.exists and each.deleting_at is None:
                self.judge.lost(each, "its user deleted it")
                self.cluster.delete_jobset(each, how)

    def replace(self) -> None:
        """Delete every JobSet for good, at once, and create another one of its name, which tpujob did not make."""
        for each in list(self.cluster.sets):
            if each.exists and each.deleting_at is None:
                self.user_deletes("Background")
                if not each.exists:
                    body = {**each.body, "metadata": {"name": each.name, "labels": {"owner": "friend"}}}
                    self.judge.foreign_names.add(each.name)
                    self.cluster.post("/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets", body)

    def creates_under_way(self) -> bool:
        return self.cluster.under_way > 0

    def _at_the_end(self) -> None:
        for each in self.cluster.sets:
            self.judge.judge(each)
            for pod in each.pods:
                if pod.holds_tpu:
                    self.judge.pod_ended(each, pod)

    def _watch(self) -> None:
        self._watching = False
        if not self.judge.existing():
            return
        pending = [self.judge.judge(each) for each in self.cluster.sets]
        asleep = not any(pending) and not self.scheduled and not any(machine.processes for machine in self.machines)
        if asleep and all(each.over or self.judge.is_foreign(each) for each in self.cluster.sets if each.exists):
            self.timeline.stop()  # what is left holds no TPU, and no layer promised to delete it
            return
        self.watch_resources()

    def check_exit(self, process: Process, code: int) -> None:
        self.judge.check_exit(process, code)


def _capabilities() -> Capabilities:
    return ClusterCloud(cast(Any, None)).capabilities

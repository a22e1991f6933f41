"""The pods of a JobSet as one process follows them: by their logs, which come through the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.engine.effects.workers import Connect, StopPhase, WaitForWorkers
from orchestrator.errors import Unreachable
from orchestrator.remote.fleet.follow import WorkerState, WorkerStatus
from orchestrator.remote.fleet.port import FleetStatus
from tests.simulation.model.fleet import LOCAL_S, SimCrew
from tests.simulation.model.jobsets import LATE, JobSet, Pod

if TYPE_CHECKING:
    from tests.simulation.model.process import Process


class SimPods(SimCrew):
    """The pods of `places.gke.pods.fleet.PodFleet`."""

    vm = None  # there is none

    def __init__(self, process: Process, jobset: JobSet, workers: tuple[WorkerAddress, ...]) -> None:
        super().__init__(process)
        self.jobset, self.workers = jobset, workers
        hosts = {each.host for each in workers}
        self.pods = [pod for pod in jobset.pods if pod.name in hosts]
        self._ends: dict[int, WorkerStatus] = {}

    def _begin(self, token: int, effect: Any) -> None:
        wait_s = 10.0 if type(effect) is StopPhase else LOCAL_S
        if type(effect) is WaitForWorkers:
            known = effect.timeout_s and any(each.failed for each in self.statuses())
            wait_s = LOCAL_S if known else max(effect.timeout_s, LOCAL_S)
        self.world.timeline.after(wait_s, self._do, token, effect)

    @classmethod
    def _try_connect(cls, process: Process, effect: Connect, token: int, deadline: float) -> None:
        world, hosts = process.world, {each.host for each in effect.workers}
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
        if self.cut():
            return tuple(self._ends.get(pod.worker) or self._silent(pod) for pod in self.pods)
        self.reached_at = self.world.timeline.now
        return tuple(self._ends.get(pod.worker) or self._status(pod) for pod in self.pods)

    def _silent(self, pod: Pod) -> WorkerStatus:
        return WorkerStatus(pod.worker, WorkerState.UNREACHABLE, self.reached_at, 0)

    def _status(self, pod: Pod) -> WorkerStatus:
        now = self.world.timeline.now
        if pod.ended_at is None and not pod.gone:
            return WorkerStatus(pod.worker, WorkerState.RUNNING, now, 0)
        if pod.gone and (pod.ended_at is None or now - pod.ended_at > 5.0):
            made = WorkerStatus(pod.worker, WorkerState.LOST, now, 0, why="gone", detail="its pod was deleted")
        elif pod.note == "deadline" or pod.reason == LATE:
            made = WorkerStatus(pod.worker, WorkerState.EXITED, now, 0, 124, True, why="deadline")
        elif pod.note == "stopped":
            made = WorkerStatus(pod.worker, WorkerState.LOST, now, 0, why=pod.reason or "stopped")
        else:
            made = WorkerStatus(pod.worker, WorkerState.EXITED, now, 0, pod.rc)
        self._ends[pod.worker] = made
        return made

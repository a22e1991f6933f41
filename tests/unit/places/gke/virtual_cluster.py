"""A cluster in the virtual world: JobSets that are admitted, start, end and are deleted, and their pods as a fleet.

Every fault is an attribute.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from orchestrator.core.lease.cloud_api import (
    Capabilities,
    Listing,
    Operation,
    QueueTerms,
    SliceName,
    SliceRequest,
    SliceState,
    SliceView,
    WorkerAddress,
)
from orchestrator.core.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.engine.provision.drafts import Draft
from orchestrator.errors import BadRequest, CloudError, CloudUnavailable, Preempted, SliceLost, Vanished, WrongState
from orchestrator.places.gke.stay import ClusterStay
from orchestrator.places.place import STATES, Phase
from orchestrator.remote.fleet.follow import WorkerState, WorkerStatus
from orchestrator.remote.fleet.steps import FleetStatus
from orchestrator.run.job_run import JobRun
from tests.unit.engine.virtual import VirtualFleet, VirtualWorld, lease_and_request

CAN = Capabilities(visible_within_s=150, settles_within_s=150)
WAIT_S, MAX_S = 600.0, 3600.0
KUEUE = "couldn't assign flavors to pod set slice: insufficient unused quota for google.com/tpu in flavor v5e"


@dataclass
class JobSet:
    request: SliceRequest
    made_at: float
    deleted_at: float | None = None


class VirtualCluster:
    """One namespace. A JobSet is admitted after `queue_s`, and its pods run `start_s` later; a delete takes `delete_s`."""

    capabilities = CAN

    def __init__(self, world: VirtualWorld) -> None:
        self.world = world
        self.queue_s, self.start_s, self.delete_s = 30.0, 10.0, 20.0
        self.jobsets: dict[str, JobSet] = {}
        self.left: dict[str, str] = {}  # what is left of JobSets that are gone
        self.calls: list[tuple[str, str]] = []
        # faults
        self.away: list[tuple[float, float]] = []  # when the API server does not answer
        self.refuses: CloudError | None = None
        self.no_image = False
        self.stuck = False  # a finalizer that nothing removes
        self.ended_by: Callable[[float], CloudError | None] = lambda ran_s: None  # how the cluster ends what runs
        self.sent_back_after_s = inf  # Kueue sends what runs back to its queue
        self.pods_gone = 0
        self.pods_back_at = inf
        self.unsettled_until = 0.0  # a pod is gone, and the JobSet does not say yet that it failed

    # The Cloud protocol

    def create(self, request: SliceRequest) -> Operation:
        self._call("create", request.name)
        if self.refuses is not None:
            raise self.refuses
        self.jobsets.setdefault(request.name.node, JobSet(request, self.world.time))
        return Operation(f"jobset/{request.name.node}", True, "create", request.name.node)

    def get(self, name: SliceName) -> SliceView | None:
        self._call("get", name)
        found = self.jobsets.get(name.node)
        if found is not None:
            return self._view(found)
        labels = {"tpujob": "1", "tpujob-lease-id": name.node.rpartition("-")[2]}
        left = self.left.get(name.node)
        return SliceView(name, SliceState.DELETING, left, "", "", labels) if left else None

    def list(self, project: str, zone: str, queued: bool = False) -> Listing[SliceView]:
        self._answer()
        return Listing(tuple(self._view(each) for each in self.jobsets.values()), (), self.world.time)

    def delete(self, name: SliceName) -> Operation | None:
        self._call("delete", name)
        found = self.jobsets.get(name.node)
        if found is None:
            return None
        found.deleted_at = found.deleted_at or self.world.time
        return Operation(f"jobset/{name.node}", False, "delete", name.node)

    def operation(self, name: str) -> Operation | None:
        return Operation(name, True, "create")

    def operations(self, project: str, zone: str) -> Listing[Operation]:
        return Listing(())

    def workers(self, name: SliceName) -> tuple[WorkerAddress, ...]:
        self._call("workers", name)
        if name.node not in self.jobsets:
            raise Vanished(f"{name.node} does not exist (any more)")
        if self.pods_gone and self.world.time >= self.pods_back_at:
            self.pods_gone = 0
        if self.pods_gone:
            raise WrongState(f"{2 - self.pods_gone} of 2 pods of {name.node} exist")
        return tuple(WorkerAddress(index, f"{name.node}-{index}", instance=f"node-{index}") for index in range(2))

    # What happens by itself

    def started_at(self, found: JobSet) -> float:
        return found.made_at + self.queue_s + self.start_s

    def _call(self, what: str, name: SliceName) -> None:
        self.calls.append((what, name.node))
        self._answer()

    def _answer(self) -> None:
        now = self.world.time
        for node, found in list(self.jobsets.items()):
            if found.deleted_at is not None and now >= found.deleted_at + self.delete_s and not self.stuck:
                del self.jobsets[node]
        if any(begin <= now < end for begin, end in self.away):
            raise CloudUnavailable("k8s.test did not answer in time")

    def _view(self, found: JobSet) -> SliceView:
        now, request = self.world.time, found.request
        state, native, error = self._state(found, now)
        admitted = now >= found.made_at + self.queue_s
        running_s = now - self.started_at(found) if state is SliceState.READY else None
        return SliceView(
            request.name,
            state,
            native,
            "v5litepod-8",
            "",
            dict(request.labels),
            error=error,
            nodes=("node-0", "node-1") if admitted else (),
            running_s=running_s,
        )

    def _state(self, found: JobSet, now: float) -> tuple[SliceState, str, CloudError | None]:
        if found.deleted_at is not None:
            return SliceState.DELETING, "Deleting held by finalizer x" if self.stuck else "Deleting, 2 pods left", None
        admitted_at, started_at = found.made_at + self.queue_s, self.started_at(found)
        if now < admitted_at:
            return SliceState.QUEUED, f"Suspended: {KUEUE}", None
        if self.no_image:
            text = "worker0 cannot start (ErrImagePull): not found"
            return SliceState.TOMBSTONE, "ErrImagePull", BadRequest(text)
        if now >= started_at + self.sent_back_after_s:
            return SliceState.QUEUED, "Suspended: preempted by a workload of higher priority", None
        error = self.ended_by(now - admitted_at)
        if error is not None:
            return SliceState.TOMBSTONE, type(error).__name__, error
        if now < started_at or now < self.unsettled_until:
            return SliceState.CREATING, "Starting (0 of 2 pods run: ContainerCreating)", None
        return SliceState.READY, "Running", None


@dataclass
class PodEnd:
    """How a pod ends, `after_s` from the start of the pods on. `why`: as `WorkerStatus` has it; without it the job did."""

    after_s: float = 100.0
    rc: int | None = 0
    why: str = ""
    phase: str = "main"


@dataclass
class VirtualPods(VirtualFleet):
    """The pods of the only JobSet. `setup` takes no time."""

    ends: list[PodEnd] = field(default_factory=lambda: [PodEnd(), PodEnd()])
    phase: str = ""
    attached: list[str] = field(default_factory=list)

    def attach(self, attempt: str, phase: str) -> None:
        self.phase = phase
        self.attached.append(phase)

    def wait(self, timeout_s: float) -> Any:
        statuses = self._statuses()
        if not any(each.final for each in statuses):
            due = [at for at in map(self._ends_at, self.ends) if at > self.world.time]
            self.world.time = min((self.world.time + timeout_s, *due))
            statuses = self._statuses()
        else:
            self.world.time += timeout_s
            statuses = self._statuses()
        return FleetStatus(statuses)

    def _statuses(self) -> tuple[WorkerStatus, ...]:
        return tuple(self._status(index, end) for index, end in enumerate(self.ends))

    def _ends_at(self, end: PodEnd) -> float:
        cluster: Any = self.world.cloud
        started = [cluster.started_at(each) for each in cluster.jobsets.values()]
        return min(started, default=0.0) + end.after_s

    def _status(self, index: int, end: PodEnd) -> WorkerStatus:
        now = self.world.time
        if self.silent_since is not None:
            return WorkerStatus(index, WorkerState.UNREACHABLE, self.silent_since, 0)
        if self.phase == "setup" and end.phase == "main":
            return WorkerStatus(index, WorkerState.EXITED, now, 0, 0)
        at = self._ends_at(end)
        if now < at:
            return WorkerStatus(index, WorkerState.RUNNING, now, 0)
        if end.why == "deadline":
            return WorkerStatus(index, WorkerState.EXITED, at, 9, 124, True, why="deadline")
        state = WorkerState.LOST if end.rc is None else WorkerState.EXITED
        return WorkerStatus(index, state, at, 9, end.rc, why=end.why)


def cluster_world(directory: Path) -> tuple[VirtualWorld, VirtualCluster]:
    world = VirtualWorld(directory)
    cluster = VirtualCluster(world)
    world.cloud, world.fleet = cluster, VirtualPods(world)  # type: ignore[assignment]
    return world, cluster


def pods(world: VirtualWorld) -> VirtualPods:
    assert isinstance(world.fleet, VirtualPods)
    return world.fleet


def job(world: VirtualWorld, *, detach: bool = False, phases: tuple[str, ...] = ("main",)) -> JobRun:
    run = RunRecord("0123456789", "mnist", "jobs/mnist-gke.yaml", "gke", world.time, "runs/x")
    lease, request = lease_and_request(zone="team", now=world.time)
    name = replace(lease.name, project="kind@https://k8s.test", queued=True)
    lease = replace(lease, cloud="gke", name=name, run=run.id, deadline=world.time + MAX_S + 1080)
    queue, labels = QueueTerms(WAIT_S, "an id"), {"tpujob": "1", "tpujob-lease-id": lease.id}
    request = replace(request, name=name, labels=labels, queue=queue, manifests=({"kind": "JobSet"},))
    attempt = Attempt("0123456789-1", run.id)
    return replace(_job(run, attempt, ClusterStay((Draft(lease, request),)), phases), detach=detach)


def _job(run: RunRecord, attempt: Attempt, stay: ClusterStay, phases: tuple[str, ...] = ("main",)) -> JobRun:
    made = tuple(Phase(name, STATES[name]) for name in phases)
    return JobRun(run, attempt, stay, made, (), Path("runs/x"), lambda worker, data: None, MAX_S)


def attachment(world: VirtualWorld, bucket: str | None = None) -> JobRun:
    """Return the attachment to the only run of the ledger. `bucket`: where its results are."""
    ((run, attempt),) = world.ledger.runs()
    lease = world.ledger.lease(attempt.lease_id or "")
    return replace(_job(run, attempt, ClusterStay(bucket=bucket)), attached_to=lease)


def at_deadline(after_s: float) -> Callable[[float], CloudError | None]:
    """Return what says that a Job has reached its deadline, `after_s` after its admission."""
    lost = SliceLost("the cluster ended it: Job was active longer than specified deadline", reason="deadline")
    return lambda ran_s: lost if ran_s >= after_s else None


def taken_away(after_s: float) -> Callable[[float], CloudError | None]:
    return lambda ran_s: Preempted("worker1 was taken away: Evicted") if ran_s >= after_s else None

"""A virtual world for programs of the engine: a clock that only sleeping moves, a cloud with settings, a driver that can crash.

The programs under test are the production ones; only what answers their effects is ours.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from orchestrator import errors
from orchestrator.core.lease.cloud_api import (
    Capabilities,
    Listing,
    Operation,
    SliceName,
    SliceRequest,
    SliceState,
    SliceView,
    WorkerAddress,
)
from orchestrator.core.lease.lease import Created, Intent, Lease, Purpose, Ready, Sent
from orchestrator.core.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.engine.effects.base import Effect, Program, Report, Shield, Sleep
from orchestrator.engine.effects.cloud import Delete, DeleteAll
from orchestrator.engine.provision.drafts import Draft
from orchestrator.ledger.ends import KeptEnds
from orchestrator.ledger.ledger import Ledger
from orchestrator.places.place import STATES, Phase
from orchestrator.places.tpu.traits import TRAITS as OF_TPU
from orchestrator.places.vms.stay import VmStay
from orchestrator.remote.fleet.follow import WorkerState, WorkerStatus
from orchestrator.remote.fleet.steps import FleetStatus, StartRequest
from orchestrator.remote.transfer.collect import CollectionProgress, CollectRequest, CollectResult, Problem
from orchestrator.run.job_run import JobRun
from tests.leases import lease_on

T = TypeVar("T")
CAN = Capabilities(visible_within_s=300, settles_within_s=2700)
ZONE = "us-central1-a"


@dataclass
class Node:
    request: SliceRequest
    operation: str
    created_at: float
    ready_at: float
    deleted_at: float | None = None  # when the delete was accepted
    stopped: bool = False
    preempted: bool = False
    queued_until: float = 0.0


class VirtualCloud:
    """One project. Provisioning takes `provision_s`, deleting `delete_s`; every fault is an attribute."""

    capabilities = CAN

    def __init__(self, world: VirtualWorld) -> None:
        self.world = world
        self.provision_s, self.delete_s = 60.0, 20.0
        self.nodes: dict[str, Node] = {}
        self.operations_seen: dict[str, tuple[str, str, float]] = {}  # operation → verb, node, done at
        self.failed: dict[str, errors.CloudError] = {}  # operation → error
        self.full_zones: set[str] = set()
        self.full_until: dict[str, float] = {}  # zone → when its stockout ends
        self.queue_s: dict[str, float] = {}  # zone → how long a queued request waits there
        self.no_external_ips = self.os_login_required = False  # policies of the organization
        self.refusing: dict[str, errors.CloudError] = {}  # zone → what a create is answered with
        self.notices: set[str] = set()  # nodes about to be taken away
        self.calls: list[tuple[str, str]] = []
        self.armed = True
        self.clock_ahead_s = 0.0
        # faults
        self.unanswered_deletes = 0
        self.stuck: set[str] = set()  # nodes of which every delete is accepted and comes to nothing
        self.get_error: errors.CloudError | None = None
        self.unreachable: tuple[str, ...] = ()

    # The Cloud protocol

    def create(self, request: SliceRequest) -> Operation:
        self._call("create", request.name)
        if self.no_external_ips and request.external_ips:
            raise errors.ExternalAddressRefused("constraints/compute.vmExternalIpAccess violated")
        if self.os_login_required and request.metadata.get("enable-oslogin") != "TRUE":
            raise errors.OsLoginRequired("constraints/compute.requireOsLogin violated")
        if request.name.zone in self.refusing:
            raise self.refusing[request.name.zone]
        if request.name.node in self.nodes:
            raise errors.AlreadyExists(f"Resource {request.name.node} already exists")
        return self._land(request)

    def get(self, name: SliceName) -> SliceView | None:
        self._call("get", name)
        if self.get_error is not None:
            raise self.get_error
        node = self.nodes.get(name.node)
        return self._view(node) if node else None

    def list(self, project: str, zone: str, queued: bool = False) -> Listing[SliceView]:
        self._settle()
        rows = tuple(self._view(node) for node in self.nodes.values() if node.request.name.zone == zone)
        return Listing(rows, self.unreachable, self.world.time + self.clock_ahead_s)

    def delete(self, name: SliceName) -> Operation | None:
        self._call("delete", name)
        if self.unanswered_deletes:
            self.unanswered_deletes -= 1
            raise errors.CloudUnavailable("503")
        node = self.nodes.get(name.node)
        if node is None:
            return None
        operation = self._operation("delete", name.node, self.world.time + self.delete_s)
        if name.node in self.stuck:
            return operation
        node.deleted_at = node.deleted_at or self.world.time
        return operation

    def start(self, name: SliceName) -> Operation:
        self._call("start", name)
        self.nodes[name.node].stopped = False
        return self._operation("start", name.node, self.world.time)

    def stop(self, name: SliceName) -> Operation:
        self._call("stop", name)
        self.nodes[name.node].stopped = True
        return self._operation("stop", name.node, self.world.time)

    def set_labels(self, name: SliceName, labels: Mapping[str, str]) -> Operation:
        self._call("set_labels", name)
        node = self.nodes.get(name.node)
        if node is None:
            raise errors.Vanished(f"{name.node} does not exist")
        node.request = replace(node.request, labels=dict(labels))
        return self._operation("update", name.node, self.world.time)

    def guest_attributes(self, name: SliceName) -> tuple[Mapping[str, str], ...]:
        """Two workers, each with a watchdog that has proved everything and has read the labels."""
        self._call("guest_attributes", name)
        node = self.nodes.get(name.node)
        if node is None or not self.armed:
            return ()
        mode = node.request.labels.get("tpujob-mode", "")
        if name.node in self.notices:
            return ({"tpujob/notice": "{}"},) * 2
        record = {"armed": True, "route": True, "permission": True, "mode": mode}
        return tuple({"tpujob/watchdog": json.dumps({**record, "worker": worker})} for worker in range(2))

    def operation(self, name: str) -> Operation | None:
        self._settle()
        if name not in self.operations_seen:
            return None
        verb, node, done_at = self.operations_seen[name]
        done = self.world.time >= done_at
        return Operation(
            name, done, verb, f"projects/p/locations/z/nodes/{node}", self.failed.get(name) if done else None
        )

    def operations(self, project: str, zone: str) -> Listing[Operation]:
        self._settle()
        found = (self.operation(name) for name in list(self.operations_seen))
        return Listing(tuple(operation for operation in found if operation is not None), self.unreachable)

    def workers(self, name: SliceName) -> tuple[WorkerAddress, ...]:
        return (WorkerAddress(0, "127.0.0.1", 1), WorkerAddress(1, "127.0.0.1", 2))

    # What happens by itself

    def _call(self, what: str, name: SliceName) -> None:
        self._settle()
        self.calls.append((what, name.node))

    def _land(self, request: SliceRequest) -> Operation:
        now = self.world.time
        node = request.name.node
        if request.name.zone in self.full_zones or now < self.full_until.get(request.name.zone, 0.0):
            operation = self._operation("create", node, now + 5)
            self.failed[operation.name] = errors.CapacityError("There is no more capacity in the zone")
            return operation
        queue_s = self.queue_s.get(request.name.zone, 0.0) if request.queue is not None else 0.0
        operation = self._operation("create", node, now + (self.provision_s if request.queue is None else 1.0))
        if node in self.nodes:
            self.failed[operation.name] = errors.AlreadyExists(f"Resource {node} already exists")
            return operation
        self.nodes[node] = Node(
            request, operation.name, now, now + queue_s + self.provision_s, queued_until=now + queue_s
        )
        return operation

    def _operation(self, verb: str, node: str, done_at: float) -> Operation:
        name = f"operation-{len(self.operations_seen)}"
        self.operations_seen[name] = (verb, node, done_at)
        return Operation(name, False, verb, node)

    def _settle(self) -> None:
        now = self.world.time
        for name, node in list(self.nodes.items()):
            if node.deleted_at is not None and now >= node.deleted_at + self.delete_s:
                del self.nodes[name]

    def _view(self, node: Node) -> SliceView:
        now = self.world.time
        state, native = SliceState.READY, "READY"
        if node.deleted_at is not None:
            state, native = SliceState.DELETING, "DELETING"
        elif node.preempted:
            state, native = SliceState.TOMBSTONE, "PREEMPTED"
        elif now < node.queued_until:
            state, native = SliceState.QUEUED, "WAITING_FOR_RESOURCES"
        elif node.stopped:
            state, native = SliceState.STOPPED, "STOPPED"
        elif now < node.ready_at:
            state, native = SliceState.CREATING, "CREATING"
        request = node.request
        return SliceView(
            request.name, state, native, request.accelerator_type, request.runtime_version, dict(request.labels)
        )


@dataclass
class Locks:
    """The locks of one process; a crash drops those of the process that died."""

    held: set[str] = field(default_factory=set)

    def lock(self, lease_id: str) -> bool:
        self.held.add(lease_id)
        return True

    def unlock(self, lease_id: str) -> None:
        self.held.discard(lease_id)

    def is_locked(self, lease_id: str) -> bool:
        return lease_id in self.held


@dataclass
class VirtualFleet:
    """Workers on which every phase takes `phase_s` and ends with `rc`."""

    world: VirtualWorld
    phase_s: float = 100.0
    rc: int = 0
    ends_at: float = 0.0
    stopped: int = 0
    canceled: bool = False
    prints: int = 1  # bytes of log between two looks
    log_bytes: int = 0
    silent_since: float | None = None  # since then no worker answers
    beating: bool = False
    beating_everywhere: bool = False
    collect_s: float = 0.0
    stays: tuple[Problem, ...] = ()  # of the results, what cannot be collected
    collections: list[VirtualCollection] = field(default_factory=list)
    requests: list[StartRequest] = field(default_factory=list)

    def facts(self, worker: int) -> Any:
        return Facts()

    workers: tuple[Any, ...] = ()

    def push(self, shipment: object, progress: object) -> list[Any]:
        return []

    def push_each(self, shipments: Sequence[object], progress: object) -> list[Any]:
        return []

    def start(self, request: StartRequest) -> None:
        self.requests.append(request)
        self.ends_at = self.world.time + self.phase_s

    def attach(self, attempt: str, phase: str) -> None:
        pass

    def send_heartbeats(self, every_s: float, *, everywhere: bool = False) -> None:
        self.beating = True
        self.beating_everywhere |= everywhere

    def follow(self, sink: object, metrics: object = None) -> None:
        pass

    def wait(self, timeout_s: float) -> FleetStatus:
        self.world.time = min(self.world.time + timeout_s, max(self.ends_at, self.world.time))
        self.log_bytes += self.prints
        now = self.world.time
        state = WorkerState.RUNNING if self.silent_since is None else WorkerState.UNREACHABLE
        one = WorkerStatus(1, state, self.silent_since or now, self.log_bytes)
        if now >= self.ends_at:  # one that fails has processes left
            state = WorkerState.LOST if self.rc else WorkerState.EXITED
            one = replace(one, state=state, since=self.ends_at, rc=self.rc)
        return FleetStatus((one,))

    def stop(self, grace_s: float) -> None:
        self.stopped += 1

    def collect(self, order: CollectRequest) -> VirtualCollection:
        self.collections.append(VirtualCollection(self.world, order, self.collect_s, self.stays))
        return self.collections[-1]

    def cancel(self) -> None:
        self.canceled = True


@dataclass(frozen=True)
class Facts:
    address: str = "127.0.0.1"
    free_port: int = 1


@dataclass
class VirtualCollection:
    """Comes in after `left_s`, and leaves `stays` behind."""

    world: VirtualWorld
    order: CollectRequest
    left_s: float
    stays: tuple[Problem, ...]
    given_up: str = ""
    activity: int = 0

    def wait(self, timeout_s: float) -> CollectionProgress:
        waited_s = min(timeout_s, self.left_s)
        self.world.time += waited_s
        self.left_s -= waited_s
        self.activity += waited_s > 0
        result = CollectResult(waiting=self.stays) if self.left_s <= 0 else None
        return CollectionProgress(result, total_files=1, activity=self.activity)

    def stop(self, why: str) -> CollectResult:
        self.given_up = why
        return CollectResult(waiting=(Problem(0, "(the rest)", why),))


class LedgerInMemory(Ledger):
    """The production ledger without its file: a crash here is of the program, never of the machine."""

    _empty: sqlite3.Connection | None = None  # made from the schema once, and copied from then on

    def __init__(self, path: Path = Path("memory")) -> None:
        super().__init__(path)

    def _open(self) -> sqlite3.Connection:
        database = self._connect(":memory:")
        if LedgerInMemory._empty is not None:
            LedgerInMemory._empty.backup(database)
        database.execute("pragma foreign_keys=on")
        return database

    def _brought_forward(self, database: sqlite3.Connection) -> sqlite3.Connection:
        LedgerInMemory._empty = super()._brought_forward(database)
        database = self._connect(":memory:")
        LedgerInMemory._empty.backup(database)
        return database

    @property
    def _ends(self) -> KeptEnds:
        return KeptEnds(Path(os.devnull))


def driven(program: Program[T], answer: Callable[[Effect[Any]], Any], steps: int = 20_000) -> T:
    """Run a program to its end on the answers, and errors of tpujob, that `answer` has for its effects."""
    value: Any = None
    error: errors.TpujobError | None = None
    for _ in range(steps):
        try:
            effect = program.send(value) if error is None else program.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        value, error = None, None
        try:
            value = answer(effect)
        except errors.TpujobError as raised:
            error = raised
    raise AssertionError("it never ended")


class Crash(Exception):
    """The process is gone: none of its later effects happens."""


class VirtualWorld:
    """Time, cloud, ledger, owners, workers; `drive` answers a program's effects and counts them."""

    def __init__(self, directory: Path) -> None:
        self.time, self.knows_time = 1_800_000_000.0, True
        self.cloud = VirtualCloud(self)
        self.ledger = LedgerInMemory(directory / "ledger.sqlite3")
        self.locks = Locks()
        self.fleet = VirtualFleet(self)
        self.logins: dict[str, float] = {}  # leases whose key is in the OS Login profile → their expiry
        self.os_login_error: errors.CloudError | None = None
        self.os_login_error_until = float("inf")
        self.told: list[str] = []
        self.effects: list[str] = []

    def now(self, cloud: str | None = None) -> float:
        return self.time

    def is_time_certain(self) -> bool:
        return self.knows_time

    def set_server_time(self, server_now: float, asked_at: float) -> None:
        """This world's clock is the cloud's."""

    def report(self, told: Report) -> None:
        self.told.append(f"{told.stage} {told.text}")

    def arm(self) -> bool:
        return True

    def grant_login(self, lease: Lease, expires_at: float) -> str:
        self._ask_os_login()
        self.logins[lease.id] = expires_at
        return "ada_example_com"

    def extend_login(self, lease: Lease, expires_at: float) -> None:
        self._ask_os_login()
        if lease.id not in self.logins:
            raise errors.Vanished("it is not in your OS Login profile any more")
        self.logins[lease.id] = expires_at

    def revoke_login(self, lease: Lease) -> None:
        self._ask_os_login()
        self.logins.pop(lease.id, None)

    def _ask_os_login(self) -> None:
        if self.os_login_error is not None and self.time < self.os_login_error_until:
            raise self.os_login_error

    def connect(self, lease: Lease, workers: Sequence[WorkerAddress], deadline_s: float) -> Any:
        self.fleet.workers = tuple(workers)
        return self.fleet

    def drive(
        self,
        program: Program[T],
        *,
        crash_at: int | None = None,
        after: bool = False,
        interrupt_at: int | None = None,
        between: Callable[[VirtualWorld], None] | None = None,
    ) -> T:
        """Run to the end; or raise Crash at the n-th effect (before or after it happened); or unwind with a signal there."""
        answer: Any = None
        error: BaseException | None = None
        shielded = False
        count = 0
        while True:
            try:
                effect = program.send(answer) if error is None else program.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            self.effects.append(type(effect).__name__)
            if isinstance(effect, Shield):
                shielded = effect.raised
            if count == crash_at and not after:
                raise Crash
            answer, error = None, None
            if count == interrupt_at and not shielded:
                error = errors.Interrupted(2)
            else:
                answer, error = self._answer(effect)
            if count == crash_at:
                raise Crash
            count += 1
            if between is not None:
                between(self)
            assert count < 40_000, "the program spins"

    def _answer(self, effect: Effect[Any]) -> tuple[Any, BaseException | None]:
        try:
            if isinstance(effect, Shield):
                return None, None
            if isinstance(effect, Sleep):
                self.time += effect.seconds
                return None, None
            if isinstance(effect, DeleteAll):  # in their order: what happens here happens the same way again
                answers = [self._answer(Delete(name)) for name in effect.names]
                return tuple(answer if error is None else error for answer, error in answers), None
            return effect.perform(self), None  # type: ignore[arg-type]
        except Exception as error:
            return None, error


def lease_and_request(
    n: int = 0, *, zone: str = ZONE, now: float = 1_800_000_000.0, purpose: Purpose = Purpose.RUN
) -> Draft:
    identity = f"{n:010d}"
    name = SliceName("p", zone, f"tpujob-owner0-{identity}")
    lease = lease_on(name, now, handle="alice", purpose=purpose, usd_per_hour=9.6)
    request = SliceRequest(
        name, "v5litepod-8", "v2-alpha-tpuv5-lite", labels={"tpujob": "1", "tpujob-lease-id": identity}
    )
    return Draft(lease, request)


def created(world: VirtualWorld, draft: Draft, *, ready: bool = False) -> Lease:
    """A lease with its slice in the cloud, as `create_slice` leaves it, or `acquire`."""
    lease, request = draft
    world.ledger.record(Intent(lease), Sent(lease.id, world.time))
    world.ledger.record(Created(lease.id, world.time, world.cloud.create(request).name))
    if ready:
        world.time += world.cloud.provision_s
        world.ledger.record(Ready(lease.id, world.time))
    return world.ledger.lease(lease.id)


def job(
    world: VirtualWorld, *, zones: Sequence[str] = (ZONE,), held: Lease | None = None, detach: bool = False
) -> JobRun:
    run = RunRecord("0123456789", "mnist", "jobs/mnist.yaml", "emulated", world.time, "runs/x")
    made = [lease_and_request(n, zone=zone, now=world.time) for n, zone in enumerate(zones)]
    drafts = tuple(Draft(replace(lease, run=run.id), request) for lease, request in made)
    return JobRun(
        run=run, attempt=Attempt("0123456789-1", run.id), stay=VmStay(OF_TPU, drafts), held=held,
        phases=(Phase("main", STATES["main"], lambda *_: StartRequest("a", "main", "", ({}, {}))),),
        artifacts=(), directory=Path("runs/x"), sink=lambda worker, data: None, max_duration_s=24 * 3600,
        detach=detach,
    )  # fmt: skip


def attempt_of(world: VirtualWorld) -> Attempt:
    ((_, attempt),) = world.ledger.runs()
    return attempt


def with_keep(job_run: JobRun, keep_s: float) -> JobRun:
    return replace(job_run, keep_s=keep_s)


def asking(job_run: JobRun, *drafts: Draft, **stay: Any) -> JobRun:
    """Return the same job with these candidates."""
    assert isinstance(job_run.stay, VmStay)
    return replace(job_run, stay=replace(job_run.stay, drafts=drafts or job_run.stay.drafts, **stay))


def attachment(world: VirtualWorld) -> JobRun:
    """Return the attachment to the only run of the ledger, which is detached."""
    ((run, attempt),) = world.ledger.runs()
    (lease,) = world.ledger.open_leases()
    made, main = job(world), Phase("main", STATES["main"])
    return replace(made, run=run, attempt=attempt, stay=VmStay(OF_TPU), phases=(main,), attached_to=lease)

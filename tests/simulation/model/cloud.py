"""The cloud of the simulation: the state machine of the emulator, and a report of every change to the oracle.

`CloudState` alone decides what a call does. A fault that belongs to the cloud is passed to it as the `effect` that it knows.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.model import reach
from cloud_tpu_emulator.model.cloud_state import CloudState
from cloud_tpu_emulator.model.reach import USERNAME
from cloud_tpu_emulator.model.records import HostRecord, Node, Settings
from cloud_tpu_emulator.model.records import OperationRecord as Record
from cloud_tpu_emulator.wire.requests import parse_queued
from orchestrator.errors import AlreadyExists, AuthError, BadRequest, CloudError, Vanished, WrongState
from orchestrator.places.google.error_translation import NotFound, http_error, operation_error
from orchestrator.places.tpu.api.create_request import queued_request
from orchestrator.places.tpu.api.replies import STATES, verb_of
from orchestrator.promise.lease.cloud_api import Operation, SliceRequest, SliceState, SliceView
from orchestrator.promise.lease.lease import Lease, SliceName
from tests.simulation.model.faults import CallOutcome, cloud_fault, covers
from tests.simulation.model.hosts import NodeVms

if TYPE_CHECKING:
    from tests.simulation.model.process import Process
    from tests.simulation.model.world import World


ERRORS: dict[str, type[CloudError]] = {
    "NOT_FOUND": NotFound,
    "ALREADY_EXISTS": AlreadyExists,
    "PERMISSION_DENIED": AuthError,
    "FAILED_PRECONDITION": WrongState,
    "ABORTED": WrongState,
    "INVALID_ARGUMENT": BadRequest,
}
PROJECT = "a-project"


def full_name(name: SliceName) -> str:
    return f"projects/{name.project}/locations/{name.zone}/nodes/{name.node}"


class FakeCloud:
    """The emulator's cloud under virtual time. `vms` are the hosts of each node, by uid."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.world, self.timeline = world, world.timeline
        self.state = CloudState(str(world.seed), settings)
        self.vms: dict[str, NodeVms] = {}
        self._due: float | None = None
        self._seen: dict[
            str, None
        ] = {}  # uids of the nodes that the state holds; ordered, as a world plays alike each time
        self._asked: dict[str, None] = {}  # uids of the requests in its queue

    def now(self) -> float:
        return self.timeline.now

    # -- time and hosts ----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """After every change: let the hosts follow, report created and deleted resources to the oracle, plan the next event."""
        state, now = self.state, self.timeline.now
        while True:
            state.advance(now)
            lagging = [node for node in state.nodes.values() if node.power != node.target_power]
            for node in lagging:
                state.powered(node.uid, node.target_power, now, self._hosts(node))
            if not lagging:
                break
        if state.queue.rows or self._asked:
            self._note_requests()
        if len(self._seen) != len(state.nodes) or any(node.uid not in self._seen for node in state.nodes.values()):
            self._note_births_and_deaths()
        for node in state.nodes.values():
            vm = self.vms[node.uid]
            if node.boot_pending:
                node.boot_pending = False
                vm.boot(node)
            elif vm.on and node.state not in ("READY", "DELETING", "STOPPING", "UNKNOWN", "HIDDEN"):
                vm.off()
                self.world.oracle.slice_lost(node)
            elif node.state == "PREEMPTED":
                self.world.oracle.slice_lost(node)
        due = state.next_due()
        if due is not None and due != self._due:
            self._due = due
            self.timeline.at(due, self._passing)

    def _passing(self) -> None:
        self._due = None
        self.settle()

    def _hosts(self, node: Node) -> list[HostRecord]:
        return node.hosts or [HostRecord(1, 1) for _ in range(node.workers)]

    def _note_births_and_deaths(self) -> None:
        nodes = self.state.nodes
        present = {node.uid for node in nodes.values()}
        for uid in list(self._seen):
            if uid not in present:
                del self._seen[uid]
                self.vms[uid].off()
                self.world.oracle.resource_gone(uid)
        for node in list(nodes.values()):
            if node.uid not in self._seen:
                self._seen[node.uid] = None
                self.vms[node.uid] = NodeVms(self.world, node)
                if node.queued_resource is not None:  # a node that names its request makes the request visible
                    self.state.queue.rows[node.queued_resource].hidden_until = None
                self.world.oracle.node_created(node)

    def _note_requests(self) -> None:
        present = {row.uid: row for row in self.state.queue.rows.values()}
        for uid in [uid for uid in self._asked if uid not in present]:
            del self._asked[uid]
            self.world.oracle.resource_gone(uid)
        for uid in [uid for uid in present if uid not in self._asked]:
            self._asked[uid] = None
            self.world.oracle.request_created(present[uid])

    # -- calls: `effect` is a fault for the state machine ----------------------------------------------------------------

    def ask(self, request: SliceRequest, outcome: CallOutcome) -> Operation:
        """Create a queued request: written by the production client, read by the emulator."""
        name, queue = request.name, request.queue
        assert queue is not None
        node = {
            "acceleratorType": request.accelerator_type,
            "runtimeVersion": request.runtime_version,
            "labels": dict(request.labels),
            "metadata": dict(request.metadata),
            "networkConfig": {"enableExternalIps": request.external_ips},
        }
        refusal = self._refusal(request, node)
        if refusal is not None:
            raise refusal
        body = queued_request(request, queue, node)["body"]
        row = parse_queued(name.project, name.zone, name.node, body, "v2", self.timeline.now)
        for spec in row.node_specs:
            spec.workers = self.world.workers
        try:
            operation = self.state.queue.create(row, "v2", self.timeline.now, outcome.effect, queue.request_id)
        finally:
            self.settle()
        return operation_of(operation)

    def create(self, request: SliceRequest, outcome: CallOutcome) -> Operation:
        name = request.name
        spec: dict[str, Any] = {
            "acceleratorType": request.accelerator_type,
            "runtimeVersion": request.runtime_version,
            "labels": dict(request.labels),
            "metadata": dict(request.metadata),
            "schedulingConfig": {"spot": request.spot},
            "networkConfig": {"enableExternalIps": request.external_ips},
        }
        node = Node("", name.project, name.zone, name.node, spec, self.world.workers, usd_per_hour=9.6)
        refusal, says = self._refusal(request, spec), self.world.plan.policy_says
        if refusal is not None and says == "call":
            raise refusal
        effect = outcome.effect if refusal is None else None  # Assumption A6: a refused create creates nothing later
        if refusal is not None and says == "operation":  # and the node is left
            words = {"code": refusal.status, "message": refusal.message, "state": "TERMINATED"}
            effect = cloud_fault("create_fails_leaving_node", "nodes.create", **words)
        try:
            operation = self.state.create(node, "v2", self.timeline.now, effect)
        finally:
            self.settle()
        if refusal is not None and says == "in spite":
            raise refusal
        return operation_of(operation)

    def _refusal(self, request: SliceRequest, spec: dict[str, Any]) -> ApiError | None:
        """Return how a policy refuses the request; None: it does not."""
        name = request.name
        try:
            reach.check(spec, name.project, name.zone, name.node, self.state.settings)
        except ApiError as refusal:
            return refusal
        return None

    # -- OS Login: keys of leases ----------------------------------------------------------------------------------------

    def import_key(self, lease: Lease, expires_at: float) -> str:
        if covers(self.world.plan.login_full, self.world.faults.elapsed_s()):
            raise ApiError("INVALID_ARGUMENT", "Login profile size exceeds 32 KiB.")
        now = self.timeline.now
        self.state.logins.import_key(PROJECT, _line(lease.id), int(expires_at * 1e6), now)
        self.world.log(f"the key of {lease.name.node} is in the profile")
        self.world.oracle.logins.key_set(lease, expires_at)
        return USERNAME

    def extend_key(self, lease: Lease, expires_at: float) -> None:
        if lease.id not in self.login_keys():
            raise Vanished("it is not in your OS Login profile any more")
        self.import_key(lease, expires_at)

    def remove_key(self, lease: Lease) -> None:
        now = self.timeline.now
        for fingerprint, key in list(self.state.logins.keys(now).items()):
            if key.line == _line(lease.id):
                self.state.logins.remove_key(fingerprint, now)
                self.world.log(f"the key of {lease.name.node} is removed")
        self.world.oracle.logins.removed(lease)

    def login_keys(self) -> set[str]:
        """Return the leases whose keys are in the profile."""
        keys = self.state.logins.keys(self.timeline.now).values()
        return {key.line.rpartition("-")[2] for key in keys}

    def delete(self, full: str, outcome: CallOutcome, caller: str, process: Process | None) -> Record:
        self.state.advance(self.timeline.now)
        node = self.state.nodes.get(full)
        if node is not None:
            self.world.oracle.delete_arrived(node, caller, process)
            outcome.effect = self.world.faults.delete_effect(node)
        try:
            operation = self.state.delete(full, "v2", self.timeline.now, outcome.effect)
        finally:
            self.settle()
        if node is not None:
            self.world.oracle.delete_accepted(node, outcome)
        return operation

    def delete_request(
        self, full: str, outcome: CallOutcome, caller: str, process: Process | None, *, force: bool
    ) -> Record:
        self.state.advance(self.timeline.now)
        row = self.state.queue.rows.get(full)
        if row is not None:
            self.world.oracle.delete_arrived(row, caller, process)
            outcome.effect = self.world.faults.request_delete_effect(row)
        try:
            operation = self.state.queue.delete(
                full, force=force, api_version="v2", now=self.timeline.now, effect=outcome.effect
            )
        finally:
            self.settle()
        if row is not None:
            self.world.oracle.delete_accepted(row, outcome)
        return operation

    def error_of(self, refusal: ApiError) -> CloudError:
        """Return the error that the client makes of this refusal."""
        known = "constraints/" in refusal.message or "profile size" in refusal.message
        if refusal.status in ERRORS and not known:
            return ERRORS[refusal.status](refusal.message)
        return http_error(refusal.http, json.dumps(refusal.body()), host="the cloud")

    def settled(self) -> CloudState:
        """Return the current state, including operations that depend on no node."""
        self.state.advance(self.timeline.now)
        return self.state

    def look(self) -> CloudState:
        """Return the current state. Everything timed has happened already: each is an event of the timeline."""
        self.state.now = self.timeline.now
        return self.state

    def node(self, full: str) -> Node:
        return self.look().node(full)


def _line(lease_id: str) -> str:
    return f"ssh-ed25519 AAAA tpujob-{lease_id}"


def operation_of(record: Any) -> Operation:
    error = operation_error(record.error) if record.error is not None else None
    return Operation(record.name, record.ended_at is not None, verb_of(record.verb), record.target, error)


def view_of(node: Node) -> SliceView:
    _, project, _, zone, _, node_id = node.name.split("/")
    spec = node.spec
    return SliceView(
        SliceName(project, zone, node_id, node.queued_resource is not None),
        STATES.get(node.state, SliceState.UNKNOWN),
        node.state,
        spec["acceleratorType"],
        spec["runtimeVersion"],
        spec.get("labels", {}),
        node.created_at,
        node.spot,
    )

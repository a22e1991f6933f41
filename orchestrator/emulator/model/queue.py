"""The queue of Cloud TPU: queued resources from the request to absence, on the same nodes, clock and operations as all else.

Pure, like the `CloudState` that it works on and that lets it pass time after its nodes; what was asked for is checked
before, in `queue_request`.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from orchestrator.emulator import api_errors
from orchestrator.emulator.faults.active_faults import NoReply
from orchestrator.emulator.faults.fault import Fault
from orchestrator.emulator.model.queue_records import OVER, QueuedResource, State, load_queued
from orchestrator.emulator.model.records import LOST, Node, OperationRecord
from orchestrator.emulator.model.transitions import failure_of

if TYPE_CHECKING:
    from orchestrator.emulator.model.cloud_state import CloudState

REPLIES_KEPT = 2000
NOTHING_HAPPENS = ("operation_forgets", "operation_fails")


class ResourceQueue:
    """`rows` are the queued resources by full name, oldest first: where there is room, it goes to the oldest."""

    def __init__(self, cloud: CloudState) -> None:
        self.cloud = cloud
        self.rows: dict[str, QueuedResource] = {}
        self._replies: dict[str, str] = {}  # who asked with this request id gets this operation again

    # --- time ---------------------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Everything that can pass, until nothing does. True when something changed."""
        changed = False
        for row in list(self.rows.values()):
            while row.name in self.rows and self._pass(row):
                changed = True
        return changed

    def next_due(self) -> list[float]:
        """When a state may pass by time alone. What is due already waits for something else."""
        times = [time for row in self.rows.values() for time in self._times(row)]
        if any(row.state is State.WAITING for row in self.rows.values()):
            times += self.cloud.supply.changes_after(self.cloud.now)
        return [time for time in times if time > self.cloud.now]

    def _times(self, row: QueuedResource) -> list[float]:
        match row.state:
            case State.WAITING:
                times = [row.due, row.valid_from, row.valid_until]
            case State.CREATING | State.SUSPENDING | State.DELETING:
                times = [row.due]
            case State.ACTIVE:
                times = [row.ends_at]
            case _:
                times = []
        return [time for time in times if time is not None]

    def _pass(self, row: QueuedResource) -> bool:
        """One step. False: nothing is to be done now."""
        now, due = self.cloud.now, row.due is None or row.due <= self.cloud.now
        match row.state:
            case State.CREATING if due:
                self._accept(row)
            case State.WAITING if row.valid_until is not None and row.valid_until <= now:
                self._to(row, State.FAILED)
                row.failure = api_errors.expired().in_operation()
            case State.WAITING if due and row.valid_from <= now and self._has_room(row):
                self._provision(row)
            case State.PROVISIONING | State.ACTIVE if (initiator := self._taken_by(row)) is not None:
                self._suspend(row, initiator)
            case State.PROVISIONING if all(node.state == "READY" for node in self.nodes_of(row)):
                self._activate(row)
            case State.ACTIVE if row.ends_at is not None and row.ends_at <= now:
                self._suspend(row, "SERVICE")
            case State.SUSPENDING if due and all(node.state in LOST for node in self.nodes_of(row)):
                self._to(row, State.SUSPENDED)
            case State.DELETING if due and not self.nodes_of(row):
                del self.rows[row.name]
                self.cloud.finish(row, None)
            case _:
                return False
        return True

    @staticmethod
    def _to(row: QueuedResource, state: State, due: float | None = None) -> None:
        row.state, row.due = state, due

    def _accept(self, row: QueuedResource) -> None:
        if row.failure is None:
            self._to(row, State.WAITING, self.cloud.now + self.cloud.settings.queue_s)
        else:
            self._to(row, State.FAILED)
        self.cloud.finish(row, row.failure)

    def _has_room(self, row: QueuedResource) -> bool:
        return self.cloud.shortage(row.wants) is None

    def _provision(self, row: QueuedResource) -> None:
        taken = [name for name in row.node_names if name in self.cloud.nodes]
        if taken:
            self._to(row, State.FAILED)
            row.failure = api_errors.already_exists(taken[0]).in_operation()
            return
        self._to(row, State.PROVISIONING)
        several = len(row.node_names) > 1
        row.node_uids = []
        for spec in row.node_specs:
            for node_id in spec.node_ids:
                node = Node(
                    self.cloud.number(), row.project, row.zone, node_id, spec.node, spec.workers, "CREATING",
                    self.cloud.now, queued_resource=row.name, multislice=several,
                )  # fmt: skip
                self.cloud.bear(node, spec.usd_per_hour)
                self.cloud.enter(node, "create", "CREATING")
                row.node_uids = [*row.node_uids, node.uid]

    def _activate(self, row: QueuedResource) -> None:
        self._to(row, State.ACTIVE)
        if row.run_s is not None and row.ends_at is None:
            row.ends_at = self.cloud.now + row.run_s
            for node in self.nodes_of(row):
                node.ends_at = row.ends_at
        self.cloud.finish(row, None)  # of a reset

    def _taken_by(self, row: QueuedResource) -> str | None:
        """Who took a node from it, if one did: USER or SERVICE."""
        present = self.nodes_of(row)
        if any(node.state in LOST for node in present):
            return "SERVICE"
        gone = len(present) < len(row.node_uids) or any(node.state == "DELETING" for node in present)
        return "USER" if gone else None

    def _suspend(self, row: QueuedResource, initiator: str) -> None:
        """One node less is all of them: the service deletes what is left. Preempted ones stay as they are."""
        self._to(row, State.SUSPENDING, self.cloud.now + self.cloud.settings.suspend_s)
        row.initiator = initiator
        self.cloud.finish(row, api_errors.wrong_state("reset", row.state).in_operation())
        for node in self.nodes_of(row):
            if node.state not in LOST:
                self.cloud.withdraw(node)

    # --- questions ----------------------------------------------------------------------------------------------------

    def nodes_of(self, row: QueuedResource) -> list[Node]:
        """Those that are still there. One that somebody else created under the same name is not."""
        named = zip(row.node_names, row.node_uids, strict=False)  # none before it has got them
        found = [(self.cloud.nodes.get(name), uid) for name, uid in named]
        return [node for node, uid in found if node is not None and node.uid == uid]

    def row(self, name: str) -> QueuedResource:
        """As anybody sees it; a refusal if there is none."""
        row = self.rows.get(name)
        if row is None or not self._visible(row):
            raise api_errors.not_found(name)
        return row

    def listed(self, project: str, zone: str, silent: list[str]) -> list[QueuedResource]:
        """Those that a list shows which cannot speak for the zones `silent`. Zone `-` is all of them."""
        mine = [row for row in self.rows.values() if row.project == project and zone in ("-", row.zone)]
        return [row for row in mine if self._visible(row) and row.zone not in silent]

    def _visible(self, row: QueuedResource) -> bool:
        return row.hidden_until is None or row.hidden_until <= self.cloud.now

    # --- requests -----------------------------------------------------------------------------------------------------

    def create(
        self,
        row: QueuedResource,
        api_version: str,
        now: float,
        effect: Fault | None = None,
        request_id: str = "",
    ) -> OperationRecord:
        """A row that `queue_request` made. NoReply under the fault "late"."""
        cloud = self.cloud
        cloud.advance(now)
        if (known := self._known_reply(row.name, "create", request_id)) is not None:
            return known
        if effect is not None and effect.kind == "late":
            asked = {"queued": asdict(row), "api_version": api_version, "request_id": request_id}
            cloud.late.append((cloud.now + effect.seconds, asked))
            raise NoReply
        if row.name in self.rows:
            raise api_errors.already_exists(row.name)
        for taken in [name for name in row.node_names if name in cloud.nodes]:
            raise api_errors.already_exists(taken)
        cloud.admit(row.wants)
        if effect is not None and effect.kind == "operation_forgets":
            return cloud.begin_loose(row, "create", api_version, effect)
        refusals = [refusal for want in row.wants if (refusal := cloud.supply.late_refusal(want)) is not None]
        row.failure = refusals[0].in_operation() if refusals else None
        row.uid, row.created_at = cloud.number(), cloud.now
        row.due = cloud.now + (effect.seconds if effect and effect.kind == "stuck" else cloud.settings.accept_s)
        self.rows[row.name] = row
        operation = cloud.begin_operation(row, "create", api_version)
        if effect is not None and effect.kind == "operation_fails":  # and it comes up all the same
            cloud.let_loose(operation, effect.seconds, failure_of(row, effect))
        else:
            row.operation = operation.name
        if effect is not None and effect.kind == "hidden":
            row.hidden_until = cloud.now + effect.seconds
        self._note_reply(row.name, "create", request_id, operation)
        return operation

    def create_late(self, asked: dict[str, Any], now: float) -> None:
        self.create(load_queued(asked["queued"]), asked["api_version"], now, request_id=asked["request_id"])

    def delete(
        self,
        name: str,
        *,
        force: bool,
        api_version: str,
        now: float,
        effect: Fault | None = None,
        request_id: str = "",
    ) -> OperationRecord:
        """With `force` its nodes, too. While it is PROVISIONING the call is accepted, and its operation fails."""
        cloud, kind = self.cloud, effect and effect.kind
        cloud.advance(now)
        if (known := self._known_reply(name, "delete", request_id)) is not None:
            return known
        row = self.row(name)
        if kind == "refuse_delete":
            raise api_errors.wrong_state("delete", row.state)
        if effect is not None and kind in (*NOTHING_HAPPENS, "delete_dropped"):
            if effect.parameters.get("hidden"):
                row.hidden_until = row.due
            return cloud.begin_loose(row, "delete", api_version, effect)
        if row.state is State.DELETING and row.operation is not None:
            return cloud.operations[row.operation]
        if row.state is State.PROVISIONING:
            refusal = api_errors.wrong_state("delete", row.state).in_operation()
            return cloud.let_loose(cloud.begin_operation(row, "delete", api_version), cloud.settings.refuse_s, refusal)
        nodes = self.nodes_of(row)
        if nodes and not force and row.state not in OVER:
            raise api_errors.has_nodes(name)
        cloud.finish(row, api_errors.superseded("create", "queued resource").in_operation())
        delay_s = effect.seconds if effect is not None and kind == "stuck" else cloud.settings.delete_s
        self._to(row, State.DELETING, cloud.now + delay_s)
        for node in nodes:
            cloud.withdraw(node)
        operation = cloud.begin_operation(row, "delete", api_version)
        row.operation = operation.name
        self._note_reply(name, "delete", request_id, operation)
        return operation

    def reset(self, name: str, api_version: str, now: float, effect: Fault | None = None) -> OperationRecord:
        """Its nodes restart; it is PROVISIONING until they are READY again."""
        cloud = self.cloud
        cloud.advance(now)
        row = self.row(name)
        if row.state is not State.ACTIVE:
            raise api_errors.wrong_state("reset", row.state)
        if effect is not None and effect.kind in NOTHING_HAPPENS:
            return cloud.begin_loose(row, "reset", api_version, effect)
        self._to(row, State.PROVISIONING)
        for node in self.nodes_of(row):
            cloud.restart(node, effect)
        operation = cloud.begin_operation(row, "reset", api_version)
        row.operation = operation.name
        return operation

    # --- asked twice --------------------------------------------------------------------------------------------------

    def _known_reply(self, name: str, verb: str, request_id: str) -> OperationRecord | None:
        known = self._replies.get(f"{verb} {name} {request_id}") if request_id else None
        return self.cloud.operations.get(known) if known else None

    def _note_reply(self, name: str, verb: str, request_id: str, operation: OperationRecord) -> None:
        if request_id:
            self._replies[f"{verb} {name} {request_id}"] = operation.name
            for old in list(islice(self._replies, max(0, len(self._replies) - REPLIES_KEPT))):
                del self._replies[old]

    # --- as plain data ------------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """For `json.dumps(default=as_fields)`."""
        return {"rows": list(self.rows.values()), "replies": self._replies}

    def load(self, data: dict[str, Any]) -> None:
        self.rows = {row.name: row for row in map(load_queued, data.get("rows", ()))}
        self._replies = dict(data.get("replies", {}))

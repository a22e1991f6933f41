"""The queue of Cloud TPU: queued resources from the request to absence, with the nodes, clock and operations of the cloud.

Pure. `CloudState` owns it and advances it after its nodes; `wire.requests` checks requests before.
"""

from dataclasses import asdict
from itertools import islice
from typing import Any

from cloud_tpu_emulator.faults import api_errors
from cloud_tpu_emulator.faults.fault import Fault, NoReply
from cloud_tpu_emulator.model.provider_events import ProviderEvents
from cloud_tpu_emulator.model.records import (
    LOST,
    TERMINAL_STATES,
    Node,
    OperationRecord,
    QueuedResource,
    State,
    load_queued,
)
from cloud_tpu_emulator.model.supply import Demand
from cloud_tpu_emulator.model.transitions import failure_of

REPLIES_KEPT = 2000
NO_EFFECT = ("operation_forgets", "operation_fails")


class ResourceQueue:
    """`rows` are the queued resources by full name, oldest first: the oldest gets free capacity."""

    def __init__(self, cloud: ProviderEvents) -> None:
        self.cloud = cloud
        self.rows: dict[str, QueuedResource] = {}
        self._replies: dict[str, str] = {}  # "verb name request-id" → operation, for repeated calls

    # --- time ---------------------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """End every state that is due. Return whether something changed."""
        changed = False
        for row in list(self.rows.values()):
            while row.name in self.rows and self._step(row):
                changed = True
        return changed

    def dues(self) -> list[float]:
        """Return when states may end by time alone; what is due already waits for something else."""
        times: list[float | None] = []
        for row in self.rows.values():
            match row.state:
                case State.WAITING:
                    times += row.due, row.valid_from, row.valid_until, *self.cloud.supply.changes()
                case State.CREATING | State.SUSPENDING | State.DELETING:
                    times.append(row.due)
                case State.ACTIVE:
                    times.append(row.ends_at)
        return [time for time in times if time is not None and time > self.cloud.now]

    def _step(self, row: QueuedResource) -> bool:
        """Take the next step; return whether there was one."""
        now, due = self.cloud.now, row.due is None or row.due <= self.cloud.now
        match row.state:
            case State.CREATING if due:
                self._accept(row)
            case State.WAITING if row.valid_until is not None and row.valid_until <= now:
                self._set_state(row, State.FAILED)
                row.failure = api_errors.expired().in_operation()
            case State.WAITING if due and row.valid_from <= now and self.cloud.shortage(row.demands) is None:
                self._provision(row)
            case State.PROVISIONING | State.ACTIVE if (initiator := self._initiator(row)) is not None:
                self._suspend(row, initiator)
            case State.PROVISIONING if all(node.state == "READY" for node in self.nodes_of(row)):
                self._activate(row)
            case State.ACTIVE if row.ends_at is not None and row.ends_at <= now:
                self._suspend(row, "SERVICE")
            case State.SUSPENDING if due and all(node.state in LOST for node in self.nodes_of(row)):
                self._set_state(row, State.SUSPENDED)
            case State.DELETING if due and not self.nodes_of(row):
                del self.rows[row.name]
                self.cloud.end_operation(row, None)
            case _:
                return False
        return True

    @staticmethod
    def _set_state(row: QueuedResource, state: State, due: float | None = None) -> None:
        row.state, row.due = state, due

    def _accept(self, row: QueuedResource) -> None:
        if row.failure is None:
            self._set_state(row, State.WAITING, self.cloud.now + self.cloud.settings.queue_s)
        else:
            self._set_state(row, State.FAILED)
        self.cloud.end_operation(row, row.failure)

    def _provision(self, row: QueuedResource) -> None:
        taken = [name for name in row.node_names if name in self.cloud.nodes]
        if taken:
            self._set_state(row, State.FAILED)
            row.failure = api_errors.already_exists(taken[0]).in_operation()
            return
        self._set_state(row, State.PROVISIONING)
        several = len(row.node_names) > 1
        row.node_uids = []
        for spec in row.node_specs:
            for node_id in spec.node_ids:
                node = Node(self.cloud.number(), row.project, row.zone, node_id, spec.node, spec.workers)
                node.created_at, node.usd_per_hour = self.cloud.now, spec.usd_per_hour
                node.queued_resource, node.multislice, node.trusted = row.name, several, row.trusted
                self.cloud.insert(node)
                self.cloud.enter(node, "create", "CREATING")
                row.node_uids = [*row.node_uids, node.uid]

    def _activate(self, row: QueuedResource) -> None:
        self._set_state(row, State.ACTIVE)
        if row.run_s is not None and row.ends_at is None:
            row.ends_at = self.cloud.now + row.run_s
            for node in self.nodes_of(row):
                node.ends_at = row.ends_at
        self.cloud.end_operation(row, None)  # of a reset

    def _initiator(self, row: QueuedResource) -> str | None:
        """Return USER or SERVICE, which removed one of its nodes; None: all are there."""
        present = self.nodes_of(row)
        if any(node.state in LOST for node in present):
            return "SERVICE"
        deleted = len(present) < len(row.node_uids) or any(node.state == "DELETING" for node in present)
        return "USER" if deleted else None

    def _suspend(self, row: QueuedResource, initiator: str) -> None:
        """Suspend it, since a node is lost: the service deletes the others. Preempted ones stay listed."""
        self._set_state(row, State.SUSPENDING, self.cloud.now + self.cloud.settings.suspend_s)
        row.initiator = initiator
        self.cloud.end_operation(row, api_errors.wrong_state("reset", row.state).in_operation())
        for node in self.nodes_of(row):
            if node.state not in LOST:
                self.cloud.delete_by_service(node)

    # --- reads --------------------------------------------------------------------------------------------------------

    def nodes_of(self, row: QueuedResource) -> list[Node]:
        """Return its nodes that exist. A node that was created separately under the same name is not one of them."""
        named = zip(row.node_names, row.node_uids, strict=False)  # no uids before PROVISIONING
        found = [(self.cloud.nodes.get(name), uid) for name, uid in named]
        return [node for node, uid in found if node is not None and node.uid == uid]

    def row(self, name: str) -> QueuedResource:
        """Return a queued resource by its full name. Raises ApiError if there is none that clients can see."""
        row = self.rows.get(name)
        if row is None or not row.visible_at(self.cloud.now):
            raise api_errors.not_found(name)
        return row

    def listed(self, project: str, zone: str, unreachable: list[str]) -> list[QueuedResource]:
        """Return the queued resources that a list shows, without those in unreachable zones. Zone `-`: all zones."""
        rows = [row for row in self.rows.values() if row.project == project and zone in ("-", row.zone)]
        return [row for row in rows if row.visible_at(self.cloud.now) and row.zone not in unreachable]

    def admit(self, demands: list[Demand]) -> None:
        """Raise ApiError if a location or a quota forbids the demands beside what exists or is queued."""
        cloud = self.cloud
        if cloud.supply.quotas or cloud.supply.locations:
            held = [demand for row in self.rows.values() for demand in row.demands]  # with its nodes, existing or not
            held += [node.demand for node in cloud.nodes.values() if node.queued_resource not in self.rows]
            cloud.supply.admit(demands, held)

    # --- requests -----------------------------------------------------------------------------------------------------

    def create(
        self, row: QueuedResource, api_version: str, now: float, effect: Fault | None = None, request_id: str = ""
    ) -> OperationRecord:
        """Add a queued resource that `wire.requests` made. Return the operation; for a known request id, the earlier one.

        Raises ApiError if the API refuses the call, NoReply under the fault "late".
        """
        cloud = self.cloud
        cloud.advance(now)
        if (known := self._known_reply(row.name, "create", request_id)) is not None:
            return known
        if effect is not None and effect.kind == "late":
            arguments = {"queued": asdict(row), "api_version": api_version, "request_id": request_id}
            cloud.delayed_creates.append((cloud.now + effect.seconds, arguments))
            raise NoReply
        if row.name in self.rows:
            raise api_errors.already_exists(row.name)
        for taken in [name for name in row.node_names if name in cloud.nodes]:
            raise api_errors.already_exists(taken)
        self.admit(row.demands)
        if effect is not None and effect.kind == "operation_forgets":
            return cloud.begin_timed_operation(row, "create", api_version, effect)
        refusals = [refusal for demand in row.demands if (refusal := cloud.supply.late_refusal(demand)) is not None]
        row.failure = refusals[0].in_operation() if refusals else None
        if effect is not None and effect.kind == "create_fails":
            row.failure = failure_of(row, effect)
        row.uid, row.created_at = cloud.number(), cloud.now
        row.due = cloud.now + (effect.seconds if effect and effect.kind == "stuck" else cloud.settings.accept_s)
        self.rows[row.name] = row
        operation = cloud.begin_own_operation(row, "create", api_version)
        if effect is not None and effect.kind == "operation_fails":  # and it is created all the same
            row.operation = None
            cloud.end_later(operation, effect.seconds, failure_of(row, effect))
        if effect is not None and effect.kind == "hidden":
            row.hidden_until = cloud.now + effect.seconds
        self._note_reply(row.name, "create", request_id, operation)
        return operation

    def delete(
        self, name: str, *, force: bool, api_version: str, now: float, effect: Fault | None = None, request_id: str = ""
    ) -> OperationRecord:
        """Delete a queued resource, with `force` its nodes, too. Return the operation; in PROVISIONING, one that fails.

        Raises ApiError if the API refuses the call.
        """
        cloud, kind = self.cloud, effect and effect.kind
        cloud.advance(now)
        if (known := self._known_reply(name, "delete", request_id)) is not None:
            return known
        row = self.row(name)
        if kind == "refuse_delete":
            raise api_errors.wrong_state("delete", row.state)
        if effect is not None and kind in (*NO_EFFECT, "delete_dropped"):
            if effect.parameters.get("hidden"):
                row.hidden_until = row.due
            return cloud.begin_timed_operation(row, "delete", api_version, effect)
        if row.state is State.DELETING and row.operation is not None:
            return cloud.operations[row.operation]
        if row.state is State.PROVISIONING:
            refusal = api_errors.wrong_state("delete", row.state).in_operation()
            return cloud.end_later(cloud.begin_operation(row, "delete", api_version), cloud.settings.refuse_s, refusal)
        nodes = self.nodes_of(row)
        if nodes and not force and row.state not in TERMINAL_STATES:
            text = f"The queued resource {name} has nodes; delete them first, or use force."
            raise api_errors.bad_request(text, "FAILED_PRECONDITION")
        cloud.end_operation(row, api_errors.superseded("create", "queued resource").in_operation())
        delay_s = effect.seconds if effect is not None and kind == "stuck" else cloud.settings.delete_s
        self._set_state(row, State.DELETING, cloud.now + delay_s)
        for node in nodes:
            cloud.delete_by_service(node)
        operation = cloud.begin_own_operation(row, "delete", api_version)
        self._note_reply(name, "delete", request_id, operation)
        return operation

    def reset(self, name: str, api_version: str, now: float, effect: Fault | None = None) -> OperationRecord:
        """Restart its nodes; it is PROVISIONING until they are READY. Return the operation.

        Raises ApiError if the API refuses the call.
        """
        cloud = self.cloud
        cloud.advance(now)
        row = self.row(name)
        if row.state is not State.ACTIVE:
            raise api_errors.wrong_state("reset", row.state)
        if effect is not None and effect.kind in NO_EFFECT:
            return cloud.begin_timed_operation(row, "reset", api_version, effect)
        self._set_state(row, State.PROVISIONING)
        for node in self.nodes_of(row):
            cloud.restart(node, effect)
        return cloud.begin_own_operation(row, "reset", api_version)

    # --- repeated calls -----------------------------------------------------------------------------------------------

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
        """Return what `load` reads, for `json.dumps(default=as_fields)`."""
        return {"rows": list(self.rows.values()), "replies": self._replies}

    def load(self, data: dict[str, Any]) -> None:
        """Replace everything by a dump. KeyError or TypeError for any other data."""
        self.rows = {row.name: row for row in map(load_queued, data["rows"])}
        self._replies = dict(data["replies"])

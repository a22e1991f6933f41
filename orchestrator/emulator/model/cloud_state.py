"""The emulated cloud itself: nodes, operations and the billing meter, as a pure machine that a passed-in clock drives.

No I/O, no waiting, no randomness but a seed: the daemon serves it, and a simulator can drive the very same machine under
virtual time. What it cannot do itself (power TPU VMs on and off) it asks for through `Node.wanted_power` and is told
through `powered`; a node becomes READY, or leaves, only when both its time has come and its hosts have followed.
"""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

from orchestrator.emulator import api_errors
from orchestrator.emulator.api_errors import ApiError
from orchestrator.emulator.faults.active_faults import ALL_IS_WELL, Decision, Faults, NoReply
from orchestrator.emulator.faults.fault import Fault
from orchestrator.emulator.model.meter import Meter
from orchestrator.emulator.model.provider_events import Happenings
from orchestrator.emulator.model.queue import ResourceQueue
from orchestrator.emulator.model.records import (
    VERBS,
    HostRecord,
    Node,
    OperationRecord,
    Power,
    Settings,
    dump_operation,
    load_node,
    load_operation,
)
from orchestrator.emulator.model.transitions import failure_of
from orchestrator.emulator.plain_data import as_fields
from orchestrator.emulator.supply import supply
from orchestrator.emulator.supply.demand import Demand


class CloudState(Happenings):
    """All of the cloud. Every method that takes `now` first lets time pass up to it.

    A method that takes `effect` does what that fault wants instead of, or besides, what it was asked for.
    """

    def __init__(self, seed: str, settings: Settings | None = None) -> None:
        super().__init__(seed, settings)
        self.queue = ResourceQueue(self)

    def advance(self, now: float) -> bool:
        changed = super().advance(now)
        if self.late:
            changed |= self._create_late()
        if self.queue.rows:
            changed |= self.queue.advance()
        return changed

    def next_due(self) -> float | None:
        due = super().next_due()
        return min(self.queue.next_due() + ([] if due is None else [due]), default=None) if self.queue.rows else due

    def _create_late(self) -> bool:
        ready = [arguments for due, arguments in self.late if due <= self.now]
        self.late = [waiting for waiting in self.late if waiting[0] > self.now]
        for arguments in ready:
            with contextlib.suppress(ApiError):  # a name that was taken meanwhile; nobody would hear of it
                if "queued" in arguments:
                    self.queue.create_late(arguments, self.now)
                else:
                    self.create(**arguments, now=self.now)
        return bool(ready)

    @property
    def holds_anything(self) -> bool:
        return bool(self.nodes or self.queue.rows)

    # --- questions ----------------------------------------------------------------------------------------------------

    def decide(self, operation: str, caller: str, name: str, now: float) -> Decision:
        """Which faults the call meets. `name` is that of a node, an operation (which stands for its node) or a place."""
        if not self.faults:
            return ALL_IS_WELL
        self.advance(now)
        if (known := self.operations.get(name)) is not None:
            name = known.target
        thing = self.nodes.get(name) or self.queue.rows.get(name)
        return self.faults.decide(operation, caller, name, now, thing.state if thing else None)

    def node(self, name: str) -> Node:
        """As anybody sees it; a refusal if there is none."""
        node = self.nodes.get(name)
        if node is None or not self._visible(node, self.now):
            raise api_errors.not_found(name)
        return node

    def listed(self, project: str, zone: str, effect: Fault | None = None) -> tuple[list[Node], list[str]]:
        """The nodes that a list shows, and the zones that it cannot speak for. Zone `-` is all of them."""
        silent = self.silent(zone, effect)
        then, nodes = self.now, list(self.nodes.values())
        if effect is not None and effect.kind == "stale_list":
            then -= effect.seconds
            nodes = self.history.at(then, nodes)
        shown = [n for n in nodes if n.project == project and zone in ("-", n.zone) and self._visible(n, then)]
        return [n for n in shown if n.zone not in silent] if silent else shown, silent

    def silent(self, zone: str, effect: Fault | None = None) -> list[str]:
        """The zones that a list cannot speak for."""
        if effect is not None and effect.kind == "unreachable":
            here = {node.zone for node in self.nodes.values()} | {row.zone for row in self.queue.rows.values()}
            return list(effect.parameters["zones"]) or (sorted(here) if zone == "-" else []) or [zone]
        return [z for z in self.settings.unreachable if zone in ("-", z)]

    def operation(self, name: str, effect: Fault | None = None) -> OperationRecord:
        if name not in self.operations or (effect is not None and effect.kind == "operation_gone"):
            raise api_errors.not_found(name)
        return self.operations[name]

    @staticmethod
    def _visible(node: Node, then: float) -> bool:
        return node.hidden_until is None or node.hidden_until <= then

    def check_place(self, project: str, zone: str) -> None:
        """Refuses a zone that the project may not use, unless it has something there."""
        self.supply.check_place(project, zone, (*self.nodes, *self.queue.rows))

    def admit(self, wants: list[Demand]) -> None:
        """Refuses what the project may not have, here or besides what it has. (Nodes of the queue count there.)"""
        if self.supply.limits_projects:
            held = [want for row in self.queue.rows.values() for want in row.wants]
            held += [node.want for node in self.nodes.values() if node.queued_resource not in self.queue.rows]
            self.supply.admit(wants, held)

    # --- requests -----------------------------------------------------------------------------------------------------

    def create(
        self,
        *,
        project: str,
        zone: str,
        node_id: str,
        spec: dict[str, Any],
        workers: int,
        usd_per_hour: float | None,
        api_version: str,
        now: float,
        effect: Fault | None = None,
    ) -> OperationRecord:
        """`spec` is kept, not copied. NoReply under the fault "late"."""
        self.advance(now)
        if effect is not None and effect.kind == "late":
            asked = {"project": project, "zone": zone, "node_id": node_id, "spec": spec, "workers": workers}
            asked |= {"usd_per_hour": usd_per_hour, "api_version": api_version}
            self.late.append((self.now + effect.seconds, asked))
            raise NoReply
        node = Node(self.number(), project, zone, node_id, spec, workers, "CREATING", self.now)
        if node.name in self.nodes:
            raise api_errors.already_exists(node.name)
        if self.supply.limits_projects:
            self.admit([node.want])
        self.supply.count_create(project, self.now)
        if effect is not None and effect.kind == "operation_forgets":
            return self.begin_loose(node, "create", api_version, effect)
        self.bear(node, usd_per_hour)
        operation = self._begin(node, "create", "CREATING", api_version, effect)
        if effect is not None:
            return self._spoil_create(node, operation, effect)
        return operation

    def _spoil_create(self, node: Node, operation: OperationRecord, effect: Fault) -> OperationRecord:
        match effect.kind:
            case "hidden":
                node.hidden_until = self.now + effect.seconds
            case "stockout":
                node.failure = api_errors.no_capacity(node.zone).in_operation()
            case "create_fails_leaving_node":
                node.failure, node.left_as = failure_of(node, effect), effect.parameters["state"]
            case "operation_fails":  # and the node comes up all the same
                node.operation = None
                self.let_loose(operation, effect.seconds, failure_of(node, effect))
        return operation

    def change_power(
        self, name: str, verb: str, api_version: str, now: float, effect: Fault | None = None
    ) -> OperationRecord:
        """`verb` is stop or start."""
        self.advance(now)
        node = self._idle(name)
        needed, state = VERBS[verb]
        if node.state != needed:
            raise api_errors.wrong_state(verb, node.state)
        if effect is not None and effect.kind == "operation_forgets":
            return self.begin_loose(node, verb, api_version, effect)
        return self._begin(node, verb, state, api_version, effect)

    def delete(self, name: str, api_version: str, now: float, effect: Fault | None = None) -> OperationRecord:
        """Possible in every state; a delete that is already under way is answered with its own operation."""
        self.advance(now)
        node, kind = self._idle(name), effect and effect.kind
        if kind == "refuse_delete":
            raise api_errors.wrong_state("delete", node.state)
        if effect is not None and kind in ("delete_dropped", "operation_forgets"):
            if effect.parameters.get("hidden") and node.due is not None:
                node.hidden_until = node.due
            return self.begin_loose(node, "delete", api_version, effect)
        if node.state == "DELETING" and node.due is not None:
            if node.operation is None:  # the service is at it, and nobody has asked before
                node.operation = self.begin_operation(node, "delete", api_version).name
            return self.operations[node.operation]
        if kind != "operation_fails":
            self._interrupt(node, api_errors.superseded)
        operation = self._begin(node, "delete", "DELETING", api_version, effect)
        if kind == "stalled":
            node.due = None
        return operation

    def patch(
        self, name: str, changes: dict[str, Any], api_version: str, now: float, effect: Fault | None = None
    ) -> OperationRecord:
        """Replace whole fields of the spec; done when this returns, or at the time that a fault sets."""
        self.advance(now)
        node, kind = self._idle(name), effect and effect.kind
        if node.due is not None:
            raise api_errors.busy()
        if node.state not in ("READY", "STOPPED"):
            raise api_errors.wrong_state("update", node.state)
        if effect is not None and kind in ("operation_fails", "operation_forgets"):
            return self.begin_loose(node, "update", api_version, effect)
        kept = {key: value for key, value in node.spec.items() if key not in changes}
        node.spec = kept | {key: value for key, value in changes.items() if value not in (None, "", {}, [])}
        self.history.note(node, self.now)
        operation = self.begin_operation(node, "update", api_version)
        if effect is not None and kind == "stuck":
            node.busy_until = self.now + effect.seconds
            operation.response = copy.copy(node)
            return self.let_loose(operation, effect.seconds)
        operation.ended_at, operation.response = self.now, copy.copy(node)
        return operation

    def _idle(self, name: str) -> Node:
        """The node, if no stuck patch keeps it busy."""
        node = self.node(name)
        if node.busy_until is not None and node.busy_until > self.now:
            raise api_errors.busy()
        return node

    # --- reports of the driver ----------------------------------------------------------------------------------------

    def powered(self, uid: str, power: Power, now: float, hosts: list[HostRecord] | None = None) -> None:
        """The hosts of a node have reached `power`; `hosts` says where they answer."""
        node = self.by_uid(uid)
        if node is not None:
            node.power = power
            if hosts is not None:
                node.hosts = hosts
        self.advance(now)

    def lose_sight(self) -> None:
        """The driver was restarted: what hosts do now is unknown, whatever was known before."""
        for node in self.nodes.values():
            node.power = Power.UNKNOWN

    # --- as plain data ------------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """What `load` reads. The daemon writes it in two parts: `finished`."""
        operations = [dump_operation(operation) for operation in self.operations.values()]
        rest: dict[str, Any] = json.loads(json.dumps(self.dump_rest(), default=as_fields))
        return rest | {"operations": operations, "bills": self.meter.dump()}

    def dump_rest(self) -> dict[str, Any]:
        """All but operations and bills, of which there are thousands; for `json.dumps(default=as_fields)`."""
        return {
            "seed": self.seed,
            "count": self.count,
            "now": self.now,
            "settings": self.settings,
            "nodes": list(self.nodes.values()),
            "faults": self.faults.dump(),
            "late": self.late,
            "queue": self.queue.dump(),
            "supply": self.supply.dump(),
            "agenda": self.agenda,
        }

    @classmethod
    def load(cls, data: dict[str, Any]) -> CloudState:
        state = cls(data["seed"], Settings(**data["settings"]))
        state.count, state.now = data["count"], data["now"]
        state.nodes = {node.name: node for node in map(load_node, data["nodes"])}
        state.operations = {op.name: op for op in map(load_operation, data["operations"])}
        state.meter = Meter.load(data["bills"])
        state.faults = Faults.load(data.get("faults", []))
        state.late = [(due, asked) for due, asked in data.get("late", [])]
        state.supply = supply.load(data.get("supply", {}))
        state.load_agenda(data.get("agenda", ()))
        state.queue.load(data.get("queue", {}))
        state._loose = {op.name: op for op in state.operations.values() if op.due is not None and not op.done}
        for node in state.nodes.values():
            state.history.note(node, node.created_at)
        return state

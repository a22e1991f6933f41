"""The emulated cloud: nodes, queued resources, operations and the billing meter, as a state machine under a passed-in clock.

No I/O, no waiting, no randomness but a seed: the daemon serves it, and a simulator can drive the same machine under virtual
time. It does not power TPU VMs on and off: `Node.target_power` asks for that, and the driver reports with `powered`. A node
becomes READY, or is removed, only after both its delay and its hosts' power change.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from cloud_tpu_emulator.faults import api_errors
from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.faults.fault import NO_FAULT, Decision, Fault, Faults, NoReply
from cloud_tpu_emulator.faults.plain_data import as_fields
from cloud_tpu_emulator.model import supply
from cloud_tpu_emulator.model.meter import Bill, Meter
from cloud_tpu_emulator.model.provider_events import ProviderEvent, ProviderEvents
from cloud_tpu_emulator.model.queue import ResourceQueue
from cloud_tpu_emulator.model.reach import LoginProfile
from cloud_tpu_emulator.model.records import (
    SETTLED_POWER,
    VERBS,
    HostRecord,
    Node,
    OperationRecord,
    Power,
    Settings,
    dump_operation,
    load_node,
    load_operation,
    load_queued,
    startup_script_of,
)
from cloud_tpu_emulator.model.transitions import failure_of


class CloudState(ProviderEvents):
    """The whole cloud. Every method that takes `now` (Unix seconds) first lets time pass up to it.

    A method that takes `effect` does what that fault says instead of, or besides, what the call asks for.
    """

    def __init__(self, seed: str, settings: Settings | None = None) -> None:
        super().__init__(seed, settings)
        self.queue = ResourceQueue(self)
        self.logins = LoginProfile()

    def advance(self, now: float) -> bool:
        changed = super().advance(now)
        if self.delayed_creates:
            changed |= self._create_delayed()
        if self.queue.rows:
            changed |= self.queue.advance()
        return changed

    def _dues(self) -> list[float]:
        return super()._dues() + self.queue.dues()

    def _create_delayed(self) -> bool:
        ready = [arguments for due, arguments in self.delayed_creates if due <= self.now]
        self.delayed_creates = [delayed for delayed in self.delayed_creates if delayed[0] > self.now]
        for arguments in ready:
            with contextlib.suppress(ApiError):  # the name was taken meanwhile; no client waits for a reply
                if "queued" in arguments:
                    row, request_id = load_queued(arguments["queued"]), arguments["request_id"]
                    self.queue.create(row, arguments["api_version"], self.now, request_id=request_id)
                else:
                    self.create(load_node(arguments["node"]), arguments["api_version"], self.now)
        return bool(ready)

    @property
    def holds_anything(self) -> bool:
        """Whether there is a node or a queued resource."""
        return bool(self.nodes or self.queue.rows)

    # --- reads --------------------------------------------------------------------------------------------------------

    def decide(self, operation: str, caller: str, name: str, now: float) -> Decision:
        """Return the faults that a call meets. `name`: of a node, an operation (which stands for its target) or a place."""
        if not self.faults:
            return NO_FAULT
        self.advance(now)
        if (known := self.operations.get(name)) is not None:
            name = known.target
        target = self.nodes.get(name) or self.queue.rows.get(name)
        return self.faults.decide(operation, caller, name, now, target.state if target else None)

    def node(self, name: str) -> Node:
        """Return a node by its full name. Raises ApiError if there is none that clients can see."""
        node = self.nodes.get(name)
        if node is None or not node.visible_at(self.now):
            raise api_errors.not_found(name)
        return node

    def listed(self, project: str, zone: str, effect: Fault | None = None) -> tuple[list[Node], list[str]]:
        """Return the nodes that a list shows, and the unreachable zones, which it omits. Zone `-`: all zones."""
        unreachable = self.unreachable(zone, effect)
        then, nodes = self.now, list(self.nodes.values())
        if effect is not None and effect.kind == "stale_list":
            then -= effect.seconds
            nodes = self.history.at(then, nodes)
        shown = [n for n in nodes if n.project == project and zone in ("-", n.zone) and n.visible_at(then)]
        return [n for n in shown if n.zone not in unreachable] if unreachable else shown, unreachable

    def unreachable(self, zone: str, effect: Fault | None = None) -> list[str]:
        """Return the zones that a list of `zone` (`-`: all) omits as unreachable."""
        if effect is not None and effect.kind == "unreachable":
            here = {node.zone for node in self.nodes.values()} | {row.zone for row in self.queue.rows.values()}
            return list(effect.parameters["zones"]) or (sorted(here) if zone == "-" else []) or [zone]
        return [z for z in self.settings.unreachable if zone in ("-", z)]

    def operation(self, name: str, effect: Fault | None = None) -> OperationRecord:
        """Return an operation by its full name. Raises ApiError if there is none."""
        if name not in self.operations or (effect is not None and effect.kind == "operation_gone"):
            raise api_errors.not_found(name)
        return self.operations[name]

    def check_place(self, project: str, zone: str) -> None:
        """Raise ApiError if the project may not use the zone, unless it has a resource there."""
        self.supply.check_place(project, zone, (*self.nodes, *self.queue.rows))

    # --- requests -----------------------------------------------------------------------------------------------------

    def create(self, node: Node, api_version: str, now: float, effect: Fault | None = None) -> OperationRecord:
        """Create a node that has no uid yet; its spec is kept, not copied. Return the operation.

        Raises ApiError if the API refuses the call, NoReply under the fault "late".
        """
        self.advance(now)
        if effect is not None and effect.kind == "late":
            self.delayed_creates.append((self.now + effect.seconds, {"node": asdict(node), "api_version": api_version}))
            raise NoReply
        node.uid, node.created_at = self.number(), self.now
        if node.name in self.nodes:
            raise api_errors.already_exists(node.name)
        self.queue.admit([node.demand])
        self.supply.count_create(node.project, self.now)
        if effect is not None and effect.kind == "operation_forgets":
            return self.begin_timed_operation(node, "create", api_version, effect)
        self.insert(node)
        operation = self._begin(node, "create", "CREATING", api_version, effect)
        if effect is not None:
            self._apply_to_create(node, operation, effect)
        return operation

    def _apply_to_create(self, node: Node, operation: OperationRecord, effect: Fault) -> None:
        match effect.kind:
            case "hidden":
                node.hidden_until = self.now + effect.seconds
            case "stockout":
                node.failure = api_errors.no_capacity(node.zone).in_operation()
            case "create_fails" | "create_fails_leaving_node":
                node.failure, node.failed_state = failure_of(node, effect), effect.parameters.get("state")
            case "operation_fails":  # and the node is created all the same
                node.operation = None
                self.end_later(operation, effect.seconds, failure_of(node, effect))

    def change_power(
        self, name: str, verb: str, api_version: str, now: float, effect: Fault | None = None
    ) -> OperationRecord:
        """Stop or start a node, as `verb` says. Return the operation. Raises ApiError if the API refuses the call."""
        node = self._idle(name, now)
        if verb == "stop" and node.workers > 1:
            # In the words of the API's reference.
            raise api_errors.bad_request(
                "Stop is not supported: this operation is only available with single TPU nodes"
            )
        needed, state = VERBS[verb]
        if node.state != needed:
            raise api_errors.wrong_state(verb, node.state)
        if effect is not None and effect.kind == "operation_forgets":
            return self.begin_timed_operation(node, verb, api_version, effect)
        return self._begin(node, verb, state, api_version, effect)

    def delete(self, name: str, api_version: str, now: float, effect: Fault | None = None) -> OperationRecord:
        """Delete a node, in any state. Return the operation; of a delete that is under way, that one.

        Raises ApiError if there is no such node, or under a fault.
        """
        node, kind = self._idle(name, now), effect and effect.kind
        if kind == "refuse_delete":
            raise api_errors.wrong_state("delete", node.state)
        if effect is not None and kind in ("delete_dropped", "operation_forgets"):
            if effect.parameters.get("hidden") and node.due is not None:
                node.hidden_until = node.due
            return self.begin_timed_operation(node, "delete", api_version, effect)
        if node.state == "DELETING" and node.due is not None:
            known = self.operations.get(node.operation or "")  # None: the service deletes it
            return known or self.begin_own_operation(node, "delete", api_version)
        if kind != "operation_fails":
            self._interrupt(node, api_errors.superseded)
        operation = self._begin(node, "delete", "DELETING", api_version, effect)
        if kind == "stalled":
            node.due = None
        return operation

    def patch(
        self, name: str, changes: dict[str, Any], api_version: str, now: float, effect: Fault | None = None
    ) -> OperationRecord:
        """Replace whole fields of the spec. Return the operation, which is done already, unless a fault delays it.

        Raises ApiError if the API refuses the call.
        """
        node, kind = self._idle(name, now), effect and effect.kind
        if node.due is not None:
            raise api_errors.busy()
        if node.state not in ("READY", "STOPPED"):
            raise api_errors.wrong_state("update", node.state)
        if effect is not None and kind in ("operation_fails", "operation_forgets"):
            return self.begin_timed_operation(node, "update", api_version, effect)
        before, kept = node.spec, {key: value for key, value in node.spec.items() if key not in changes}
        node.spec = kept | {key: value for key, value in changes.items() if value not in (None, "", {}, [])}
        node.trusted &= startup_script_of(node.spec) == startup_script_of(before)
        self.history.note(node, self.now)
        if effect is not None and kind == "stuck":
            operation = self.begin_operation(node, "update", api_version)
            node.busy_until = self.now + effect.seconds
            operation.response = copy.copy(node)
            return self.end_later(operation, effect.seconds)
        return self.completed_operation(node, "update", api_version)

    def _idle(self, name: str, now: float) -> Node:
        """Return the node as of `now`. Raises ApiError if there is none, or if a stuck patch keeps it busy."""
        self.advance(now)
        node = self.node(name)
        if node.busy_until is not None and node.busy_until > self.now:
            raise api_errors.busy()
        return node

    # --- reports of the driver ----------------------------------------------------------------------------------------

    def powered(self, uid: str, power: Power, now: float, hosts: list[HostRecord] | None = None) -> None:
        """Report that the hosts of a node have reached `power`; `hosts`: their ports, None: as before."""
        node = self.by_uid(uid)
        if node is not None:
            node.power = power
            if hosts is not None:
                node.hosts = hosts
        self.advance(now)

    def forget_power(self, ended: Collection[str] = ()) -> None:
        """Report that the driver restarted: the power of all hosts is unknown. No process is left of those in `ended` (uid):
        their hosts boot again, if they were on."""
        for node in self.nodes.values():
            node.power = Power.UNKNOWN
            was_on = (node.resume or node).state in SETTLED_POWER and node.target_power is Power.ON
            node.boot_pending |= was_on and node.uid in ended

    # --- as plain data ------------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """Return what `load` reads. The daemon saves it in two parts (`state.archive`)."""
        operations = [dump_operation(operation) for operation in self.operations.values()]
        rest: dict[str, Any] = json.loads(json.dumps(self.dump_rest(), default=as_fields))
        return rest | {"operations": operations, "bills": [asdict(bill) for bill in self.meter.bills]}

    def dump_rest(self) -> dict[str, Any]:
        """Return all but operations and bills, which may be thousands, for `json.dumps(default=as_fields)`."""
        return {
            "seed": self.seed,
            "count": self.count,
            "now": self.now,
            "settings": self.settings,
            "nodes": list(self.nodes.values()),
            "faults": self.faults.dump(),
            "delayed_creates": self.delayed_creates,
            "queue": self.queue.dump(),
            "supply": self.supply.dump(),
            "events": self.events,
            "logins": self.logins.dump(),
        }

    @classmethod
    def load(cls, data: dict[str, Any]) -> CloudState:
        """Return the cloud of `dump`. KeyError, TypeError or ValueError for any other data."""
        state = cls(data["seed"], Settings(**data["settings"]))
        state.count, state.now = data["count"], data["now"]
        state.nodes = {node.name: node for node in map(load_node, data["nodes"])}
        state.operations = {op.name: op for op in map(load_operation, data["operations"])}
        state.meter = Meter([Bill(**row) for row in data["bills"]])
        state.faults = Faults.load(data["faults"])
        state.delayed_creates = [(due, arguments) for due, arguments in data["delayed_creates"]]
        state.supply = supply.load(data["supply"])
        state.events = [ProviderEvent(**row) for row in data["events"]]
        state.queue.load(data["queue"])
        state.logins = LoginProfile.load(data["logins"])
        state._timed = {op.name: op for op in state.operations.values() if op.due is not None and not op.done}
        for node in state.nodes.values():
            state.history.note(node, node.created_at)
        return state

"""The emulated cloud itself: nodes, operations and the billing meter, as a pure machine that a passed-in clock drives.

No I/O, no waiting, no randomness but a seed: the daemon serves it, and a simulator can drive the very same machine under
virtual time. What it cannot do itself (power TPU VMs on and off) it asks for through `Node.wanted_power` and is told
through `powered`; a node becomes READY, or leaves, only when both its time has come and its hosts have followed.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import asdict
from typing import Any

from orchestrator.emulator import api_errors
from orchestrator.emulator.meter import Bill, Meter
from orchestrator.emulator.records import (
    TRANSITIONS,
    VERBS,
    Host,
    Node,
    Operation,
    Power,
    Settings,
    load_node,
    load_operation,
)

KEEP_OPERATIONS = 2000  # finished operations are forgotten beyond this many, as the real API forgets them in time


class CloudState:
    """All of the cloud. Every method that takes `now` first lets time pass up to it."""

    def __init__(self, seed: str, settings: Settings | None = None) -> None:
        self.seed = seed
        self.count = 0  # of names given out; with the seed it makes every id
        self.now = 0.0
        self.settings = settings or Settings()
        self.nodes: dict[str, Node] = {}  # by full name
        self.operations: dict[str, Operation] = {}
        self.meter = Meter()

    # --- time ---------------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> bool:
        """End every transition whose time has come. True when something changed."""
        self.now = max(self.now, now)  # a wall clock that steps back must not un-happen anything
        ready = [node for node in self.nodes.values() if self._may_end(node)]
        for node in ready:
            self._end(node)
        return bool(ready)

    def next_due(self) -> float | None:
        """When `advance` may next have something to do; None: only after a request or a report."""
        return min(
            (n.due for n in self.nodes.values() if n.due is not None and n.power == n.wanted_power), default=None
        )

    def _may_end(self, node: Node) -> bool:
        return node.due is not None and node.due <= self.now and node.power == node.wanted_power

    def _end(self, node: Node) -> None:
        transition, failure = TRANSITIONS[node.state], node.failure
        then = transition.then if failure is None else transition.if_failed
        node.due = node.failure = None
        if then is None:
            del self.nodes[node.name]
            self.meter.close(node.uid, self.now)
        else:
            node.state = then
            node.boot_pending = then == "READY"
        self._finish(node, failure)

    def _finish(self, node: Node, error: dict[str, Any] | None) -> None:
        operation = self.operations.get(node.operation or "")
        node.operation = None
        if operation is None:
            return
        operation.ended_at, operation.error = self.now, error
        if error is None and operation.verb != "delete":
            operation.response = copy.deepcopy(node)

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
    ) -> Operation:
        self.advance(now)
        node = Node(self._number(), project, zone, node_id, copy.deepcopy(spec), workers, "CREATING", self.now)
        if node.name in self.nodes:
            raise api_errors.already_exists(node.name)
        self.nodes[node.name] = node
        self.meter.open(
            Bill(node.uid, node.name, project, zone, node.accelerator_type, node.spot, usd_per_hour, since=self.now)
        )
        return self._begin(node, "create", "CREATING", api_version)

    def node(self, name: str) -> Node:
        try:
            return self.nodes[name]
        except KeyError:
            raise api_errors.not_found(name) from None

    def change_power(self, name: str, verb: str, api_version: str, now: float) -> Operation:
        """`verb` is stop or start."""
        self.advance(now)
        node = self.node(name)
        needed, state = VERBS[verb]
        if node.state != needed:
            raise api_errors.wrong_state(verb, node.state)
        return self._begin(node, verb, state, api_version)

    def delete(self, name: str, api_version: str, now: float) -> Operation:
        """Possible in every state; a delete that is already under way is answered with its own operation."""
        self.advance(now)
        node = self.node(name)
        if node.state == "DELETING" and node.operation is not None:
            return self.operations[node.operation]
        if node.operation is not None:
            self._finish(node, api_errors.superseded(self.operations[node.operation].verb).in_operation())
        node.failure = None
        node.boot_pending = False
        return self._begin(node, "delete", "DELETING", api_version)

    def patch(self, name: str, changes: dict[str, Any], api_version: str, now: float) -> Operation:
        """Replace whole fields of the spec; done when this returns."""
        self.advance(now)
        node = self.node(name)
        if node.operation is not None:
            raise api_errors.busy()
        for key, value in changes.items():
            if value in (None, "", {}, []):
                node.spec.pop(key, None)
            else:
                node.spec[key] = copy.deepcopy(value)
        operation = self._operation(node, "update", api_version)
        self._finish(node, None)
        return operation

    # --- reports of the driver ----------------------------------------------------------------------------------------

    def powered(self, uid: str, power: Power, now: float, hosts: list[Host] | None = None) -> None:
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

    def by_uid(self, uid: str) -> Node | None:
        return next((node for node in self.nodes.values() if node.uid == uid), None)

    # --- inner parts --------------------------------------------------------------------------------------------------

    def _begin(self, node: Node, verb: str, state: str, api_version: str) -> Operation:
        node.state = state
        node.due = self.now + float(getattr(self.settings, TRANSITIONS[state].delay))
        if verb in ("create", "start") and not self.settings.has_capacity(node.zone, node.accelerator_type):
            node.failure = api_errors.no_capacity(node.zone).in_operation()
        return self._operation(node, verb, api_version)

    def _operation(self, node: Node, verb: str, api_version: str) -> Operation:
        number = self._number()
        milliseconds = int(self.now * 1000)
        name = (
            f"projects/{node.project}/locations/{node.zone}/operations/"
            f"operation-{milliseconds}-{int(number):x}-{self.count:08x}"
        )
        operation = Operation(name, verb, node.name, self.now, api_version)
        node.operation = name
        self.operations[name] = operation
        for old in self._forgettable():
            del self.operations[old]
        return operation

    def _forgettable(self) -> list[str]:
        surplus = len(self.operations) - KEEP_OPERATIONS
        return [op.name for op in self.operations.values() if op.done][:surplus] if surplus > 0 else []

    def _number(self) -> str:
        self.count += 1
        digest = hashlib.sha256(f"{self.seed}:{self.count}".encode()).digest()
        return str(int.from_bytes(digest[:8], "big") >> 1 | 1 << 62)  # positive int64, always 19 digits

    # --- as plain data ------------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "count": self.count,
            "now": self.now,
            "settings": asdict(self.settings),
            "nodes": [asdict(node) for node in self.nodes.values()],
            "operations": [asdict(operation) for operation in self.operations.values()],
            "bills": self.meter.dump(),
        }

    @classmethod
    def load(cls, data: dict[str, Any]) -> CloudState:
        state = cls(data["seed"], Settings(**data["settings"]))
        state.count, state.now = data["count"], data["now"]
        state.nodes = {node.name: node for node in map(load_node, data["nodes"])}
        state.operations = {op.name: op for op in map(load_operation, data["operations"])}
        state.meter = Meter.load(data["bills"])
        return state

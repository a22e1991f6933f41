"""Timed state in the emulated cloud: transitions of nodes, and operations that end at a set time.

The base of `provider_events` and `cloud_state`, and as pure: `advance` lets time pass up to a clock that is passed in.
"""

import copy
import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from cloud_tpu_emulator.faults import api_errors
from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.faults.fault import Fault, Faults
from cloud_tpu_emulator.model.meter import Bill, Meter
from cloud_tpu_emulator.model.records import TRANSITIONS, Node, OperationRecord, Power, QueuedResource, Resume, Settings
from cloud_tpu_emulator.model.supply import RESERVED, Demand, Supply

KEEP_OPERATIONS = 500  # beyond this many, done operations are dropped, as the real API drops them in time


class NodeTransitions:
    """Nodes, operations, the meter, and their clock (Unix seconds)."""

    def __init__(self, seed: str, settings: Settings | None = None) -> None:
        self.seed = seed
        self.count = 0  # of names given out; with the seed it makes every id
        self.now = 0.0
        self.settings = settings or Settings()
        self.nodes: dict[str, Node] = {}  # by full name
        self.operations: dict[str, OperationRecord] = {}  # by full name
        self.meter = Meter()
        self.faults = Faults()
        self.history = History()
        self.supply = Supply()
        self.delayed_creates: list[tuple[float, dict[str, Any]]] = []  # of the fault "late": when, arguments
        self._timed: dict[str, OperationRecord] = {}  # timed operations that are not done

    # --- time ---------------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> bool:
        """Let time pass up to `now`: end every transition that is due. Return whether something changed."""
        self.now = max(self.now, now)  # a clock that steps back must not undo anything
        ready = [node for node in self.nodes.values() if self._is_due(node)]
        for node in ready:
            self._end(node)
        return bool(ready) | self._end_timed_operations()

    def next_due(self) -> float | None:
        """Return when `advance` may next have something to do; None: only after a request or a report of the driver."""
        return min(self._dues(), default=None)

    def _dues(self) -> list[float]:
        dues = [n.due for n in self.nodes.values() if n.due is not None and n.power == n.target_power]
        dues += [op.due for op in self._timed.values() if op.due is not None]
        return dues + [due for due, _ in self.delayed_creates]

    def _is_due(self, node: Node) -> bool:
        return node.due is not None and node.due <= self.now and node.power == node.target_power

    def _end(self, node: Node) -> None:
        failure, resume = node.failure, node.resume
        node.due = node.failure = node.resume = None
        if resume is not None:
            self.end_operation(node, failure)
            node.state, node.due = resume.state, resume.due
            node.operation, node.failure = resume.operation, resume.failure
            return self.history.note(node, self.now)
        transition = TRANSITIONS[node.state]
        then = transition.then if failure is None else node.failed_state or transition.if_failed
        if then is None:
            self._remove(node)
        else:
            was, node.state = node.state, then
            node.boot_pending = then == "READY"
            if was == "CREATING" and then == "READY":
                self._became_ready(node)
            if failure is None and then in TRANSITIONS:
                node.due = self.now + float(getattr(self.settings, TRANSITIONS[then].delay))
            self.history.note(node, self.now)
        return self.end_operation(node, failure)

    def _became_ready(self, node: Node) -> None:
        """Called when a node is READY for the first time."""

    def by_uid(self, uid: str) -> Node | None:
        """Return the node with this uid; None: there is none."""
        return next((node for node in self.nodes.values() if node.uid == uid), None)

    def _remove(self, node: Node) -> None:
        del self.nodes[node.name]
        self.meter.close(node.uid, self.now)
        self.history.note(node, self.now, removed=True)

    def end_operation(self, target: Node | QueuedResource, error: dict[str, Any] | None) -> None:
        """End the operation of a node or queued resource, if it has one. `error` is a google.rpc.Status."""
        operation = self.operations.get(target.operation or "")
        target.operation = None
        if operation is None:
            return
        operation.ended_at, operation.error = self.now, error
        if error is None and operation.verb != "delete":
            operation.response = copy.copy(target)  # specs are replaced, never changed in place

    def _end_timed_operations(self) -> bool:
        ended = [op for op in self._timed.values() if op.due is not None and op.due <= self.now] if self._timed else []
        for operation in ended:
            operation.ended_at, operation.error = self.now, operation.failure
            del self._timed[operation.name]
        return bool(ended)

    # --- capacity -----------------------------------------------------------------------------------------------------

    def demands_on(self, besides: Node | None = None) -> list[Demand]:
        """Return what uses capacity now: the nodes whose hosts are to be on."""
        return [n.demand for n in self.nodes.values() if n is not besides and n.target_power is Power.ON]

    def shortage(self, demands: list[Demand], besides: Node | None = None) -> ApiError | None:
        """Return why there is no capacity for these now; None: there is."""
        for demand in demands:
            if demand.tier != RESERVED and not self.settings.has_capacity(demand.zone, demand.accelerator_type):
                return api_errors.no_capacity(demand.zone)
        if not self.supply.capacity and not self.supply.reservations:
            return None
        return self.supply.shortage(demands, self.demands_on(besides), self.now)

    # --- beginnings and ends ------------------------------------------------------------------------------------------

    def insert(self, node: Node) -> None:
        """Add a node; it is billed from now on."""
        self.nodes[node.name] = node
        what = node.uid, node.name, node.project, node.zone, node.accelerator_type, node.spot, node.usd_per_hour
        self.meter.open(Bill(*what, since=self.now))

    def enter(self, node: Node, verb: str, state: str, effect: Fault | None = None) -> None:
        """Put a node into a timed state, without an operation."""
        delay_s = float(getattr(self.settings, TRANSITIONS[state].delay))
        if effect is not None and effect.kind == "operation_fails" and verb != "create":
            node.resume = Resume(node.state, node.due, node.operation, node.failure)
            node.failure, delay_s = failure_of(node, effect), effect.seconds
        elif verb in ("create", "start") and (short := self.shortage([node.demand], besides=node)) is not None:
            node.failure = short.in_operation()
        if effect is not None and effect.kind == "stuck":
            delay_s = effect.seconds
        node.state = state
        node.due = self.now + delay_s
        node.operation = None
        self.history.note(node, self.now)

    def _begin(
        self, node: Node, verb: str, state: str, api_version: str, effect: Fault | None = None
    ) -> OperationRecord:
        self.enter(node, verb, state, effect)
        return self.begin_own_operation(node, verb, api_version)

    def delete_by_service(self, node: Node) -> None:
        """Delete a node as the service does, without an operation."""
        if node.state != "DELETING" or node.resume is not None:
            self._interrupt(node, api_errors.superseded)
            self.enter(node, "delete", "DELETING")

    def restart(self, node: Node, effect: Fault | None = None) -> None:
        """Power the hosts of a node off and on again, without an operation."""
        self._interrupt(node, api_errors.superseded)
        self.enter(node, "restart", "RESTARTING", effect)

    def _interrupt(self, node: Node, error: Callable[[str], ApiError]) -> None:
        """End what is under way; its operations end with `error(verb)`."""
        for name in (node.operation, node.resume.operation if node.resume else None):
            if name is not None:
                node.operation = name
                self.end_operation(node, error(self.operations[name].verb).in_operation())
        node.due = node.failure = node.resume = node.failed_state = node.busy_until = None
        node.boot_pending = False

    def completed_operation(self, target: Node | QueuedResource, verb: str, api_version: str) -> OperationRecord:
        """Return a new operation that is done: the call has taken full effect."""
        operation = self.begin_operation(target, verb, api_version)
        operation.ended_at, operation.response = self.now, copy.copy(target)
        return operation

    def begin_timed_operation(
        self, target: Node | QueuedResource, verb: str, api_version: str, effect: Fault
    ) -> OperationRecord:
        """Return a new operation that does nothing, and that ends as the fault sets it."""
        failure = failure_of(target, effect) if effect.kind == "operation_fails" else None
        operation = self.begin_operation(target, verb, api_version)
        operation.silent = effect.kind == "operation_forgets"
        return self.end_later(operation, effect.seconds, failure)

    def end_later(
        self, operation: OperationRecord, seconds: float, failure: dict[str, Any] | None = None
    ) -> OperationRecord:
        """Let an operation end after `seconds`, whatever its target does. `failure` is a google.rpc.Status."""
        operation.due, operation.failure = self.now + seconds, failure
        self._timed[operation.name] = operation
        self._end_timed_operations()
        return operation

    def begin_operation(self, target: Node | QueuedResource, verb: str, api_version: str) -> OperationRecord:
        """Return a new operation that is under way."""
        number = self.number()
        milliseconds = int(self.now * 1000)
        name = (
            f"projects/{target.project}/locations/{target.zone}/operations/"
            f"operation-{milliseconds}-{int(number):x}-{self.count:08x}"
        )
        operation = self.operations[name] = OperationRecord(name, verb, target.name, self.now, api_version)
        surplus = max(0, len(self.operations) - KEEP_OPERATIONS)
        for old in [op.name for op in self.operations.values() if op.done][:surplus] if surplus else ():
            del self.operations[old]
        return operation

    def begin_own_operation(self, target: Node | QueuedResource, verb: str, api_version: str) -> OperationRecord:
        """Return a new operation, which ends with the target's present state."""
        operation = self.begin_operation(target, verb, api_version)
        target.operation = operation.name
        return operation

    def number(self) -> str:
        """Return the next id: a positive int64 of 19 digits, from the seed and the count."""
        self.count += 1
        digest = hashlib.sha256(f"{self.seed}:{self.count}".encode()).digest()
        return str(int.from_bytes(digest[:8], "big") >> 1 | 1 << 62)


def failure_of(target: Node | QueuedResource, effect: Fault) -> dict[str, Any]:
    """Return how the operation ends (google.rpc.Status): literally as the fault says, else by its code and message."""
    if literal := effect.parameters["literal"]:
        status: dict[str, Any] = json.loads(literal)
        return status
    code, message = effect.parameters["code"], effect.parameters["message"]
    error = api_errors.no_capacity(target.zone) if code == "RESOURCE_EXHAUSTED" else api_errors.internal()
    return (ApiError(code, message or error.message) if message or code != error.status else error).in_operation()


# The newest changes of nodes, in memory only, for lists that show an earlier state.
#
#  `transitions` records every change; `cloud_state` reads it only under the fault "stale_list".

CHANGES_KEPT = 4096  # before the oldest of them, nodes are assumed to have looked the same


class History:
    """The newest changes of all nodes, also of those that were removed."""

    def __init__(self) -> None:
        # When, which node, its state from then on (None: it is absent), its spec.
        self._changes: deque[tuple[float, Node, str | None, dict[str, Any]]] = deque(maxlen=CHANGES_KEPT)

    def note(self, node: Node, now: float, *, removed: bool = False) -> None:
        """Record the present state and spec. Specs are replaced, never changed in place, so no copy is needed."""
        self._changes.append((now, node, None if removed else node.state, node.spec))

    def at(self, then: float, present: Iterable[Node]) -> list[Node]:
        """Return the nodes that existed at `then`, as they were. `present` are those that exist now."""
        found: dict[str, Node] = {node.uid: node for node in present if node.created_at <= then}
        for _, node, state, spec in (change for change in self._changes if change[0] <= then):
            if state is None:
                found.pop(node.uid, None)
            else:
                found[node.uid] = old = copy.copy(node)
                old.state, old.spec = state, spec
        return list(found.values())

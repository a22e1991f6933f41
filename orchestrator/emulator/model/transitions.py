"""What passes by itself in the emulated cloud: transitions of nodes, operations that end, creates that come late.

The lower half of `cloud_state.CloudState`, and as pure: `advance` lets time pass up to a clock that is passed in. What is
asked of the cloud, and what faults do to it, is in the upper half.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

from orchestrator.emulator import api_errors
from orchestrator.emulator.api_errors import ApiError
from orchestrator.emulator.faults.active_faults import Faults
from orchestrator.emulator.faults.fault import Fault
from orchestrator.emulator.model.history import History
from orchestrator.emulator.model.meter import Bill, Meter
from orchestrator.emulator.model.queue_records import QueuedResource
from orchestrator.emulator.model.records import TRANSITIONS, Node, OperationRecord, Power, Resume, Settings
from orchestrator.emulator.supply.demand import RESERVED, Demand
from orchestrator.emulator.supply.supply import Supply

KEEP_OPERATIONS = 1000  # finished operations are forgotten beyond this many, as the real API forgets them in time


class Machine:
    """Nodes, operations, the meter, and their clock."""

    def __init__(self, seed: str, settings: Settings | None = None) -> None:
        self.seed = seed
        self.count = 0  # of names given out; with the seed it makes every id
        self.now = 0.0
        self.settings = settings or Settings()
        self.nodes: dict[str, Node] = {}  # by full name
        self.operations: dict[str, OperationRecord] = {}
        self.meter = Meter()
        self.faults = Faults()
        self.history = History()
        self.supply = Supply()
        self.late: list[tuple[float, dict[str, Any]]] = []  # creates that nobody was told of: when, arguments
        self._loose: dict[str, OperationRecord] = {}  # operations that end by themselves

    # --- time ---------------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> bool:
        """End every transition whose time has come. True when something changed."""
        self.now = max(self.now, now)  # a wall clock that steps back must not un-happen anything
        ready = [node for node in self.nodes.values() if self._may_end(node)]
        for node in ready:
            self._end(node)
        return bool(ready) | self._end_loose()

    def next_due(self) -> float | None:
        """When `advance` may next have something to do; None: only after a request or a report."""
        dues = [n.due for n in self.nodes.values() if n.due is not None and n.power == n.wanted_power]
        if self._loose or self.late:
            dues += [op.due for op in self._loose.values() if op.due is not None]
            dues += [due for due, _ in self.late]
        return min(dues, default=None)

    def _may_end(self, node: Node) -> bool:
        return node.due is not None and node.due <= self.now and node.power == node.wanted_power

    def _end(self, node: Node) -> None:
        failure, resume = node.failure, node.resume
        node.due = node.failure = node.resume = None
        if resume is not None:
            self.finish(node, failure)
            node.state, node.due, node.operation, node.failure = (
                *(resume.state, resume.due, resume.operation, resume.failure),
            )
            return self.history.note(node, self.now)
        transition = TRANSITIONS[node.state]
        then = transition.then if failure is None else node.left_as or transition.if_failed
        if then is None:
            self._remove(node)
        else:
            was, node.state = node.state, then
            node.boot_pending = then == "READY"
            if was == "CREATING" and then == "READY":
                self._arrived(node)
            if failure is None and then in TRANSITIONS:
                node.due = self.now + float(getattr(self.settings, TRANSITIONS[then].delay))
            self.history.note(node, self.now)
        return self.finish(node, failure)

    def _arrived(self, node: Node) -> None:
        """It is READY for the first time."""

    def by_uid(self, uid: str) -> Node | None:
        return next((node for node in self.nodes.values() if node.uid == uid), None)

    def _remove(self, node: Node) -> None:
        del self.nodes[node.name]
        self.meter.close(node.uid, self.now)
        self.history.gone(node, self.now)

    def finish(self, thing: Node | QueuedResource, error: dict[str, Any] | None) -> None:
        """End the operation that waits for it, if one does."""
        operation = self.operations.get(thing.operation or "")
        thing.operation = None
        if operation is None:
            return
        operation.ended_at, operation.error = self.now, error
        if error is None and operation.verb != "delete":
            operation.response = copy.copy(thing)  # specs are replaced, never changed in place

    def _end_loose(self) -> bool:
        ended = [op for op in self._loose.values() if op.due is not None and op.due <= self.now] if self._loose else []
        for operation in ended:
            operation.ended_at, operation.error = self.now, operation.failure
            del self._loose[operation.name]
        return bool(ended)

    # --- room ---------------------------------------------------------------------------------------------------------

    def shortage(self, wants: list[Demand], besides: Node | None = None) -> ApiError | None:
        """Why there is no room for these now."""
        if self.settings.no_capacity:
            for want in wants:
                if want.tier != RESERVED and not self.settings.has_capacity(want.zone, want.accelerator_type):
                    return api_errors.no_capacity(want.zone)
        if not self.supply.capacity and not self.supply.reservations:
            return None
        on = [node.want for node in self.nodes.values() if node is not besides and node.wanted_power is Power.ON]
        return self.supply.shortage(wants, on, self.now)

    # --- beginnings and ends ------------------------------------------------------------------------------------------

    def bear(self, node: Node, usd_per_hour: float | None) -> None:
        """From now on it exists and bills."""
        self.nodes[node.name] = node
        self.meter.open(
            Bill(
                *(node.uid, node.name, node.project, node.zone, node.accelerator_type, node.spot, usd_per_hour),
                since=self.now,
            )
        )

    def enter(self, node: Node, verb: str, state: str, effect: Fault | None = None) -> None:
        """Into a state that passes by itself. No operation waits for it yet."""
        delay_s = float(getattr(self.settings, TRANSITIONS[state].delay))
        if effect is not None and effect.kind == "operation_fails" and verb != "create":
            node.resume = Resume(node.state, node.due, node.operation, node.failure)
            node.failure, delay_s = failure_of(node, effect), effect.seconds
        elif verb in ("create", "start") and (short := self.shortage([node.want], besides=node)) is not None:
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
        operation = self.begin_operation(node, verb, api_version)
        node.operation = operation.name
        return operation

    def withdraw(self, node: Node) -> None:
        """The service itself deletes it."""
        if node.state != "DELETING" or node.resume is not None:
            self._interrupt(node, api_errors.superseded)
            self.enter(node, "delete", "DELETING")

    def restart(self, node: Node, effect: Fault | None = None) -> None:
        """Its hosts go off and on again."""
        self._interrupt(node, api_errors.superseded)
        self.enter(node, "restart", "RESTARTING", effect)

    def _interrupt(self, node: Node, error: Callable[[str], ApiError]) -> None:
        """Whatever is under way ends here, with an error for those who wait for it."""
        for name in (node.operation, node.resume.operation if node.resume else None):
            if name is not None:
                node.operation = name
                self.finish(node, error(self.operations[name].verb).in_operation())
        node.due = node.failure = node.resume = node.left_as = node.busy_until = None
        node.boot_pending = False

    def done_at_once(self, thing: Node | QueuedResource, verb: str, api_version: str) -> OperationRecord:
        """For a call that has had its whole effect."""
        operation = self.begin_operation(thing, verb, api_version)
        operation.ended_at, operation.response = self.now, copy.copy(thing)
        return operation

    def begin_loose(self, thing: Node | QueuedResource, verb: str, api_version: str, effect: Fault) -> OperationRecord:
        """An operation that ends when the fault says so and as it says, and that does nothing."""
        failure = failure_of(thing, effect) if effect.kind == "operation_fails" else None
        operation = self.begin_operation(thing, verb, api_version)
        operation.silent = effect.kind == "operation_forgets"
        return self.let_loose(operation, effect.seconds, failure)

    def let_loose(
        self, operation: OperationRecord, seconds: float, failure: dict[str, Any] | None = None
    ) -> OperationRecord:
        """It ends after so long, and nothing else depends on it."""
        operation.due, operation.failure = self.now + seconds, failure
        self._loose[operation.name] = operation
        self._end_loose()
        return operation

    def begin_operation(self, thing: Node | QueuedResource, verb: str, api_version: str) -> OperationRecord:
        number = self.number()
        milliseconds = int(self.now * 1000)
        name = (
            f"projects/{thing.project}/locations/{thing.zone}/operations/"
            f"operation-{milliseconds}-{int(number):x}-{self.count:08x}"
        )
        operation = self.operations[name] = OperationRecord(name, verb, thing.name, self.now, api_version)
        for old in self._forgettable():
            del self.operations[old]
        return operation

    def _forgettable(self) -> list[str]:
        surplus = len(self.operations) - KEEP_OPERATIONS
        return [op.name for op in self.operations.values() if op.done][:surplus] if surplus > 0 else []

    def number(self) -> str:
        self.count += 1
        digest = hashlib.sha256(f"{self.seed}:{self.count}".encode()).digest()
        return str(int.from_bytes(digest[:8], "big") >> 1 | 1 << 62)  # positive int64, always 19 digits


def failure_of(thing: Node | QueuedResource, effect: Fault) -> dict[str, Any]:
    """How the operation ends: in the words of the fault, or in those that the API has for its code."""
    code, message = effect.parameters["code"], effect.parameters["message"]
    error = api_errors.no_capacity(thing.zone) if code == "RESOURCE_EXHAUSTED" else api_errors.internal()
    return (ApiError(code, message or error.message) if message or code != error.status else error).in_operation()

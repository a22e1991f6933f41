"""The emulated cloud with its queue, under virtual time, and any calls to it in any order: what always holds."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.faults.fault import Fault, NoReply
from cloud_tpu_emulator.model.cloud_state import CloudState
from cloud_tpu_emulator.model.records import HostRecord, Node, OperationRecord, Power, QueuedResource, Settings
from cloud_tpu_emulator.wire.requests import parse_create, parse_queued

ZONE = "us-central1-a"
PLACE = f"projects/p/locations/{ZONE}"
NODE = {"acceleratorType": "v5litepod-4", "runtimeVersion": "v2-alpha-tpuv5-lite"}
DELAYS: dict[str, float] = {
    **{"provision_s": 10, "stop_s": 3, "start_s": 5, "delete_s": 2},
    **{"accept_s": 1, "queue_s": 4, "suspend_s": 1, "refuse_s": 1.5},
}


class QueueCloud:
    """Names are ids; the zone is ZONE unless a test names another."""

    def __init__(self, *faults: dict[str, Any], **settings: Any) -> None:
        self.state = CloudState("seed", Settings(**{**DELAYS, **settings}))
        self.now = 1000.0
        self.hosts_follow = True
        self.state.faults.add_all(faults, self.now)

    def effect(self, operation: str, name: str) -> Fault | None:
        return self.state.decide(operation, "client", name, self.now).effect

    def _followed(self, ask: Callable[[], OperationRecord]) -> OperationRecord:
        try:
            return ask()
        finally:
            self.follow()

    # --- requests -----------------------------------------------------------------------------------------------------

    def queue(
        self,
        queue_id: str = "q",
        *,
        node: dict[str, Any] | None = None,
        zone: str = ZONE,
        version: str = "v2",
        request_id: str = "",
        spec: dict[str, Any] | None = None,
        **fields: Any,
    ) -> OperationRecord:
        ids = {"nodeId": f"{queue_id}-node"} if spec is None else spec
        body = {"tpu": {"nodeSpec": [{"node": node or NODE} | ids]}} | fields
        row = parse_queued("p", zone, queue_id, body, version, self.now)
        effect = self.effect("queuedResources.create", row.name)
        return self._followed(lambda: self.state.queue.create(row, version, self.now, effect, request_id))

    def unqueue(self, queue_id: str = "q", *, force: bool = False, request_id: str = "") -> OperationRecord:
        name = f"{PLACE}/queuedResources/{queue_id}"
        settled: dict[str, Any] = {
            "now": self.now,
            "effect": self.effect("queuedResources.delete", name),
            "request_id": request_id,
        }
        return self._followed(lambda: self.state.queue.delete(name, force=force, api_version="v2", **settled))

    def reset(self, queue_id: str = "q") -> OperationRecord:
        return self._followed(lambda: self.state.queue.reset(f"{PLACE}/queuedResources/{queue_id}", "v2", self.now))

    def create(self, node_id: str = "n", *, zone: str = ZONE, project: str = "p", **spec: Any) -> OperationRecord:
        node = parse_create(project, zone, node_id, NODE | spec, "v2alpha1")
        effect = self.effect("nodes.create", node.name)
        return self._followed(lambda: self.state.create(node, "v2", self.now, effect))

    def delete(self, node_id: str = "n") -> OperationRecord:
        name = f"{PLACE}/nodes/{node_id}"
        effect = self.effect("nodes.delete", name)
        return self._followed(lambda: self.state.delete(name, "v2", self.now, effect))

    def power(self, verb: str, node_id: str = "n") -> OperationRecord:
        name = f"{PLACE}/nodes/{node_id}"
        effect = self.effect(f"nodes.{verb}", name)
        return self._followed(lambda: self.state.change_power(name, verb, "v2", self.now, effect))

    def set_labels(self, node_id: str = "n", **labels: str) -> OperationRecord:
        name = f"{PLACE}/nodes/{node_id}"
        effect = self.effect("nodes.patch", name)
        return self._followed(lambda: self.state.patch(name, {"labels": labels}, "v2", self.now, effect))

    # --- time ---------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Let time pass, with a stop at everything that is due, as the driver does."""
        end = self.now + seconds
        while self.hosts_follow and (due := self.state.next_due()) is not None and due <= end:
            self.now = max(self.now, due)
            self.state.advance(self.now)
            self.follow()
        self.now = end
        self.state.advance(end)
        self.follow()

    def follow(self) -> None:
        """Let every host reach the power that its node wants."""
        for node in [*self.state.nodes.values()] if self.hosts_follow else []:
            if node.power != node.target_power:
                hosts = [HostRecord(22, 80)] if node.target_power is Power.ON else None
                self.state.powered(node.uid, node.target_power, self.now, hosts)

    def restart(self) -> None:
        """Continue as the next daemon does, with the saved state, which is all that there is."""
        saved = json.loads(json.dumps(self.state.dump()))
        self.state = CloudState.load(saved)
        assert json.loads(json.dumps(self.state.dump())) == saved
        self.state.forget_power()
        self.follow()

    # --- reads --------------------------------------------------------------------------------------------------------

    def row(self, queue_id: str = "q") -> QueuedResource:
        return self.state.queue.row(f"{PLACE}/queuedResources/{queue_id}")

    def shown(self, queue_id: str = "q") -> str | None:
        try:
            return str(self.row(queue_id).state)
        except ApiError as refusal:
            assert refusal.status == "NOT_FOUND"
            return None

    def node(self, node_id: str = "q-node") -> Node:
        return self.state.node(f"{PLACE}/nodes/{node_id}")

    def seen(self, node_id: str = "n") -> str | None:
        try:
            return self.node(node_id).state
        except ApiError as refusal:
            assert refusal.status == "NOT_FOUND"
            return None

    def listed(self, zone: str = ZONE) -> tuple[dict[str, str], list[str]]:
        nodes, silent = self.state.listed("p", zone, self.effect("nodes.list", f"projects/p/locations/{zone}"))
        return {node.node_id: node.state for node in nodes}, silent

    def billed(self) -> float:
        return float(self.state.meter.read(self.now)["totals"]["node_seconds"])

    @property
    def nodes(self) -> dict[str, str]:
        return {node.node_id: node.state for node in self.state.nodes.values()}

    def states(self, until: str) -> list[str]:
        """Return the states that it shows until that state, without repetitions."""
        seen: list[str] = []
        end = self.now + 1000.0
        while self.now < end:
            if (state := str(self.shown())) not in seen[-1:]:
                seen.append(state)
            if state == until:
                return seen
            self.wait(0.25)
        raise AssertionError(f"never {until}: {seen}")


NODES = st.sampled_from(["n", "m"])


class AnyTime(RuleBasedStateMachine):
    """Time passes, and daemons end and start."""

    def __init__(self) -> None:
        super().__init__()
        self.cloud = QueueCloud()

    @rule(seconds=st.sampled_from([0, 0.5, 3, 20]))
    def wait(self, seconds: float) -> None:
        self.cloud.wait(seconds)

    @rule()
    def restart(self) -> None:
        self.cloud.restart()


class AnyOrder(AnyTime):
    @rule(node=NODES, verb=st.sampled_from(["create", "delete", "stop", "start", "patch", "list"]))
    def ask(self, node: str, verb: str) -> None:
        cloud = self.cloud
        asks: dict[str, Callable[[], Any]] = {
            "create": lambda: cloud.create(node),
            "delete": lambda: cloud.delete(node),
            "patch": lambda: cloud.set_labels(node, a="1"),
            "list": lambda: cloud.listed("-"),
        }
        try:
            asks.get(verb, lambda: cloud.power(verb, node))()
        except NoReply:
            assert verb == "create"
        except ApiError as refusal:
            assert refusal.status in ("ALREADY_EXISTS", "NOT_FOUND", "FAILED_PRECONDITION", "ABORTED")

    @rule(capacity=st.booleans())
    def supply(self, capacity: bool) -> None:
        self.cloud.state.settings.no_capacity = [] if capacity else ["*/*"]

    @rule(follow=st.booleans())
    def hold_hosts(self, follow: bool) -> None:
        self.cloud.hosts_follow = follow

    @invariant()
    def the_meter_runs_for_exactly_the_nodes_that_exist(self) -> None:
        running = [bill.uid for bill in self.cloud.state.meter.bills if bill.until is None]
        assert sorted(running) == sorted(node.uid for node in self.cloud.state.nodes.values())

    @invariant()
    def each_open_operation_is_that_of_a_node(self) -> None:
        open_operations = {name for name, operation in self.cloud.state.operations.items() if not operation.done}
        assert open_operations == {node.operation for node in self.cloud.state.nodes.values() if node.operation}
        for node in self.cloud.state.nodes.values():
            assert (node.due is None) == (node.operation is None) == (node.state in ("READY", "STOPPED"))

    def settle(self) -> None:
        self.cloud.hosts_follow = True
        self.cloud.follow()
        self.cloud.wait(200)

    def delete_everything(self) -> None:
        for node in [*self.cloud.state.nodes.values()]:
            self.cloud.delete(node.node_id)
        self.cloud.wait(2)
        assert not self.cloud.state.nodes

    def teardown(self) -> None:
        """Without calls, every state settles, and a delete of everything leaves nothing."""
        self.settle()
        assert {node.state for node in self.cloud.state.nodes.values()} <= {"READY", "STOPPED"}
        self.delete_everything()

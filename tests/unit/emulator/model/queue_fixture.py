"""The emulated cloud with its queue, under virtual time; hosts reach their target power at once, unless a test holds them."""

import json
from collections.abc import Callable
from typing import Any

from orchestrator.emulator.api_errors import ApiError
from orchestrator.emulator.faults.fault import Fault
from orchestrator.emulator.model.cloud_state import CloudState
from orchestrator.emulator.model.queue_records import QueuedResource
from orchestrator.emulator.model.records import HostRecord, Node, OperationRecord, Power, Settings
from orchestrator.emulator.wire.node_request import parse_create
from orchestrator.emulator.wire.queue_request import parse_queued

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
        settled = {"now": self.now, "effect": self.effect("queuedResources.delete", name), "request_id": request_id}
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

    def states(self, until: str, queue_id: str = "q", patience_s: float = 1000.0) -> list[str]:
        """Return the states that it shows until that state, without repetitions."""
        seen: list[str] = []
        end = self.now + patience_s
        while self.now < end:
            if (state := str(self.shown(queue_id))) not in seen[-1:]:
                seen.append(state)
            if state == until:
                return seen
            self.wait(0.25)
        raise AssertionError(f"never {until}: {seen}")

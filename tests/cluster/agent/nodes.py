"""The nodes of the emulated Google: pools, autoscaler, and Node objects. A node bills while its object is there."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.catalog import gke
from tests.cluster.agent.api import Api, Object, Refused, timestamp

TAINTED = (gke.SPOT_LABEL, gke.FLEX_START_LABEL, gke.QUEUED_LABEL)  # their nodes repel pods that do not tolerate it
NODE_POOL = "cloud.google.com/gke-nodepool"
OF_NAMESPACE = "tests/namespace"  # whose pods a node is for: no test gets the node that another one waits for
BEAT_S = 1.0


@dataclass
class Node:
    """A virtual machine with a kubelet, which is alive until it is lost."""

    name: str
    address: str
    close: Callable[[], Awaitable[Any]]
    alive: bool = True


class Nodes:
    """Every node that there is, by name."""

    def __init__(
        self, api: Api, base: int, listen: Callable[[str, str], Awaitable[Callable[[], Awaitable[Any]]]]
    ) -> None:
        self._api, self._base, self._listen = api, base, listen
        self.there: dict[str, Node] = {}
        self._made = 0

    async def make(self, name: str, form: gke.GkeSlice, labels: Mapping[str, str]) -> Node:
        """Create a virtual machine, and register its node."""
        self._made += 1
        address = f"127.{self._base}.0.{self._made % 250 + 1}"
        node = Node(name, address, await self._listen(name, address))
        self.there[name] = node  # before it is registered: pods are bound to it as soon as it is
        taints = [{"key": gke.TPU, "value": "present", "effect": "NoSchedule"}]
        taints += [{"key": key, "value": "true", "effect": "NoSchedule"} for key in TAINTED if key in labels]
        has = {"cpu": "112", "memory": "192Gi", "pods": "110", gke.TPU: str(form.chips_per_host)}
        status = {"capacity": has, "allocatable": has, "conditions": [_ready()]}
        status |= {"addresses": [{"type": "InternalIP", "address": address}]}
        status |= {"daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}
        made = {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}, "status": status}
        await self._api.call("POST", "/api/v1/nodes", made)
        return node

    async def remove(self, node: Node) -> None:
        """Delete a virtual machine and its Node object."""
        self.there.pop(node.name, None)
        node.alive = False
        await node.close()
        await self._api.call("DELETE", f"/api/v1/nodes/{node.name}")

    async def beat(self) -> None:
        """Say for ever that each node that lives is ready, also of one that counted as lost while the API server was away."""
        while True:
            ready = {"status": {"conditions": [_ready()]}}
            calls = [
                self._api.call("PATCH", f"/api/v1/nodes/{each.name}/status", ready)
                for each in self.there.values()
                if each.alive
            ]
            await asyncio.gather(*calls, return_exceptions=True)
            await asyncio.sleep(BEAT_S)


def _ready() -> Object:
    return {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": timestamp()}


LOOK_S = 0.1
STOCKOUT = "Node scale up in zones associated with this pod failed: GCE out of resources."


@dataclass
class Pool:
    name: str
    wanted_by: str  # the Job that it was made for
    namespace: str
    nodes: list[Node]
    hosts: int
    idle_since: float | None = None
    is_cordoned: bool = False


@dataclass
class Supply:
    """What a test may change for its namespace: how long nodes stay once they are idle, and whether none can be had."""

    idle_s: float = 30.0  # GKE: about 10 min
    none_left: bool = False


class Pools:
    """All pools of the cluster, and the autoscaler that makes and deletes them."""

    def __init__(self, api: Api, nodes: Nodes) -> None:
        self.supply: defaultdict[str, Supply] = defaultdict(Supply)  # by namespace
        self._api, self._nodes = api, nodes
        self._pools: dict[str, Pool] = {}
        self._made = 0
        self._said: set[str] = set()  # of which pods it was said that they get no node

    async def scale(self, pods: Callable[[], Iterable[Object]]) -> None:
        """Give and take nodes, for ever, by what the pods are now."""
        while True:
            try:
                self._forget_lost_nodes()
                await self._scale_up(list(pods()))
                await self._scale_down(list(pods()))
            except Refused:
                pass  # an object changed meanwhile: look again
            await asyncio.sleep(LOOK_S)

    def _forget_lost_nodes(self) -> None:
        for pool in list(self._pools.values()):
            pool.nodes = [node for node in pool.nodes if self._nodes.there.get(node.name) is node]
            if not pool.nodes:
                del self._pools[pool.name]

    async def _scale_up(self, pods: list[Object]) -> None:
        busy = _busy(pods)
        for pod in filter(_is_unschedulable, pods):
            if (pod["spec"].get("nodeSelector") or {}).get(NODE_POOL) in self._pools:
                continue  # it waits for a node of its own slice
            own = [pool for pool in self._pools.values() if pool.wanted_by == _group(pod)]
            if not any(node.name not in busy for pool in own for node in pool.nodes):
                await self._give(pod)

    async def _give(self, pod: Object) -> None:
        """Make the pool that a pod asks for, if there is such a one: else the scheduler says what it asks for in vain."""
        namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
        if self.supply[namespace].none_left:
            if uid not in self._said:
                self._said.add(uid)
                await self._api.event(pod, "FailedScaleUp", STOCKOUT)
        elif (form := _form_for(pod)) is not None:
            self._made += 1
            name = f"{form.kind.name}-{form.hosts}-pool-{self._made}"
            labels = {**pod["spec"]["nodeSelector"], **_labels(form), OF_NAMESPACE: namespace, NODE_POOL: name}
            nodes = [await self._nodes.make(f"gke-{name}-{host}", form, labels) for host in range(form.hosts)]
            self._pools[name] = Pool(name, _group(pod), namespace, nodes, form.hosts)

    async def _scale_down(self, pods: list[Object]) -> None:
        busy = _busy(pods)
        kept = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        waiting = {_group(pod) for pod in kept if not pod["spec"].get("nodeName")}
        for pool in list(self._pools.values()):
            in_use = any(node.name in busy for node in pool.nodes) or pool.wanted_by in waiting
            pool.idle_since = None if in_use else pool.idle_since or time.monotonic()
            over_s = 0.0 if in_use else time.monotonic() - (pool.idle_since or 0.0) - self.supply[pool.namespace].idle_s
            # A pod that is bound to it meanwhile keeps it, and what is left of a slice takes no more pods.
            await self._cordon(pool, len(pool.nodes) < pool.hosts or (over_s >= 0 and not in_use))
            if over_s >= BEAT_S:
                for node in pool.nodes:
                    await self._nodes.remove(node)

    async def _cordon(self, pool: Pool, cordoned: bool) -> None:
        if pool.is_cordoned is not cordoned:
            for node in pool.nodes:
                await self._api.call("PATCH", f"/api/v1/nodes/{node.name}", {"spec": {"unschedulable": cordoned}})
            pool.is_cordoned = cordoned


def _busy(pods: list[Object]) -> set[str | None]:
    return {pod["spec"].get("nodeName") for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")}


def _is_unschedulable(pod: Object) -> bool:
    if pod["status"].get("phase") != "Pending" or pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = pod["status"].get("conditions") or ()
    return any(each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable" for each in conditions)


def _form_for(pod: Object) -> gke.GkeSlice | None:
    """Return of which nodes a slice is that the pod asks for: by its chips and the labels that it selects."""
    selector, resources = pod["spec"].get("nodeSelector") or {}, pod["spec"]["containers"][0]["resources"]
    asked = {key: value for key, value in selector.items() if key not in (*gke.CAPACITY_LABELS, OF_NAMESPACE)}
    forms = [form for name in gke.types() for form in gke.slices(name) if asked.items() <= _labels(form).items()]
    return next((each for each in forms if str(each.chips_per_host) == resources["requests"][gke.TPU]), None)


def _labels(form: gke.GkeSlice) -> dict[str, str]:
    values = (form.accelerator, form.topology, str(form.chips_per_host))
    return dict(zip(gke.LABELS, values, strict=True))


def _group(pod: Object) -> str:
    owners = pod["metadata"].get("ownerReferences") or ()
    return str(next((each["uid"] for each in owners if each.get("controller")), pod["metadata"]["uid"]))

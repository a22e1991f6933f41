"""The nodes of the emulated Google: their shapes, pools and autoscaler, their Node objects, and their bill."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.cluster.agent.api import Api, Object, Refused, timestamp
from tests.cluster.versions import KUBERNETES

GKE = "cloud.google.com/"
PROVISIONING = (
    f"{GKE}gke-spot",
    f"{GKE}gke-flex-start",
    f"{GKE}gke-queued",
    *(f"{GKE}reservation-{each}" for each in ("project", "name", "blocks", "subblocks")),
    f"{GKE}compute-class",
)
TAINTED = (
    f"{GKE}gke-spot",
    f"{GKE}gke-queued",
    f"{GKE}gke-flex-start",
)  # their nodes repel pods that do not tolerate it
ZONE = "us-central2-b"
OF_NAMESPACE = "tests/namespace"  # whose pods a node is for: no test gets the node that another one waits for


@dataclass(frozen=True)
class Shape:
    """Nodes that can be had: what of a slice, on which machines, and how many pools at most."""

    name: str
    accelerator: str
    topology: str
    hosts: int
    chips: int  # of a host
    machine: str
    most: int = 50

    def labels(self) -> dict[str, str]:
        return {
            f"{GKE}gke-tpu-accelerator": self.accelerator,
            f"{GKE}gke-tpu-topology": self.topology,
            f"{GKE}gke-accelerator-count": str(self.chips),
            "node.kubernetes.io/instance-type": self.machine,
            "topology.kubernetes.io/zone": ZONE,
            "topology.kubernetes.io/region": ZONE.rpartition("-")[0],
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }


SHAPES = (
    Shape("v5e-1", "tpu-v5-lite-podslice", "1x1", 1, 1, "ct5lp-hightpu-1t"),
    Shape("v5e-4", "tpu-v5-lite-podslice", "2x2", 1, 4, "ct5lp-hightpu-4t"),
    Shape("v5e-8", "tpu-v5-lite-podslice", "2x4", 1, 8, "ct5lp-hightpu-8t"),
    Shape("v5e-8-2", "tpu-v5-lite-podslice", "2x4", 2, 4, "ct5lp-hightpu-4t"),
    Shape("v5e-16", "tpu-v5-lite-podslice", "4x4", 4, 4, "ct5lp-hightpu-4t"),
    Shape("v6e-1", "tpu-v6e-slice", "1x1", 1, 1, "ct6e-standard-1t"),
    Shape("v6e-4", "tpu-v6e-slice", "2x2", 1, 4, "ct6e-standard-4t"),
    Shape("v6e-8", "tpu-v6e-slice", "2x4", 1, 8, "ct6e-standard-8t"),
    Shape("v6e-8-2", "tpu-v6e-slice", "2x4", 2, 4, "ct6e-standard-4t"),
    Shape("v6e-16", "tpu-v6e-slice", "4x4", 4, 4, "ct6e-standard-4t"),
    Shape("v4-8", "tpu-v4-podslice", "2x2x1", 1, 4, "ct4p-hightpu-4t"),
    Shape("v4-16", "tpu-v4-podslice", "2x2x2", 2, 4, "ct4p-hightpu-4t"),
    Shape("v5p-8", "tpu-v5p-slice", "2x2x1", 1, 4, "ct5p-hightpu-4t"),
    Shape("v5p-16", "tpu-v5p-slice", "2x2x2", 2, 4, "ct5p-hightpu-4t"),
    Shape("tpu7x-8", "tpu7x", "2x2x1", 1, 4, "tpu7x-standard-4t"),
    Shape("tpu7x-16", "tpu7x", "2x2x2", 2, 4, "tpu7x-standard-4t"),
)


@dataclass
class Bill:
    """`began_at`, `ended_at`: unix seconds. `why` it ended: `scaled down`, `preempted`, …"""

    node: str
    pool: str
    shape: str
    namespace: str  # of the pods that it was made for
    began_at: float
    ended_at: float | None = None
    why: str = ""


class Meter:
    """Every node that there ever was, the oldest first."""

    def __init__(self) -> None:
        self._bills: dict[str, Bill] = {}

    def begin(self, node: str, pool: str, shape: str, namespace: str) -> None:
        self._bills[node] = Bill(node, pool, shape, namespace, time.time())

    def end(self, node: str, why: str) -> None:
        bill = self._bills[node]
        bill.ended_at, bill.why = bill.ended_at or time.time(), bill.why or why

    def rows(self) -> list[dict[str, Any]]:
        now = time.time()
        return [{**asdict(bill), "seconds": (bill.ended_at or now) - bill.began_at} for bill in self._bills.values()]


LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
BEAT_S = 1.0
LEASE_S = 40


async def _nothing() -> None:
    return


@dataclass
class Node:
    """A virtual machine with a kubelet, which is alive until it is lost."""

    name: str
    address: str
    alive: bool = True
    close: Callable[[], Awaitable[Any]] = _nothing


class Nodes:
    """Every node that there is, by name."""

    def __init__(self, api: Api, meter: Meter, base: int, open_node: Callable[[Node], Awaitable[None]]) -> None:
        self._api, self._meter, self._base, self._open = api, meter, base, open_node
        self._there: dict[str, Node] = {}
        self._made = 0

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._there.values()))

    def __getitem__(self, name: str) -> Node:
        return self._there[name]

    def find(self, name: str | None) -> Node | None:
        return self._there.get(name or "")

    async def make(self, name: str, pool: str, shape: Shape, labels: Mapping[str, str], namespace: str) -> Node:
        """Create a virtual machine, which bills from now on, and register its node. `namespace`: of the pods it is for."""
        self._made += 1
        node = Node(name, f"127.{self._base}.0.{self._made % 250 + 1}")
        self._meter.begin(name, pool, shape.name, namespace)
        await self._open(node)
        self._there[name] = node  # before it is registered: pods are bound to it as soon as it is
        await self._register(node, shape, labels)
        return node

    async def remove(self, node: Node, why: str) -> None:
        """Delete a virtual machine: its bill ends, and its Node object goes."""
        self._meter.end(node.name, why)
        self._there.pop(node.name, None)
        node.alive = False
        await node.close()
        try:
            await self._api.delete(f"/api/v1/nodes/{node.name}")
        except Refused as refused:
            if refused.status != 404:
                raise

    async def beat(self) -> None:
        """Renew the lease of each node that lives, for ever."""
        while True:
            renewed = {"spec": {"renewTime": _micro_time()}}
            calls = [self._api.patch(f"{LEASES}/{node.name}", renewed) for node in self if node.alive]
            await asyncio.gather(*calls, return_exceptions=True)
            await asyncio.sleep(BEAT_S)

    async def mend(self) -> None:
        """Say again that a node is ready which counted as lost because the API server was away, for ever."""
        async for kind, found in self._api.watch("/api/v1/nodes"):
            node = self.find(found["metadata"]["name"])
            conditions = found["status"].get("conditions") or ()
            silent = any(each["type"] == "Ready" and each["status"] != "True" for each in conditions)
            if kind != "DELETED" and node is not None and node.alive and silent:
                await self._api.patch_status(f"/api/v1/nodes/{node.name}", {"conditions": [_ready()]})

    async def _register(self, node: Node, shape: Shape, labels: Mapping[str, str]) -> None:
        taints = [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}]
        taints += [{"key": key, "value": "true", "effect": "NoSchedule"} for key in TAINTED if key in labels]
        made = await self._api.create(
            "/api/v1/nodes",
            {
                "metadata": {"name": node.name, "labels": {**labels, "kubernetes.io/hostname": node.name}},
                "spec": {"taints": taints, "providerID": f"gce://tests/{ZONE}/{node.name}"},
            },
        )
        has = {
            "cpu": "112",
            "memory": "192Gi",
            "ephemeral-storage": "100Gi",
            "pods": "110",
            "google.com/tpu": str(shape.chips),
        }
        await self._api.patch_status(
            f"/api/v1/nodes/{node.name}",
            {
                "capacity": has,
                "allocatable": has,
                "conditions": [_ready()],
                "addresses": [{"type": "InternalIP", "address": node.address}, {"type": "Hostname", "address": node.name}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
                "nodeInfo": {
                    "machineID": node.name, "systemUUID": node.name, "bootID": node.name, "kernelVersion": "test",
                    "osImage": "tests/cluster", "containerRuntimeVersion": "agent://1", "kubeletVersion": KUBERNETES,
                    "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64",
                },
            },
        )  # fmt: skip
        owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": made["metadata"]["uid"]}
        spec = {"holderIdentity": node.name, "leaseDurationSeconds": LEASE_S, "renewTime": _micro_time()}
        await self._api.create(LEASES, {"metadata": {"name": node.name, "ownerReferences": [owner]}, "spec": spec})


def _ready() -> Object:
    now = timestamp()
    said = {"reason": "KubeletReady", "message": "the node agent of the tests answers"}
    return {"type": "Ready", "status": "True", **said, "lastHeartbeatTime": now, "lastTransitionTime": now}


def _micro_time() -> str:
    seconds, rest = divmod(time.time_ns() // 1000, 10**6)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:06d}Z"


LOOK_S = 0.1
NO_SCALE_UP = "pod didn't trigger scale-up"
STOCKOUT = "Node scale up in zones associated with this pod failed: GCE out of resources."


@dataclass
class Pool:
    name: str
    shape: Shape
    labels: Mapping[str, str]
    wanted_by: str  # the Job that it was made for
    namespace: str
    nodes: list[Node] = field(default_factory=list)
    ready: bool = False
    idle_since: float | None = None


@dataclass
class Supply:
    """What a test may change for its namespace: how quickly nodes come and go, and which there are none of."""

    boot_s: float = 0.2
    idle_s: float = 30.0  # GKE: about 10 min
    none_left: bool = False


class Pools:
    """All pools of the cluster, and the autoscaler that makes and deletes them."""

    def __init__(self, api: Api, nodes: Nodes) -> None:
        self.supply: defaultdict[str, Supply] = defaultdict(Supply)  # by namespace
        self._api, self._nodes = api, nodes
        self._pools: dict[str, Pool] = {}
        self._made = 0
        self._said: set[tuple[str, str]] = set()
        self._making: set[asyncio.Task[None]] = set()

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
            pool.nodes = [node for node in pool.nodes if self._nodes.find(node.name) is node]
            if pool.ready and not pool.nodes:
                del self._pools[pool.name]

    # -- up ------------------------------------------------------------------------------------------------------------

    async def _scale_up(self, pods: list[Object]) -> None:
        busy = _busy(pods)
        for pod in filter(_is_unschedulable, pods):
            if (pod["spec"].get("nodeSelector") or {}).get(f"{GKE}gke-nodepool") in self._pools:
                continue  # it waits for a node of its own slice
            own = [pool for pool in self._pools.values() if pool.wanted_by == _group(pod)]
            if any(not pool.ready or any(node.name not in busy for node in pool.nodes) for pool in own):
                continue  # a node is coming, or there
            await self._give(pod)

    async def _give(self, pod: Object) -> None:
        namespace, shape = pod["metadata"]["namespace"], _shape_for(pod)
        if shape is None:
            await self._say(
                pod, "NotTriggerScaleUp", f"{NO_SCALE_UP}: 1 node(s) didn't match Pod's node affinity/selector"
            )
        elif self.supply[namespace].none_left:
            await self._say(pod, "FailedScaleUp", STOCKOUT)
        elif sum(pool.shape is shape for pool in self._pools.values()) >= shape.most:
            await self._say(pod, "NotTriggerScaleUp", f"{NO_SCALE_UP}: 1 max node group size reached")
        else:
            selector = pod["spec"].get("nodeSelector") or {}
            extra = {key: selector[key] for key in PROVISIONING if key in selector} | {OF_NAMESPACE: namespace}
            self._made += 1
            name = f"{shape.name}-pool-{self._made}"
            pool = Pool(name, shape, {**shape.labels(), **extra, f"{GKE}gke-nodepool": name}, _group(pod), namespace)
            self._pools[name] = pool
            grows = f"[{{{name} 0->{shape.hosts} (max: {shape.hosts})}}]"
            await self._say(pod, "TriggeredScaleUp", f"pod triggered scale-up: {grows}")
            task = asyncio.create_task(self._make(pool))
            self._making.add(task)
            task.add_done_callback(self._making.discard)

    async def _make(self, pool: Pool) -> None:
        await asyncio.sleep(self.supply[pool.namespace].boot_s)
        for host in range(pool.shape.hosts):
            name = f"gke-{pool.name}-{host}"
            node = await self._nodes.make(name, pool.name, pool.shape, pool.labels, pool.namespace)
            pool.nodes.append(node)  # to the list that it has by now
        pool.ready = True

    async def _say(self, pod: Object, reason: str, message: str) -> None:
        """Record an event, once for each pod."""
        if (key := (pod["metadata"]["uid"], reason)) not in self._said:
            self._said.add(key)
            await self._api.event(pod, reason, message, warning=reason == "FailedScaleUp", source="cluster-autoscaler")

    # -- down ----------------------------------------------------------------------------------------------------------

    async def _scale_down(self, pods: list[Object]) -> None:
        busy = _busy(pods)
        unbound = [
            pod for pod in pods if not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
        ]
        waiting = {_group(pod) for pod in unbound}
        for pool in list(self._pools.values()):
            if not pool.ready or any(node.name in busy for node in pool.nodes) or pool.wanted_by in waiting:
                pool.idle_since = None
                continue
            pool.idle_since = pool.idle_since or time.monotonic()
            if time.monotonic() - pool.idle_since >= self.supply[pool.namespace].idle_s:
                for node in pool.nodes:
                    await self._nodes.remove(node, "scaled down")


def _busy(pods: list[Object]) -> set[str | None]:
    return {pod["spec"].get("nodeName") for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")}


def _is_unschedulable(pod: Object) -> bool:
    if pod["status"].get("phase") != "Pending" or pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = pod["status"].get("conditions") or ()
    return any(each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable" for each in conditions)


def _shape_for(pod: Object) -> Shape | None:
    selector, chips = pod["spec"].get("nodeSelector") or {}, _chips(pod)
    asked = {key: value for key, value in selector.items() if key not in (*PROVISIONING, OF_NAMESPACE)}
    return next((each for each in SHAPES if each.chips == chips and asked.items() <= each.labels().items()), None)


def _group(pod: Object) -> str:
    owners = pod["metadata"].get("ownerReferences") or ()
    return str(next((each["uid"] for each in owners if each.get("controller")), pod["metadata"]["uid"]))


def _chips(pod: Object) -> int:
    requests = [each.get("resources", {}).get("requests") or {} for each in pod["spec"]["containers"]]
    return sum(int(each.get("google.com/tpu", 0)) for each in requests)

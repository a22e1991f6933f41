"""GKE's node pools and their autoscaler, as far as a JobSet meets them.

A pool is a slice: all of its nodes exist or none. The autoscaler makes a pool for the pods of a Job that the scheduler finds no
node for, as node auto-provisioning does, and deletes it some time after its last pod has ended. Nodes bill meanwhile (`meter`).
A pool is for the pods of one namespace, so that tests do not take each other's nodes.
Not imitated: which zone has capacity, how long Google takes, and every rule of the real autoscaler beyond these.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tests.cluster.agent.api import Api, Object, Refused
from tests.cluster.agent.nodes import Node, Nodes
from tests.cluster.agent.shapes import GKE, OF_NAMESPACE, PROVISIONING, SHAPES, Shape

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
    none_left: set[str] = field(default_factory=set)  # names of shapes, or `*`


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
        elif self.supply[namespace].none_left & {shape.name, "*"}:
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

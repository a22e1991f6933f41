"""Virtual machines as the control plane sees them: Node objects, their leases and conditions."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.cluster.agent.api import Api, Object, Refused, timestamp
from tests.cluster.agent.meter import Meter
from tests.cluster.agent.shapes import TAINTED, ZONE, Shape

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
                    "osImage": "tests/cluster", "containerRuntimeVersion": "agent://1", "kubeletVersion": "v1.34.4",
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

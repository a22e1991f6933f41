"""Faults as data, which a test posts to the agent as JSON, and the network to the API server, which may be cut."""

import asyncio
import contextlib
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tests.cluster.agent import sandbox
from tests.cluster.agent.kubelet import Kubelet, Verdict
from tests.cluster.agent.kubelet_server import KubeletServer
from tests.cluster.agent.nodes import Nodes, Pools
from tests.cluster.plane.control_plane import ControlPlane
from tests.waiting import held_port


class Way(StrEnum):
    OPEN = "open"
    CLOSED = "closed"  # refuses, and ends what is open
    SILENT = "silent"  # accepts, and answers nothing


class Gate:
    """Relays to one port of 127.0.0.1."""

    def __init__(self, target: int) -> None:
        self.way, self._target = Way.OPEN, target
        self._held = contextlib.ExitStack()
        self.port = self._held.enter_context(held_port())  # also while nothing listens on it
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._moved = asyncio.Event()

    async def turn(self, way: Way) -> None:
        """Change the way, for connections that exist too. It is closed until this is first called."""
        self.way = way
        if way is Way.CLOSED and self._server is not None:
            self._server.close()
            self._server = None
            for writer in list(self._open):
                writer.transport.abort()
        elif way is not Way.CLOSED and self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, reuse_address=True)
        self._moved.set()
        self._moved = asyncio.Event()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while self.way is Way.SILENT:
                await self._moved.wait()
            there, onward = await asyncio.open_connection("127.0.0.1", self._target)
            self._open.add(onward)
            await asyncio.gather(self._relay(reader, onward), self._relay(there, writer))
            self._open.discard(onward)
        except OSError:
            writer.transport.abort()
        finally:
            self._open.discard(writer)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                while self.way is Way.SILENT:
                    await self._moved.wait()
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            if reader.exception() is not None:  # it was cut, not closed
                writer.transport.abort()
            writer.close()


EVICTED = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 92Mi. "
SHUTDOWN = "Pod was terminated in response to imminent node shutdown."
SHUTDOWN_GRACE_S = 2.0  # GKE: 15 s of the 30 s that a spot VM has
BY_KUBELET = "TerminationByKubelet"


@dataclass
class Faults:
    """Plays them: each kind is a method `play_…`, and its arguments are the fields."""

    _plane: ControlPlane
    _kubelet: Kubelet
    _server: KubeletServer
    _nodes: Nodes
    _pools: Pools
    _gates: dict[int, Gate]

    async def play_evicted(self, namespace: str, pod: str) -> None:
        """The kubelet evicts a pod, for memory of its node."""
        evicted = self._kubelet.find(namespace, pod)
        assert evicted is not None, f"no pod {namespace}/{pod} on a node"
        evicted.end(Verdict(0, "Evicted", EVICTED, disruption=BY_KUBELET))

    async def play_node_preempted(self, node: str) -> None:
        """A spot VM is taken: its pods get a short notice, then the VM and its Node object go."""
        taken, pods = self._nodes.there[node], self._kubelet.of_node(node)
        for pod in pods:
            pod.end(Verdict(SHUTDOWN_GRACE_S, "Terminated", SHUTDOWN, disruption=BY_KUBELET))
        await asyncio.gather(*(pod.task for pod in pods if pod.task is not None))
        await self._nodes.remove(taken)

    async def play_node_removed(self, node: str) -> None:
        """A VM and its Node object go without a notice, as a repair does it."""
        gone = self._nodes.there[node]
        gone.alive = False
        for pod in self._kubelet.of_node(node):
            pod.end(Verdict(0, silent=True))
            if pod.process is not None:
                sandbox.kill(pod.process)
        await self._nodes.remove(gone)

    async def play_log_cut(self, namespace: str, after_bytes: int = 0, times: int = 1) -> None:
        """The next connections to these logs end in the middle."""
        self._server.cuts[namespace] += [after_bytes] * times

    async def play_supply(self, namespace: str, **settings: Any) -> None:
        """How nodes come and go for a namespace: the fields of `Supply`."""
        self._pools.supply[namespace] = replace(self._pools.supply[namespace], **settings)

    async def play_way(self, gate: int, way: str) -> None:
        """Of one user to the API server: open, closed or silent."""
        await self._gates[gate].turn(Way(way))

    async def play_server_restarted(self) -> None:
        """The API server dies, for all, and starts again."""
        self._plane.children.restart("kube-apiserver")

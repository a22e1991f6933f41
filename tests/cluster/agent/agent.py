"""The node agent: everything that is not a program of the control plane, in one event loop, and the port that tests talk to."""

import asyncio
import random
from collections.abc import Callable

from aiohttp import web

from tests.cluster.agent.api import Api
from tests.cluster.agent.faults import Faults, Gate, Way
from tests.cluster.agent.kubelet import Kubelet
from tests.cluster.agent.kubelet_server import KubeletServer
from tests.cluster.agent.nodes import Nodes, Pools
from tests.cluster.plane.control_plane import ControlPlane

LOOK_S = 0.5


class Agent:
    """Nodes, pods and faults of one cluster."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane, base = plane, random.SystemRandom().randrange(16, 127)  # of addresses: two clusters rarely meet
        self._api, self._gates = Api(plane.url, plane.admin_tls()), dict[int, Gate]()
        self._server = KubeletServer(plane.authority)
        self._nodes = Nodes(self._api, base, self._server.listen)
        self._pools = Pools(self._api, self._nodes)
        self._kubelet = self._server.kubelet = Kubelet(self._api, plane.directory / "pods", base, self._nodes)
        self._faults = Faults(plane, self._kubelet, self._server, self._nodes, self._pools, self._gates)

    async def run(self, ready: Callable[[int, int], None], until: asyncio.Event) -> None:
        """Serve until the event. `ready` gets the ports of a gate and of the agent. Raises what a part of it ended with."""
        app = web.Application()
        app.router.add_post("/faults", self._fault)
        app.router.add_post("/gates", self._gate)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        pods = self._kubelet.pods.values
        parts = [self._kubelet.watch(), self._nodes.beat(), self._pools.scale(pods), self._check()]
        tasks = [asyncio.create_task(part) for part in parts]
        ready((await self._new_gate()).port, runner.addresses[0][1])
        stopped = asyncio.create_task(until.wait())
        try:
            done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()
        finally:
            for task in (*tasks, stopped):
                task.cancel()
            await self._server.close()
            await runner.cleanup()
            await self._api.close()

    async def _check(self) -> None:
        """End the cluster when one of its programs has ended by itself."""
        while True:
            self._plane.children.check()
            await asyncio.sleep(LOOK_S)

    async def _fault(self, request: web.Request) -> web.Response:
        said = await request.json()
        await getattr(self._faults, f"play_{said.pop('kind')}")(**said)
        return web.json_response({})

    async def _gate(self, _: web.Request) -> web.Response:
        """Open a way to the API server that only one user takes, so that a fault of it is theirs alone."""
        return web.json_response({"gate": (await self._new_gate()).port})

    async def _new_gate(self) -> Gate:
        gate = Gate(self._plane.port)
        await gate.turn(Way.OPEN)
        self._gates[gate.port] = gate
        return gate

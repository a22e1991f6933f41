"""What the API server asks a kubelet for: the logs of containers, over TLS. Each node listens on an address of its own.

`exec` and `attach` are refused: the API server speaks SPDY to kubelets, which no library here does.
"""

import contextlib
import fnmatch
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from tests.cluster.agent.container_log import parse_time
from tests.cluster.agent.kubelet import Kubelet
from tests.cluster.agent.nodes import Node
from tests.cluster.plane.processes import Authority

PORT = 10250


@dataclass
class Cut:
    """The connections of the logs of these pods end in the middle, `times` times, after so many bytes."""

    namespace: str
    pod: str  # a pattern
    after_bytes: int
    times: int


class KubeletServer:
    """Serves the logs of all nodes."""

    kubelet: Kubelet

    def __init__(self, authority: Authority) -> None:
        self.cuts: list[Cut] = []
        self._authority = authority
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_route("*", "/{verb:(exec|attach|portForward|run)}/{rest:.*}", self._refuse)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    async def open(self, node: Node) -> None:
        """Listen on the address of a node."""
        pair = self._authority.issue(f"system:node:{node.name}", ["system:nodes"], [node.address], folder=node.name)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(pair.certificate, pair.key)
        tls.load_verify_locations(str(self._authority.certificate))
        tls.verify_mode = ssl.CERT_REQUIRED
        if self._runner.server is None:
            await self._runner.setup()
        site = web.TCPSite(self._runner, node.address, PORT, ssl_context=tls)
        await site.start()
        node.close = _once(site.stop)

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        namespace, name, query = request.match_info["namespace"], request.match_info["pod"], request.query
        running = self.kubelet.find(namespace, name)
        if running is None:
            return web.Response(status=404, text=f'pod "{name}" does not exist')
        if running.process is None:
            container = request.match_info["container"]
            why = f'container "{container}" in pod "{name}" is waiting to start: {running.waiting}'
            return web.Response(status=400, text=why)
        since = query.get("sinceTime")
        pieces = running.log.read(
            follow=query.get("follow") == "true",
            timestamps=query.get("timestamps") == "true",
            since_ns=parse_time(since) if since else None,
            tail=int(query["tailLines"]) if "tailLines" in query else None,
        )
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        answer.enable_chunked_encoding()
        with contextlib.suppress(ConnectionResetError):  # who read it has gone
            await answer.prepare(request)
            await self._send(answer, request, pieces)
        return answer

    async def _send(self, answer: web.StreamResponse, request: web.Request, pieces: AsyncIterator[bytes]) -> None:
        namespace, name = request.match_info["namespace"], request.match_info["pod"]
        cut, sent = self._next_cut(namespace, name), 0
        async for piece in pieces:
            if cut is not None and sent + len(piece) > cut.after_bytes:
                await answer.write(piece[: cut.after_bytes - sent])
                request.transport.abort()
                return
            await answer.write(piece)
            sent += len(piece)
        await answer.write_eof()

    def _next_cut(self, namespace: str, pod: str) -> Cut | None:
        for cut in self.cuts:
            if cut.times > 0 and cut.namespace == namespace and fnmatch.fnmatchcase(pod, cut.pod):
                cut.times -= 1
                return cut
        return None

    async def _refuse(self, request: web.Request) -> web.Response:
        return web.Response(status=501, text=f"the node agent of the tests has no {request.match_info['verb']}")


def _once(close: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    done = False

    async def closing() -> None:
        nonlocal done
        if not done:
            done = True
            await close()

    return closing

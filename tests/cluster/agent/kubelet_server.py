"""What the API server asks a kubelet for: the logs of containers, over TLS. Each node listens on an address of its own.

There is no `exec` and no `attach`: the API server speaks SPDY to kubelets, which no library here does.
"""

import contextlib
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime

from aiohttp import web

from tests.cluster.agent.container_log import pieces
from tests.cluster.agent.kubelet import Kubelet
from tests.cluster.plane.processes import Authority

PORT = 10250


class KubeletServer:
    """Serves the logs of all nodes."""

    kubelet: Kubelet

    def __init__(self, authority: Authority) -> None:
        self.cuts = defaultdict[str, list[int]](list)  # namespace → after how many bytes its next connections end
        self._authority = authority
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    async def listen(self, name: str, address: str) -> Callable[[], Awaitable[None]]:
        """Listen on the address of a node. Return what ends it."""
        pair = self._authority.issue(f"system:node:{name}", ["system:nodes"], [address], folder=name)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(pair.certificate, pair.key)
        tls.load_verify_locations(str(self._authority.certificate))
        tls.verify_mode = ssl.CERT_REQUIRED
        if self._runner.server is None:
            await self._runner.setup()
        site = web.TCPSite(self._runner, address, PORT, ssl_context=tls)
        await site.start()
        return site.stop

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
        since = datetime.fromisoformat(query["sinceTime"]).timestamp() if "sinceTime" in query else None
        follow, timestamps = (query.get(each) == "true" for each in ("follow", "timestamps"))
        read = pieces(running.log, since, follow=follow, timestamps=timestamps)
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        answer.enable_chunked_encoding()
        with contextlib.suppress(ConnectionResetError):  # who read it has gone
            await answer.prepare(request)
            await self._send(answer, request, read)
        return answer

    async def _send(self, answer: web.StreamResponse, request: web.Request, pieces: AsyncIterator[bytes]) -> None:
        cuts, sent = self.cuts[request.match_info["namespace"]], 0
        cut = cuts.pop(0) if cuts else None
        async for piece in pieces:
            if cut is not None and sent + len(piece) > cut:
                await answer.write(piece[: cut - sent])
                request.transport.abort()
                return
            await answer.write(piece)
            sent += len(piece)
        await answer.write_eof()

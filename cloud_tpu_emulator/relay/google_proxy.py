"""What programs need that know only Google's addresses: credentials, and a proxy on which tpu.googleapis.com is this emulator.

Programs of this user on this machine find both by their environment (`fixture.TpuEmulator.environment`). The metadata server is
on the daemon's port: google-auth takes its default credentials there. The proxy, which starts on request, answers `CONNECT`.
It ends the TLS of Cloud TPU with a certificate by an authority of its own, and passes on what is in it: HTTP/2 to the gRPC
server, HTTP/1.1 to REST. Other hosts get their connection unread, except Google's other APIs, which are refused: no test
reaches them by mistake, and no token of the emulator.
"""

import asyncio
import contextlib
import json

from aiohttp import web
from yarl import URL

from cloud_tpu_emulator.api.api_call import Api, ApiCall, Json, route
from cloud_tpu_emulator.api.every_request import GOOGLE
from cloud_tpu_emulator.api.grpc_api import GrpcApi
from cloud_tpu_emulator.model.reach import ACCOUNT
from cloud_tpu_emulator.relay.relay_api import make
from cloud_tpu_emulator.relay.tunnels import carry, first_of
from cloud_tpu_emulator.vms import metadata_server
from cloud_tpu_emulator.vms.driver import Driver
from cloud_tpu_emulator.vms.metadata_server import FLAVOR
from cloud_tpu_emulator.wire.requests import project_number
from orchestrator.system import sockets

AUTHORITY = "google-ca.pem"
PROJECT = "emulated"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class GoogleProxy(Api):
    """The metadata server and the proxy."""

    def __init__(self, driver: Driver, grpc_api: GrpcApi) -> None:
        super().__init__(driver)
        self._grpc_api = grpc_api
        self._starting = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @route("GET", "/")
    async def is_google(self, call: ApiCall) -> web.Response:
        """Reply to the question whether there is a metadata server."""
        return web.Response(text="computeMetadata/\n", headers=FLAVOR)

    @route("GET", metadata_server.ROOT + "{path:.*}")
    async def metadata(self, call: ApiCall) -> web.StreamResponse:
        """Reply with a value of the metadata, as on a VM of the project PROJECT."""
        if call.request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(text="Missing Metadata-Flavor:Google header.\n", status=403, headers=FLAVOR)
        path = call.parts["path"]
        whole = metadata_server.is_whole(call.request, path)
        login = {"aliases": ["default"], "email": ACCOUNT, "scopes": [SCOPE]}
        if not whole:
            login["token"] = json.dumps(
                {"access_token": self.driver.store.token, "expires_in": 3599, "token_type": "Bearer"}
            )
        tree = {
            "instance": {"service-accounts": {"default": login, ACCOUNT: login}},
            "project": {"project-id": PROJECT, "numeric-project-id": str(project_number(PROJECT))},
            "universe": {"universe-domain": "googleapis.com"},
        }
        value = metadata_server.find(tree, [part for part in path.split("/") if part])
        if value is None:
            return web.Response(status=404, headers=FLAVOR)
        return web.json_response(value, headers=FLAVOR) if whole else metadata_server.shown(value, path)

    @route("POST", "/_emulator/proxy")
    async def start(self, call: ApiCall) -> Json:
        """Start the proxy, if it does not run. Reply with its address, and the file with the authority to trust."""
        authority = self.driver.store.directory / AUTHORITY
        async with self._starting:
            if self._server is None:
                self._context, _ = await asyncio.to_thread(make, authority, GOOGLE)
                self._context.set_alpn_protocols(
                    ["http/1.1", "h2"]
                )  # the latter for clients of gRPC, which offer nothing else
                self._grpc_port = await self._grpc_api.open()
                self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return {"url": f"http://127.0.0.1:{port}", "authority": str(authority)}

    async def close(self) -> None:
        """End the proxy and its connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio serves each connection in a task"
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, EOFError, ValueError, asyncio.LimitOverrunError, asyncio.CancelledError):
            await self._connect(reader, writer)
        writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a CONNECT, and serve it to the end. Raises OSError, EOFError or ValueError, and then the connection is cut."""
        verb, target, *_ = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split()
        host, _, port = target.rpartition(":")
        is_refused = verb != "CONNECT" or (host != GOOGLE and host.endswith("googleapis.com"))
        if is_refused or not sockets.is_ours(writer.get_extra_info("socket")):
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return await writer.drain()
        if host != GOOGLE:
            there = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        if host == GOOGLE:
            await writer.start_tls(self._context)
            is_grpc = writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
            rest = URL(self.driver.account.url)
            there = await asyncio.open_connection(
                *(("127.0.0.1", self._grpc_port) if is_grpc else (rest.host, rest.port))
            )
        try:
            await first_of(carry(reader, there[1]), carry(there[0], writer))
        finally:
            there[1].close()

"""The gRPC door of the API: google.cloud.tpu.v2 and v2alpha1, long-running operations and locations, beside REST.

It decides nothing. Each call becomes the HTTP request that `transcoding` names and goes through the daemon's own front
door, so that the guard, the request log and every fault treat it like any other. Opened only when somebody asks
(`POST /_emulator/grpc`), since grpc and the messages cost 27 MB that the embedded use never needs.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web
from yarl import URL

from orchestrator.emulator.api_errors import ApiError, bad_field
from orchestrator.emulator.vms.driver import Driver
from orchestrator.emulator.wire import transcoding
from orchestrator.emulator.wire.json_body import json_object
from orchestrator.emulator.wire.transcoding import HttpCall, Refusal, Status

if TYPE_CHECKING:
    from orchestrator.emulator.api.grpc_server import GrpcServer

log = logging.getLogger(__name__)
NO_REPLY = Status(transcoding.CANONICAL["UNAVAILABLE"], "Socket closed")


class GrpcApi:
    """One for each daemon, closed at first."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._server: GrpcServer | None = None
        self._opening = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/_emulator/grpc", self.ask_to_open), web.get("/_emulator/grpc", self.where)]

    async def where(self, request: web.Request) -> web.Response:
        return web.json_response({"target": self._server.target if self._server else None})

    async def ask_to_open(self, request: web.Request) -> web.Response:
        """`{"port": 0}`, where 0 takes a free one. Open already: that door stays."""
        port = (await json_object(request)).get("port", 0)
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 1 << 16:
            raise bad_field("The port is a number from 0 to 65535.")
        async with self._opening:
            if self._server is None:
                self._server = await self._open(port)
        if port not in (0, self._server.port):
            raise ApiError("FAILED_PRECONDITION", f"The gRPC door is open at {self._server.target} already.")
        return await self.where(request)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop()
        if self._session is not None:
            await self._session.close()

    async def _open(self, port: int) -> GrpcServer:
        server_module = await asyncio.to_thread(importlib.import_module, "orchestrator.emulator.api.grpc_server")
        # A connection of its own for each call: on a kept one aiohttp would repeat what a fault cut off.
        self._session = aiohttp.ClientSession(
            self.driver.account.url,
            connector=aiohttp.TCPConnector(force_close=True, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        try:
            server: GrpcServer = await server_module.GrpcServer.listening(port, self.answer)
        except server_module.PortTaken as error:
            await self._session.close()
            raise ApiError("FAILED_PRECONDITION", str(error)) from None
        return server

    async def answer(
        self, service: str, method: str, request: dict[str, Any], headers: dict[str, str]
    ) -> dict[str, Any]:
        """The answer's JSON, or Refusal. `headers` are those of the call that the guard judges by."""
        try:
            call = transcoding.http_call(service, method, request, self._version(service, request))
        except ApiError as error:
            raise Refusal(Status(error.code, error.message, list(error.details))) from None
        http_status, text = await self._ask(call, headers)
        if http_status != 200:
            raise Refusal(transcoding.status_of(http_status, text))
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Refusal(Status(transcoding.CANONICAL["INTERNAL"], "The answer of the API cannot be read."))
        return found

    def _version(self, service: str, request: dict[str, Any]) -> str:
        """Operations and places have no version over gRPC; an operation is told in that of the call that began it."""
        operation = self.driver.state.operations.get(request.get("name", ""))
        begun_in = operation.api_version if operation is not None else "v2"
        return transcoding.TPU_VERSIONS.get(service, begun_in if begun_in in ("v2", "v2alpha1") else "v2")

    async def _ask(self, call: HttpCall, headers: dict[str, str]) -> tuple[int, str]:
        assert self._session is not None, "the door is closed"
        try:
            async with self._session.request(
                call.verb, URL(call.target, encoded=True), json=call.body, headers=headers
            ) as reply:
                return reply.status, (await reply.read()).decode(errors="replace")
        except aiohttp.ClientError:
            raise Refusal(NO_REPLY) from None

"""The gRPC API, beside REST: google.cloud.tpu.v2 and v2alpha1, long-running operations and locations.

Each call becomes the HTTP request that `transcoding` returns, which the daemon sends to itself: authentication, the request log
and faults treat it like any other. The server starts only on request (`POST /_emulator/grpc`), since grpc and the messages
cost 27 MB that the embedded use does not need.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from typing import Any

import aiohttp
from yarl import URL

from cloud_tpu_emulator.api.api_call import Api, ApiCall, Json, route
from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.faults.plain_data import check_value
from cloud_tpu_emulator.vms.driver import Driver
from cloud_tpu_emulator.wire import transcoding

STOP_GRACE_S = 0.2  # for calls under way


class GrpcApi(Api):
    """The gRPC server of a daemon, and its state: not started, at first."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self._server: Any = None  # of grpc.aio
        self._port = 0
        self._starting = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None

    @route("GET", "/_emulator/grpc")
    async def status(self, call: ApiCall) -> Json:
        return {"target": f"127.0.0.1:{self._port}" if self._server else None}

    @route("POST", "/_emulator/grpc")
    async def start(self, call: ApiCall) -> Json:
        """Start the server on `{"port": 0}` (0: a free port). One that runs already stays."""
        port = check_value("port", (await call.body()).get("port", 0), int, most=65535)
        await self.open(port)
        if port not in (0, self._port):
            raise ApiError("FAILED_PRECONDITION", f"The gRPC server runs at 127.0.0.1:{self._port} already.")
        return await self.status(call)

    async def open(self, port: int = 0) -> int:
        """Start the server, if it does not run. Return its port."""
        async with self._starting:
            if self._server is None:
                await self._start(port)
        return self._port

    async def close(self) -> None:
        """Stop the server, if it runs."""
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
        if self._session is not None:
            await self._session.close()

    async def _start(self, port: int) -> None:
        server_module = await asyncio.to_thread(importlib.import_module, "cloud_tpu_emulator.api.grpc_server")
        # A connection for each call: on a reused one aiohttp would repeat a call that a fault cut off.
        self._session = aiohttp.ClientSession(
            self.driver.account.url,
            connector=aiohttp.TCPConnector(force_close=True, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        try:
            self._server, self._port = await server_module.started(port, self.answer)
        except ApiError:
            await self._session.close()
            raise

    async def answer(
        self, service: str, method: str, request: dict[str, Any], headers: dict[str, str]
    ) -> dict[str, Any]:
        """Return the JSON of the answer. `headers`: those of the call that authentication reads. Raises ApiError."""
        call = transcoding.http_call(service, method, request, self._version(service, request))
        http_status, text = await self._request(call, headers)
        if http_status != 200:
            raise transcoding.error_of(http_status, text)
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ApiError("INTERNAL", "The reply of the API cannot be read.")
        return found

    def _version(self, service: str, request: dict[str, Any]) -> str:
        """Return the API version of a call. Over gRPC operations have none: take that of the call that began the operation."""
        operation = self.state.operations.get(request.get("name", ""))
        version = operation.api_version if operation is not None else "v2"
        return transcoding.TPU_VERSIONS.get(service, version if version in ("v2", "v2alpha1") else "v2")

    async def _request(self, call: transcoding.HttpCall, headers: dict[str, str]) -> tuple[int, str]:
        assert self._session is not None, "the server runs"
        verb, target, body = call
        try:
            async with self._session.request(verb, URL(target, encoded=True), json=body, headers=headers) as reply:
                return reply.status, (await reply.read()).decode(errors="replace")
        except aiohttp.ClientError:
            raise ApiError("UNAVAILABLE", "Socket closed") from None

"""Faults on the wire: two middlewares, one that logs every call to the API and one that spoils those which meet a fault.

`logging` is the outermost, so that refused callers are seen, too; `spoiling` the innermost, behind the guard, which says
who is calling (`request["caller"]`) before faults are asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import format_datetime

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from orchestrator.emulator.api.request_log import RequestLog
from orchestrator.emulator.api.rest_calls import method_of, resource_of
from orchestrator.emulator.api_errors import ApiError
from orchestrator.emulator.faults import replies
from orchestrator.emulator.faults.active_faults import ALL_IS_WELL, Decision, NoReply
from orchestrator.emulator.faults.fault import Fault
from orchestrator.emulator.faults.replies import FaultReply
from orchestrator.emulator.vms.driver import Driver


def logging(log: RequestLog, driver: Driver) -> Middleware:
    @web.middleware
    async def logged(request: web.Request, handler: Handler) -> web.StreamResponse:
        operation = method_of(request)
        if operation is None and request.path.startswith("/_emulator/"):
            response = await handler(request)
            driver.flush()
            return response
        resource = resource_of(request) if operation else None
        call = log.begin(driver.clock(), request.method, request.path_qs, operation, resource)
        try:
            response = await handler(request)
            driver.flush()
            call.status = response.status if request.transport and not request.transport.is_closing() else None
            return response
        finally:
            call.caller = request.get("caller", "nobody")
            call.faults = list(request.get("hits", ()))
            call.seconds = round(driver.clock() - call.at, 6)

    return logged


def dating(driver: Driver) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Answers carry the time of the emulated cloud, not that of this machine."""

    async def dated(request: web.Request, response: web.StreamResponse) -> None:
        seconds = driver.clock() + request.get("clock_s", 0.0)
        response.headers["Date"] = format_datetime(datetime.fromtimestamp(seconds, UTC), usegmt=True)

    return dated


def spoiling(driver: Driver) -> Middleware:
    @web.middleware
    async def spoiled(request: web.Request, handler: Handler) -> web.StreamResponse:
        caller = request.setdefault("caller", "client")
        operation = method_of(request)
        if operation is None:
            return await handler(request)
        driver.advance()
        decision = driver.state.decide(operation, caller, resource_of(request), driver.clock())
        request["effect"], request["hits"] = decision.effect, decision.hits
        if decision is ALL_IS_WELL:
            return await handler(request)
        driver.changed()  # what was counted outlives the daemon
        try:
            response = await _spoil(request, handler, decision, operation)
        except NoReply:
            driver.changed()  # a late create waits
            return _cut(request)
        request["clock_s"] = decision.clock_s
        return response

    return spoiled


async def _spoil(request: web.Request, handler: Handler, decision: Decision, operation: str) -> web.StreamResponse:
    await asyncio.sleep(decision.slow_s)
    response = await _proper(request, handler) if decision.happens else None
    if decision.ending is not None:
        response = await _end(request, response, decision.ending, operation)
    assert response is not None, "what does not happen has an ending"
    return response


async def _proper(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What the API would have said, refusals too."""
    try:
        return await handler(request)
    except ApiError as error:
        return web.json_response(error.body(), status=error.http)


async def _end(
    request: web.Request, response: web.StreamResponse | None, ending: Fault, operation: str
) -> web.StreamResponse:
    match ending.kind:
        case "status":
            return _whole(replies.refusal(ending, operation, resource_of(request)))
        case "garbage":
            body = response.body if isinstance(response, web.Response) else b"{}"
            return _whole(replies.spoiled(ending, body if isinstance(body, bytes) else b"{}"))
        case "hang":
            await asyncio.sleep(ending.seconds)
    raise NoReply


def _whole(reply: FaultReply) -> web.Response:
    return web.Response(
        body=reply.body, status=reply.status, content_type=reply.content_type, headers=dict(reply.headers)
    )


def _cut(request: web.Request) -> web.StreamResponse:
    """Close the connection; what is returned here goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()

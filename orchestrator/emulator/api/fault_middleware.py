"""Two middlewares: one logs every call to the API, one applies faults to the calls that meet them.

`request_logging` is the outermost, so that refused callers are logged, too; `fault_injection` is the innermost, behind
`authentication`, which sets `request["caller"]` before faults are decided.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import format_datetime

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from orchestrator.emulator.api.api_call import method_of, resource_of
from orchestrator.emulator.api.authentication import cut
from orchestrator.emulator.api.request_log import UNAUTHENTICATED, RequestLog
from orchestrator.emulator.api_errors import ApiError
from orchestrator.emulator.faults import replies
from orchestrator.emulator.faults.active_faults import NO_FAULT, Decision, NoReply
from orchestrator.emulator.faults.fault import Fault
from orchestrator.emulator.faults.replies import FaultReply
from orchestrator.emulator.vms.driver import Driver


def request_logging(log: RequestLog, driver: Driver) -> Middleware:
    """Return the middleware that writes the request log, and that saves the state before a reply leaves."""

    @web.middleware
    async def logged(request: web.Request, handler: Handler) -> web.StreamResponse:
        operation = method_of(request)
        if operation is None and request.path.startswith("/_emulator/"):
            return _once_saved(driver, request, await handler(request))
        resource = resource_of(request) if operation else None
        call = log.begin(driver.clock(), request.method, request.path_qs, operation, resource)
        try:
            response = _once_saved(driver, request, await handler(request))
            call.status = response.status if request.transport and not request.transport.is_closing() else None
            call.note = request.get("note", "") if response.status == 200 else ""
            return response
        finally:
            call.caller = request.get("caller", UNAUTHENTICATED)
            call.faults = list(request.get("hits", ()))
            call.seconds = round(driver.clock() - call.at, 6)

    return logged


def _once_saved(driver: Driver, request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Return the response once what it says is on disk; if it cannot be, a refusal. The emulator's own reads are answered."""
    try:
        driver.flush()
    except OSError as error:
        if not response.prepared and not (request.method == "GET" and request.path.startswith("/_emulator/")):
            refusal = ApiError("UNAVAILABLE", f"The emulator cannot save its state: {error.strerror}")
            return web.json_response(refusal.body(), status=refusal.http)
    return response


def date_header(driver: Driver) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Return a signal handler that sets the Date header: the time of the emulated cloud, not of this machine."""

    async def dated(request: web.Request, response: web.StreamResponse) -> None:
        seconds = driver.clock() + request.get("clock_s", 0.0)
        response.headers["Date"] = format_datetime(datetime.fromtimestamp(seconds, UTC), usegmt=True)

    return dated


def fault_injection(driver: Driver) -> Middleware:
    """Return the middleware that decides which faults a call meets, and applies those that concern its reply."""

    @web.middleware
    async def injected(request: web.Request, handler: Handler) -> web.StreamResponse:
        caller = request.setdefault("caller", "client")
        operation = method_of(request)
        if operation is None:
            return await handler(request)
        driver.advance()
        decision = driver.state.decide(operation, caller, resource_of(request), driver.clock())
        request["effect"], request["hits"] = decision.effect, decision.hits
        if decision is NO_FAULT:
            return await handler(request)
        driver.changed()  # the counts of the faults are saved
        try:
            response = await _with_faults(request, handler, decision, operation)
        except NoReply:
            driver.changed()  # a delayed create waits
            return cut(request)
        request["clock_s"] = decision.clock_s
        return response

    return injected


async def _with_faults(
    request: web.Request, handler: Handler, decision: Decision, operation: str
) -> web.StreamResponse:
    await asyncio.sleep(decision.slow_s)
    response = await _without_faults(request, handler) if decision.takes_effect else None
    if decision.reply is not None:
        response = await _faulty(request, response, decision.reply, operation)
    assert response is not None, "a call that does not take effect has a faulty reply"
    return response


async def _without_faults(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return the API's own reply, refusals included."""
    try:
        return await handler(request)
    except ApiError as error:
        return web.json_response(error.body(), status=error.http)


async def _faulty(
    request: web.Request, response: web.StreamResponse | None, fault: Fault, operation: str
) -> web.StreamResponse:
    """Return the reply that the fault gives. Raises NoReply."""
    match fault.kind:
        case "status":
            return _response(replies.refusal(fault, operation, resource_of(request)))
        case "garbage":
            body = response.body if isinstance(response, web.Response) else b"{}"
            return _response(replies.corrupted(fault, body if isinstance(body, bytes) else b"{}"))
        case "hang":
            await asyncio.sleep(fault.seconds)
    raise NoReply


def _response(reply: FaultReply) -> web.Response:
    return web.Response(
        body=reply.body, status=reply.status, content_type=reply.content_type, headers=dict(reply.headers)
    )

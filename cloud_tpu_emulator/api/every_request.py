"""What every request passes: the log of the calls to the API, authentication, and the faults that meet the calls.

`request_logging` is the outermost of the three middlewares, so that refused callers are logged, too. `/_emulator/requests` and
`tpujob emulator requests` show the log, and tests use it as the oracle for what was sent.

Authentication admits only this user's own clients on this machine, on every path, by three checks: the Host header is loopback
(a name that a web page rebinds to 127.0.0.1 is not), there is no Origin header (no browser sends requests here; clients of the
relay send an Origin that no page can have), and a 256-bit token, compared in constant time: one of the user, which opens
everything, or that of an emulated VM, which opens what its service account may do. Clients of an emulated Cloud Storage and of
the metadata server send no token: there the kernel says whether the caller is a process of this user. `request["caller"]` is
"client" or "vm";
`request["trusted"]` says whether the token was that of tpujob's own client.

`fault_injection` is the innermost: faults are decided when the caller is known.
"""

import asyncio
import hmac
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from cloud_tpu_emulator.api import storage
from cloud_tpu_emulator.api.api_call import method_of, resource_of
from cloud_tpu_emulator.faults import api_errors, replies
from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.faults.fault import NO_FAULT, Decision, Fault, NoReply
from cloud_tpu_emulator.faults.plain_data import BadData
from cloud_tpu_emulator.faults.replies import FaultReply
from cloud_tpu_emulator.model import reach
from cloud_tpu_emulator.model.cloud_state import CloudState
from cloud_tpu_emulator.model.records import Node
from cloud_tpu_emulator.model.state import Store
from cloud_tpu_emulator.vms import metadata_server
from cloud_tpu_emulator.vms.driver import Driver
from cloud_tpu_emulator.vms.metadata_server import VmAccount
from cloud_tpu_emulator.wire import requests
from orchestrator.system import sockets

KEPT = 5000
UNAUTHENTICATED = "unauthenticated"


@dataclass(slots=True)
class Call:
    """One request. `status` None: it is under way (`seconds` None) or got no reply."""

    number: int  # from 1; not reused by a daemon
    at: float  # Unix seconds of its arrival, by the cloud's clock
    caller: str  # client, vm or unauthenticated
    method: str
    path: str  # with its query
    operation: str | None
    resource: str | None
    status: int | None = None
    seconds: float | None = None
    faults: list[str] = field(default_factory=list)  # ids of those it met
    note: str = ""  # what the caller should know of a call that succeeded

    @property
    def node(self) -> str | None:
        """The id of the node that the call names; None: it names none."""
        name, _, node = (self.resource or "").rpartition("/nodes/")
        return node if name else None


class RequestLog:
    """The newest KEPT calls."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque(maxlen=KEPT)
        self._count = 0

    def begin(self, at: float, method: str, path: str, operation: str | None, resource: str | None) -> Call:
        """Add a call that has arrived."""
        self._count += 1
        call = Call(self._count, at, UNAUTHENTICATED, method, path, operation, resource)
        self._calls.append(call)
        return call

    def rows(self, after: int = 0, node: str | None = None) -> list[dict[str, Any]]:
        """Return the calls with numbers above `after`, oldest first; `node`: only those about it (id or full name)."""
        found = (call for call in self._calls if call.number > after and node in (None, call.node, call.resource))
        return [asdict(call) | {"node": call.node} for call in found]


log = logging.getLogger(__name__)
TUNNELER = "bot:iap-tunneler"  # the Origin of clients of the relay
GOOGLE = "tpu.googleapis.com"  # the Host of what comes through the proxy; no web page can have it
WITHOUT_TOKEN = (*storage.PATHS, metadata_server.ROOT)  # of clients that send none


def middleware(store: Store, account: VmAccount, state: CloudState) -> Middleware:
    """Return the middleware, which also turns every error into the API's reply."""

    @web.middleware
    async def authenticated(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            vm = caller_of(request, store, account, state)
            request["caller"] = "client" if vm is None else "vm"
            if vm is not None and not reach.reaches_google(vm.spec, state.settings):
                return cut(request)
            if vm is not None:
                metadata_server.check(request, vm, state.settings)
            return await handler(request)
        except ApiError as error:
            refusal = error
        except BadData as error:  # the daemon's own paths
            refusal = ApiError("INVALID_ARGUMENT", str(error))
        except web.HTTPNotFound:
            # A path that no API has: a client must not take the reply for "this resource does not exist".
            return web.Response(text=replies.page(404), status=404, content_type="text/html")
        except web.HTTPException:
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            refusal = api_errors.internal()
        return web.json_response(refusal.body(), status=refusal.http)

    return authenticated


def caller_of(request: web.Request, store: Store, account: VmAccount, state: CloudState) -> Node | None:
    """Return the node whose VM calls; None: the user calls. Raises ApiError for any other caller."""
    if not requests.is_local_program(request, TUNNELER, (GOOGLE,)):
        text = "The Host header must name this machine's loopback interface; web pages are refused."
        raise ApiError("PERMISSION_DENIED", text)
    if (request.path == "/" or request.path.startswith(WITHOUT_TOKEN)) and "Authorization" not in request.headers:
        if request.transport is not None and sockets.is_ours(request.transport.get_extra_info("socket")):
            return None
        raise api_errors.unauthenticated()
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    given = given.strip() if scheme.lower() == "bearer" else ""
    sent = given.encode(errors="surrogateescape")
    request["trusted"] = hmac.compare_digest(sent, store.tpujob_token.encode())
    if hmac.compare_digest(sent, store.token.encode()) or request["trusted"]:
        return None
    node = state.by_uid(metadata_server.uid_in(given))
    if node is None or not account.holds(node, given):
        raise api_errors.unauthenticated()
    return node


def cut(request: web.Request) -> web.Response:
    """Close the connection without a reply. The returned response is not sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def request_logging(log: RequestLog, driver: Driver) -> Middleware:
    """Return the middleware that writes the request log, and that saves the state before a reply leaves."""

    @web.middleware
    async def logged(request: web.Request, handler: Handler) -> web.StreamResponse:
        operation = method_of(request)
        if operation is None and request.path.startswith(("/_emulator/", metadata_server.ROOT)):
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
    response: web.StreamResponse | None = None
    if decision.takes_effect:
        try:
            response = await handler(request)
        except ApiError as error:  # the API's own reply, too
            response = web.json_response(error.body(), status=error.http)
    if decision.reply is not None:
        response = await _faulty(request, response, decision.reply, operation)
    assert response is not None, "a call that does not take effect has a faulty reply"
    return response


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

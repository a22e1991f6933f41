"""The middleware that admits only this user's own clients on this machine, on every path.

Three checks: the Host header is loopback (a name that a web page rebinds to 127.0.0.1 is not), there is no Origin header
(no browser sends requests here; clients of the relay send an Origin that no page can have), and a 256-bit token, compared in
constant time: one of the user, which opens everything, or that of an emulated VM, which opens what its service account may do.
Clients of an emulated Cloud Storage send no token: there the kernel says whether the caller is a process of this user.
`request["caller"]` is "client" or "vm"; `request["trusted"]` says whether the token was that of tpujob's own client.
"""

import hmac
import logging

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from orchestrator import peers
from orchestrator.emulator import access, api_errors
from orchestrator.emulator.api import storage
from orchestrator.emulator.api_errors import ApiError
from orchestrator.emulator.model import policies
from orchestrator.emulator.model.cloud_state import CloudState
from orchestrator.emulator.model.records import Node
from orchestrator.emulator.plain_data import BadData
from orchestrator.emulator.state.store import Store
from orchestrator.emulator.vms import service_account
from orchestrator.emulator.vms.service_account import VmAccount

log = logging.getLogger(__name__)
TUNNELER = "bot:iap-tunneler"  # the Origin of clients of the relay
# Google's reply to a path that no API has: a client must not take it for "this resource does not exist".
NOT_AN_API = (
    "<!DOCTYPE html>\n<html lang=en>\n<title>Error 404 (Not Found)!!1</title>\n"
    "<p><b>404.</b> <ins>That’s an error.</ins>\n<p>The requested URL was not found on this server.\n</html>\n"
)


def middleware(store: Store, account: VmAccount, state: CloudState) -> Middleware:
    """Return the middleware, which also turns every error into the API's reply."""

    @web.middleware
    async def authenticated(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            vm = caller_of(request, store, account, state)
            request["caller"] = "client" if vm is None else "vm"
            if vm is not None and not policies.reaches_google(vm.spec, state.settings):
                return cut(request)
            if vm is not None:
                service_account.check(request, vm, state.settings)
            return await handler(request)
        except ApiError as error:
            refusal = error
        except BadData as error:  # the daemon's own paths
            refusal = ApiError("INVALID_ARGUMENT", str(error))
        except web.HTTPNotFound:
            return web.Response(text=NOT_AN_API, status=404, content_type="text/html")
        except web.HTTPException:
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            refusal = api_errors.internal()
        return web.json_response(refusal.body(), status=refusal.http)

    return authenticated


def caller_of(request: web.Request, store: Store, account: VmAccount, state: CloudState) -> Node | None:
    """Return the node whose VM calls; None: the user calls. Raises ApiError for any other caller."""
    if not access.is_local_program(request, TUNNELER):
        text = "The Host header must name this machine's loopback interface; web pages are refused."
        raise ApiError("PERMISSION_DENIED", text)
    if request.path.startswith(storage.PATHS) and "Authorization" not in request.headers:
        if request.transport is not None and peers.is_ours(request.transport.get_extra_info("socket")):
            return None
        raise api_errors.unauthenticated()
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    given = given.strip() if scheme.lower() == "bearer" else ""
    sent = given.encode(errors="surrogateescape")
    request["trusted"] = hmac.compare_digest(sent, store.tpujob_token.encode())
    if hmac.compare_digest(sent, store.token.encode()) or request["trusted"]:
        return None
    node = state.by_uid(service_account.uid_in(given))
    if node is None or not account.holds(node, given):
        raise api_errors.unauthenticated()
    return node


def cut(request: web.Request) -> web.Response:
    """Close the connection without a reply. The returned response is not sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()

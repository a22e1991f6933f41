"""The door of the daemon: only this user's own clients on this machine, on every path.

Three checks: the Host header is loopback (a name that a web page rebinds to 127.0.0.1 is not), no Origin header at all
(no browser has business here), and a 256-bit token, compared in constant time: the user's own, which opens everything, or
that of an emulated VM, which opens what its service account may do. `request["caller"]` says whose it was.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import re

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from orchestrator.emulator import api_errors
from orchestrator.emulator.api_errors import ApiError
from orchestrator.emulator.model.cloud_state import CloudState
from orchestrator.emulator.model.records import Node
from orchestrator.emulator.vms import service_account
from orchestrator.emulator.vms.service_account import VmAccount

log = logging.getLogger(__name__)
HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:]+))(?::[0-9]*)?")
# What Google answers to a path that no API has: a client must not take it for "this resource does not exist".
NOT_AN_API = (
    "<!DOCTYPE html>\n<html lang=en>\n<title>Error 404 (Not Found)!!1</title>\n"
    "<p><b>404.</b> <ins>That’s an error.</ins>\n<p>The requested URL was not found on this server.\n</html>\n"
)


def is_loopback(host: str) -> bool:
    """`host` as in a Host header, with or without a port."""
    found = HOST.fullmatch(host)
    name = (found["v6"] or found["name"]) if found else ""
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_local_program(request: web.BaseRequest) -> bool:
    """As far as the headers say: it was addressed here, once, and no web page sent it."""
    hosts = request.headers.getall("Host", [])
    return len(hosts) == 1 and is_loopback(hosts[0]) and "Origin" not in request.headers


def check(request: web.Request, token: str, account: VmAccount, state: CloudState) -> Node | None:
    """The node whose VM is calling; None: the user."""
    if not is_local_program(request):
        raise api_errors.forbidden(
            "The Host header must name this machine's loopback interface; web pages are refused."
        )
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    given = given.strip() if scheme.lower() == "bearer" else ""
    if hmac.compare_digest(given.encode(errors="surrogateescape"), token.encode()):
        return None
    node = state.by_uid(service_account.uid_in(given))
    if node is None or not account.holds(node, given):
        raise api_errors.unauthenticated()
    return node


def middleware(token: str, account: VmAccount, state: CloudState) -> Middleware:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            vm = check(request, token, account, state)
            request["caller"] = "client" if vm is None else "vm"
            if vm is not None and not state.settings.vm_route:
                return _cut(request)
            if vm is not None:
                service_account.check(request, vm, state.settings)
            return await handler(request)
        except ApiError as error:
            return web.json_response(error.body(), status=error.http)
        except web.HTTPNotFound:
            return web.Response(text=NOT_AN_API, status=404, content_type="text/html")
        except web.HTTPException:
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            internal = ApiError("INTERNAL", "an internal error has occurred")
            return web.json_response(internal.body(), status=internal.http)

    return guarded


def _cut(request: web.Request) -> web.Response:
    """Close the connection without an answer; what is returned here goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()

"""Whether a request comes from a program on this machine, as far as its headers show. Pure.

`api.authentication` and the metadata servers add a secret, or the kernel's answer.
"""

from __future__ import annotations

import ipaddress
import re

from aiohttp import web

HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:]+))(?::[0-9]*)?")


def is_loopback(host: str) -> bool:
    """Return whether `host` (as in a Host header, with or without a port) is `localhost` or a loopback address."""
    found = HOST.fullmatch(host)
    name = (found["v6"] or found["name"]) if found else ""
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_local_program(request: web.BaseRequest, origin: str | None = None) -> bool:
    """Return whether the request has one Host header, which names loopback, and no Origin: no web page sent it.

    `origin`: an Origin that a program sends and no web page can.
    """
    hosts, origins = request.headers.getall("Host", []), request.headers.getall("Origin", [])
    return len(hosts) == 1 and is_loopback(hosts[0]) and origins in ([], [origin])

"""Whether a request comes from a program on this machine, as far as its headers show. Pure.

`api.authentication` and the metadata servers add a secret, or the kernel's answer.
"""

import ipaddress
import re
from collections.abc import Collection

from aiohttp import web

HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:]+))(?::[0-9]*)?")


def is_loopback(host: str) -> bool:
    """Return whether `host` (as in a Host header, with or without a port) is `localhost` or a loopback address."""
    if (name := _name(host)) == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _name(host: str) -> str:
    found = HOST.fullmatch(host)
    return (found["v6"] or found["name"]).lower() if found else ""


def is_local_program(request: web.BaseRequest, origin: str | None = None, names: Collection[str] = ()) -> bool:
    """Return whether the request has one Host header, which names loopback, and no Origin: no web page sent it.

    `origin`: an Origin that a program sends and no web page can. `names`: other Hosts, none of which a web page can have.
    """
    hosts, origins = request.headers.getall("Host", []), request.headers.getall("Origin", [])
    return len(hosts) == 1 and (is_loopback(hosts[0]) or _name(hosts[0]) in names) and origins in ([], [origin])

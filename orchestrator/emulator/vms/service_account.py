"""The service account of the emulated VMs: the token that a VM's metadata server returns, and what it allows on the API.

It may get and delete nodes and queued resources, and get operations, of its own project, as the role for tpujob's watchdog
does. `Settings.vm_may` restricts that, with Google's error.
"""

import hashlib
import hmac
import re
import secrets

from aiohttp import web

from orchestrator.emulator import api_errors
from orchestrator.emulator.model.records import Node, Settings

PREFIX = "emulated-"
_RESOURCE = re.compile(r"/v2(?:alpha1)?/(projects/([^/]+)/locations/[^/]+/(nodes|queuedResources|operations)/[^/:]+)")
_VERBS = {("GET", collection): "get" for collection in ("nodes", "queuedResources", "operations")}
_VERBS |= {("DELETE", collection): "delete" for collection in ("nodes", "queuedResources")}


class VmAccount:
    """`url` is the address of the API; the daemon sets it when it listens.

    Tokens are valid for one daemon only: what a VM that outlived it sent to another process on its port is worthless to the
    next daemon. A VM that gets a 401 asks its metadata server for a new one.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self.url = ""

    def token(self, node: Node) -> str:
        """Return the token of a node's VMs: it names the node, and needs the secret of this daemon."""
        digest = hmac.new(self._secret, node.uid.encode(), hashlib.sha256).hexdigest()
        return f"{PREFIX}{node.uid}-{digest}"

    def holds(self, node: Node, given: str) -> bool:
        """Return whether `given` is the token of this node. Constant time."""
        return hmac.compare_digest(self.token(node).encode(), given.encode(errors="surrogateescape"))


def uid_in(token: str) -> str:
    """Return the uid of the node in a token, which is not verified; empty if there is none."""
    return token.removeprefix(PREFIX).partition("-")[0] if token.startswith(PREFIX) else ""


def check(request: web.Request, node: Node, settings: Settings) -> None:
    """Raise ApiError if the account of this node's VMs may not make the call."""
    found = _RESOURCE.fullmatch(request.path)
    name, project, collection = found.groups() if found else (request.path.lstrip("/"), "", "")
    verb = _VERBS.get((request.method, collection))
    if verb is None or verb not in settings.vm_may or project != node.project:
        permission = f"tpu.{collection or 'locations'}.{verb or request.method.lower()}"
        raise api_errors.permission_denied(permission, name)

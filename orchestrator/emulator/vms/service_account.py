"""The service account of the emulated VMs: the token that a VM's metadata server hands out, and what it may do on the API.

It may get and delete nodes and queued resources and get operations of its own project, as the role for tpujob's switch says;
`Settings.vm_may` takes that away, with Google's words.
"""

from __future__ import annotations

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
    """`url` is where the API answers: the daemon says so when it listens.

    Its tokens are as old as the daemon: what a VM that outlived one sent to whoever took its port opens nothing in the
    next, and whoever gets a 401 asks the metadata server again.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self.url = ""

    def token(self, node: Node) -> str:
        """Differs for each node, so that a token says which VM is calling; nobody without the secret can make one."""
        digest = hmac.new(self._secret, node.uid.encode(), hashlib.sha256).hexdigest()
        return f"{PREFIX}{node.uid}-{digest}"

    def holds(self, node: Node, given: str) -> bool:
        return hmac.compare_digest(self.token(node).encode(), given.encode(errors="surrogateescape"))


def uid_in(token: str) -> str:
    """Whose token it claims to be."""
    return token.removeprefix(PREFIX).partition("-")[0] if token.startswith(PREFIX) else ""


def check(request: web.Request, node: Node, settings: Settings) -> None:
    """Raises what IAM answers to a call that the account of this node's VM may not make."""
    found = _RESOURCE.fullmatch(request.path)
    name, project, collection = found.groups() if found else (request.path.lstrip("/"), "", "")
    verb = _VERBS.get((request.method, collection))
    if verb is None or verb not in settings.vm_may or project != node.project:
        permission = f"tpu.{collection or 'locations'}.{verb or request.method.lower()}"
        raise api_errors.permission_denied(permission, name)

"""The metadata server of one worker: what a program on a TPU VM reads about its node, its guest attributes, and its token.

google-auth, gcloud and scripts find it through GCE_METADATA_HOST, GCE_METADATA_IP and GCE_METADATA_ROOT. No client sends it a
secret, so it admits processes of the user who runs the emulator, and no others.

The token is that of the service account of the emulated VMs. It may get and delete nodes and queued resources, and get
operations, of its own project, as the role for tpujob's watchdog does. `Settings.vm_may` restricts that, with Google's error.
"""

import asyncio
import hashlib
import hmac
import json
import re
import secrets
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from aiohttp import web

from cloud_tpu_emulator.faults import api_errors
from cloud_tpu_emulator.model.cloud_state import CloudState
from cloud_tpu_emulator.model.records import Node, Settings
from cloud_tpu_emulator.wire import requests
from cloud_tpu_emulator.wire.replies import maintenance_json
from cloud_tpu_emulator.wire.requests import NUMBER, project_number, text_of
from orchestrator import catalog
from orchestrator.system import sockets


class Notifier:
    """One event for any number of waiting tasks."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake all tasks that wait now."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the next `notify`. Return whether it came within `timeout_s` seconds (None: no limit)."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._next.wait()
        except TimeoutError:
            return False
        return True


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


# The rate limit of a worker's guest attributes: beyond it, writes may be dropped.

QUERIES, WITHIN_S = 10, 60.0  # the limits that Google documents
BURST, BURST_S = 3, 1.0


class AttributeRate:
    """The queries of one worker. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._queries: deque[float] = deque(maxlen=QUERIES)

    def within(self, now: float, speed: float) -> bool:
        """Count a query, and return whether it is within `speed` times the documented rate; `speed` 0: no limit."""
        if not speed:
            return True
        queries = self._queries
        many = len(queries) == QUERIES and now - queries[0] < WITHIN_S / speed
        burst = len(queries) >= BURST and now - queries[-BURST] < BURST_S / speed
        queries.append(now)
        return not many and not burst


FLAVOR = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}
ROOT = "/computeMetadata/v1/"
NAMES = ("metadata.google.internal", "metadata", "169.254.169.254")  # by which programs on a TPU VM call it
NO_NOTICE = {"error": "no notifications have been received yet, try again later"}
# What Google documents of custom metadata, of which guest attributes are a kind: a key of less than 128 bytes, a value of
# at most 256 KiB, less than 512 KB in all; the characters are those that gcloud's --query-path takes.
MAX_KEY_BYTES, MAX_VALUE_BYTES, MAX_BYTES = 127, 256 << 10, (512 << 10) - 1
ATTRIBUTE = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_KEY_BYTES}}}")
# Clients trust the host key and the port in these namespaces, so only `tpu_vm` writes them.
OWN = ("hostkeys", "tpujob-emulator")
MAX_WAIT_S = 1e6
Tree = dict[str, Any]


def tpu_env(node: Node, worker: int) -> str:
    """Return the YAML lines of the attribute `tpu-env`, as on a TPU VM."""
    kind = catalog.lookup(node.accelerator_type)
    assert kind is not None, "a node has an accelerator type of the catalog"
    values = {
        "ACCELERATOR_TYPE": node.accelerator_type,
        "WORKER_ID": worker,
        "CONSUMER_PROJECT_ID": node.project,
        "CONSUMER_PROJECT_NUMBER": project_number(node.project),
        "ZONE": node.zone,
        "NODE_ID": node.node_id,
        "PREEMPTIBLE": str(node.spot).lower(),
        "RUNTIME_VERSION": node.spec["runtimeVersion"],
        "TOPOLOGY": kind.topology,
    }
    return "".join(f"{key}: '{value}'\n" for key, value in values.items())


def tree(node: Node, worker: int, access_token: str | None) -> Tree:
    """Return everything below /computeMetadata/v1/: directories are dicts, values strings or lists of lines.

    Without `access_token`, what a recursive read returns: Google's has no token either.
    """
    account = node.spec["serviceAccount"]
    # The fields a TPU VM has here are unknown:unknown:IP; on loopback all hosts share one IP.
    endpoints = ",".join("unknown:unknown:127.0.0.1" for _ in range(node.workers))
    attributes = dict(node.spec.get("metadata", {})) | {
        "instance-id": node.node_id,
        "accelerator-type": node.accelerator_type,
        "agent-worker-number": str(worker),
        "worker-network-endpoints": endpoints,
        "tpu-env": tpu_env(node, worker),
    }
    if node.queued_resource is not None:
        attributes["queued-resource-name"] = node.queued_resource
    number, planned = project_number(node.project), node.maintenance
    is_announced = planned is not None and (not planned.workers or worker in planned.workers)
    login = {"aliases": ["default"], "email": account["email"], "scopes": account["scope"]}
    if access_token is not None:
        login["token"] = json.dumps({"access_token": access_token, "expires_in": 3599, "token_type": "Bearer"})
    return {
        "instance": {
            "id": node.uid,
            "hostname": f"{hostname(node, worker)}.{node.zone}.c.{node.project}.internal",
            "name": hostname(node, worker),
            "zone": f"projects/{number}/zones/{node.zone}",
            "attributes": attributes,
            "preempted": str(node.preempted_at is not None or node.state == "PREEMPTED").upper(),
            "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE" if is_announced else "NONE",
            "upcoming-maintenance": NO_NOTICE if planned is None else maintenance_json(planned, node.can_reschedule),
            "service-accounts": {"default": login, account["email"]: login},
            "guest-attributes": _nested(node.hosts[worker].attributes if worker < len(node.hosts) else {}),
        },
        "project": {"project-id": node.project, "numeric-project-id": str(number), "attributes": {}},
        "universe": {"universe-domain": "googleapis.com"},
    }


def hostname(node: Node, worker: int) -> str:
    """Return the short host name of a worker, shaped as Google's."""
    return f"t1v-n-{int(node.uid) & 0xFFFFFFFF:08x}-w-{worker}"


class CloudBackend(Protocol):
    """What a worker uses of the driver."""

    state: CloudState
    notifier: Notifier
    inside: set[int]
    ssh_sessions: Counter[str]

    @property
    def clock(self) -> Callable[[], float]:
        """The clock of the cloud."""

    def changed(self) -> None:
        """Note that the state changed."""

    async def saved(self) -> None:
        """Return once what changed is on disk."""


class MetadataServer:
    """One listener on loopback."""

    def __init__(self, node: Node, worker: int, access_token: str, cloud: CloudBackend) -> None:
        self.node, self.worker, self.cloud = node, worker, cloud
        self._access_token = access_token
        self._rate = AttributeRate()
        self._closed = False
        self._web = web.Server(self._reply, access_log=None)
        self._listener: asyncio.Server | None = None

    async def open(self, port: int) -> int:
        """Listen on loopback, on `port` if it is free. Return the port."""
        loop = asyncio.get_running_loop()
        self._closed = False
        try:
            self._listener = await loop.create_server(self._web, "127.0.0.1", port)
        except OSError:
            self._listener = await loop.create_server(self._web, "127.0.0.1", 0)
        return self.ports[0]

    @property
    def ports(self) -> list[int]:
        """The port on which it listens; empty if it is closed."""
        return [int(opened.getsockname()[1]) for opened in self._listener.sockets] if self._listener else []

    async def close(self) -> None:
        """Close the listener, and end requests that wait for a change."""
        if not self._closed:
            self._closed = True
            self.cloud.notifier.notify()  # ends requests that wait for a change
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self._web.shutdown(0.1)

    async def _reply(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Metadata-Flavor") != "Google" or "X-Forwarded-For" in request.headers:
            return web.Response(text="Missing Metadata-Flavor:Google header.\n", status=403, headers=FLAVOR)
        # A process of the emulator's own user, and no web page.
        is_ours = request.transport is not None and sockets.is_ours(request.transport.get_extra_info("socket"))
        if not is_ours or not requests.is_local_program(request, names=NAMES):
            return web.Response(text="Only programs of this worker may read this.\n", status=403, headers=FLAVOR)
        if request.path == "/":
            return web.Response(text="computeMetadata/\n", headers=FLAVOR)
        if not request.path.startswith(ROOT):
            return web.Response(status=404, headers=FLAVOR)
        path = request.path.removeprefix(ROOT)
        if request.method == "PUT":
            return await self._publish(request, path)
        whole = is_whole(request, path)
        access_token = None if whole else self._access_token
        value = self._value(path, access_token)
        if value is not None and request.query.get("wait_for_change", "").lower() == "true":
            value = await self._wait_for_change(path, access_token, value, request.query)
        if value is None:
            return web.Response(status=404, headers=FLAVOR)
        reply = web.json_response(value, headers=FLAVOR) if whole else shown(value, path)
        reply.headers["ETag"] = _etag(value)
        return reply

    def _value(self, path: str, access_token: str | None) -> Any:
        return find(tree(self.node, self.worker, access_token), [part for part in path.split("/") if part])

    async def _wait_for_change(self, path: str, access_token: str | None, value: Any, query: Mapping[str, str]) -> Any:
        """Return the value once it differs from `last_etag` (default: from now), or after `timeout_sec` seconds."""
        known = query.get("last_etag", "") or _etag(value)
        limit = query.get("timeout_sec", "")
        loop = asyncio.get_running_loop()
        end = loop.time() + min(float(limit), MAX_WAIT_S) if NUMBER.fullmatch(limit) else None
        while value is not None and _etag(value) == known and not self._closed:
            if not await self.cloud.notifier.wait(None if end is None else max(0.0, end - loop.time())):
                break
            value = self._value(path, access_token)
        return value

    async def _publish(self, request: web.BaseRequest, path: str) -> web.Response:
        parts = path.split("/")
        if len(parts) != 4 or parts[:2] != ["instance", "guest-attributes"] or not all(parts):
            return web.Response(status=404, headers=FLAVOR)
        namespace, key = parts[2:]
        if namespace in OWN:
            return _refused(403, f"Only the worker itself publishes {namespace}/.")
        if not (ATTRIBUTE.fullmatch(namespace) and ATTRIBUTE.fullmatch(key)):
            return _refused(400, f"A namespace and a key must be up to {MAX_KEY_BYTES} letters, digits, - and _.")
        try:
            text = await text_of(request)
        except ValueError as error:
            return _refused(400, f"The value must be text: {error}.")
        if self.worker >= len(self.node.hosts):
            return _refused(400, "This worker is not ready.")
        name, attributes = f"{namespace}/{key}", self.node.hosts[self.worker].attributes
        others = sum(len(k) + len(v.encode()) for k, v in attributes.items() if k != name)
        size = len(text.encode())
        if size > MAX_VALUE_BYTES or others + len(name) + size > MAX_BYTES:
            return _refused(400, f"A value may have {MAX_VALUE_BYTES} bytes, all of a worker together {MAX_BYTES}.")
        if self._rate.within(asyncio.get_running_loop().time(), self.cloud.state.settings.attribute_limits):
            attributes[name] = text
        else:  # accepted, and the attribute is removed
            attributes.pop(name, None)
        self.cloud.changed()
        await self.cloud.saved()
        return web.Response(headers=FLAVOR)


def _refused(status: int, why: str) -> web.Response:
    return web.Response(text=f"{why}\n", status=status, headers=FLAVOR)


def _etag(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def is_whole(request: web.BaseRequest, path: str) -> bool:
    """Return whether a request asks for everything below `path`, as JSON."""
    whole = request.query.get("recursive", "").lower() == "true" or request.query.get("alt") == "json"
    return whole and not path.endswith("/token")  # which is JSON already


def shown(value: Any, path: str) -> web.Response:
    """Return the reply with one value, or with the entries of a directory."""
    if isinstance(value, dict):
        if path and not path.endswith("/"):
            return web.Response(status=301, headers=FLAVOR | {"Location": f"{ROOT}{path}/"})
        entries = (f"{name}/" if isinstance(inner, dict) else name for name, inner in sorted(value.items()))
        return web.Response(text="".join(f"{entry}\n" for entry in entries), headers=FLAVOR)
    if isinstance(value, list):
        return web.Response(text="".join(f"{line}\n" for line in value), headers=FLAVOR)
    kind = "application/json" if path.endswith("/token") else "application/text"
    return web.Response(text=value, content_type=kind, headers=FLAVOR)


def find(value: Any, parts: list[str]) -> Any:
    """Return what is at this path of a tree; None: nothing."""
    for part in parts:
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value


def _nested(attributes: dict[str, str]) -> Tree:
    result: Tree = {}
    for path, value in attributes.items():
        namespace, _, key = path.partition("/")
        result.setdefault(namespace, {})[key] = value
    return result

"""The Cloud TPU API (v2, REST) behind `core.slices.Cloud`, for Google and for the emulator alike.

One question out, one answer back: every call has a timeout and is tried once; what went wrong comes back as a CloudError.
google-cloud-tpu is imported when the first client is made, so that importing me is cheap.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.cloud import reading, translate
from orchestrator.cloud.translate import NotFound
from orchestrator.core import names
from orchestrator.core import pace as paces
from orchestrator.core.pace import Pace
from orchestrator.core.slices import (
    Capabilities,
    Listing,
    Operation,
    SliceName,
    SliceRequest,
    SliceView,
    WorkerAddress,
)
from orchestrator.errors import AuthError, BadRequest, UnexpectedReply, Vanished, WrongState

GOOGLE = "https://tpu.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
MAX_PAGES = 10_000


class TpuApi:
    """`endpoint` None is Google's. Whoever makes me answers for sending `credentials` there: see `credentials.connect`."""

    def __init__(
        self,
        endpoint: str | None,
        credentials: Any,
        *,
        emulated: bool,
        timeout_s: float = 15.0,
        create_timeout_s: float = 30.0,
        visible_within_s: float | None = None,
        settles_within_s: float | None = None,
        pace: Pace | None = None,
    ) -> None:
        from orchestrator.cloud import wire

        self.endpoint = (endpoint or GOOGLE).rstrip("/")
        self.emulated = emulated
        self.capabilities = Capabilities(
            cloud_deadline=False,
            multi_host=True,
            queue=False,
            idempotent_create="name",
            owner_filter="client",
            preempt_action="tombstone",
            visible_within_s=_either(visible_within_s, 2.0 if emulated else 300.0),
            settles_within_s=_either(settles_within_s, 60.0 if emulated else 2700.0),
            pace=pace or (paces.emulated() if emulated else paces.GOOGLE),
        )
        self._timeout_s, self._create_timeout_s = timeout_s, create_timeout_s
        self._host = self.endpoint.partition("://")[2]
        self._foreign, self._unparsable = wire.Foreign, wire.NotOurProto
        self._door = wire.Door(self._host, emulated=emulated)
        self._client = wire.open_client(self.endpoint, credentials, self._door, emulated=emulated)

    # -- changes --------------------------------------------------------------------------------------------------

    def create(self, request: SliceRequest) -> Operation:
        try:
            said = self._json(self._client.create_node, create_request(request), self._create_timeout_s)
        except NotFound as error:
            raise BadRequest(error.message, hint=error.hint, details=error.details) from error
        return reading.operation(said)

    def delete(self, name: SliceName) -> Operation | None:
        try:
            return reading.operation(self._json(self._client.delete_node, {"name": _path(name)}))
        except NotFound:
            return None

    def start(self, name: SliceName) -> Operation:
        return self._switch(self._client.start_node, name)

    def stop(self, name: SliceName) -> Operation:
        return self._switch(self._client.stop_node, name)

    def _switch(self, call: Callable[..., Any], name: SliceName) -> Operation:
        try:
            return reading.operation(self._json(call, {"name": _path(name)}))
        except NotFound as error:
            raise _vanished(name, error) from error

    def relabel(self, name: SliceName, labels: Mapping[str, str]) -> Operation:
        request = {"node": {"name": _path(name), "labels": dict(labels)}, "update_mask": {"paths": ["labels"]}}
        try:
            return reading.operation(self._json(self._client.update_node, request))
        except NotFound as error:
            raise _vanished(name, error) from error

    # -- questions ------------------------------------------------------------------------------------------------

    def get(self, name: SliceName) -> SliceView | None:
        try:
            node = self._node(name)
        except NotFound:
            return None
        return reading.slice_view(node, self._door.last_reply(), name)

    def list(self, project: str, zone: str) -> Listing[SliceView]:
        parent, here = _parent(project, zone), SliceName(project, zone, "")
        rows: dict[str, SliceView] = {}
        unreachable: list[str] = []

        def fetch(token: str) -> str:
            pager = self._call(self._client.list_nodes, {"parent": parent, "page_token": token})
            said = self._door.last_reply()
            first = next(iter(pager.pages))
            page = type(first).pb(first)
            for node, as_json in zip(page.nodes, said.get("nodes") or (), strict=True):
                rows[node.name] = reading.slice_view(node, as_json, here)
            unreachable.extend(page.unreachable)
            return str(page.next_page_token)

        _every_page(fetch)
        return Listing(tuple(rows.values()), tuple(dict.fromkeys(unreachable)), self._door.server_now())

    def zones(self, project: str) -> Listing[str]:
        if problem := names.project_problem(project):
            raise BadRequest(f"{project!r} {problem}")
        rows: dict[str, None] = {}

        def fetch(token: str) -> str:
            said = self._json(self._client.list_locations, {"name": f"projects/{project}", "page_token": token})
            rows.update(dict.fromkeys(str(row.get("locationId", "")) for row in _dicts(said, "locations")))
            return str(said.get("nextPageToken", ""))

        _every_page(fetch)
        return Listing(tuple(zone for zone in rows if names.zone_problem(zone) is None))

    def operation(self, name: str) -> Operation | None:
        try:
            return reading.operation(self._json(self._client.get_operation, {"name": name}))
        except NotFound:
            return None

    def operations(self, project: str, zone: str) -> Listing[Operation]:
        parent = _parent(project, zone)
        rows: dict[str, Operation] = {}
        unreachable: list[str] = []

        def fetch(token: str) -> str:
            said = self._json(self._client.list_operations, {"name": parent, "page_token": token})
            for row in _dicts(said, "operations"):
                found = reading.operation(row)
                rows[found.name] = found
            unreachable.extend(str(place) for place in said.get("unreachable", ()))
            return str(said.get("nextPageToken", ""))

        _every_page(fetch)
        return Listing(tuple(rows.values()), tuple(dict.fromkeys(unreachable)))

    def workers(self, name: SliceName) -> tuple[WorkerAddress, ...]:
        try:
            node = self._node(name)
        except NotFound as error:
            raise _vanished(name, error) from error
        return reading.worker_addresses(node, self._guest_attributes(name), emulated=self.emulated)

    def published(self, name: SliceName) -> tuple[Mapping[str, str], ...]:
        return tuple(reading.attributes(entry) for entry in self._guest_attributes(name))

    def _guest_attributes(self, name: SliceName) -> tuple[Any, ...]:
        """Nothing where the node publishes nothing or we may not read it: then there is no host key, and `remote` says so."""
        try:
            reply = self._call(self._client.get_guest_attributes, {"name": _path(name)})
        except (NotFound, AuthError, BadRequest, WrongState):
            if self.emulated:
                raise
            return ()
        return tuple(type(reply).pb(reply).guest_attributes)

    def preview(self, request: SliceRequest) -> dict[str, Any]:
        return preview(request, self.endpoint)

    # -- one call -------------------------------------------------------------------------------------------------

    def _node(self, name: SliceName) -> Any:
        node = self._call(self._client.get_node, {"name": _path(name)})
        message = type(node).pb(node)
        if message.name.rpartition("/")[2] != name.node:
            raise UnexpectedReply(
                f"asked for {name.node}, the API answered {message.name[:200]!r}", details=self._door.last_reply()
            )
        return message

    def _json(
        self, call: Callable[..., Any], request: Mapping[str, Any], timeout_s: float | None = None
    ) -> dict[str, Any]:
        """The reply as it came; what the generated parser thinks of it does not matter."""
        try:
            self._call(call, request, timeout_s)
        except UnexpectedReply as error:
            if not isinstance(error.__cause__, self._unparsable):
                raise
        return self._door.last_reply()

    def _call(self, call: Callable[..., Any], request: Mapping[str, Any], timeout_s: float | None = None) -> Any:
        try:
            return call(request, retry=None, timeout=timeout_s or self._timeout_s)
        except self._foreign as error:
            raise translate.local_error(error, self._host) from error


def create_request(request: SliceRequest) -> dict[str, Any]:
    """The arguments of google-cloud-tpu's create_node."""
    node: dict[str, Any] = {
        "accelerator_type": request.accelerator_type,
        "runtime_version": request.runtime_version,
        "labels": dict(request.labels),
        "metadata": dict(request.metadata),
        "network_config": {"network": request.network, "enable_external_ips": True},
        "scheduling_config": {"spot": request.spot},
    }
    if request.service_account is not None:
        node["service_account"] = {"email": request.service_account, "scope": [SCOPE]}
    _path(request.name)
    return {"parent": _parent(request.name.project, request.name.zone), "node_id": request.name.node, "node": node}


def preview(request: SliceRequest, endpoint: str = GOOGLE) -> dict[str, Any]:
    """The very request that `create` sends, made by the same code and recorded in place of being sent."""
    from orchestrator.cloud import wire

    try:
        wire.copy_client(endpoint).create_node(create_request(request), retry=None)
    except wire.Unsent as unsent:
        sent = unsent.request
        return {"method": sent.method, "url": sent.url, "body": json.loads(sent.body or "null")}
    raise AssertionError("a Copybook never returns")


def _every_page(fetch: Callable[[str], str]) -> None:
    """`fetch` takes a page token and gives the next one. A token that comes twice would go on for ever."""
    seen: set[str] = set()
    token = ""
    for _ in range(MAX_PAGES):
        token = fetch(token)
        if not token:
            return
        if token in seen:
            raise UnexpectedReply("the API's list goes round in circles: it named the same next page twice")
        seen.add(token)
    raise UnexpectedReply(f"the API's list has more than {MAX_PAGES} pages")


def _dicts(said: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    rows = said.get(field, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UnexpectedReply(f"the API answered {field} that are not a list of objects", details=said)
    return rows


def _vanished(name: SliceName, error: NotFound) -> Vanished:
    return Vanished(f"{name.node} does not exist in {name.zone} (any more)", details=error.details)


def _parent(project: str, zone: str) -> str:
    if problem := names.project_problem(project):
        raise BadRequest(f"{project!r} {problem}")
    if problem := names.zone_problem(zone):
        raise BadRequest(f"{zone!r} {problem}")
    return f"projects/{project}/locations/{zone}"


def _path(name: SliceName) -> str:
    if problem := names.node_problem(name.node):
        raise BadRequest(f"{name.node!r} {problem}")
    return f"{_parent(name.project, name.zone)}/nodes/{name.node}"


def _either(given: float | None, default: float) -> float:
    return default if given is None else given

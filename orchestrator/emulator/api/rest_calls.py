"""What a REST request names: the method, the resource, the query, the fault that it meets; and the pages of a list.

For `rest`, `rest_queue`, `rest_other` and the middlewares. Faults and the request log use the same names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiohttp import web

from orchestrator.emulator import api_errors
from orchestrator.emulator.faults.fault import Fault
from orchestrator.emulator.model.records import OperationRecord
from orchestrator.emulator.vms.driver import Driver
from orchestrator.emulator.wire import node_json, node_request
from orchestrator.emulator.wire.node_schema import camel
from orchestrator.emulator.wire.queue_json import operation_json

ZONE = "/{version:v2|v2alpha1}/projects/{project}/locations/{zone}"
ANY_ZONE = "/{version:v1|v2|v2alpha1}/projects/{project}/locations/{zone}"
# Handler → the name of the method in the API, as in faults and in the request log.
METHODS = {
    "create_node": "nodes.create",
    "list_nodes": "nodes.list",
    "get_node": "nodes.get",
    "delete_node": "nodes.delete",
    "patch_node": "nodes.patch",
    "change_power": "nodes.{verb}",
    "maintain": "nodes.{verb}",
    "guest_attributes": "nodes.getGuestAttributes",
    "create_queued": "queuedResources.create",
    "list_queued": "queuedResources.list",
    "get_queued": "queuedResources.get",
    "delete_queued": "queuedResources.delete",
    "reset_queued": "queuedResources.reset",
    "maintain_queued": "queuedResources.performMaintenanceQueuedResource",
    "list_reservations": "reservations.list",
    "list_operations": "operations.list",
    "get_operation": "operations.get",
    "list_locations": "locations.list",
    "get_location": "locations.get",
    "list_accelerator_types": "acceleratorTypes.list",
    "get_accelerator_type": "acceleratorTypes.get",
    "list_runtimes": "runtimeVersions.list",
    "get_runtime": "runtimeVersions.get",
}

NEW_IDS = {"nodes": "nodeId", "queuedResources": "queuedResourceId"}


def method_of(request: web.Request) -> str | None:
    """Return the name of the method (nodes.get); None for a path that is not of this API."""
    name = getattr(request.match_info.handler, "__name__", "")
    return METHODS[name].format_map(request.match_info) if name in METHODS else None


def resource_of(request: web.Request) -> str:
    """Return the full name of the node, queued resource, operation or place that the request names."""
    parts = request.match_info
    name = f"projects/{parts['project']}/locations/{parts.get('zone', '-')}"
    for collection, key in (("nodes", "node"), ("queuedResources", "queued"), ("operations", "operation")):
        if key in parts:
            return f"{name}/{collection}/{parts[key]}"
    method = method_of(request) or ""
    if method.endswith(".create"):
        collection = method.removesuffix(".create")
        given = query_of(request).get(NEW_IDS[collection], "")
        return f"{name}/{collection}/{given}" if given else name
    return name


def effect_on(request: web.Request) -> Fault | None:
    """Return the fault that the cloud applies to this request, as `fault_injection` decided; None: no fault."""
    effect: Fault | None = request.get("effect")
    return effect


def place(request: web.Request) -> tuple[str, str]:
    """Return project and zone. Raises ApiError for an unknown zone."""
    project, zone = request.match_info["project"], request.match_info["zone"]
    node_request.check_location(project, zone)
    return project, zone


def parent_of(request: web.Request) -> str:
    """Return projects/…/locations/…. Raises ApiError for an unknown zone."""
    project, zone = place(request)
    return f"projects/{project}/locations/{zone}"


def node_name(request: web.Request) -> str:
    """Return the full name of the node. Raises ApiError for an unknown zone."""
    return f"{parent_of(request)}/nodes/{request.match_info['node']}"


def query_of(request: web.Request) -> dict[str, str]:
    """Return the query with camelCase names."""
    return {camel(key): value for key, value in request.query.items()}


def changed(driver: Driver, request: web.Request, operation: OperationRecord) -> web.Response:
    """Note that the state changed, and reply with the operation."""
    driver.changed()
    return web.json_response(operation_json(operation, request.match_info["version"]))


def unreachable_field(project: str, zones: list[str]) -> dict[str, Any]:
    """Return the field of a list that names unreachable zones; empty without any."""
    return {"unreachable": [f"projects/{project}/locations/{zone}" for zone in zones]} if zones else {}


def page(
    request: web.Request, collection: str, rows: Iterable[dict[str, Any]], extra: dict[str, Any] | None = None
) -> web.Response:
    """Reply with one page of a list, and with the `extra` fields. Raises ApiError for a bad size or token."""
    query, effect = query_of(request), effect_on(request)
    shown, token = node_json.page(list(rows), query.get("pageSize"), query.get("pageToken"))
    if effect is not None and effect.kind == "page_loop":
        token = node_json.token_from(0)
    if effect is not None and effect.kind == "page_error":
        if query.get("pageToken"):
            raise api_errors.internal()
        shown, token = shown[:1], node_json.token_from(1)
    body: dict[str, Any] = {collection: list(shown)} if shown else {}
    if token:
        body["nextPageToken"] = token
    return web.json_response(body | (extra or {}))

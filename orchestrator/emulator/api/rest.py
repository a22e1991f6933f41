"""The Cloud TPU REST API, /v2 and /v2alpha1, and the part of /v1 that gcloud still reads.

Each route is one call of the state machine and one reply of `wire`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from orchestrator import catalog
from orchestrator.emulator import api_errors
from orchestrator.emulator.api.rest_calls import (
    ANY_ZONE,
    ZONE,
    changed,
    effect_on,
    node_name,
    page,
    parent_of,
    place,
    query_of,
    unreachable_field,
)
from orchestrator.emulator.api.rest_queue import QueueApi
from orchestrator.emulator.api_errors import bad_field
from orchestrator.emulator.vms.driver import Driver
from orchestrator.emulator.wire import node_json, node_request
from orchestrator.emulator.wire.json_body import NUMBER, json_object
from orchestrator.emulator.wire.node_schema import camel
from orchestrator.emulator.wire.queue_json import operation_json

NODE = ZONE + "/nodes/{node:[^/:]+}"


class RestApi:
    """The routes of nodes, operations, locations and catalogs, with those of `rest_queue`."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.state = driver.state

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/{version:v1|v2|v2alpha1}/projects/{project}/locations", self.list_locations),
            web.get(ANY_ZONE, self.get_location),
            web.get(ANY_ZONE + "/acceleratorTypes", self.list_accelerator_types),
            web.get(ANY_ZONE + "/acceleratorTypes/{type}", self.get_accelerator_type),
            web.get(ZONE + "/runtimeVersions", self.list_runtimes("runtimeVersions")),
            web.get(ZONE + "/runtimeVersions/{runtime}", self.get_runtime("runtimeVersions")),
            web.get(
                ANY_ZONE.replace("v1|v2|v2alpha1", "v1") + "/tensorflowVersions",
                self.list_runtimes("tensorflowVersions"),
            ),
            web.get(
                ANY_ZONE.replace("v1|v2|v2alpha1", "v1") + "/tensorflowVersions/{runtime}",
                self.get_runtime("tensorflowVersions"),
            ),
            web.post(ZONE + "/nodes", self.create_node),
            web.get(ZONE + "/nodes", self.list_nodes),
            web.get(NODE, self.get_node),
            web.delete(NODE, self.delete_node),
            web.patch(NODE, self.patch_node),
            web.post(NODE + ":{verb:stop|start}", self.change_power),
            web.post(NODE + ":getGuestAttributes", self.guest_attributes),
            web.post(NODE + ":{verb:simulateMaintenanceEvent|performMaintenance}", self.maintain),
            web.get(ANY_ZONE + "/operations", self.list_operations),
            web.get(ANY_ZONE + "/operations/{operation}", self.get_operation),
            web.get("/compute/v1/projects/{project}", self.compute_project),
            *QueueApi(self.driver).routes(),
        ]

    # --- locations and catalogs ---------------------------------------------------------------------------------------

    async def list_locations(self, request: web.Request) -> web.Response:
        return page(
            request,
            "locations",
            [_location(request, zone) for zone in sorted(catalog.zones()) if self.state.supply.may_use(zone)],
        )

    async def get_location(self, request: web.Request) -> web.Response:
        project, zone = place(request)
        self.state.check_place(project, zone)
        return web.json_response(_location(request, zone))

    async def list_accelerator_types(self, request: web.Request) -> web.Response:
        parent = parent_of(request)
        self.state.check_place(*place(request))
        kinds = [_accelerator_type(parent, name) for name in catalog.types_in_zone(request.match_info["zone"])]
        return page(request, "acceleratorTypes", kinds)

    async def get_accelerator_type(self, request: web.Request) -> web.Response:
        parent, name = parent_of(request), request.match_info["type"]
        if name not in catalog.types_in_zone(request.match_info["zone"]):
            raise api_errors.not_found(f"{parent}/acceleratorTypes/{name}")
        return web.json_response(_accelerator_type(parent, name))

    def list_runtimes(self, collection: str) -> Callable[[web.Request], Any]:
        async def list_runtimes(request: web.Request) -> web.Response:
            parent = parent_of(request)
            rows = [{"name": f"{parent}/{collection}/{name}", "version": name} for name in node_request.runtimes()]
            return page(request, collection, rows)

        return list_runtimes

    def get_runtime(self, collection: str) -> Callable[[web.Request], Any]:
        async def get_runtime(request: web.Request) -> web.Response:
            version = request.match_info["runtime"]
            name = f"{parent_of(request)}/{collection}/{version}"
            if version not in node_request.runtimes():
                raise api_errors.not_found(name)
            return web.json_response({"name": name, "version": version})

        return get_runtime

    # --- nodes --------------------------------------------------------------------------------------------------------

    async def create_node(self, request: web.Request) -> web.Response:
        project, zone, version = (request.match_info[key] for key in ("project", "zone", "version"))
        create = node_request.parse_create(
            project, zone, query_of(request).get("nodeId", ""), await json_object(request), version
        )
        operation = self.state.create(
            project=project,
            zone=zone,
            node_id=create.node_id,
            spec=create.spec,
            workers=create.workers,
            usd_per_hour=create.usd_per_hour,
            api_version=version,
            now=self.driver.clock(),
            effect=effect_on(request),
        )
        return changed(self.driver, request, operation)

    async def list_nodes(self, request: web.Request) -> web.Response:
        self.driver.advance()
        project, zone = request.match_info["project"], request.match_info["zone"]
        if zone != "-":
            node_request.check_location(project, zone)
            self.state.check_place(project, zone)
        nodes, unreachable = self.state.listed(project, zone, effect_on(request))
        rows = [node_json.node_json(node, request.match_info["version"]) for node in nodes]
        return page(request, "nodes", rows, unreachable_field(project, unreachable))

    async def get_node(self, request: web.Request) -> web.Response:
        self.driver.advance()
        return web.json_response(
            node_json.node_json(self.state.node(node_name(request)), request.match_info["version"])
        )

    async def delete_node(self, request: web.Request) -> web.Response:
        return changed(
            self.driver,
            request,
            self.state.delete(
                node_name(request), request.match_info["version"], self.driver.clock(), effect_on(request)
            ),
        )

    async def patch_node(self, request: web.Request) -> web.Response:
        name, version = node_name(request), request.match_info["version"]
        body, mask = await json_object(request), query_of(request).get("updateMask", "")
        changes = node_request.parse_patch(body, mask, version, self.state.node(name).spec)
        return changed(
            self.driver, request, self.state.patch(name, changes, version, self.driver.clock(), effect_on(request))
        )

    async def change_power(self, request: web.Request) -> web.Response:
        verb, version = request.match_info["verb"], request.match_info["version"]
        operation = self.state.change_power(node_name(request), verb, version, self.driver.clock(), effect_on(request))
        return changed(self.driver, request, operation)

    async def guest_attributes(self, request: web.Request) -> web.Response:
        self.driver.advance()
        node, body = self.state.node(node_name(request)), await json_object(request)
        fields = {camel(key): value for key, value in body.items()}
        workers, query = fields.get("workerIds", []), fields.get("queryPath", "")
        if not isinstance(query, str) or not isinstance(workers, list) or not all(isinstance(w, str) for w in workers):
            raise bad_field("Invalid value at 'query_path' or 'worker_ids'.")
        if node.state != "READY":
            raise api_errors.wrong_state("getGuestAttributes", node.state)
        return web.json_response(node_json.guest_attributes_json(node.hosts, workers, query))

    async def maintain(self, request: web.Request) -> web.Response:
        """Announce maintenance, or begin what was announced. The operation is done at once."""
        name, now, body = node_name(request), self.driver.clock(), await json_object(request)
        self.driver.advance()
        self.state.node(name)
        if request.match_info["verb"] == "performMaintenance":
            node = self.state.begin_maintenance(name, now)
        else:
            worker_ids = {camel(key): value for key, value in body.items()}.get("workerIds") or ["0"]
            if not isinstance(worker_ids, list) or not all(
                isinstance(w, str) and NUMBER.fullmatch(w) for w in worker_ids
            ):
                raise bad_field("Invalid value at 'worker_ids'.")
            notice_s, workers = self.state.settings.notice_s, [int(worker) for worker in worker_ids[:1]]
            node = self.state.maintain(name, now, notice_s=notice_s, workers=workers)
        return changed(
            self.driver, request, self.state.completed_operation(node, "update", request.match_info["version"])
        )

    # --- operations ---------------------------------------------------------------------------------------------------

    async def list_operations(self, request: web.Request) -> web.Response:
        self.driver.advance()
        parent, version = parent_of(request), request.match_info["version"]
        effect = effect_on(request)
        forgotten = effect is not None and effect.kind == "operation_gone"
        unreachable = effect is not None and effect.kind == "unreachable"
        rows = [op for op in self.state.operations.values() if op.name.startswith(f"{parent}/operations/")]
        shown = [] if forgotten or unreachable else [operation_json(op, version) for op in reversed(rows)]
        return page(request, "operations", shown, {"unreachable": [parent]} if unreachable else None)

    async def get_operation(self, request: web.Request) -> web.Response:
        self.driver.advance()
        name = f"{parent_of(request)}/operations/{request.match_info['operation']}"
        operation = self.state.operation(name, effect_on(request))
        return web.json_response(operation_json(operation, request.match_info["version"]))

    async def compute_project(self, request: web.Request) -> web.Response:
        """Reply to the one request of `gcloud compute tpus tpu-vm ssh` to Compute Engine: the project has no SSH keys."""
        project = request.match_info["project"]
        metadata = {"kind": "compute#metadata", "fingerprint": "ZW11bGF0ZWQ=", "items": []}
        return web.json_response({"name": project, "commonInstanceMetadata": metadata})


def _location(request: web.Request, zone: str) -> dict[str, str]:
    return {"name": f"projects/{request.match_info['project']}/locations/{zone}", "locationId": zone}


def _accelerator_type(parent: str, name: str) -> dict[str, Any]:
    kind = catalog.lookup(name)
    assert kind is not None, f"the catalog describes {name}"
    config = {"type": kind.api_type, "topology": kind.topology}
    return {"name": f"{parent}/acceleratorTypes/{name}", "type": name, "acceleratorConfigs": [config]}

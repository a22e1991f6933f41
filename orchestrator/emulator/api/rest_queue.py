"""The REST routes of queued resources, /v2 and /v2alpha1: each is one call of the queue and one reply of `queue_json`."""

from __future__ import annotations

from aiohttp import web

from orchestrator.emulator import api_errors
from orchestrator.emulator.api.rest_calls import (
    ZONE,
    changed,
    effect_on,
    page,
    parent_of,
    place,
    query_of,
    unreachable_field,
)
from orchestrator.emulator.api_errors import bad_field
from orchestrator.emulator.vms.driver import Driver
from orchestrator.emulator.wire import node_request
from orchestrator.emulator.wire.json_body import json_object
from orchestrator.emulator.wire.node_schema import camel
from orchestrator.emulator.wire.queue_json import queued_json, reservation_json
from orchestrator.emulator.wire.queue_request import parse_queued

QUEUED = ZONE + "/queuedResources/{queued:[^/:]+}"


class QueueApi:
    """The routes, and what they do."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.state, self.queue = driver, driver.state, driver.state.queue

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post(ZONE + "/queuedResources", self.create_queued),
            web.get(ZONE + "/queuedResources", self.list_queued),
            web.get(QUEUED, self.get_queued),
            web.delete(QUEUED, self.delete_queued),
            web.post(QUEUED + ":reset", self.reset_queued),
            web.post(QUEUED + ":performMaintenanceQueuedResource", self.maintain_queued),
            web.get(ZONE.replace("v2|v2alpha1", "v2alpha1") + "/reservations", self.list_reservations),
        ]

    async def create_queued(self, request: web.Request) -> web.Response:
        project, zone, version = (request.match_info[key] for key in ("project", "zone", "version"))
        node_request.check_zone(project, zone)
        query, body, now = query_of(request), await json_object(request), self.driver.clock()
        row = parse_queued(project, zone, query.get("queuedResourceId", ""), body, version, now)
        operation = self.queue.create(row, version, now, effect_on(request), query.get("requestId", ""))
        return changed(self.driver, request, operation)

    async def list_queued(self, request: web.Request) -> web.Response:
        self.driver.advance()
        project, zone, version = (request.match_info[key] for key in ("project", "zone", "version"))
        if zone != "-":
            node_request.check_location(project, zone)
            self.state.check_place(project, zone)
        unreachable = self.state.unreachable(zone, effect_on(request))
        rows = [queued_json(row, version) for row in self.queue.listed(project, zone, unreachable)]
        return page(request, "queuedResources", rows, unreachable_field(project, unreachable))

    async def get_queued(self, request: web.Request) -> web.Response:
        self.driver.advance()
        return web.json_response(queued_json(self.queue.row(_name(request)), request.match_info["version"]))

    async def delete_queued(self, request: web.Request) -> web.Response:
        """gcloud sends `force=True`, google-cloud-tpu `force=true`."""
        query = query_of(request)
        operation = self.queue.delete(
            _name(request),
            force=query.get("force", "").lower() == "true",
            api_version=request.match_info["version"],
            now=self.driver.clock(),
            effect=effect_on(request),
            request_id=query.get("requestId", ""),
        )
        return changed(self.driver, request, operation)

    async def reset_queued(self, request: web.Request) -> web.Response:
        version, effect = request.match_info["version"], effect_on(request)
        operation = self.queue.reset(_name(request), version, self.driver.clock(), effect)
        return changed(self.driver, request, operation)

    async def maintain_queued(self, request: web.Request) -> web.Response:
        """Begin announced maintenance of the nodes that the request names (by id, or in full), or of all."""
        body, now = await json_object(request), self.driver.clock()
        self.driver.advance()
        row = self.queue.row(_name(request))
        given = {camel(key): value for key, value in body.items()}.get("nodeNames") or row.node_names
        if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
            raise bad_field("Invalid value at 'node_names'.")
        names = dict.fromkeys(name if "/" in name else f"{parent_of(request)}/nodes/{name}" for name in given)
        for name in names:
            if name not in row.node_names:
                raise api_errors.not_found(name)
            self.state.may_begin_maintenance(name)
        for name in names:
            self.state.begin_maintenance(name, now)
        return changed(
            self.driver, request, self.state.completed_operation(row, "update", request.match_info["version"])
        )

    async def list_reservations(self, request: web.Request) -> web.Response:
        """List the reservations of the rehearsal. Only /v2alpha1 has them."""
        project, zone = place(request)
        rows = [one for one in self.state.supply.reservations if one.zone == zone]
        return page(request, "reservations", [reservation_json(one, project) for one in rows])


def _name(request: web.Request) -> str:
    return f"{parent_of(request)}/queuedResources/{request.match_info['queued']}"

"""The REST routes of queued resources, /v2 and /v2alpha1: each is one call of the queue and one reply of `queue_json`."""

from orchestrator.emulator import api_errors
from orchestrator.emulator.api.api_call import ZONE, Api, ApiCall, Json, route
from orchestrator.emulator.api_errors import bad_field
from orchestrator.emulator.model import policies
from orchestrator.emulator.model.records import OperationRecord
from orchestrator.emulator.wire import node_request
from orchestrator.emulator.wire.node_json import unreachable_field
from orchestrator.emulator.wire.queue_json import queued_json, reservation_json
from orchestrator.emulator.wire.queue_request import parse_queued

QUEUED = ZONE + "/queuedResources/{queued:[^/:]+}"
RESERVATIONS = "/{version:v2alpha1}/projects/{project}/locations/{zone}/reservations"


class QueueApi(Api):
    """The routes of queued resources and reservations."""

    @route("POST", ZONE + "/queuedResources", "queuedResources.create")
    async def create_queued(self, call: ApiCall) -> OperationRecord:
        project, zone = call.project_and_zone
        node_request.check_zone(project, zone)
        body, now = await call.body(), self.driver.clock()
        row = parse_queued(project, zone, call.query.get("queuedResourceId", ""), body, call.version, now)
        for each in row.node_specs:
            policies.check(each.node, project, zone, each.node_ids[0], self.state.settings)
        call.mark(row, self.state.settings, *(each.node for each in row.node_specs))
        return self.state.queue.create(row, call.version, now, call.effect, call.query.get("requestId", ""))

    @route("GET", ZONE + "/queuedResources", "queuedResources.list")
    async def list_queued(self, call: ApiCall) -> Json:
        project, zone = call.project_and_zone
        if zone != "-":
            self.state.check_place(*call.place())
        unreachable = self.state.unreachable(zone, call.effect)
        rows = [queued_json(row, call.version) for row in self.state.queue.listed(project, zone, unreachable)]
        return call.page("queuedResources", rows, unreachable_field(project, unreachable))

    @route("GET", QUEUED, "queuedResources.get")
    async def get_queued(self, call: ApiCall) -> Json:
        return queued_json(self.state.queue.row(_name(call)), call.version)

    @route("DELETE", QUEUED, "queuedResources.delete")
    async def delete_queued(self, call: ApiCall) -> OperationRecord:
        """gcloud sends `force=True`, google-cloud-tpu `force=true`."""
        return self.state.queue.delete(
            _name(call),
            force=call.query.get("force", "").lower() == "true",
            api_version=call.version,
            now=self.driver.clock(),
            effect=call.effect,
            request_id=call.query.get("requestId", ""),
        )

    @route("POST", QUEUED + ":reset", "queuedResources.reset")
    async def reset_queued(self, call: ApiCall) -> OperationRecord:
        return self.state.queue.reset(_name(call), call.version, self.driver.clock(), call.effect)

    @route("POST", QUEUED + ":performMaintenanceQueuedResource", "queuedResources.performMaintenanceQueuedResource")
    async def maintain_queued(self, call: ApiCall) -> OperationRecord:
        """Begin announced maintenance of the nodes that the request names (by id, or in full), or of all."""
        fields, now = await call.fields(), self.driver.clock()
        self.driver.advance()
        row = self.state.queue.row(_name(call))
        given = fields.get("nodeNames") or row.node_names
        if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
            raise bad_field("Invalid value at 'node_names'.")
        names = dict.fromkeys(name if "/" in name else f"{call.parent()}/nodes/{name}" for name in given)
        for name in names:
            if name not in row.node_names:
                raise api_errors.not_found(name)
            self.state.may_begin_maintenance(name)
        for name in names:
            self.state.begin_maintenance(name, now)
        return self.state.completed_operation(row, "update", call.version)

    @route("GET", RESERVATIONS, "reservations.list")
    async def list_reservations(self, call: ApiCall) -> Json:
        """List the reservations of the rehearsal. Only /v2alpha1 has them."""
        project, zone = call.place()
        rows = [one for one in self.state.supply.reservations if one.zone == zone]
        return call.page("reservations", [reservation_json(one, project) for one in rows])


def _name(call: ApiCall) -> str:
    return call.name("queuedResources", "queued")

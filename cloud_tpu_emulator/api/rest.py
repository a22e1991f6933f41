"""The Cloud TPU REST API, /v2 and /v2alpha1, without queued resources, and the part of /v1 that gcloud still reads.

Each route is one call of the state machine and one reply of `wire`. Google has turned off the TPU Nodes of /v1: it still lists
catalogs, lists no node, and refuses to create one.
"""

from cloud_tpu_emulator.api.api_call import ZONE, Api, ApiCall, Json, route
from cloud_tpu_emulator.faults import api_errors
from cloud_tpu_emulator.faults.api_errors import ApiError, bad_field
from cloud_tpu_emulator.model import reach
from cloud_tpu_emulator.model.records import OperationRecord
from cloud_tpu_emulator.wire import requests
from cloud_tpu_emulator.wire.replies import (
    guest_attributes_json,
    node_json,
    operation_json,
    queued_json,
    reservation_json,
    unreachable_field,
)
from cloud_tpu_emulator.wire.requests import NUMBER, parse_queued
from orchestrator import catalog

NODE = ZONE + "/nodes/{node:[^/:]+}"
ANY_ZONE = "/{version:v1|v2|v2alpha1}/projects/{project}/locations/{zone}"
RUNTIMES = ZONE + "/{collection:runtimeVersions}"
V1_RUNTIMES = "/{version:v1}/projects/{project}/locations/{zone}/{collection:tensorflowVersions}"
V1_NODES = "/{version:v1|v1alpha1}/projects/{project}/locations/{zone}/nodes"
V1_NODE = V1_NODES + "/{node:[^/:]+}"


class RestApi(Api):
    """The routes of nodes, operations, locations and catalogs."""

    # --- locations and catalogs ---------------------------------------------------------------------------------------

    @route("GET", "/{version:v1|v2|v2alpha1}/projects/{project}/locations", "locations.list")
    async def list_locations(self, call: ApiCall) -> Json:
        zones = [zone for zone in sorted(catalog.zones()) if self.state.supply.may_use(zone)]
        return call.page("locations", [_location(call.parts["project"], zone) for zone in zones])

    @route("GET", ANY_ZONE, "locations.get")
    async def get_location(self, call: ApiCall) -> Json:
        self.state.check_place(*call.place())
        return _location(*call.project_and_zone)

    @route("GET", ANY_ZONE + "/acceleratorTypes", "acceleratorTypes.list")
    async def list_accelerator_types(self, call: ApiCall) -> Json:
        self.state.check_place(*call.place())
        kinds = [_accelerator_type(call.parent(), name) for name in catalog.types_in_zone(call.parts["zone"])]
        return call.page("acceleratorTypes", kinds)

    @route("GET", ANY_ZONE + "/acceleratorTypes/{type}", "acceleratorTypes.get")
    async def get_accelerator_type(self, call: ApiCall) -> Json:
        parent, name = call.parent(), call.parts["type"]
        if name not in catalog.types_in_zone(call.parts["zone"]):
            raise api_errors.not_found(f"{parent}/acceleratorTypes/{name}")
        return _accelerator_type(parent, name)

    @route("GET", RUNTIMES, "runtimeVersions.list")
    @route("GET", V1_RUNTIMES, "runtimeVersions.list")
    async def list_runtimes(self, call: ApiCall) -> Json:
        parent, collection = call.parent(), call.parts["collection"]
        rows = [{"name": f"{parent}/{collection}/{name}", "version": name} for name in requests.runtimes()]
        return call.page(collection, rows)

    @route("GET", RUNTIMES + "/{runtime}", "runtimeVersions.get")
    @route("GET", V1_RUNTIMES + "/{runtime}", "runtimeVersions.get")
    async def get_runtime(self, call: ApiCall) -> Json:
        name = call.name(call.parts["collection"], "runtime")
        if call.parts["runtime"] not in requests.runtimes():
            raise api_errors.not_found(name)
        return {"name": name, "version": call.parts["runtime"]}

    # --- nodes --------------------------------------------------------------------------------------------------------

    @route("POST", ZONE + "/nodes", "nodes.create")
    async def create_node(self, call: ApiCall) -> OperationRecord:
        node_id, body = call.query.get("nodeId", ""), await call.body()
        node = requests.parse_create(*call.project_and_zone, node_id, body, call.version)
        reach.check(node.spec, node.project, node.zone, node.node_id, self.state.settings)
        call.mark(node, self.state.settings, node.spec)
        return self.state.create(node, call.version, self.driver.clock(), call.effect)

    @route("GET", ZONE + "/nodes", "nodes.list")
    async def list_nodes(self, call: ApiCall) -> Json:
        project, zone = call.project_and_zone
        if zone != "-":
            self.state.check_place(*call.place())
        nodes, unreachable = self.state.listed(project, zone, call.effect)
        rows = [node_json(node, call.version) for node in nodes]
        return call.page("nodes", rows, unreachable_field(project, unreachable))

    @route("GET", NODE, "nodes.get")
    async def get_node(self, call: ApiCall) -> Json:
        shown = node_json(self.state.node(_node_name(call)), call.version)
        if call.effect is not None and call.effect.kind == "few_endpoints" and "networkEndpoints" in shown:
            del shown["networkEndpoints"][call.effect.parameters["endpoints"] :]
        return shown

    @route("DELETE", NODE, "nodes.delete")
    async def delete_node(self, call: ApiCall) -> OperationRecord:
        return self.state.delete(_node_name(call), call.version, self.driver.clock(), call.effect)

    @route("PATCH", NODE, "nodes.patch")
    async def patch_node(self, call: ApiCall) -> OperationRecord:
        name, body, mask = _node_name(call), await call.body(), call.query.get("updateMask", "")
        changes = requests.parse_patch(body, mask, call.version, self.state.node(name).spec)
        return self.state.patch(name, changes, call.version, self.driver.clock(), call.effect)

    @route("POST", NODE + ":{verb:stop|start}", "nodes.{verb}")
    async def change_power(self, call: ApiCall) -> OperationRecord:
        now = self.driver.clock()
        return self.state.change_power(_node_name(call), call.parts["verb"], call.version, now, call.effect)

    @route("POST", NODE + ":getGuestAttributes", "nodes.getGuestAttributes")
    async def guest_attributes(self, call: ApiCall) -> Json:
        node, fields = self.state.node(_node_name(call)), await call.fields()
        workers, query = fields.get("workerIds", []), fields.get("queryPath", "")
        if not isinstance(query, str) or not isinstance(workers, list) or not all(isinstance(w, str) for w in workers):
            raise bad_field("Invalid value at 'query_path' or 'worker_ids'.")
        if node.state != "READY":
            raise api_errors.wrong_state("getGuestAttributes", node.state)
        return guest_attributes_json(node.hosts, workers, query)

    @route("POST", NODE + ":{verb:simulateMaintenanceEvent|performMaintenance}", "nodes.{verb}")
    async def maintain(self, call: ApiCall) -> OperationRecord:
        """Announce maintenance, or begin what was announced. The operation is done at once."""
        name, now, fields = _node_name(call), self.driver.clock(), await call.fields()
        self.state.node(name)
        if call.parts["verb"] == "performMaintenance":
            node = self.state.begin_maintenance(name, now)
        else:
            workers = fields.get("workerIds") or ["0"]
            if not isinstance(workers, list) or not all(isinstance(w, str) and NUMBER.fullmatch(w) for w in workers):
                raise bad_field("Invalid value at 'worker_ids'.")
            notice_s = self.state.settings.notice_s
            node = self.state.maintain(name, now, notice_s=notice_s, workers=[int(worker) for worker in workers[:1]])
        return self.state.completed_operation(node, "update", call.version)

    # --- operations ---------------------------------------------------------------------------------------------------

    @route("GET", ANY_ZONE + "/operations", "operations.list")
    async def list_operations(self, call: ApiCall) -> Json:
        parent, kind = call.parent(), call.effect and call.effect.kind
        rows = [op for op in self.state.operations.values() if op.name.startswith(f"{parent}/operations/")]
        if kind in ("operation_gone", "unreachable"):
            rows = []
        shown = [operation_json(op, call.version) for op in reversed(rows)]
        return call.page("operations", shown, {"unreachable": [parent]} if kind == "unreachable" else None)

    @route("GET", ANY_ZONE + "/operations/{operation}", "operations.get")
    async def get_operation(self, call: ApiCall) -> Json:
        return operation_json(self.state.operation(call.name("operations", "operation"), call.effect), call.version)

    # --- what gcloud asks for besides ---------------------------------------------------------------------------------

    @route("POST", ZONE + ":generateServiceIdentity")
    async def generate_service_identity(self, call: ApiCall) -> Json:
        project, _ = call.place()
        number = requests.project_number(project)
        return {"identity": {"email": f"service-{number}@cloud-tpu.iam.gserviceaccount.com"}}

    @route("GET", V1_NODES)
    async def list_tpu_nodes(self, call: ApiCall) -> Json:
        if call.parts["zone"] != "-":
            call.place()
        return {}

    @route("POST", V1_NODES)
    async def create_tpu_node(self, call: ApiCall) -> Json:
        call.place()
        message = "Your request to provision TPU Node has been denied. Please migrate to TPU VM Architecture."
        raise ApiError("FAILED_PRECONDITION", message)

    @route("GET", V1_NODE)
    @route("DELETE", V1_NODE)
    @route("POST", V1_NODE + ":{verb:stop|start|reimage}")
    async def no_tpu_node(self, call: ApiCall) -> Json:
        raise api_errors.not_found(_node_name(call))


def _node_name(call: ApiCall) -> str:
    return call.name("nodes", "node")


def _location(project: str, zone: str) -> Json:
    return {"name": f"projects/{project}/locations/{zone}", "locationId": zone}


def _accelerator_type(parent: str, name: str) -> Json:
    kind = catalog.lookup(name)
    assert kind is not None, f"the catalog describes {name}"
    config = {"type": kind.api_type, "topology": kind.topology}
    return {"name": f"{parent}/acceleratorTypes/{name}", "type": name, "acceleratorConfigs": [config]}


# The REST routes of queued resources, /v2 and /v2alpha1: each is one call of the queue and one reply of `wire.replies`.

QUEUED = ZONE + "/queuedResources/{queued:[^/:]+}"
RESERVATIONS = "/{version:v2alpha1}/projects/{project}/locations/{zone}/reservations"


class QueueApi(Api):
    """The routes of queued resources and reservations."""

    @route("POST", ZONE + "/queuedResources", "queuedResources.create")
    async def create_queued(self, call: ApiCall) -> OperationRecord:
        project, zone = call.project_and_zone
        requests.check_zone(project, zone)
        body, now = await call.body(), self.driver.clock()
        row = parse_queued(project, zone, call.query.get("queuedResourceId", ""), body, call.version, now)
        for each in row.node_specs:
            reach.check(each.node, project, zone, each.node_ids[0], self.state.settings)
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

"""What the API answers as JSON: nodes, maintenance, guest attributes, queued resources, reservations and operations.

Pure. Enums are names, int64 are strings, times are RFC 3339; nodes differ by the version of the API. Operations are strict,
since google-cloud-tpu refuses an unknown `@type` or field inside them.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cloud_tpu_emulator.model.reach import has_external_address
from cloud_tpu_emulator.model.records import (
    HostRecord,
    Maintenance,
    Node,
    OperationRecord,
    QueuedResource,
    State,
    is_spot,
)
from cloud_tpu_emulator.model.supply import Reservation
from cloud_tpu_emulator.wire.node_schema import NODE, QUEUED_RESOURCE

V2_SCHEDULING = frozenset(NODE["v2"]["schedulingConfig"])


def timestamp(seconds: float) -> str:
    """Return Unix seconds as RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def spec_json(spec: Mapping[str, Any], api_version: str) -> dict[str, Any]:
    """Return a node's spec with the fields that this version of the API has."""
    result = {key: value for key, value in spec.items() if key in NODE.get(api_version, NODE["v2"])}
    scheduling = result.get("schedulingConfig", {})
    if scheduling.get("provisioningModel") == "FLEX_START":  # of a node, the API shows only the end
        result["schedulingConfig"] = scheduling = {k: v for k, v in scheduling.items() if k != "provisioningModel"}
    if api_version == "v2" and not V2_SCHEDULING.issuperset(scheduling):
        result["schedulingConfig"] = {key: scheduling[key] for key in V2_SCHEDULING & scheduling.keys()}
        result["schedulingConfig"]["spot"] = is_spot(spec)
    if api_version == "v2" and "dataDisks" in result:
        result["dataDisks"] = [{k: v for k, v in disk.items() if k != "workerIds"} for disk in result["dataDisks"]]
    return result


def node_json(node: Node, api_version: str) -> dict[str, Any]:
    """Return the Node message."""
    result: dict[str, Any] = {"name": node.name, "state": node.state} | spec_json(node.spec, api_version)
    if node.queued_resource is not None:
        result |= {"queuedResource": node.queued_resource, "multisliceNode": node.multislice}
    result |= {"createTime": timestamp(node.created_at), "id": node.uid, "apiVersion": "V2"}
    if node.state == "READY":
        ongoing = node.maintenance is not None and node.maintenance.ongoing
        result["health"] = "UNHEALTHY_MAINTENANCE" if ongoing else "HEALTHY"
        endpoint: dict[str, Any] = {"ipAddress": "127.0.0.1", "port": 8470}
        if has_external_address(node.spec):
            endpoint["accessConfig"] = {"externalIp": "127.0.0.1"}
        result["networkEndpoints"] = [endpoint for _ in node.hosts]
    if node.maintenance is not None:
        result["upcomingMaintenance"] = maintenance_json(node.maintenance, node.can_reschedule)
    if node.ends_at is not None and api_version == "v2alpha1":
        result["schedulingConfig"] = result["schedulingConfig"] | {"terminationTimestamp": timestamp(node.ends_at)}
    return result


def maintenance_json(planned: Maintenance, can_reschedule: bool) -> dict[str, Any]:
    """Return the UpcomingMaintenance message."""
    return {
        "type": planned.kind,
        "canReschedule": can_reschedule and not planned.ongoing,
        "windowStartTime": timestamp(planned.starts_at),
        "windowEndTime": timestamp(planned.ends_at),
        "latestWindowStartTime": timestamp(planned.starts_at),
        "maintenanceStatus": "ONGOING" if planned.ongoing else "PENDING",
    }


def guest_attributes_json(hosts: Sequence[HostRecord], workers: Sequence[str], query: str) -> dict[str, Any]:
    """Return one entry for each worker, in order; `query` is a namespace, a `namespace/key`, or empty for all."""
    by_name = {str(index): host for index, host in enumerate(hosts)}
    shown = [by_name[w] for w in workers if w in by_name] if any(workers) else hosts  # gcloud sends [""] for all
    entries = []
    for host in shown:
        items = []
        for path, value in sorted(host.attributes.items()):
            namespace, _, key = path.partition("/")
            if query.rstrip("/") in ("", namespace, path):
                items.append({"namespace": namespace, "key": key, "value": value})
        entries.append({"queryPath": query, "queryValue": {"items": items}})
    return {"guestAttributes": entries}


def unreachable_field(project: str, zones: Sequence[str]) -> dict[str, Any]:
    """Return the field of a list that names unreachable zones; empty without any."""
    return {"unreachable": [f"projects/{project}/locations/{zone}" for zone in zones]} if zones else {}


TYPES = "type.googleapis.com/google.cloud.tpu"
DATA = {state: f"{state.lower()}Data" for state in State if state is not State.WAITING}  # which has none


def queued_json(row: QueuedResource, api_version: str) -> dict[str, Any]:
    """Return the QueuedResource message."""
    fields = QUEUED_RESOURCE.get(api_version, QUEUED_RESOURCE["v2"])
    state: dict[str, Any] = {"state": str(row.state)}
    if row.state in DATA:
        state[DATA[row.state]] = {"error": row.failure} if row.state is State.FAILED else {}
    if row.initiator:
        state["stateInitiator"] = row.initiator
    return {
        "name": row.name,
        "createTime": timestamp(row.created_at),
        "tpu": {"nodeSpec": _node_specs(row, api_version)},
        "state": state,
    } | {key: value for key, value in row.spec.items() if key in fields}


def _node_specs(row: QueuedResource, api_version: str) -> list[dict[str, Any]]:
    """Return one spec for each node, also if one spec requested several: gcloud counts and finds them by that."""
    parent = row.name.partition("/queuedResources/")[0]
    return [
        {"parent": parent, "nodeId": node_id, "node": spec_json(spec.node, api_version)}
        for spec in row.node_specs
        for node_id in spec.node_ids
    ]


def reservation_json(one: Reservation, project: str) -> dict[str, Any]:
    """Return the Reservation message."""
    return {
        "name": f"projects/{project}/locations/{one.zone}/reservations/{one.name}",
        "state": "ACTIVE",
        "standard": {"size": str(one.chips), "capacityUnits": "CAPACITY_UNITS_UNSPECIFIED"},
    }


def operation_json(operation: OperationRecord, api_version: str) -> dict[str, Any]:
    """Return the Operation message."""
    metadata: dict[str, Any] = {
        "@type": f"{TYPES}.{api_version}.OperationMetadata",
        "createTime": timestamp(operation.created_at),
        "target": operation.target,
        "verb": operation.verb,
        "cancelRequested": False,
        "apiVersion": operation.api_version,
    }
    result: dict[str, Any] = {"name": operation.name, "metadata": metadata, "done": operation.done}
    if operation.ended_at is None:
        return result
    metadata["endTime"] = timestamp(operation.ended_at)
    match operation.response:
        case _ if operation.error is not None:
            result["error"] = operation.error
        case _ if operation.silent:
            pass
        case Node() as node:
            response = node_json(node, api_version)
            if api_version == "v2":
                # Unknown to google-cloud-tpu, which then refuses the operation.
                response.pop("upcomingMaintenance", None)
            result["response"] = {"@type": f"{TYPES}.{api_version}.Node"} | response
        case QueuedResource() as row:
            result["response"] = {"@type": f"{TYPES}.{api_version}.QueuedResource"} | queued_json(row, api_version)
        case None if api_version == "v2alpha1" and "/queuedResources/" in operation.target:
            # As Google's definition says.
            deleted = {"name": operation.target, "state": {"state": "DELETING", "deletingData": {}}}
            result["response"] = {"@type": f"{TYPES}.{api_version}.QueuedResource"} | deleted
        case None:
            result["response"] = {"@type": "type.googleapis.com/google.protobuf.Empty"}
    return result

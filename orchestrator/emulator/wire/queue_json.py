"""Queued resources, reservations and operations as the API's JSON.

Pure. Operations are strict, since google-cloud-tpu refuses an unknown `@type` or field inside them.
"""

from typing import Any

from orchestrator.emulator.model.queue_records import QueuedResource, State
from orchestrator.emulator.model.records import Node, OperationRecord
from orchestrator.emulator.supply.supply import Reservation
from orchestrator.emulator.wire.node_json import node_json, spec_json, timestamp
from orchestrator.emulator.wire.node_schema import QUEUED_RESOURCE

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

"""Nodes, maintenance and guest attributes as the API's JSON, for each version of the API.

Pure. Enums are names, int64 are strings, times are RFC 3339.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from orchestrator.emulator.model.policies import has_external_address
from orchestrator.emulator.model.records import HostRecord, Maintenance, Node, is_spot
from orchestrator.emulator.wire.node_schema import NODE

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
    named = [by_name[w] for w in workers if w in by_name]
    all_workers = not [w for w in workers if w]  # gcloud sends [""] for all
    entries = []
    for host in hosts if all_workers else named:
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

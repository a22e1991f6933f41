"""Checks requests for queued resources: nodes, tier, times. Returns the queued resource that the queue takes.

Pure, as is `node_request`, which checks each node. Refusals are `ApiError`s.
"""

import re
from datetime import datetime
from typing import Any

from orchestrator import catalog
from orchestrator.emulator.api_errors import bad_field, bad_request
from orchestrator.emulator.model.queue_records import NodeSpec, QueuedResource, State
from orchestrator.emulator.model.records import is_spot
from orchestrator.emulator.supply.demand import FLEX_START, ON_DEMAND, RESERVED, SPOT
from orchestrator.emulator.wire.node_request import check_node_id, parse_node
from orchestrator.emulator.wire.node_schema import QUEUED_RESOURCE, normalise

QUEUE_ID = re.compile(r"[A-Za-z0-9_.~+%-]{1,63}")
MAX_NODES = 256
MAX_RUN_S = 7 * 86400.0
# Tier → what its nodes have in their schedulingConfig.
SCHEDULING = {SPOT: {"spot": True}, RESERVED: {"reserved": True}, FLEX_START: {"provisioningModel": "FLEX_START"}}


def parse_queued(project: str, zone: str, queue_id: str, body: Any, api_version: str, now: float) -> QueuedResource:
    """Return the queued resource, which has no uid before the queue creates it. `now`: Unix seconds. Raises ApiError."""
    if not QUEUE_ID.fullmatch(queue_id):
        raise bad_request(f'Invalid queued resource ID "{queue_id}": it must match {QUEUE_ID.pattern}.')
    request = normalise(QUEUED_RESOURCE[api_version], body, "queued_resource")
    rows = request.pop("tpu", {}).get("nodeSpec", [])
    if not rows:
        raise bad_request("At least one node spec is required.")
    tier = _tier(request)
    specs = [_node_spec(project, zone, queue_id, row, tier, api_version) for row in rows]
    node_ids = [node_id for spec in specs for node_id in spec.node_ids]
    if len(set(node_ids)) < len(node_ids):
        raise bad_request("The node IDs of a queued resource must differ.")
    if len(node_ids) > MAX_NODES:
        raise bad_request(f"A queued resource has at most {MAX_NODES} nodes.")
    if tier == ON_DEMAND and any(is_spot(spec.node) for spec in specs):
        tier = SPOT
    valid_from, valid_until = _interval(request.get("queueingPolicy", {}), now)
    run_s = _run_s(request) if tier == FLEX_START else None
    return QueuedResource(
        *("", project, zone, queue_id, request, specs, tier, State.CREATING, now, valid_from, valid_until, run_s)
    )


def _tier(request: dict[str, Any]) -> str:
    """gcloud alpha sends STANDARD beside `spot`: a named tier takes precedence over the provisioning model."""
    named = [name for name in ("spot", "guaranteed", "bestEffort") if name in request]
    if len(named) > 1:
        raise bad_request(f"Only one tier is possible, not {' and '.join(named)}.")
    model = request.get("provisioningModel", "")
    if "spot" in named or "bestEffort" in named or model == "SPOT":
        return SPOT
    if request.get("reservationName") or model == "RESERVATION_BOUND" or request.get("guaranteed", {}).get("reserved"):
        return RESERVED
    return FLEX_START if model == "FLEX_START" else ON_DEMAND


def _node_spec(project: str, zone: str, queue_id: str, row: dict[str, Any], tier: str, api_version: str) -> NodeSpec:
    parent = f"projects/{project}/locations/{zone}"
    if row.get("parent", parent) != parent:
        raise bad_request(f'The parent of a node spec must be "{parent}", not "{row["parent"]}".')
    multislice = row.get("multisliceParams") or row.get("multiNodeParams")
    if multislice is not None and "nodeId" in row:
        raise bad_request("A node ID and the parameters of several nodes exclude each other.")
    if multislice is None:
        node_ids = [row.get("nodeId", "")]
    else:
        if multislice.get("nodeCount", 0) < 2:
            raise bad_request("The node count of a request for several nodes must be greater than 1.")
        count, prefix = min(multislice["nodeCount"], MAX_NODES + 1), multislice.get("nodeIdPrefix") or queue_id
        node_ids = [f"{prefix}-{index}" for index in range(count)]
    for node_id in node_ids:
        check_node_id(node_id)
    node, kind = parse_node(project, zone, row.get("node", {}), api_version)
    node["schedulingConfig"] |= SCHEDULING.get(tier, {})
    price = None if tier == FLEX_START else catalog.usd_per_hour(kind.name, zone, spot=is_spot(node))
    return NodeSpec(node_ids, node, kind.hosts, price)


def _interval(policy: dict[str, Any], now: float) -> tuple[float, float | None]:
    """Return the Unix seconds between which nodes may be created; None: without end."""
    if len(policy) > 1:
        raise bad_request(f"Only one timing constraint is possible, not {' and '.join(policy)}.")
    match policy:
        case {"validAfterDuration": text}:
            return now + seconds_in(text), None
        case {"validAfterTime": text}:
            return unix_time(text), None
        case {"validUntilDuration": text}:
            return 0.0, now + seconds_in(text)
        case {"validUntilTime": text}:
            return 0.0, unix_time(text)
        case {"validInterval": interval}:
            start = unix_time(interval["startTime"]) if "startTime" in interval else 0.0
            end = unix_time(interval["endTime"]) if "endTime" in interval else None
            if end is not None and end < start:
                raise bad_request("The valid interval ends before it starts.")
            return start, end
    return 0.0, None


def _run_s(request: dict[str, Any]) -> float:
    run = request.get("runDuration", {})
    if "maxRunDuration" not in run:
        raise bad_request("FLEX_START provisioning model needs a max run duration.")
    seconds = seconds_in(run["maxRunDuration"])
    if not 0 < seconds <= MAX_RUN_S:
        raise bad_request("The max run duration must be positive and at most 7 days.")
    return seconds


def seconds_in(text: str) -> float:
    """Return the seconds of a protobuf duration: 1.5 for "1.5s"."""
    return float(text.removesuffix("s"))


def unix_time(text: str) -> float:
    """Return the Unix seconds of an RFC 3339 time. Raises ApiError."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise bad_field(f'"{text}" is not a time.') from None

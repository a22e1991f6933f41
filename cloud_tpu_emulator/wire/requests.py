"""Checks requests: where they come from, their bodies, and what they say of nodes and queued resources.

Returns what the state machine takes. Pure, but for the two functions that read a body; facts come from the catalog. Refusals
are `ApiError`s, with the API's own text where it is known. Headers alone show no more than that a program on this machine may
be asking: `api.every_request` and the metadata servers add a secret, or the answer of the kernel.
"""

import ipaddress
import json
import re
from collections.abc import Collection
from datetime import datetime
from functools import cache
from typing import Any, NoReturn

from aiohttp import web

from cloud_tpu_emulator.faults import api_errors
from cloud_tpu_emulator.faults.api_errors import ApiError, bad_field, bad_request
from cloud_tpu_emulator.model.records import Node, NodeSpec, QueuedResource, State, is_spot
from cloud_tpu_emulator.model.supply import FLEX_START, ON_DEMAND, RESERVED, SPOT, region
from cloud_tpu_emulator.wire.node_schema import NODE, QUEUED_RESOURCE, camel, normalise
from orchestrator import catalog

HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:]+))(?::[0-9]*)?")


def is_loopback(host: str) -> bool:
    """Return whether `host` (as in a Host header, with or without a port) is `localhost` or a loopback address."""
    if (name := _name(host)) == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _name(host: str) -> str:
    found = HOST.fullmatch(host)
    return (found["v6"] or found["name"]).lower() if found else ""


def is_local_program(request: web.BaseRequest, origin: str | None = None, names: Collection[str] = ()) -> bool:
    """Return whether the request has one Host header, which names loopback, and no Origin: no web page sent it.

    `origin`: an Origin that a program sends and no web page can. `names`: other Hosts, none of which a web page can have.
    """
    hosts, origins = request.headers.getall("Host", []), request.headers.getall("Origin", [])
    return len(hosts) == 1 and (is_loopback(hosts[0]) or _name(hosts[0]) in names) and origins in ([], [origin])


MAX_DEPTH = 100  # protobuf's own limit
NUMBER = re.compile(r"[0-9]{1,18}")  # Python refuses to convert more than 4300 digits


async def text_of(request: web.BaseRequest) -> str:
    """Return the body, read as UTF-8, whatever charset a header names. ValueError if it or its transfer encoding is invalid."""
    try:
        return (await request.read()).decode()
    except web.RequestPayloadError as error:
        raise ValueError(str(error)) from None


async def json_object(request: web.Request) -> dict[str, Any]:
    """Return the body; an empty one is an empty object. Raises ApiError if it is not a JSON object."""
    try:
        text = await text_of(request)
        body = json.loads(text, parse_constant=_refuse) if text.strip() else {}
        if "\\u" in text:  # half a surrogate pair cannot be encoded again
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or too deep to be read
        raise bad_field(f"The body is not JSON: {error}.") from None
    if not isinstance(body, dict):
        raise bad_field("The body is not a JSON object.")
    _check_depth(body)
    return body


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number of JSON")


def _check_depth(body: dict[str, Any]) -> None:
    level: list[dict[str, Any] | list[Any]] = [body]
    for _ in range(MAX_DEPTH):
        held = (value.values() if isinstance(value, dict) else value for value in level)
        level = [inner for values in held for inner in values if isinstance(inner, dict | list)]
    if level:
        raise bad_field(f"The body is more than {MAX_DEPTH} levels deep.")


NODE_ID = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]")
MAX_LABELS = 64
MAX_METADATA_BYTES = 256 * 1024
PATCHABLE = ("description", "labels", "metadata", "tags", "dataDisks", "networkConfig.enableExternalIps")
# Runtimes besides each generation's default, and which generations they fit; gcloud lists them, and old scripts use them.
# Google told a user to take v5p's for v5e (pytorch/xla issue 8295).
OTHER_RUNTIMES = {
    "tpu-vm-base": {"v2", "v3"},
    "tpu-vm-v4-base": {"v4"},
    "tpu-vm-tf-2.17.0-pjrt": {"v2", "v3", "v4", "v5e", "v5p"},
    "v2-alpha-tpuv5": {"v5e"},
}


@cache
def runtimes() -> dict[str, set[str]]:
    """Return the names of all runtime versions in order, each with the generations that it fits."""
    found = {name: set(generations) for name, generations in OTHER_RUNTIMES.items()}
    for kind in filter(None, map(catalog.lookup, catalog.types())):
        if kind.in_cloud_tpu_api:
            found.setdefault(kind.default_runtime, set()).add(kind.generation)
    return dict(sorted(found.items()))


def check_location(project: str, zone: str) -> None:
    """Raise ApiError for an unknown location: forbidden, not absent. For every call that creates nothing."""
    if zone not in catalog.zones():
        raise api_errors.location_denied(project, zone)


def check_zone(project: str, zone: str) -> None:
    """Raise ApiError for a zone without TPUs: a bad request. For calls that create."""
    if zone not in catalog.zones():
        if ZONE.fullmatch(zone) is None:
            raise api_errors.location_denied(project, zone)
        raise bad_request(f'The requested zone "{zone}" is not supported.')


def parse_create(project: str, zone: str, node_id: str, body: Any, api_version: str) -> Node:
    """Return the node, which has no uid before the cloud creates it; `body` is a Node message. Raises ApiError."""
    check_zone(project, zone)
    check_node_id(node_id)
    spec, kind = parse_node(project, zone, body, api_version)
    price = catalog.usd_per_hour(kind.name, zone, spot=is_spot(spec))
    return Node("", project, zone, node_id, spec, kind.hosts, usd_per_hour=price)


def check_node_id(node_id: str) -> None:
    """Raise ApiError if the API does not allow this id."""
    if not NODE_ID.fullmatch(node_id):
        raise bad_request(
            f'Invalid node ID "{node_id}": it must start with a lower-case letter, followed by up to 62 lower-case '
            "letters, digits or hyphens, and must not end with a hyphen."
        )


def parse_node(project: str, zone: str, body: Any, api_version: str) -> tuple[dict[str, Any], catalog.AcceleratorType]:
    """Return a checked Node message, with defaults, and its accelerator type. Raises ApiError."""
    spec = normalise(NODE[api_version], body, "node")
    _check_fields(spec)
    kind = _accelerator(spec, zone)
    if not spec.get("runtimeVersion"):
        raise bad_request("The runtime version is required.")
    if spec["runtimeVersion"] not in runtimes():
        raise bad_request(f'The runtime version "{spec["runtimeVersion"]}" could not be found in zone "{zone}".')
    if kind.generation not in runtimes()[spec["runtimeVersion"]]:
        raise bad_request(f'The runtime version "{spec["runtimeVersion"]}" does not support "{kind.name}".')
    spec["acceleratorType"] = kind.name
    spec["acceleratorConfig"] = {"type": kind.api_type, "topology": kind.topology}
    _fill_defaults(spec, project, zone)
    return spec, kind


def parse_patch(body: Any, mask: str, api_version: str, before: dict[str, Any]) -> dict[str, Any]:
    """Return the fields to replace in the spec `before`. gcloud sends the whole node, google-cloud-tpu what is set.

    Raises ApiError.
    """
    fields = [camel(name.strip()) for name in mask.split(",") if name.strip()]
    if not fields:
        raise ApiError("INVALID_ARGUMENT", "The update mask is required.")
    for name in fields:
        if name not in PATCHABLE:
            raise bad_request(f'Field "{name}" can not be updated; the update mask may name {", ".join(PATCHABLE)}.')
    spec = normalise(NODE[api_version], body, "node")
    _check_fields(spec)
    return dict(_replaced(name, spec, before) for name in fields)


def _replaced(name: str, spec: dict[str, Any], before: dict[str, Any]) -> tuple[str, Any]:
    """Return a field; for a dotted name the outer field, in which only the inner one changes."""
    outer, _, inner = name.partition(".")
    if not inner:
        return outer, spec.get(outer)
    return outer, before.get(outer, {}) | {inner: spec.get(outer, {}).get(inner, False)}


def _accelerator(spec: dict[str, Any], zone: str) -> catalog.AcceleratorType:
    name, config = spec.get("acceleratorType"), spec.get("acceleratorConfig", {})
    if name is None and not config:
        raise bad_request("Either an accelerator type or an accelerator configuration is required.")
    if name is None:
        name = f"{config.get('type')} {config.get('topology')}"
        for candidate in catalog.types_in_zone(zone):
            kind = catalog.lookup(candidate)
            if kind and (kind.api_type, kind.topology) == (config.get("type"), config.get("topology")):
                return kind
    kind = catalog.lookup(name)
    if kind is None or name not in catalog.types_in_zone(zone):
        raise api_errors.type_not_in_zone(name, zone)
    fits = {"type": (kind.api_type, "TYPE_UNSPECIFIED"), "topology": (kind.topology, "")}
    if others := [value for key, value in config.items() if value not in fits[key]]:
        raise bad_request(f'The accelerator type "{name}" and the accelerator config ({", ".join(others)}) differ.')
    return kind


def _check_fields(spec: dict[str, Any]) -> None:
    labels, metadata = spec.get("labels", {}), spec.get("metadata", {})
    if len(labels) > MAX_LABELS:
        raise bad_request(f"At most {MAX_LABELS} labels are allowed.")
    for key, value in labels.items():
        if not LABEL_KEY.fullmatch(key):
            raise bad_request(f'Invalid label key "{key}": it must match {LABEL_KEY.pattern}.')
        if not LABEL_VALUE.fullmatch(value):
            raise bad_request(f'Invalid value "{value}" of label "{key}": it must match {LABEL_VALUE.pattern}.')
    if sum(len(key) + len(value.encode()) for key, value in metadata.items()) > MAX_METADATA_BYTES:
        raise bad_request(f"The metadata are larger than {MAX_METADATA_BYTES} bytes.")
    if len(spec.get("description", "")) > 512:
        raise bad_request("The description is longer than 512 characters.")


def _fill_defaults(spec: dict[str, Any], project: str, zone: str) -> None:
    network = spec.setdefault("networkConfig", {"enableExternalIps": True})
    for key, path in (("network", "global/networks"), ("subnetwork", f"regions/{region(zone)}/subnetworks")):
        name = network.get(key) or "default"
        network[key] = name if "/" in name else f"projects/{project}/{path}/{name}"
    account = spec.setdefault("serviceAccount", {})
    account.setdefault("email", f"{project_number(project)}-compute@developer.gserviceaccount.com")
    account["scope"] = account.get("scope") or ["https://www.googleapis.com/auth/cloud-platform"]
    spec.setdefault("schedulingConfig", {})


def project_number(project: str) -> int:
    """Return a stable twelve-digit number in place of the project's own."""
    number = 0
    for byte in project.encode():
        number = (number * 257 + byte) % 900_000_000_000
    return 100_000_000_000 + number


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

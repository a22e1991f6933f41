"""Checks requests about nodes: names, zones, accelerator types, labels, masks. Returns what the state machine takes.

Pure; facts come from the catalog. Refusals are `ApiError`s, with the API's own text where it is known.
"""

import re
from functools import cache
from typing import Any

from orchestrator import catalog
from orchestrator.emulator import api_errors
from orchestrator.emulator.api_errors import ApiError, bad_request
from orchestrator.emulator.model.records import Node, is_spot
from orchestrator.emulator.supply.demand import region
from orchestrator.emulator.wire.node_schema import NODE, camel, normalise

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
        known_form = ZONE.fullmatch(zone) is not None
        raise api_errors.zone_not_supported(zone) if known_form else api_errors.location_denied(project, zone)


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

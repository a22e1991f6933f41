"""The Node and QueuedResource messages as data: the fields that requests may have, and how each one is normalised.

Clients differ: gcloud sends camelCase names, google-cloud-tpu numbers for enums, hand-written scripts snake_case.
`normalise` accepts all of these, returns camelCase and enum names, and refuses unknown fields with the API's own text.
"""

import re
from typing import Any

from cloud_tpu_emulator.faults.api_errors import bad_field

Kind = Any  # "string" | "bool" | "int" | "duration" | "time" | "map" | Enum | [Kind] | {field: Kind}


class Enum(dict[int, str]):
    """Number -> name of one proto enum."""


ACCELERATOR = Enum({0: "TYPE_UNSPECIFIED", 2: "V2", 4: "V3", 7: "V4", 9: "V5LITE_POD", 10: "V5P", 11: "V6E"})
DISK_MODE = Enum({0: "DISK_MODE_UNSPECIFIED", 1: "READ_WRITE", 2: "READ_ONLY"})
NODE_MODEL = Enum({0: "PROVISIONING_MODEL_UNSPECIFIED", 1: "STANDARD", 2: "SPOT", 3: "RESERVATION_BOUND"})
PROVISIONING_MODEL = Enum({**NODE_MODEL, 4: "FLEX_START"})
WORKLOAD: dict[str, Kind] = {
    "workloadType": Enum({0: "WORKLOAD_TYPE_UNSPECIFIED", 1: "THROUGHPUT_OPTIMIZED", 2: "AVAILABILITY_OPTIMIZED"})
}
IGNORED = "ignored"  # output only: clients send whole nodes back; the API ignores these

_NETWORK: dict[str, Kind] = {
    "network": "string",
    "subnetwork": "string",
    "enableExternalIps": "bool",
    "canIpForward": "bool",
    "queueCount": "int",
}
_SCHEDULING: dict[str, Kind] = {"preemptible": "bool", "reserved": "bool", "spot": "bool"}
_V2: dict[str, Kind] = {
    "description": "string",
    "acceleratorType": "string",
    "acceleratorConfig": {"type": ACCELERATOR, "topology": "string"},
    "runtimeVersion": "string",
    "networkConfig": _NETWORK,
    "networkConfigs": [_NETWORK],
    "cidrBlock": "string",
    "serviceAccount": {"email": "string", "scope": ["string"]},
    "schedulingConfig": _SCHEDULING,
    "labels": "map",
    "metadata": "map",
    "tags": ["string"],
    "dataDisks": [{"sourceDisk": "string", "mode": DISK_MODE}],
    "shieldedInstanceConfig": {"enableSecureBoot": "bool"},
} | dict.fromkeys(
    (
        *("name", "state", "healthDescription", "createTime", "networkEndpoints", "health", "id", "apiVersion"),
        *("symptoms", "queuedResource", "multisliceNode", "upcomingMaintenance"),
    ),
    IGNORED,
)
NODE: dict[str, dict[str, Kind]] = {
    "v2": _V2,
    "v2alpha1": _V2
    | {
        "autocheckpointEnabled": "bool",
        "dataDisks": [{"sourceDisk": "string", "mode": DISK_MODE, "workerIds": ["string"]}],
        "bootDiskConfig": {"customerEncryptionKey": {"kmsKeyName": "string"}, "enableConfidentialCompute": "bool"},
        "schedulingConfig": _SCHEDULING
        | {
            "provisioningModel": NODE_MODEL,
            "reservationName": "string",
            "maxRunDuration": IGNORED,
            "terminationTimestamp": IGNORED,
        },
    },
}


_SEVERAL: dict[str, Kind] = {"nodeCount": "int", "nodeIdPrefix": "string"}
_POLICY: dict[str, Kind] = {
    "validUntilDuration": "duration",
    "validUntilTime": "time",
    "validAfterDuration": "duration",
    "validAfterTime": "time",
    "validInterval": {"startTime": "time", "endTime": "time"},
}


def _queued(api_version: str, **more: Kind) -> dict[str, Kind]:
    several = {"multisliceParams": _SEVERAL} if api_version == "v2" else {"multiNodeParams": _SEVERAL | WORKLOAD}
    node_spec = {"parent": "string", "nodeId": "string", "node": NODE[api_version]} | several
    tiers = {"spot": {}, "guaranteed": {"minDuration": "duration", "reserved": "bool"}}
    return dict.fromkeys(("name", "createTime", "state"), IGNORED) | tiers | {
        "tpu": {"nodeSpec": [node_spec]},
        "queueingPolicy": _POLICY,
        "reservationName": "string",
    } | more  # fmt: skip


QUEUED_RESOURCE: dict[str, dict[str, Kind]] = {
    "v2": _queued("v2"),
    "v2alpha1": _queued(
        "v2alpha1",
        bestEffort={},
        provisioningModel=PROVISIONING_MODEL,
        runDuration={"maxRunDuration": "duration", "terminationTime": "time"},
        trafficConfig=IGNORED,
    ),
}
_TEXTS = {
    "duration": re.compile(r"\d{1,12}(\.\d{1,9})?s"),
    "time": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)"),
}


def camel(name: str) -> str:
    """Return nodeId for node_id; camelCase names as they are."""
    return re.sub(r"_([a-z0-9])", lambda match: match.group(1).upper(), name)


def normalise(kind: Kind, value: Any, at: str) -> Any:
    """Return the normalised form of `value`. `at` is its place in the request. Raises ApiError."""
    match kind:
        case Enum():
            return _enum(kind, value, at)
        case dict():
            return _message(kind, value, at)
        case [inner]:
            if not isinstance(value, list):
                raise bad_field(f"Invalid value at '{at}': a list is expected.")
            return [normalise(inner, item, f"{at}[{index}]") for index, item in enumerate(value)]
        case "map":
            if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
                raise bad_field(f"Invalid value at '{at}': a map of strings to strings is expected.")
            return dict(value)
        case _:
            return _scalar(kind, value, at)


def _message(fields: dict[str, Kind], value: Any, at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad_field(f"Invalid value at '{at}': an object is expected.")
    result: dict[str, Any] = {}
    for key, item in value.items():
        name = camel(key)
        if name not in fields:
            raise bad_field(f"Unknown name \"{key}\" at '{at}': Cannot find field.")
        if item is not None and fields[name] != IGNORED:
            result[name] = normalise(fields[name], item, f"{at}.{key}")
    return result


def _enum(kind: Enum, value: Any, at: str) -> str:
    if isinstance(value, str) and value in kind.values():
        return value
    if isinstance(value, int) and value in kind:
        return kind[value]
    raise bad_field(f"Invalid value at '{at}': \"{value}\" is none of {', '.join(kind.values())}.")


def _scalar(kind: str, value: Any, at: str) -> Any:
    match kind, value:
        case ("string", str()) | ("bool", bool()):
            return value
        case "duration" | "time", str() if _TEXTS[kind].fullmatch(value):
            return value
        case "int", int() if not isinstance(value, bool):
            return value
        case "int", str() if re.fullmatch(r"-?\d{1,18}", value):  # int64 travels as a string in JSON
            return int(value)
    raise bad_field(f"Invalid value at '{at}': a {kind} is expected.")

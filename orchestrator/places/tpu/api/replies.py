"""Replies of the API about nodes, operations and workers, read into the values of `promise.lease.cloud_api`. Pure.

It reads the JSON, not generated messages: those reject a whole reply for one type name that is newer than themselves, and
importing them takes most of a small process's memory.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from orchestrator import catalog
from orchestrator.errors import CapacityError, CloudError, CloudUnavailable, UnexpectedReply, WrongState
from orchestrator.places.google import error_translation
from orchestrator.places.google.known_errors import OTHER_ZONE
from orchestrator.promise.lease.cloud_api import CREATE, Operation, SliceState, SliceView, WorkerAddress
from orchestrator.promise.lease.lease import SliceName

T = TypeVar("T")

_NODE = re.compile(r"projects/[^/]+/locations/([^/]+)/nodes/([^/]+)")
_QUEUED = re.compile(r"projects/[^/]+/locations/([^/]+)/queuedResources/([^/]+)")
OPERATION = re.compile(r"projects/[^/]+/locations/[^/]+/operations/[^/]+")
_KEY = re.compile(r"[A-Za-z0-9+/]{40,}={0,2}")
_LOOPBACK = re.compile(r"127\.\d+\.\d+\.\d+|::1")
HOST_KEY = "hostkeys/ssh-ed25519"
HOST_NAME = "hostkeys/hostname"
_NUMBER = re.compile(r"[^.]*-w-([0-9]{1,6})(?:\..*)?")  # alone, or with the domain
_INSTANCE = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
EMULATED_PORT = "tpujob-emulator/ssh-port"
DEADLINE_EXCEEDED = 4  # google.rpc.Code

# The API's number of a state → its name there, and what it means here.
_NODE_STATES = {
    0: ("STATE_UNSPECIFIED", SliceState.UNKNOWN),
    1: ("CREATING", SliceState.CREATING),
    2: ("READY", SliceState.READY),
    3: ("RESTARTING", SliceState.CREATING),
    4: ("REIMAGING", SliceState.CREATING),
    5: ("DELETING", SliceState.DELETING),
    6: ("REPAIRING", SliceState.UNKNOWN),
    8: ("STOPPED", SliceState.STOPPED),
    9: ("STOPPING", SliceState.STOPPING),
    10: ("STARTING", SliceState.CREATING),
    11: ("PREEMPTED", SliceState.TOMBSTONE),
    12: ("TERMINATED", SliceState.TOMBSTONE),
    13: ("HIDING", SliceState.UNKNOWN),
    14: ("HIDDEN", SliceState.UNKNOWN),
    15: ("UNHIDING", SliceState.UNKNOWN),
    16: ("UNKNOWN", SliceState.UNKNOWN),
}
_QUEUE_STATES = {
    0: ("STATE_UNSPECIFIED", SliceState.UNKNOWN),
    1: ("CREATING", SliceState.QUEUED),
    2: ("ACCEPTED", SliceState.QUEUED),
    3: ("PROVISIONING", SliceState.CREATING),
    4: ("FAILED", SliceState.TOMBSTONE),
    5: ("DELETING", SliceState.DELETING),
    6: ("ACTIVE", SliceState.CREATING),  # of a request whose node is not visible yet
    7: ("SUSPENDING", SliceState.DELETING),
    8: ("SUSPENDED", SliceState.TOMBSTONE),
    9: ("WAITING_FOR_RESOURCES", SliceState.QUEUED),
}
STATES, QUEUE_STATES = dict(_NODE_STATES.values()), dict(_QUEUE_STATES.values())
WITHOUT_ADDRESSES = (SliceState.STOPPING, SliceState.STOPPED, SliceState.DELETING, SliceState.TOMBSTONE)
_NO_HEALTH = "HEALTH_UNSPECIFIED"
_HEALTH_NUMBERS = {0: _NO_HEALTH, 1: "HEALTHY", 3: "TIMEOUT", 4: "UNHEALTHY_TENSORFLOW", 5: "UNHEALTHY_MAINTENANCE"}


def slice_view(reply: Mapping[str, Any], asked: SliceName) -> SliceView:
    """Return a node as a slice; `asked` has its project, and whether the caller's slice is queued. Raises UnexpectedReply."""
    match = _name_parts(reply, _NODE, "node")
    native_state, kind = _state(reply, _NODE_STATES), _typed(reply, "acceleratorType", str, "")
    state, hosts = STATES.get(native_state, SliceState.UNKNOWN), _hosts(reply)
    if state is SliceState.READY and len(hosts) < (wanted := _workers(kind)):
        state, native_state = SliceState.CREATING, f"READY with {len(hosts)} of {wanted} workers"
    health = _enum(reply, "health", _HEALTH_NUMBERS, _NO_HEALTH)
    scheduling = _typed(reply, "schedulingConfig", dict, {})
    return SliceView(
        name=SliceName(asked.project, match[1], match[2], asked.queued or _has_own_request(reply, match[2])),
        state=state,
        native_state=native_state,
        accelerator_type=kind,
        runtime_version=_typed(reply, "runtimeVersion", str, ""),
        labels=_labels(reply),
        created_at=_time(reply, "createTime"),
        spot=bool(scheduling.get("spot") or scheduling.get("preemptible")),
        health=None if health == _NO_HEALTH else health,
        deadline=_time(scheduling, "terminationTimestamp"),
        hosts=hosts,
    )


def queue_view(reply: Mapping[str, Any], asked: SliceName) -> SliceView:
    """Return a queued resource without a node as a slice; its first node specification describes the slice."""
    match = _name_parts(reply, _QUEUED, "queued resource")
    state = _typed(reply, "state", dict, {})
    native_state = _state(state, _QUEUE_STATES)
    specs = _typed(_typed(reply, "tpu", dict, {}), "nodeSpec", list, [])
    node = _typed(specs[0], "node", dict, {}) if specs and isinstance(specs[0], dict) else {}
    return SliceView(
        name=SliceName(asked.project, match[1], match[2], queued=True),
        state=QUEUE_STATES.get(native_state, SliceState.UNKNOWN),
        native_state=native_state,
        accelerator_type=_typed(node, "acceleratorType", str, ""),
        runtime_version=_typed(node, "runtimeVersion", str, ""),
        labels=_labels(node),
        created_at=_time(reply, "createTime"),
        spot=reply.get("spot") is not None or reply.get("provisioningModel") == "SPOT",
        error=_why_failed(state, match[0]) if native_state == "FAILED" else None,
    )


def _name_parts(reply: Mapping[str, Any], pattern: re.Pattern[str], kind: str) -> re.Match[str]:
    """The zone and the id in the full name. Raises UnexpectedReply."""
    name = reply.get("name")
    match = pattern.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        message = f"the API listed a {kind} with the unexpected name {name!r:.200}"
        raise UnexpectedReply(message, details=dict(reply))
    return match


def _workers(accelerator_type: str) -> int:
    """How many a slice of this type has; 0: not known."""
    kind = catalog.lookup(accelerator_type)
    return kind.hosts if kind else 0


def _has_own_request(node: Mapping[str, Any], node_id: str) -> bool:
    """Whether the node comes from a queued resource of its own name; one of another name cannot be addressed."""
    match = _QUEUED.fullmatch(_typed(node, "queuedResource", str, ""))
    return match is not None and match[2] == node_id


def _why_failed(state: Mapping[str, Any], name: str) -> CloudError:
    status = _typed(_typed(state, "failedData", dict, {}), "error", dict, {})
    if not status:
        return UnexpectedReply("the queued request failed, and the API does not say why", details=dict(state))
    error = error_translation.operation_error(status, name)
    if status.get("code") == DEADLINE_EXCEEDED and not isinstance(error, CapacityError):
        # The time of the request passed without capacity.
        return CapacityError(error.message, hint=OTHER_ZONE, details=error.details)
    return error


def _labels(node: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): _text(node, value) for key, value in _typed(node, "labels", dict, {}).items()}


def operation(reply: Mapping[str, Any]) -> Operation:
    """Return the operation in a reply. Raises UnexpectedReply."""
    name, metadata, error = reply.get("name"), reply.get("metadata"), reply.get("error")
    if not isinstance(name, str) or not OPERATION.fullmatch(name):
        raise UnexpectedReply("the API answered something that is not an operation", details=dict(reply))
    metadata = metadata if isinstance(metadata, dict) else {}
    return Operation(
        name=name,
        done=reply.get("done") is True,
        verb=verb_of(str(metadata.get("verb", ""))),
        target=str(metadata.get("target", "")),
        error=error_translation.operation_error(error, name) if isinstance(error, dict) else None,
    )


def verb_of(text: str) -> str:
    """Return the verb of an operation: CREATE for those that create a node or a request."""
    return CREATE if text.lower() in ("createnode", "createqueuedresource") else text.lower()


def addresses(reply: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the address of every worker of a node, in order.

    Raises CloudUnavailable until all have one, WrongState in a state in which they get none.
    """
    hosts = _hosts(reply)
    wanted = max(1, len(hosts), _workers(_typed(reply, "acceleratorType", str, "")))
    if (have := sum(map(bool, hosts))) < wanted:
        name, state = str(reply.get("name", "")).rpartition("/")[2], str(reply.get("state", ""))
        if STATES.get(state) in WITHOUT_ADDRESSES:
            raise WrongState(f"{name} has no addresses while in state {state}")
        raise CloudUnavailable(f"{name} has {f'{have} of {wanted}' if have else 'no'} addresses yet")
    return hosts


def worker_addresses(
    reply: Mapping[str, Any], published: Sequence[Mapping[str, str]], *, emulated: bool
) -> tuple[WorkerAddress, ...]:
    """Return the workers of a node. Endpoints are in worker order; published attributes belong to the worker whose number is
    in their host name (`…-w-3`).

    If no host name has a number, the attributes are taken in order, and only if there is one set for each worker. Raises
    UnexpectedReply if two sets name one worker: without its host key `hosts` would trust any machine that answers.
    """
    hosts = addresses(reply)
    sets = _by_worker(published, len(hosts))
    internal = [_typed(endpoint, "ipAddress", str, "") for endpoint in reply["networkEndpoints"]]
    for address in filter(None, (*hosts, *internal)):  # they become words of commands: ssh, and `ssh_proxy_command`
        if not _is_address(address):
            raise UnexpectedReply(f"the API answered a worker's address that is none: {address[:80]!r}")
    return tuple(_worker(index, *each, emulated) for index, each in enumerate(zip(hosts, internal, sets, strict=True)))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text  # the scope of an IPv6 address may be any text


def _by_worker(published: Sequence[Mapping[str, str]], workers: int) -> Sequence[Mapping[str, str]]:
    sets: dict[int, Mapping[str, str]] = {}
    for entry in published:
        number = _NUMBER.fullmatch(entry.get(HOST_NAME, ""))
        if number is not None and sets.setdefault(int(number[1]), entry) is not entry:
            raise UnexpectedReply(f"two VMs of the slice publish that they are worker {int(number[1])}", details=entry)
    if not sets and len(published) == workers:
        return published
    return [sets.get(index, {}) for index in range(workers)]


def _worker(index: int, host: str, internal: str, published: Mapping[str, str], emulated: bool) -> WorkerAddress:
    key = published.get(HOST_KEY, "").strip().removeprefix("ssh-ed25519 ").partition(" ")[0]
    if key and not _KEY.fullmatch(key):
        raise UnexpectedReply(f"worker {index} published an invalid host key", details=key[:200])
    host_key = f"ssh-ed25519 {key}" if key else None
    instance = published.get(HOST_NAME, "").partition(".")[0]
    if not _INSTANCE.fullmatch(instance):
        instance = ""
    if not emulated:
        return WorkerAddress(index, host, host_key=host_key, internal=internal, instance=instance)
    port = published.get(EMULATED_PORT, "")
    if not _LOOPBACK.fullmatch(host) or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise UnexpectedReply(f"the emulator published no loopback address for worker {index}: {host!r}, {port!r}")
    return WorkerAddress(index, host, int(port), host_key, internal, instance)


def attributes(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return one worker's guest attributes, by `namespace/key`. Raises UnexpectedReply."""
    items = _typed(_typed(entry, "queryValue", dict, {}), "items", list, [])
    if not all(isinstance(item, dict) for item in items):
        raise UnexpectedReply("the API answered guest attributes that are not objects", details=dict(entry))
    return {f"{item.get('namespace', '')}/{item.get('key', '')}": _text(entry, item.get("value", "")) for item in items}


def _hosts(reply: Mapping[str, Any]) -> tuple[str, ...]:
    endpoints = _typed(reply, "networkEndpoints", list, [])
    if not all(isinstance(endpoint, dict) for endpoint in endpoints):
        raise UnexpectedReply("the API answered network endpoints that are not objects", details=dict(reply))
    return tuple(
        _typed(_typed(endpoint, "accessConfig", dict, {}), "externalIp", str, "")
        or _typed(endpoint, "ipAddress", str, "")
        for endpoint in endpoints
    )


def _state(reply: Mapping[str, Any], states: Mapping[int, tuple[str, SliceState]]) -> str:
    return _enum(reply, "state", {number: name for number, (name, _) in states.items()}, "STATE_UNSPECIFIED")


def _enum(reply: Mapping[str, Any], field: str, numbers: Mapping[int, str], unset: str) -> str:
    """An enum's name. Google's own client requests numbers instead; one that is newer than this table stays a number."""
    written = reply.get(field)
    if written is None:
        return unset
    return numbers.get(written, str(written)) if isinstance(written, int) else str(written)


def _time(reply: Mapping[str, Any], field: str) -> float | None:
    """Unix seconds of a time in RFC 3339; None if there is none."""
    text = _typed(reply, field, str, "")
    if not text:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise UnexpectedReply(f"the API answered {field} {text[:100]!r}, which is not a time", details=dict(reply))
    return when.timestamp()


def _typed(reply: Mapping[str, Any], field: str, kind: type[T], default: T) -> T:
    """A field's value; the default if it is missing or null. Raises UnexpectedReply for another type."""
    value = reply.get(field)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise UnexpectedReply(
            f"the API answered {field} {str(value)[:100]!r}: not a {kind.__name__}", details=dict(reply)
        )
    return value


def _text(reply: Mapping[str, Any], value: object) -> str:
    if not isinstance(value, str):
        raise UnexpectedReply(f"the API answered {str(value)[:100]!r} instead of text", details=dict(reply))
    return value

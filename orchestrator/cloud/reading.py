"""What the API says about nodes, operations and workers, read into our vocabulary. Pure; only `tpu_api` calls me.

Nodes arrive as protobuf messages; operations as plain JSON, because the generated parser refuses a whole operation (or a
whole list of them) for one type name that is newer than itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.cloud import translate
from orchestrator.core.slices import Operation, SliceName, SliceState, SliceView, WorkerAddress
from orchestrator.errors import CloudUnavailable, UnexpectedReply

_NODE = re.compile(r"projects/[^/]+/locations/([^/]+)/nodes/([^/]+)")
_OPERATION = re.compile(r"projects/[^/]+/locations/[^/]+/operations/[^/]+")
_KEY = re.compile(r"[A-Za-z0-9+/]{40,}={0,2}")
_LOOPBACK = re.compile(r"127\.\d+\.\d+\.\d+|::1")
HOST_KEY = "hostkeys/ssh-ed25519"
EMULATED_PORT = "tpujob-emulator/ssh-port"

STATES = {
    "CREATING": SliceState.CREATING,
    "STARTING": SliceState.CREATING,
    "RESTARTING": SliceState.CREATING,
    "REIMAGING": SliceState.CREATING,
    "READY": SliceState.READY,
    "STOPPING": SliceState.STOPPING,
    "STOPPED": SliceState.STOPPED,
    "DELETING": SliceState.DELETING,
    "PREEMPTED": SliceState.TOMBSTONE,
    "TERMINATED": SliceState.TOMBSTONE,
}


def slice_view(node: Any, said: Mapping[str, Any], asked: SliceName) -> SliceView:
    """`node` is the message, `said` the same node as JSON: it still has the name of a state that the message lacks."""
    match = _NODE.fullmatch(node.name)
    if match is None:
        raise UnexpectedReply(f"the API listed a node with the odd name {node.name[:200]!r}", details=dict(said))
    native_state = _word(node, "state", said)
    health = _word(node, "health", said)
    return SliceView(
        name=SliceName(asked.project, match[1], match[2]),
        state=STATES.get(native_state, SliceState.UNKNOWN),
        native_state=native_state,
        accelerator_type=node.accelerator_type,
        runtime_version=node.runtime_version,
        labels=dict(node.labels),
        created_at=node.create_time.seconds + node.create_time.nanos / 1e9 if node.HasField("create_time") else None,
        spot=node.scheduling_config.spot or node.scheduling_config.preemptible,
        health=None if health == "HEALTH_UNSPECIFIED" else health,
        hosts=_hosts(node),
    )


def operation(said: Mapping[str, Any]) -> Operation:
    name, metadata, error = said.get("name"), said.get("metadata"), said.get("error")
    if not isinstance(name, str) or not _OPERATION.fullmatch(name):
        raise UnexpectedReply("the API answered something that is not an operation", details=dict(said))
    metadata = metadata if isinstance(metadata, dict) else {}
    return Operation(
        name=name,
        done=said.get("done") is True,
        verb=str(metadata.get("verb", "")),
        target=str(metadata.get("target", "")),
        error=translate.operation_error(error) if isinstance(error, dict) else None,
    )


def worker_addresses(node: Any, entries: Sequence[Any], *, emulated: bool) -> tuple[WorkerAddress, ...]:
    """Endpoints are in worker order. Published attributes count only when there is one set for each worker."""
    hosts = _hosts(node)
    if not hosts or not all(hosts):
        raise CloudUnavailable(f"{node.name.rpartition('/')[2]} has no addresses yet")
    published = [attributes(entry) for entry in entries] if len(entries) == len(hosts) else [{} for _ in hosts]
    return tuple(_worker(index, host, published[index], emulated) for index, host in enumerate(hosts))


def _worker(index: int, host: str, published: Mapping[str, str], emulated: bool) -> WorkerAddress:
    key = published.get(HOST_KEY, "").strip().removeprefix("ssh-ed25519 ").partition(" ")[0]
    if key and not _KEY.fullmatch(key):
        raise UnexpectedReply(f"worker {index} published a host key that is none", details=key[:200])
    host_key = f"ssh-ed25519 {key}" if key else None
    if not emulated:
        return WorkerAddress(index, host, host_key=host_key)
    port = published.get(EMULATED_PORT, "")
    if not _LOOPBACK.fullmatch(host) or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise UnexpectedReply(f"the emulator published no loopback address for worker {index}: {host!r}, {port!r}")
    return WorkerAddress(index, host, int(port), host_key)


def attributes(entry: Any) -> dict[str, str]:
    """One worker's guest attributes, by `namespace/key`."""
    return {f"{item.namespace}/{item.key}": item.value for item in entry.query_value.items}


def _hosts(node: Any) -> tuple[str, ...]:
    return tuple(endpoint.access_config.external_ip or endpoint.ip_address for endpoint in node.network_endpoints)


def _word(node: Any, field: str, said: Mapping[str, Any]) -> str:
    """An enum's name; for a value that is newer than the message, what the API wrote."""
    number = getattr(node, field)
    known = node.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number.get(number)
    written = said.get(field)
    if known is None or (number == 0 and isinstance(written, str)):
        return str(written if written is not None else number)
    return str(known.name)

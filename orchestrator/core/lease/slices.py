"""The vocabulary between the engine and any provisioning API: slices, workers, operations, listings.

Nothing here speaks of HTTP or of a Node's fields. `cloud/` translates an API into these values, `engine/` decides on
them, `remote/` connects to the workers in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from orchestrator.core.lease.timings import GOOGLE, Timings
from orchestrator.errors import CloudError

T = TypeVar("T")

EVERYWHERE = "-"  # in the place of a zone, for `list`: all zones of the project at once


class SliceState(StrEnum):
    """What a slice's life looks like to us. Absence is not a state: `Cloud.get` answers None for it."""

    QUEUED = "queued"  # a queued request waits for capacity: nothing is made yet, nothing is billed
    CREATING = "creating"  # also starting and restarting: will become READY by itself
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DELETING = "deleting"
    TOMBSTONE = "tombstone"  # preempted, terminated, or its request failed: listed, holds name and quota until deleted
    UNKNOWN = "unknown"  # repairing, hidden, or a state newer than this program


@dataclass(frozen=True)
class SliceName:
    """Where a slice lives. `node` is chosen by us, written down before the create call, and never used twice.

    A `queued` slice is a queued resource and the node that comes of it, both under this one id.
    """

    project: str
    zone: str
    node: str
    queued: bool = False


@dataclass(frozen=True)
class QueueTerms:
    """How a slice is asked for through a queued resource."""

    valid_for_s: float  # no node is made of the request later than this
    request_id: str  # a UUID that is written down before the call: sent again, the call has no second effect
    flex_start_s: float | None = None  # the cloud itself ends the VMs after so long


@dataclass(frozen=True)
class SliceRequest:
    """Everything a create call says. `metadata` holds ssh-keys and startup-script; never a secret."""

    name: SliceName
    accelerator_type: str
    runtime_version: str
    spot: bool = False
    reserved: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    network: str = "default"
    service_account: str | None = None
    queue: QueueTerms | None = None  # exactly where `name.queued`


@dataclass(frozen=True)
class WorkerAddress:
    """One host of a slice. `index` is the worker id; `host_key` is an OpenSSH public key line, None if not published.

    `internal` is its address in the slice's network, by which the other hosts reach it; empty where the API says none.
    """

    index: int
    host: str
    port: int = 22
    host_key: str | None = None
    internal: str = ""


@dataclass(frozen=True)
class SliceView:
    """What the API said about an existing slice. `native_state` is the API's own word, for people."""

    name: SliceName
    state: SliceState
    native_state: str
    accelerator_type: str
    runtime_version: str
    labels: Mapping[str, str]
    created_at: float | None = None  # unix seconds, the server's clock
    spot: bool = False
    health: str | None = None
    deadline: float | None = None  # the cloud's own, enforced end, where it has one
    hosts: tuple[str, ...] = ()  # addresses in worker order; empty before READY
    error: CloudError | None = None  # why its queued request failed


@dataclass(frozen=True)
class Operation:
    """A long-running change. A hint only: what exists is what `get` says. `error` is already translated."""

    name: str
    done: bool
    verb: str = ""
    target: str = ""  # full resource name of what it works on
    error: CloudError | None = None


@dataclass(frozen=True)
class Listing(Generic[T]):
    """All pages of a list. With `unreachable` not empty it proves nothing about absence."""

    rows: tuple[T, ...]
    unreachable: tuple[str, ...] = ()
    server_now: float | None = None  # unix seconds by the server's clock when it answered; None: it did not say

    @property
    def complete(self) -> bool:
        return not self.unreachable


@dataclass(frozen=True)
class Capabilities:
    """What a provisioning API can promise by itself; the plan shows it and the proof of absence uses it."""

    cloud_deadline: bool
    multi_host: bool
    queue: bool
    idempotent_create: str  # "name" or "request-id"
    owner_filter: str  # "server" or "client"
    preempt_action: str  # "tombstone" or "delete"
    visible_within_s: float  # a create is visible to get and list so long after it left, the way to the API included
    settles_within_s: float  # a create whose operation is unknown cannot bring anything to life later than this
    timings: Timings = GOOGLE


class Cloud(Protocol):
    """One question out, one answer back. Every call has a timeout, translates errors into `CloudError`s and decides nothing.

    A single call tries once, or retries only what provably had no effect; retrying to a deadline is the engine's.
    """

    capabilities: Capabilities

    def create(self, request: SliceRequest) -> Operation:
        """With a queue, the operation's end means that the request was accepted, not that there is a slice."""

    def get(self, name: SliceName) -> SliceView | None:
        """None only for a 404 of the resource itself (of queue and node, if queued); 403, timeouts and odd replies raise."""

    def list(self, project: str, zone: str, queued: bool = False) -> Listing[SliceView]:
        """Every node; with `queued` also the queued requests without one. Complete only if every list that it took is.

        `zone` may be `EVERYWHERE`; zones that did not answer then are in `unreachable`.
        """

    def delete(self, name: SliceName) -> Operation | None:
        """None: there is no such resource now (which proves nothing while a create may be settling)."""

    def start(self, name: SliceName) -> Operation: ...

    def stop(self, name: SliceName) -> Operation: ...

    def set_labels(self, name: SliceName, labels: Mapping[str, str]) -> Operation:
        """Replace all labels of a READY slice. Raises Vanished for a 404, WrongState while another change is under way."""

    def operation(self, name: str) -> Operation | None: ...

    def operations(self, project: str, zone: str) -> Listing[Operation]: ...

    def workers(self, name: SliceName) -> tuple[WorkerAddress, ...]:
        """Addresses and published host keys of a READY slice, ordered by worker id."""

    def guest_attributes(self, name: SliceName) -> tuple[Mapping[str, str], ...]:
        """The guest attributes of each worker, by `namespace/key`; empty where nothing can be read."""

    def zones(self, project: str) -> Listing[str]:
        """Every zone in which the project may have slices."""

    def preview(self, request: SliceRequest) -> dict[str, Any]:
        """The exact API request a create would send: {"method", "url", "body"}. Sends nothing."""

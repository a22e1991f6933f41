"""The values between programs and any provisioning API: slices, workers, operations, listings; the `Cloud` protocol.

Nothing here mentions HTTP or the fields of a Node. A place translates its API into these values, programs decide on them,
and `hosts` connects to the workers in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from orchestrator.errors import CloudError
from orchestrator.promise.lease.lease import SliceName
from orchestrator.promise.lease.periods import GOOGLE, Timings

T = TypeVar("T")

CREATE = "create"  # the verb of an operation that creates
EVERYWHERE = "-"  # in the place of a zone, for `list`: all zones of the project at once


class SliceState(StrEnum):
    """A slice's state. Absence is not a state: `Cloud.get` returns None for it."""

    QUEUED = "queued"  # a queued request waits for capacity: nothing exists yet, nothing is billed
    CREATING = "creating"  # also starting and restarting: becomes READY by itself
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DELETING = "deleting"
    TOMBSTONE = "tombstone"  # preempted, terminated, or its request failed: still listed, and keeps name and quota
    UNKNOWN = "unknown"  # repairing, hidden, or a state newer than this program


@dataclass(frozen=True)
class QueueTerms:
    """How a slice is requested through a queued resource."""

    valid_for_s: float  # no node is created from the request later than this
    request_id: str  # a UUID recorded before the call: sent again, the call has no second effect
    flex_start_s: float | None = None  # the cloud itself ends the VMs after so long


@dataclass(frozen=True)
class SliceRequest:
    """All parameters of a create call. `metadata` holds ssh-keys and startup-script; never a secret."""

    name: SliceName
    accelerator_type: str
    runtime_version: str
    spot: bool = False
    reserved: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    network: str = "default"
    subnetwork: str | None = None  # None: the network's own in the region
    external_ips: bool = True
    tags: tuple[str, ...] = ()
    service_account: str | None = None
    secure_boot: bool = False
    queue: QueueTerms | None = None  # set if and only if `name.queued`
    # On a cluster: the JobSet, and what it needs, a Secret among it.
    manifests: tuple[Mapping[str, Any], ...] = field(default=(), hash=False, repr=False)


@dataclass(frozen=True)
class WorkerAddress:
    """One host of a slice. `index` is the worker id; `host_key` is an OpenSSH public key line, None if not published.

    `internal` is its address in the slice's network, by which the other hosts reach it; empty if the API gives none.
    `instance` is the name of its VM, which it publishes itself; empty until then.
    """

    index: int
    host: str
    port: int = 22
    host_key: str | None = None
    internal: str = ""
    instance: str = ""


@dataclass(frozen=True)
class SliceView:
    """An existing slice as the API describes it. `native_state` is the API's own term, for display."""

    name: SliceName
    state: SliceState
    native_state: str
    accelerator_type: str
    runtime_version: str
    labels: Mapping[str, str]
    created_at: float | None = None  # unix seconds, the server's clock
    spot: bool = False
    health: str | None = None
    deadline: float | None = None  # when the cloud itself deletes it, if it does; unix seconds, the server's clock
    hosts: tuple[str, ...] = ()  # addresses in worker order; empty before READY
    error: CloudError | None = None  # why its queued request failed
    nodes: tuple[str, ...] = ()  # of a cluster, on which its pods are
    # Since the last of its pods started; None: they have not, or it is no job on a cluster.
    running_s: float | None = None
    ran: bool = False  # a job on a cluster: it has run, its pods were taken away, and the cluster starts it again


@dataclass(frozen=True)
class Operation:
    """A long-running change. A hint only: `get` says what exists. `error` is already translated."""

    name: str
    done: bool
    verb: str = ""  # CREATE, or as the API has it, in lower case
    target: str = ""  # full resource name of what it works on
    error: CloudError | None = None


@dataclass(frozen=True)
class Listing(Generic[T]):
    """All pages of a list. Unless it is complete, it proves nothing about absence."""

    rows: tuple[T, ...]
    unreachable: tuple[str, ...] = ()
    server_now: float | None = None  # unix seconds, the server's clock when it replied; None: the reply had no Date

    @property
    def complete(self) -> bool:
        """Whether every place replied."""
        return not self.unreachable


def always() -> bool:
    """Return that there is time: for a create call without a record."""
    return True


@dataclass(frozen=True)
class Capabilities:
    """What a provisioning API guarantees by itself; the proof of absence uses it."""

    visible_within_s: float  # a create is visible to get and list this long after it left, network included
    settles_within_s: float  # a create whose operation is unknown has no effect later than this
    leaves_within_s: float = 10.0  # after the time that is recorded for it, or never; the two above have room for it
    timings: Timings = GOOGLE


NO_CLOUD = Capabilities(visible_within_s=0.0, settles_within_s=0.0)  # of a job that asks no cloud for anything


class Bearer(Protocol):
    """A source of tokens. After a 401, `renew` replaces the token, or raises the reason why it cannot."""

    @property
    def renewable(self) -> bool:
        """Whether `renew` can help."""

    def token(self) -> str:
        """Return the token for the next call."""

    def renew(self) -> None:
        """Replace the token, or raise the reason why that is not possible."""


class Cloud(Protocol):
    """The calls of a provisioning API. Every call has a timeout, raises `CloudError`s, and decides nothing.

    A call tries once, or retries only what provably had no effect; the program retries until a deadline.
    """

    capabilities: Capabilities

    def create(self, request: SliceRequest, in_time: Callable[[], bool] = always) -> Operation:
        """Create the slice. For a queued slice the operation's end means that the request exists, not the slice.

        `in_time` is asked directly before the call leaves. Raises CloudUnavailable if it is not.
        """

    def get(self, name: SliceName) -> SliceView | None:
        """Return the slice; None only for a 404 of the resource itself (request and node, if queued). All else raises."""

    def list(self, project: str, zone: str, queued: bool = False) -> Listing[SliceView]:
        """Return every node; with `queued` also the queued requests without one. Complete only if every list was.

        `zone` may be `EVERYWHERE`; zones that did not reply are then in `unreachable`.
        """

    def delete(self, name: SliceName) -> Operation | None:
        """Delete the slice. None: it does not exist now (which proves nothing while a create has not settled)."""

    def start(self, name: SliceName) -> Operation:
        """Start a stopped slice. Raises WrongState in any other state."""

    def stop(self, name: SliceName) -> Operation:
        """Stop a READY slice. Raises WrongState in any other state."""

    def set_labels(self, name: SliceName, labels: Mapping[str, str]) -> Operation:
        """Replace all labels of a READY slice. Raises Vanished for a 404, WrongState while another change is under way."""

    def let_in(self, name: SliceName, user: str, public_line: str) -> bool | None:
        """Add an SSH key to the metadata of the node; return whether it is there already, and not only asked for.

        None: its VMs take the keys of OS Login only; nothing changed. Raises as `set_labels` does.
        """

    def operation(self, name: str) -> Operation | None:
        """Return the operation; None if the API no longer knows it."""

    def operations(self, project: str, zone: str) -> Listing[Operation]:
        """Return every operation of the zone that the API knows."""

    def workers(self, name: SliceName) -> tuple[WorkerAddress, ...]:
        """Return addresses and published host keys of a READY slice, ordered by worker id."""

    def guest_attributes(self, name: SliceName) -> tuple[Mapping[str, str], ...]:
        """Return the guest attributes of each worker, by `namespace/key`; empty if nothing can be read."""

    def zones(self, project: str) -> Listing[str]:
        """Return every zone in which the project may have slices."""

    def preview(self, request: SliceRequest) -> dict[str, Any]:
        """Return the exact request of a create: {"method", "url", "body"}. Sends nothing."""

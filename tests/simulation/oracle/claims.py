"""The claim of each command, and the nodes and queued requests that it is about.

Kept from what users and machines did, never from labels. `oracle` updates and judges it, `bounds` turns it into seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.emulator.model.records import Node, QueuedResource, State
from orchestrator.engine.provision.drafts import Draft

if TYPE_CHECKING:
    from tests.simulation.model.hosts import NodeVms
    from tests.simulation.model.process import Process

FOREVER = 1e18
COMING = (State.CREATING, State.WAITING, State.PROVISIONING)
PREFIX, MARK = "tpujob-", ("tpujob", "1")


@dataclass
class Claim:
    """One run, or one held slice: the names of its candidates, the process that owns it, and when that ends."""

    label: str
    life_s: float
    begun_at: float
    owner: Process | None = None
    for_hold: bool = False  # `up`: its VM gets no heartbeat; the labels are the claim
    certain_life_s: float | None = None  # while an extension is under way, the shorter of both
    keep_s: float | None = None
    detach: bool = False  # does its command hand the claim over to the job?
    saves_work: bool = False  # does it save the work of its job, to restart with it?
    wait_s: float = 0.0  # how long a queued request may wait
    lease_ids: list[str] = field(default_factory=list)
    drafted_at: dict[str, float] = field(default_factory=dict)  # lease → when its name was chosen
    races: dict[str, Race] = field(default_factory=dict)  # lease → the race that it is part of
    requested_at: dict[str, float] = field(default_factory=dict)  # lease → when its queued request was created
    waiting_until: dict[str, float] = field(default_factory=dict)  # lease → when the cloud ends that request
    seen_ready: set[str] = field(default_factory=set)  # leases whose slice the command has seen READY
    kept: str = ""  # the lease that outlasts its command, held or detached
    hold_until: float | None = None
    held_at: float = 0.0  # when it became a held slice
    hold_s: float | None = None
    extension_requested_s: float = 0.0  # may be in the labels before the ledger knows
    results_left: bool = False  # some results could not be collected
    results_collected_at: dict[str, float] = field(default_factory=dict)  # lease → when `tpujob collect` released it
    detached_at: float | None = None
    extended_at: float | None = None
    down_processes: dict[str, Process] = field(default_factory=dict)  # lease → its `tpujob down`
    ends: list[tuple[float, str]] = field(default_factory=list)  # when the claim of its owner ended, and why

    def end(self, at: float, why: str) -> None:
        self.ends.append((at, why))

    def ask_for(self, drafts: Sequence[Draft], now: float, *, race: bool = False) -> None:
        """Note the candidates of one attempt: each may be asked for from now on, in turn or at once."""
        racing = [lease.id for lease, request in drafts if request.queue is not None] if race else []
        together = Race(frozenset(racing))
        for lease, _ in drafts:
            self.lease_ids.append(lease.id)
            self.drafted_at[lease.id] = now
            if lease.id in racing and len(racing) > 1:
                self.races[lease.id] = together

    def final_at(self, lease_id: str) -> float:
        """Return the time past which nothing may exist. Clocks may run wrong by one percent."""
        asked_at = self.requested_at.get(lease_id)
        waiting_s = 0.0 if asked_at is None else asked_at - self.drafted_at[lease_id] + self.wait_s * 1.01
        return self.drafted_at.get(lease_id, self.begun_at) + waiting_s + self.life_s * 1.01

    def mode_of(self, lease_id: str) -> str:
        if lease_id != self.kept:
            return "run"
        return "detached" if self.detached_at is not None else "hold"


@dataclass
class Race:
    """Requests that wait at once; one of them may win."""

    lease_ids: frozenset[str]
    winner: str = ""  # the lease that the command chose
    won_at: float = 0.0


@dataclass
class Resource:
    """A node or a queued request: it may be billed, or hold quota."""

    uid: str
    node_id: str
    lease_id: str
    claim: Claim | None
    created_at: float
    vm: NodeVms | None = None  # of a request: the VMs of its node
    request: QueuedResource | None = None
    node: Resource | None = None  # of a request: its node
    foreign: bool = False  # not created by tpujob
    gone_at: float | None = None
    preempted_at: float | None = None  # from then on it is listed, not billed
    lost_at: float | None = None  # preempted, or deleted externally
    owner_deleted_at: float | None = None  # its owner sent a delete
    first_delete_at: float | None = None
    deleted_by: str = ""
    failed_deletes: int = 0
    slow_s: float = 0.0  # extra time that the cloud took for deletes
    job_ends_at: float | None = None
    connected_at: float | None = None

    @property
    def billed_until(self) -> float | None:
        """Return when billing ended; None while it goes on."""
        return self.gone_at if self.preempted_at is None else self.preempted_at

    @property
    def on(self) -> Resource:
        """Return the node on which its job runs."""
        return self.node or self

    @property
    def ready_at(self) -> float | None:
        return None if self.vm is None else self.vm.ready_at

    def may_still_get_node(self, now: float) -> bool:
        """Return whether this is a request that waits for capacity and has time left."""
        row = self.request
        return row is not None and row.state in COMING and self.node is None and (row.valid_until or FOREVER) > now

    def __str__(self) -> str:
        return self.node_id if self.request is None else f"the request {self.node_id}"


def labels_of(found: Node | QueuedResource) -> dict[str, str]:
    """Return the labels of a node, or those that the node of a request will have."""
    spec = found.spec if isinstance(found, Node) else found.node_specs[0].node
    return dict(spec.get("labels", {}))


def id_of(found: Node | QueuedResource) -> str:
    return found.node_id if isinstance(found, Node) else found.queue_id


def is_ours(found: Node | QueuedResource) -> bool:
    """Return whether it has the label and the name prefix of the documentation, not those of the code."""
    key, value = MARK
    return id_of(found).startswith(PREFIX) and labels_of(found).get(key) == value

"""What a world knows of each run and of each thing that the cloud holds for it: who has a claim, since when, until when.

Kept from what people and machines really did, never from labels. `truth` writes it down and judges by it, `promise` turns
it into seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.emulator.model.queue_records import QueuedResource, State
from orchestrator.emulator.model.records import Node
from orchestrator.engine.provision.drafts import Draft

if TYPE_CHECKING:
    from tests.simulation.model.hosts import NodeVms
    from tests.simulation.model.process import Process

FOREVER = 1e18
COMING = (State.CREATING, State.WAITING, State.PROVISIONING)
PREFIX, MARK = "tpujob-", ("tpujob", "1")


@dataclass
class Claim:
    """One run, or one slice that is held: its candidates' names, who answers for it, and when that ends."""

    label: str
    life_s: float
    begun_at: float
    owner: Process | None = None
    for_hold: bool = False  # `up`: no sign of life goes to its VM, the labels speak for it
    certain_life_s: float | None = None  # while an extension is on its way, the shorter of both
    keep_s: float | None = None
    detach: bool = False  # is its command about to pass the claim to the job?
    saves_work: bool = False  # does it bring home, every now and then, what its job has made, to start over with it?
    wait_s: float = 0.0  # so long may a queued request of it wait
    lease_ids: list[str] = field(default_factory=list)
    drafted_at: dict[str, float] = field(default_factory=dict)  # lease → when its name was chosen
    races: dict[str, Race] = field(default_factory=dict)  # lease → those that were asked for together with it
    requested_at: dict[str, float] = field(default_factory=dict)  # lease → when its queued request came to be
    waiting_until: dict[str, float] = field(default_factory=dict)  # lease → when the cloud ends that request
    seen_ready: set[str] = field(default_factory=set)  # leases whose slice its command has seen READY
    kept: str = ""  # the lease that outlives its command, held or detached
    hold_until: float | None = None
    hold_s: float | None = None
    extension_requested_s: float = (
        0.0  # what a person typed may be in the labels, whether or not it could be written down
    )
    results_left: bool = False  # could not all of its results be brought home?
    results_collected_at: dict[str, float] = field(
        default_factory=dict
    )  # lease → when whoever came for them gave it up
    detached_at: float | None = None
    extended_at: float | None = None
    down_processes: dict[str, Process] = field(default_factory=dict)  # lease → the `tpujob down` that was typed for it
    ends: list[tuple[float, str]] = field(default_factory=list)  # what ended the claim of its owner

    def end(self, at: float, why: str) -> None:
        self.ends.append((at, why))

    def ask_for(self, drafts: Sequence[Draft], now: float, *, race: bool = False) -> None:
        """The candidates of one round: each may be asked for from now on, in turn or all at once."""
        racing = [lease.id for lease, request in drafts if request.queue is not None] if race else []
        together = Race(frozenset(racing))
        for lease, _ in drafts:
            self.lease_ids.append(lease.id)
            self.drafted_at[lease.id] = now
            if lease.id in racing and len(racing) > 1:
                self.races[lease.id] = together

    def final_at(self, lease_id: str) -> float:
        """H: past it nothing may exist, whatever anybody says. (Clocks that run wrong by one percent are granted.)"""
        asked_at = self.requested_at.get(lease_id)
        waiting_s = 0.0 if asked_at is None else asked_at - self.drafted_at[lease_id] + self.wait_s * 1.01
        return self.drafted_at.get(lease_id, self.begun_at) + waiting_s + self.life_s * 1.01

    def mode_of(self, lease_id: str) -> str:
        if lease_id != self.kept:
            return "run"
        return "detached" if self.detached_at is not None else "hold"


@dataclass
class Race:
    """Requests that wait at once, of which one may win."""

    lease_ids: frozenset[str]
    winner: str = ""  # whom its command chose
    won_at: float = 0.0


@dataclass
class Resource:
    """A node, or a queued request: what may be billed, or hold quota."""

    uid: str
    node_id: str
    lease_id: str
    claim: Claim | None
    created_at: float
    vm: NodeVms | None = None  # of a request: that of the node that came of it
    request: QueuedResource | None = None
    node: Resource | None = None  # of a request: what came of it
    foreign: bool = False  # somebody else's
    gone_at: float | None = None
    preempted_at: float | None = None  # preempted: from then on it is listed and not billed
    lost_at: float | None = None  # preempted, deleted by somebody else, or never really there
    owner_deleted_at: float | None = None  # its owner sent a delete
    first_delete_at: float | None = None
    deleted_by: str = ""
    failed_deletes: int = 0
    slow_s: float = 0.0  # what the cloud took longer than usual for a delete
    job_ends_at: float | None = None
    connected_at: float | None = None

    @property
    def billed_until(self) -> float | None:
        """None: it still is."""
        return self.gone_at if self.preempted_at is None else self.preempted_at

    @property
    def on(self) -> Resource:
        """Where its job runs."""
        return self.node or self

    @property
    def ready_at(self) -> float | None:
        return None if self.vm is None else self.vm.ready_at

    def may_still_get_node(self, now: float) -> bool:
        """Is it a request that waits for capacity, and has the time?"""
        row = self.request
        return row is not None and row.state in COMING and self.node is None and (row.valid_until or FOREVER) > now

    def __str__(self) -> str:
        return self.node_id if self.request is None else f"the request {self.node_id}"


def labels_of(found: Node | QueuedResource) -> dict[str, str]:
    """Those of a node, or those that the node of a request will have."""
    spec = found.spec if isinstance(found, Node) else found.node_specs[0].node
    return dict(spec.get("labels", {}))


def id_of(found: Node | QueuedResource) -> str:
    return found.node_id if isinstance(found, Node) else found.queue_id


def is_ours(found: Node | QueuedResource) -> bool:
    """Both marks, as the documentation promises them; not as the code looks for them."""
    key, value = MARK
    return id_of(found).startswith(PREFIX) and labels_of(found).get(key) == value

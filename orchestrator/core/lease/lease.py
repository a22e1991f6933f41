"""A lease: our obligation for one billable slice, from intent to proven absence. Pure: states, events, transitions.

The table below is the whole life. The ledger stores a lease and appends the event that changed it in one transaction;
nothing else changes a lease. The attempt that uses a lease has a life of its own (`core.lease.attempt`): it may fail, succeed
or be lost, and none of that ends the obligation. Only `Gone` does, and only the proof in `core.lease.absence` produces it.

(No `slots`, here and in `slices` and `attempt`: they double the time of making a class, and every command waits for that.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator.core.lease.slices import SliceName, SliceView
from orchestrator.core.text import names


class LeaseState(StrEnum):
    INTENT = "intent"  # the name is written down; a create may or may not have left
    CREATING = "creating"  # the API confirmed our create
    READY = "ready"  # the slice was seen READY; its create has settled
    DOWN = "down"  # to be deleted; stays here, whatever happens, until absence is proven
    GONE = "gone"  # absence proven
    FORGOTTEN = "forgotten"  # a person took the obligation over: proven by nobody, never called gone


class Mode(StrEnum):
    """Who has the claim, as the label `tpujob-mode` says it to the switch on the VM and to gc."""

    RUN = "run"  # the process that made the slice, while it shows signs of life
    HOLD = "hold"  # a person, until `hold_until`
    DETACHED = "detached"  # the job on the VM, until it ends


class Purpose(StrEnum):
    RUN = "run"  # ends with its run
    HOLD = "hold"  # brought by `tpujob up` (or kept after a run): ends by `down`, or at `hold_until`


@dataclass(frozen=True)
class Lease:
    """One row of the ledger. Times are unix seconds; `deadline` is final: past it any tpujob command deletes the slice."""

    id: str
    handle: str  # what people call it: the `up` name, or the job's name
    purpose: Purpose
    cloud: str  # "emulated" or "google": a lease is only ever acted on in the cloud that it names
    name: SliceName
    accelerator_type: str
    runtime_version: str
    spot: bool
    owner: str
    deadline: float
    created_at: float
    provisioning: str = "on-demand"  # a value of `core.planning.provisioning.Provisioning`
    ready_by: float | None = None  # until when a queued request may wait for capacity
    usd_per_hour: float | None = None
    budget_usd: float | None = None  # what its owner wants to spend at most; the deadline keeps to it
    state: LeaseState = LeaseState.INTENT
    hold_until: float | None = None
    detached_at: float | None = None  # since then the job on the VM has the claim, and no process here
    sent_at: float | None = None  # the last create call left no earlier than this (written before it leaves)
    sends: int = 0  # create calls that may have had, or may yet have, an effect
    operation: str | None = None  # the create's operation, once the API told us
    settled: bool = False  # every create that left was seen to end: none can bring the slice (back) to life
    ready_at: float | None = None
    down_at: float | None = None
    gone_at: float | None = None
    reason: str = ""  # why it is to be deleted
    run: str | None = None  # the run that it was asked for; None: `up` did

    @property
    def billed_from(self) -> float | None:
        """Since when it may be billed: a node since its create call; what is queued once its capacity is there."""
        return self.ready_at if self.name.queued else self.sent_at

    @property
    def open(self) -> bool:
        return self.state not in (LeaseState.GONE, LeaseState.FORGOTTEN)

    @property
    def mode(self) -> Mode:
        if self.detached_at is not None:
            return Mode.DETACHED
        # What `up` brings is its process's until it is held: if that dies before, the switch counts its silence.
        return Mode.RUN if self.hold_until is None else Mode.HOLD

    @property
    def ends_at(self) -> float:
        """When its claim ends at the latest, as far as anybody knows now."""
        return self.deadline if self.hold_until is None else min(self.hold_until, self.deadline)


@dataclass(frozen=True)
class Intent:
    lease: Lease


@dataclass(frozen=True)
class Sent:
    """Written before every create call, retries included: from here on something may exist."""

    lease_id: str
    at: float


@dataclass(frozen=True)
class CreateRefused:
    """The API answered a create with a definite no: that call has no effect, now or later."""

    lease_id: str
    at: float
    why: str


@dataclass(frozen=True)
class Created:
    lease_id: str
    at: float
    operation: str


@dataclass(frozen=True)
class Settled:
    """The operation of every create that left is terminal."""

    lease_id: str
    at: float


@dataclass(frozen=True)
class Ready:
    lease_id: str
    at: float


@dataclass(frozen=True)
class Held:
    """The slice is to outlive the process that made it, until `until` (at most the deadline)."""

    lease_id: str
    at: float
    until: float


@dataclass(frozen=True)
class Detached:
    """The claim passed from this process to the job on the VM, and the switch there said that it knows."""

    lease_id: str
    at: float


@dataclass(frozen=True)
class Extended:
    """A person moved the end: of what is held, the end of the hold; else the deadline itself."""

    lease_id: str
    at: float
    until: float


@dataclass(frozen=True)
class Down:
    lease_id: str
    at: float
    reason: str


@dataclass(frozen=True)
class Gone:
    lease_id: str
    at: float
    evidence: str


@dataclass(frozen=True)
class Forgotten:
    """A person says: I looked, it is not there (or not ours to care for). Nothing is proven."""

    lease_id: str
    at: float
    why: str


LeaseEvent = (
    Intent | Sent | CreateRefused | Created | Settled | Ready | Held | Detached | Extended | Down | Gone | Forgotten
)

# Event → the states in which it may happen. Down is allowed in DOWN (a second `down`), Sent and Settled are notes on the way.
_ALLOWED: dict[type, frozenset[LeaseState]] = {
    Sent: frozenset({LeaseState.INTENT}),
    CreateRefused: frozenset({LeaseState.INTENT, LeaseState.DOWN}),
    Created: frozenset({LeaseState.INTENT, LeaseState.DOWN}),
    Settled: frozenset({LeaseState.INTENT, LeaseState.CREATING, LeaseState.READY, LeaseState.DOWN}),
    Ready: frozenset({LeaseState.INTENT, LeaseState.CREATING, LeaseState.READY}),
    Held: frozenset({LeaseState.READY}),
    Detached: frozenset({LeaseState.READY}),
    Extended: frozenset({LeaseState.READY}),
    Down: frozenset({LeaseState.INTENT, LeaseState.CREATING, LeaseState.READY, LeaseState.DOWN}),
    Gone: frozenset({LeaseState.DOWN}),
    Forgotten: frozenset({LeaseState.DOWN}),
}


class NotAllowed(Exception):
    """The event does not fit the lease's state: somebody else moved it on (say, `tpujob down` in another terminal)."""

    def __init__(self, lease: Lease, event: LeaseEvent) -> None:
        super().__init__(f"lease {lease.id} is {lease.state}: {type(event).__name__} does not apply")
        self.lease, self.event = lease, event


def apply(lease: Lease, event: LeaseEvent) -> Lease:
    """The lease after the event. Raises NotAllowed; never goes back: INTENT < CREATING < READY < DOWN < GONE."""
    if lease.state not in _ALLOWED[type(event)]:
        raise NotAllowed(lease, event)
    match event:
        case Sent(at=at):
            return replace(lease, sent_at=at, sends=lease.sends + 1, settled=False)
        case CreateRefused():
            return replace(lease, sends=lease.sends - 1)
        case Created(operation=operation):
            state = LeaseState.CREATING if lease.state is LeaseState.INTENT else lease.state
            return replace(lease, state=state, operation=operation)
        case Settled():
            return replace(lease, settled=True)
        case Ready(at=at):
            # With one create, READY is its end. A second one, whose reply was lost, may still be on its way.
            settled = lease.settled or lease.sends <= 1
            deadline = lease.deadline
            if (
                lease.ready_by is not None and lease.ready_at is None
            ):  # what it did not wait for, it does not live longer
                deadline -= max(lease.ready_by - at, 0.0)
            ready_at = lease.ready_at or at
            return replace(lease, state=LeaseState.READY, settled=settled, ready_at=ready_at, deadline=deadline)
        case Held(until=until):
            # Of a detached run: its job has ended, and only its results are wanted.
            end = min(until, lease.deadline)
            return replace(lease, purpose=Purpose.HOLD, hold_until=end, detached_at=None)
        case Detached(at=at):
            return replace(lease, detached_at=at)
        case Extended(until=until):
            held_until = None if lease.hold_until is None else until
            return replace(lease, deadline=max(lease.deadline, until), hold_until=held_until)
        case Down(at=at, reason=reason):
            if lease.state is LeaseState.DOWN:
                # The latest word: a person may want the run ended, not only this try.
                return replace(lease, reason=reason)
            return replace(lease, state=LeaseState.DOWN, down_at=at, reason=reason)
        case Gone(at=at):
            return replace(lease, state=LeaseState.GONE, gone_at=at)
        case Forgotten(at=at, why=why):
            return replace(lease, state=LeaseState.FORGOTTEN, gone_at=at, reason=why)
    raise AssertionError(f"no transition for {event!r}")


def adopted(
    view: SliceView, *, cloud: str, now: float, age_s: float | None, usd_per_hour: float | None
) -> Lease | None:
    """An obligation for a slice of ours that the ledger does not know, by its labels; to be released, not to be used.

    Nothing is known of its create calls: they count as one that left when the slice was made (`age_s` ago; None: now), and
    not as settled. None where its run label is none of ours: without it nobody can tell it from another of its name, and
    it becomes the name of files.
    """
    run = view.labels.get(names.LEASE_ID, "")
    if not names.is_run_id(run):
        return None
    made_at = now - (age_s or 0.0)
    return Lease(
        id=run,
        handle=view.labels.get(names.NAME) or view.name.node,
        purpose=Purpose.HOLD if view.labels.get(names.MODE) == Mode.HOLD else Purpose.RUN,
        cloud=cloud,
        name=view.name,
        accelerator_type=view.accelerator_type,
        runtime_version=view.runtime_version,
        spot=view.spot,
        owner=view.labels.get(names.OWNER, ""),
        deadline=now,
        created_at=made_at,
        usd_per_hour=usd_per_hour,
        state=LeaseState.CREATING,
        sent_at=made_at,
        sends=1,
    )


def release_reason(lease: Lease, *, now: float, owner_alive: bool) -> str | None:
    """Why this open lease must be torn down by whoever finds it, or None while somebody still has a claim on it."""
    if not lease.open:
        return None
    if lease.state is LeaseState.DOWN:
        return None if owner_alive else lease.reason or "its teardown was not finished"
    if now >= lease.deadline:
        return "it reached its deadline"
    if owner_alive:
        return None
    if lease.state is LeaseState.READY and lease.detached_at is not None:
        return None
    if lease.state is LeaseState.READY and lease.hold_until is not None:
        return None if now < lease.hold_until else "the time it was to be kept is over"
    return "the process that made it is gone"

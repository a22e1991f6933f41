"""A lease: the obligation for one billable slice, from intent to proven absence. Pure: states, events, transitions.

`_ALLOWED` below is the whole state machine. The ledger stores a lease and appends the event that changed it in one
transaction; nothing else changes a lease. The attempt that uses a lease has its own states (`promise.lease.run_and_attempt`):
it may fail, succeed or be lost, and none of that ends the obligation. Only `Gone` does, and only the proof in
`promise.lease.absence` produces it.

(No `slots` here, in `cloud_api` and in `run_and_attempt`: they double the time to create a class.)
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

from orchestrator.promise.lease.access import DIRECT, Route
from orchestrator.promise.lease.cloud_api import SliceName


class LeaseState(StrEnum):
    """The states of a lease, in order; GONE and FORGOTTEN are final."""

    INTENT = "intent"  # the name is recorded; a create may or may not have left
    CREATING = "creating"  # the API confirmed the create
    READY = "ready"  # the slice was seen READY; its create has settled
    DOWN = "down"  # to be deleted; stays here, whatever happens, until absence is proven
    GONE = "gone"  # absence proven
    FORGOTTEN = "forgotten"  # the user took the obligation over: nothing is proven, and it is never called gone


class Mode(StrEnum):
    """What the claim rests on, as the label `tpujob-mode` tells the watchdog on the VM and gc."""

    RUN = "run"  # the process that created the slice, while it sends heartbeats
    HOLD = "hold"  # the user, until `hold_until`
    DETACHED = "detached"  # the job on the VM, until it ends


class HeldFor(StrEnum):
    """Why a slice is held."""

    USER = "user"  # `tpujob up`, `run --keep`
    RESULTS = "results"  # results of its run that are not collected
    FAILURE = "failure"  # its run failed: to look, and for the next run of the job, which takes it over


CANCEL, DOWN = "tpujob cancel", "tpujob down"  # the reasons of a release that cancels the run on the slice


class Purpose(StrEnum):
    """What the slice is for."""

    RUN = "run"  # ends with its run
    HOLD = "hold"  # created by `tpujob up`, or kept after a run (see HeldFor): ends with `down`, or at `hold_until`


@dataclass(frozen=True)
class Lease:
    """One row of the ledger. Times are unix seconds of the ledger.

    `deadline` is final: past it, any tpujob command deletes the slice.
    """

    id: str
    handle: str  # the name for the user: that of `up`, or the job's
    purpose: Purpose
    cloud: str  # "emulated", "google" or "gke": a lease is only ever acted on in the cloud that it names
    name: SliceName
    accelerator_type: str
    runtime_version: str
    spot: bool
    owner: str
    deadline: float
    created_at: float
    provisioning: str = "on-demand"  # a value of `capacity.capacity_request.Provisioning`
    ready_by: float | None = None  # until when a queued request may wait for capacity
    usd_per_hour: float | None = None  # None: no price is known
    budget_usd: float | None = None  # the most that it may cost; the deadline keeps to it
    state: LeaseState = LeaseState.INTENT
    hold_until: float | None = None
    held_for: HeldFor | None = None  # since it was held first
    detached_at: float | None = None  # since then the claim rests on the job on the VM, not on a process here
    sent_at: float | None = None  # the last create call left no earlier than this (recorded before it leaves)
    sends: int = 0  # create calls that may have had, or may yet have, an effect
    operation: str | None = None  # the create's operation, once the API has named it
    settled: bool = False  # every create that left was seen to end: none can create the slice any more
    ready_at: float | None = None
    down_at: float | None = None
    gone_at: float | None = None
    reason: str = ""  # why it is to be deleted
    idle_s: float | None = None  # its watchdog deletes it when it is held and unused for so long; None: never
    run: str | None = None  # the id of its run; None: created by `up`
    route: Route = DIRECT  # to its workers
    slices: int = 1  # of this type; a job on a cluster may have several
    understood: bool = True  # False: it has a word of a newer tpujob, which alone says when its claim is over

    @property
    def billed_from(self) -> float | None:
        """Since when it may be billed: a node since its create call, a queued slice since READY. None: not yet."""
        return self.ready_at if self.name.queued else self.sent_at

    @property
    def open(self) -> bool:
        """Whether the obligation still stands."""
        return self.state not in (LeaseState.GONE, LeaseState.FORGOTTEN)

    @property
    def canceled_by(self) -> str | None:
        """The command with which the user ended the slice, and the run on it; None: it has not ended, or for another reason."""
        return self.reason if self.reason in (CANCEL, DOWN) else None

    @property
    def mode(self) -> Mode:
        """What the claim rests on now."""
        if self.detached_at is not None:
            return Mode.DETACHED
        # A slice of `up` belongs to its process until it is held: if that dies before, the heartbeats that stop count.
        return Mode.RUN if self.hold_until is None else Mode.HOLD

    @property
    def runs_detached(self) -> bool:
        """Whether the claim rests on a job that goes on, or waits for its start, without a process here."""
        return self.detached_at is not None and self.state in (LeaseState.CREATING, LeaseState.READY)

    def is_waited_out(self, now: float) -> bool:
        """Return whether its detached job was to be admitted by now, though that is not known yet. `now`: ledger time."""
        waits = self.runs_detached and self.state is LeaseState.CREATING
        return waits and self.ready_by is not None and now >= self.ready_by

    @property
    def ends_at(self) -> float:
        """When its claim ends at the latest, as far as is known now."""
        return self.deadline if self.hold_until is None else min(self.hold_until, self.deadline)


@dataclass(frozen=True)
class Intent:
    """Recorded before anything is sent: the lease exists, the slice does not."""

    lease: Lease


@dataclass(frozen=True)
class LeaseChange:
    """Base of the events of a lease that exists. `at`: ledger time. `kind`: as the ledger has it, where the name is another."""

    kind: ClassVar[str] = ""

    lease_id: str
    at: float


class CreateSent(LeaseChange):
    """Recorded before every create call, retries included: from here on the slice may exist."""

    kind = "sent"


@dataclass(frozen=True)
class LoginGranted(LeaseChange):
    """OS Login has the key of the lease, and says whom to log in as. Recorded before the first create call."""

    user: str


@dataclass(frozen=True)
class LoginRefused(LeaseChange):
    """OS Login refused the key of the lease: that import has no effect, and there is nothing to remove."""

    why: str


@dataclass(frozen=True)
class CreateRefused(LeaseChange):
    """The API refused a create: that call has no effect, now or later."""

    why: str


@dataclass(frozen=True)
class Created(LeaseChange):
    """The API accepted a create and named its operation."""

    operation: str


class Settled(LeaseChange):
    """The operation of every create that left is done."""


class Ready(LeaseChange):
    """The slice was seen READY."""


@dataclass(frozen=True)
class HeldUntil(LeaseChange):
    """The slice outlives the process that created it, until `until` (at most the deadline)."""

    kind = "held"

    until: float
    held_for: HeldFor = HeldFor.USER


@dataclass(frozen=True)
class HandedToNextRun(LeaseChange):
    """The slice goes on to the next run of the process that created it, with the name, the end and the budget of that run."""

    kind = "passed"

    run: str
    handle: str
    deadline: float
    budget_usd: float | None = None


class Detached(LeaseChange):
    """The claim passed from this process to the job on the VM, and the watchdog there confirmed it."""


@dataclass(frozen=True)
class Extended(LeaseChange):
    """The user moved the end: `hold_until` of a held slice, the deadline otherwise."""

    until: float


@dataclass(frozen=True)
class ReleaseBegan(LeaseChange):
    """The slice is to be deleted. No event but `Gone` and `Forgotten` ends this state."""

    kind = "down"

    reason: str


@dataclass(frozen=True)
class Gone(LeaseChange):
    """The slice is proven absent."""

    evidence: str


@dataclass(frozen=True)
class Forgotten(LeaseChange):
    """The user looked, and declares that the slice does not exist or is not theirs. Nothing is proven."""

    why: str


LeaseEvent = Intent | LeaseChange

# Event → the states in which it may happen. Down is allowed in DOWN (a second `down`); Sent and Settled change no state.
_ALLOWED: dict[type[LeaseEvent], frozenset[LeaseState]] = {
    LoginGranted: frozenset({LeaseState.INTENT}),
    LoginRefused: frozenset({LeaseState.INTENT}),
    CreateSent: frozenset({LeaseState.INTENT}),
    CreateRefused: frozenset({LeaseState.INTENT, LeaseState.DOWN}),
    Created: frozenset({LeaseState.INTENT, LeaseState.DOWN}),
    Settled: frozenset({LeaseState.INTENT, LeaseState.CREATING, LeaseState.READY, LeaseState.DOWN}),
    Ready: frozenset({LeaseState.INTENT, LeaseState.CREATING, LeaseState.READY}),
    HeldUntil: frozenset({LeaseState.READY}),
    HandedToNextRun: frozenset({LeaseState.READY}),
    Detached: frozenset({LeaseState.CREATING, LeaseState.READY}),  # CREATING: a JobSet takes its job with it
    Extended: frozenset({LeaseState.READY}),
    ReleaseBegan: frozenset({LeaseState.INTENT, LeaseState.CREATING, LeaseState.READY, LeaseState.DOWN}),
    Gone: frozenset({LeaseState.DOWN}),
    Forgotten: frozenset({LeaseState.DOWN}),
}


class NotAllowed(Exception):
    """The event does not fit the lease's state: another process changed it (say, `tpujob down` in another terminal)."""

    def __init__(self, lease: Lease, event: LeaseEvent) -> None:
        super().__init__(f"lease {lease.id} is {lease.state}: {type(event).__name__} does not apply")


def apply(lease: Lease, event: LeaseEvent) -> Lease:
    """Return the lease after the event. States only advance: INTENT < CREATING < READY < DOWN < GONE. Raises NotAllowed."""
    if lease.state not in _ALLOWED[type(event)]:
        raise NotAllowed(lease, event)
    match event:
        case CreateSent(at=at):
            return replace(lease, sent_at=at, sends=lease.sends + 1, settled=False)
        case LoginGranted(user=user):
            return replace(lease, route=replace(lease.route, user=user))
        case LoginRefused():
            return replace(lease, route=replace(lease.route, os_login=False))
        case CreateRefused():
            return replace(lease, sends=lease.sends - 1)
        case Created(operation=operation):
            state = LeaseState.CREATING if lease.state is LeaseState.INTENT else lease.state
            return replace(lease, state=state, operation=operation)
        case Settled():
            return replace(lease, settled=True)
        case Ready(at=at):
            # With one create, READY is its end. A second one, whose reply was lost, may still be under way.
            settled = lease.settled or lease.sends <= 1
            ready_at, deadline = lease.ready_at or at, lease.deadline
            if lease.ready_by is not None and lease.ready_at is None:
                deadline -= max(lease.ready_by - at, 0.0)  # waiting time that was not used does not prolong the lease
            return replace(lease, state=LeaseState.READY, settled=settled, ready_at=ready_at, deadline=deadline)
        case HeldUntil(until=until, held_for=held_for):
            # A detached run: its job has ended, and the slice is held for its results.
            until = min(until, lease.deadline)
            return replace(lease, purpose=Purpose.HOLD, hold_until=until, held_for=held_for, detached_at=None)
        case HandedToNextRun(run=run, handle=handle, deadline=deadline, budget_usd=budget_usd):
            if lease.mode is not Mode.RUN:
                raise NotAllowed(lease, event)  # it is claimed by its user, or by a job on the VM
            return replace(lease, run=run, handle=handle, deadline=deadline, budget_usd=budget_usd)
        case Detached(at=at):
            return replace(lease, detached_at=at)
        case Extended(until=until):
            held_until = None if lease.hold_until is None else until
            return replace(lease, deadline=max(lease.deadline, until), hold_until=held_until)
        case ReleaseBegan(at=at, reason=reason):
            if lease.state is LeaseState.DOWN:
                # The latest reason wins: the user may end the run, not only this attempt.
                return replace(lease, reason=reason)
            return replace(lease, state=LeaseState.DOWN, down_at=at, reason=reason)
        case Gone(at=at):
            return replace(lease, state=LeaseState.GONE, gone_at=at)
        case Forgotten(at=at, why=why):
            return replace(lease, state=LeaseState.FORGOTTEN, gone_at=at, reason=why)
    raise AssertionError(f"no transition for {event!r}")


def release_reason(lease: Lease, *, now: float, owner_alive: bool) -> str | None:
    """Return why the lease may be released; None while it is claimed, or closed. `now`: ledger time.

    `owner_alive`: a live process holds the lease's lock.
    """
    if not lease.open:
        return None
    if lease.state is LeaseState.DOWN:
        return None if owner_alive else lease.reason or "its teardown was not finished"
    if now >= lease.deadline:
        return "it reached its deadline"
    if owner_alive or lease.runs_detached:
        return None
    if lease.state is LeaseState.READY and lease.hold_until is not None:
        return None if now < lease.hold_until else "the time it was to be kept is over"
    return "the process that created it is gone"

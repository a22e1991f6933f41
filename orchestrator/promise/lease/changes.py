"""What changes a lease, a run or an attempt: events, and the transitions that they are. Pure.

`_ALLOWED` below is the whole state machine of a lease. The ledger stores a lease and appends the event that changed it in one
transaction; nothing else changes a lease. Only `Gone` ends the obligation, and only the proof in `promise.lease.absence`
produces it.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from orchestrator.errors import Canceled, TpujobError, exit_code
from orchestrator.promise.lease.lease import HeldFor, Lease, LeaseState, Mode, Purpose
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord, WorkerEnd


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
    """The slice outlives the process that created it, until `until` (at most the deadline).

    `run`: the one that has taken it over after the job failed on it; what it is held for later is of this run.
    """

    kind = "held"

    until: float
    held_for: HeldFor = HeldFor.USER
    run: str | None = None


@dataclass(frozen=True)
class HandedToNextRun(LeaseChange):
    """The slice goes on to the next run of the process that created it, with the name, the end and the budget of that run."""

    kind = "passed"

    run: str
    handle: str
    deadline: float
    budget_usd: float | None = None


@dataclass(frozen=True)
class Relabeled(LeaseChange):
    """What the labels of a slice that another machine made say of it now; the fields are those of `Lease`."""

    handle: str
    deadline: float
    run: str | None
    hold_until: float | None
    held_for: HeldFor | None
    detached_at: float | None


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
    LoginGranted: frozenset({LeaseState.INTENT, LeaseState.READY}),  # READY: of a slice that another machine made
    Relabeled: frozenset({LeaseState.READY}),
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
            return replace(lease, route=replace(lease.route, user=user, os_login=True))
        case Relabeled():
            if lease.purpose is not Purpose.ELSEWHERE:
                raise NotAllowed(lease, event)  # what this machine made, its ledger knows better
            said = (*("handle", "deadline", "run", "hold_until", "held_for", "detached_at"),)
            return replace(lease, **{name: getattr(event, name) for name in said})
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
        case HeldUntil(until=until, held_for=held_for, run=run):
            # A detached run: its job has ended, and the slice is held for its results.
            until = min(until, lease.deadline)
            purpose = lease.purpose if lease.purpose is Purpose.ELSEWHERE else Purpose.HOLD
            held = replace(lease, purpose=purpose, hold_until=until, held_for=held_for, detached_at=None)
            return replace(held, run=run or lease.run)
        case HandedToNextRun(run=run, handle=handle, deadline=deadline, budget_usd=budget_usd):
            # A job of a queue that has ended passes its slice back to the process that collected its results.
            if lease.mode is not Mode.RUN and (lease.mode, lease.purpose) != (Mode.DETACHED, Purpose.QUEUE):
                raise NotAllowed(lease, event)  # it is claimed by its user, or by a job on the VM
            taken = replace(lease, run=run, handle=handle, detached_at=None)
            return replace(taken, deadline=deadline, budget_usd=budget_usd)
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


# -- runs and attempts --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Began:
    """The attempt begins; the first attempt also begins its run."""

    run: RunRecord
    attempt: Attempt
    at: float | None = None  # None: the first attempt, which began with its run


@dataclass(frozen=True)
class AttemptChange:
    """Base of the events of an attempt that has begun. `at`: ledger time."""

    attempt_id: str
    at: float


@dataclass(frozen=True)
class Continued(AttemptChange):
    """The attempt follows one that lost its slice. `text` says from where it goes on, or that it begins anew, and why.

    `step`: of the saved checkpoint, None where unknown; `saved_at`: when that was saved, None where it begins anew.
    """

    text: str
    files: int
    size_bytes: int
    step: int | None
    saved_at: float | None


@dataclass(frozen=True)
class Tried(AttemptChange):
    """A candidate was requested and could not be had; its lease is proven gone."""

    lease_id: str
    where: str  # accelerator type, zone and provisioning, for display
    why: str


@dataclass(frozen=True)
class Leased(AttemptChange):
    """The attempt uses this lease from now on; it may have lost an earlier one to a stockout."""

    lease_id: str


@dataclass(frozen=True)
class NodesUsed(AttemptChange):
    """The attempt runs on these machines of its place, which are billed until that deletes them, whatever ends the lease."""

    nodes: str  # names, with ", " between them


@dataclass(frozen=True)
class Moved(AttemptChange):
    """The attempt entered this state. `ran_s`: of one that collects, for how long its job ran, as its workers say."""

    state: AttemptState
    ran_s: float | None = None


@dataclass(frozen=True)
class _End(AttemptChange):
    """Base of the events that say how an attempt ended; the fields are those of `Attempt`."""

    state: AttemptState
    detail: str = ""
    exit_code: int | None = None
    error: str = ""
    hint: str = ""

    @classmethod
    def by(cls, attempt_id: str, at: float, state: AttemptState, error: TpujobError | None, **more: Any) -> Self:
        """Return the event of an end with this error, from which `recorded_error` makes it again; None: a success."""
        told: dict[str, Any] = {"exit_code": exit_code(error), **more}
        if error is not None:
            told |= {"detail": error.message, "error": type(error).__name__, "hint": error.hint or ""}
        return cls(attempt_id, at, state, **told)


@dataclass(frozen=True)
class AttemptEnded(_End):
    """The attempt ended. `rc`: the payload's code; `exit_code`: that of the command.

    `workers`: how a job that failed ended on each of them.
    """

    rc: int | None = None
    cause: str = ""  # of an attempt whose slice was lost: preempted, maintenance, host-failure, unreachable, hung
    workers: tuple[WorkerEnd, ...] = ()


class ResultsCollected(_End):
    """After its end, the attempt's results were collected from its slice; this replaces how it had ended."""


@dataclass(frozen=True)
class RunCanceled:
    """The user ended the run. The ledger stores what `events_of_cancel` makes of it, in one transaction."""

    run_id: str
    at: float
    by: str  # `promise.lease.lease.CANCEL`


AttemptEvent = Began | AttemptChange | RunCanceled
End = AttemptEnded | ResultsCollected
ENDS: dict[str, type[End]] = {kind.__name__: kind for kind in (AttemptEnded, ResultsCollected)}
LAST = ReleaseBegan | Settled | Gone | End | RunCanceled  # only end what is there: a newer ledger takes them, too


class RunEnded(NotAllowed):
    """The run was canceled: it begins no attempt and asks for no slice any more."""

    def __init__(self, attempt: Attempt, event: LeaseEvent | Began) -> None:
        Exception.__init__(self, f"run {attempt.run_id} was canceled: {type(event).__name__} does not apply")


class SweepEnded(NotAllowed):
    """The sweep was canceled: it begins no run any more."""

    def __init__(self, sweep: str) -> None:
        Exception.__init__(self, f"sweep {sweep} was canceled: it begins no run")


def check_not_canceled(last: Attempt | None, event: LeaseEvent | Began) -> None:
    """Raise RunEnded if `last`, the last attempt of the run of this event, was canceled."""
    if last is not None and last.state is AttemptState.CANCELED:
        raise RunEnded(last, event)


def events_of_cancel(event: RunCanceled, last: Attempt, leases: list[Lease]) -> list[LeaseEvent | AttemptChange]:
    """Return the events that end the run: of its last attempt, and of `leases`, its open ones. Empty if it has ended.

    While the slice of the job is being released, the attempt stays open: the job has its result, which its process records,
    or that process reads the reason before it begins another attempt.
    """
    if last.state.ended:
        return []
    events: list[LeaseEvent | AttemptChange] = [ReleaseBegan(lease.id, event.at, event.by) for lease in leases]
    if any(lease.id == last.lease_id and lease.state is LeaseState.DOWN for lease in leases):
        return events
    if last.lease_id is None and leases:
        events.append(Leased(last.id, event.at, leases[-1].id))
    return [*events, AttemptEnded.by(last.id, event.at, AttemptState.CANCELED, Canceled(event.by))]


def apply_to_attempt(attempt: Attempt, event: AttemptChange) -> Attempt:
    """Return the attempt after the event. An ended attempt changes only with `ResultsCollected`."""
    if isinstance(event, ResultsCollected):
        return _ended(attempt, event)
    if attempt.state.ended:
        return attempt
    match event:
        case Leased(lease_id=lease_id):
            return replace(attempt, lease_id=lease_id)
        case Moved(at=at, state=state):
            started = attempt.started_at or (at if state is AttemptState.RUNNING else None)
            return replace(attempt, state=state, started_at=started)
        case AttemptEnded(at=at, rc=rc):
            return _ended(replace(attempt, rc=rc, ended_at=at), event)
    return attempt  # Tried, Continued: only the event is stored


def _ended(attempt: Attempt, event: _End) -> Attempt:
    code, error, hint = event.exit_code, event.error, event.hint
    return replace(attempt, state=event.state, detail=event.detail, exit_code=code, error=error, hint=hint)

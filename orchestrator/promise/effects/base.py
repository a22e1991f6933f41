"""Effects: everything a program can ask of the world, one small frozen value each.

A program is a plain `async def` that awaits effects and knows nothing else:

    view = await Get(name)

It does not run on asyncio. A driver receives each effect, performs it, and sends the answer back: `promise.effects.interpreter`
performs effects on the real world in threads, so that a signal is noticed at once; a simulator answers them under virtual
time and may stop answering at any of them, which is a crash. So every await is a crash point, and a program holds no
resource that only its own next line would give back.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from orchestrator.errors import TpujobError
from orchestrator.promise.lease.changes import AttemptEvent, LeaseEvent
from orchestrator.promise.lease.cloud_api import Cloud, WorkerAddress
from orchestrator.promise.lease.lease import Lease, SliceName
from orchestrator.promise.lease.run_and_attempt import Attempt, WorkerEnd

if TYPE_CHECKING:
    from orchestrator.promise.ledger.ledger import Ledger

T = TypeVar("T")
Program = Coroutine["Effect[Any]", Any, T]


class Locks(Protocol):
    """The locks of leases and attempts: file locks, which the kernel drops when their process dies."""

    def lock(self, name: str) -> bool:
        """Lock without waiting; return whether this thread has the lock now."""

    def unlock(self, name: str) -> None:
        """Give the lock back, if this thread has it."""

    def is_locked(self, name: str) -> bool:
        """Return whether a living thread of this process, or another process, has the lock."""


class Logins(Protocol):
    """The keys of leases: on this machine, and in the OS Login profile of the user."""

    def public_line(self, lease: Lease) -> str:
        """Return the public key of this machine for a lease, which is made if there is none. Raises ConfigError."""

    def grant_login(self, lease: Lease, expires_at: float) -> str:
        """Import the key of the lease into the profile; return whom to log in as. Raises CloudError."""

    def extend_login(self, lease: Lease, expires_at: float) -> None:
        """Move the expiry of the key. Raises CloudError, Vanished if the key is not in the profile."""

    def revoke_login(self, lease: Lease) -> None:
        """Remove the key from the profile, if it is there. Raises CloudError."""


class Link(Protocol):
    """The way to the workers of a lease, which ends with its claim. Who runs jobs knows more of it: `hosts.fleet.crew`."""

    def connect(self, deadline_s: float, on_wait: Callable[[str], None] = ...) -> None:
        """Wait until every worker can be followed, `deadline_s` at most. Raises Unreachable."""

    def cancel(self) -> None:
        """End every running call, in any thread; every later call, too. What runs on the workers goes on."""

    def canceled(self, timeout_s: float) -> bool:
        """Wait until `cancel`, `timeout_s` at most; return whether it was called."""


class OwnCreates:
    """The create calls of one process, made in any thread. A forked child begins without any."""

    def __init__(self) -> None:
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._under_way: Counter[SliceName] = Counter()
        self._ended_at: dict[SliceName, float] = {}

    @contextmanager
    def under_way(self, name: SliceName, now: Callable[[], float]) -> Iterator[None]:
        """Remember that a call for this slice is under way, and when it ended."""
        with self._lock:
            self._under_way[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way[name] -= 1
                self._ended_at[name] = now()

    def ended_at(self, name: SliceName) -> float | None:
        """Return when the last of them ended; `inf` while one is under way, None if there was none."""
        if self._pid != os.getpid():
            return None
        with self._lock:
            return inf if self._under_way[name] else self._ended_at.get(name)


class World(Protocol):
    """What the real effects are performed on."""

    ledger: Ledger
    locks: Locks
    own_creates: OwnCreates

    @property
    def reach(self) -> Logins:
        """The keys that open the workers of leases."""

    @property
    def cloud(self) -> Cloud:
        """The client of the cloud. It connects when it is first needed."""

    @property
    def report(self) -> Callable[[Report], None]:
        """Where reports of programs go."""

    def now(self, cloud: str | None = None) -> float:
        """Return the ledger's time in unix seconds, of a cloud or of this one."""

    def is_time_certain(self) -> bool:
        """Return False after a restart of this machine until `set_server_time`: more time may have passed than `now` says."""

    def set_server_time(self, server_now: float, asked_at: float) -> None:
        """Take the time from the server's Date in a reply that has just come, to a call made at `asked_at` (`now`)."""

    def arm(self) -> bool:
        """Start the guardian of this process, once. False: the user wants none. Raises TpujobError when it does not start."""

    def connect(self, lease: Lease, workers: Sequence[WorkerAddress], deadline_s: float) -> Link:
        """Connect to every worker of a lease, `deadline_s` at most. Raises Unreachable.

        The link ends when the release of the lease begins.
        """


class Effect(Generic[T]):
    """An `await` hands it to the driver of the program; its value is the answer."""

    # Slow effects are performed in a thread and abandoned when a signal arrives; quick ones at once.
    slow: ClassVar[bool] = True

    def __await__(self) -> Generator[Effect[T], T, T]:
        return (yield self)

    def perform(self, world: World) -> T:
        raise NotImplementedError(type(self).__name__)


class QuickEffect(Effect[T]):
    """An effect that is performed at once, without a thread."""

    slow: ClassVar[bool] = False


# -- time, reports, signals -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Now(QuickEffect[float]):
    """The ledger's time (`promise.ledger.clocks`) in unix seconds, of the program's own cloud or of the one named."""

    cloud: str | None = None

    def perform(self, world: World) -> float:
        return world.now(self.cloud)


@dataclass(frozen=True, slots=True)
class IsTimeCertain(QuickEffect[bool]):
    """False after a restart of this machine, until the cloud's clock is known: more time may have passed than `Now` says."""

    def perform(self, world: World) -> bool:
        return world.is_time_certain()


@dataclass(frozen=True, slots=True)
class SetServerTime(QuickEffect[None]):
    """Set the ledger's time by the Date of a reply that has just come, to a call made at `asked_at`. Unix seconds both."""

    server_now: float
    asked_at: float

    def perform(self, world: World) -> None:
        world.set_server_time(self.server_now, self.asked_at)


@dataclass(frozen=True, slots=True)
class Sleep(Effect[None]):
    """Wait. A signal ends a real wait; a simulated one takes virtual time.

    A real wait also ends once another process has ended this attempt, or has begun to release this lease.
    """

    seconds: float
    attempt_id: str | None = None
    lease_id: str | None = None

    def is_over(self, world: World) -> bool:
        """Whether there is nothing left to wait for. A ledger that cannot be read ends no wait."""
        try:
            if self.attempt_id is not None and world.ledger.attempt(self.attempt_id).state.ended:
                return True
            return self.lease_id is not None and world.ledger.lease(self.lease_id).down_at is not None
        except TpujobError:
            return False


@dataclass(frozen=True, slots=True)
class StoodStill(QuickEffect["tuple[float, str] | None"]):
    """For how many seconds this program did not run the last time that this was long, and that in words: its machine slept, or
    it was stopped (Ctrl-Z). None: it never was. The interpreter knows it, and not the world.
    """

    def perform(self, world: World) -> tuple[float, str] | None:
        return None


@dataclass(frozen=True, slots=True)
class JobClock:
    """A phase of a job that runs now. Dollars are those of its run so far, and of its slice per hour; None: unknown."""

    run: str
    cloud: str
    phase: str
    elapsed_s: float
    left_s: float  # until it is stopped
    usd_so_far: float | None
    usd_per_hour: float | None


@dataclass(frozen=True, slots=True)
class SliceWorkers:
    """How many workers an attempt has, and the directory of its run."""

    count: int
    directory: str


@dataclass(frozen=True, slots=True)
class MoneyNear:
    """The budget of a run will end its job in `left_s`. Dollars are those of the run so far; None: unknown."""

    run: str
    left_s: float
    usd_so_far: float | None


@dataclass(frozen=True, slots=True)
class Report(QuickEffect[None]):
    """Report a line to the user. `stage` is its first word; the next line may replace a `passing` one.

    `about`: what the line says, as a value: of a job that runs, of its end by its budget, of its workers, or of one of them
    whose phase has ended.
    """

    stage: str
    text: str
    passing: bool = False
    about: JobClock | MoneyNear | SliceWorkers | WorkerEnd | None = None

    def perform(self, world: World) -> None:
        world.report(self)


@dataclass(frozen=True, slots=True)
class MaskSignals(QuickEffect[None]):
    """From here on signals do not unwind the program: it is releasing. They are counted and answered with a line; the third
    abandons the program, and the obligation stays in the ledger for the next tpujob command."""

    def perform(self, world: World) -> None:
        """The interpreter knows of signals, and not the world."""


@dataclass(frozen=True, slots=True)
class UnmaskSignals(QuickEffect[None]):
    """Signals count again, such as for the next zone after a stockout: one that came meanwhile unwinds the program."""

    def perform(self, world: World) -> None:
        """As for `MaskSignals`."""


@dataclass(frozen=True, slots=True)
class StartGuardian(Effect[bool]):
    """Start the guardian of this process, which releases what the process leaves. False: the user wants none."""

    def perform(self, world: World) -> bool:
        return world.arm()


@dataclass(frozen=True, slots=True)
class Make(Effect[T]):
    """Call a function of the client, for a value that takes a file, a key or chance, such as names that were never used."""

    make: Callable[[], T]

    def perform(self, world: World) -> T:
        return self.make()


class MakeNow(Make[T]):
    """The same at once, so that no signal comes between the call and what follows from it."""

    slow: ClassVar[bool] = False


# -- the ledger and the locks -----------------------------------------------------------------------------------------


class Record(QuickEffect[None]):
    """Apply events to the ledger; durable when the await returns. Raises NotAllowed, LedgerUnavailable."""

    __slots__ = ("events",)

    def __init__(self, *events: LeaseEvent | AttemptEvent) -> None:
        self.events = events

    def __repr__(self) -> str:
        return f"Record({', '.join(type(event).__name__ for event in self.events)})"

    def perform(self, world: World) -> None:
        world.ledger.record(*self.events)


@dataclass(frozen=True, slots=True)
class LeaseEffect(QuickEffect[T]):
    """An effect on one lease; the effects on locks also take the names of others."""

    lease_id: str


class ReadLease(LeaseEffect[Lease]):
    """One lease of the ledger. Raises UnknownLease."""

    def perform(self, world: World) -> Lease:
        return world.ledger.lease(self.lease_id)


@dataclass(frozen=True, slots=True)
class OpenLeases(QuickEffect[list[Lease]]):
    """Every lease that is neither proven gone nor forgotten, of every cloud; none that only a newer tpujob can judge."""

    def perform(self, world: World) -> list[Lease]:
        return [lease for lease in world.ledger.open_leases() if lease.understood]


@dataclass(frozen=True, slots=True)
class ReadAttempt(QuickEffect[Attempt]):
    """One attempt of the ledger. Raises UnknownRun."""

    attempt_id: str

    def perform(self, world: World) -> Attempt:
        return world.ledger.attempt(self.attempt_id)


@dataclass(frozen=True, slots=True)
class OpenAttempts(QuickEffect[list[Attempt]]):
    """Every attempt whose end is not recorded."""

    def perform(self, world: World) -> list[Attempt]:
        return world.ledger.attempts_open()


class Lock(LeaseEffect[bool]):
    """Lock a lease or an attempt for this program. False: another process or thread has it locked."""

    def perform(self, world: World) -> bool:
        return world.locks.lock(self.lease_id)


class Unlock(LeaseEffect[None]):
    """Unlock what this program has locked; any other lock stays."""

    def perform(self, world: World) -> None:
        world.locks.unlock(self.lease_id)


class IsLocked(LeaseEffect[bool]):
    """Whether a living process, this one included, has it locked."""

    def perform(self, world: World) -> bool:
        return world.locks.is_locked(self.lease_id)

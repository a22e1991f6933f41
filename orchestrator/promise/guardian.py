"""A guardian that is awake: its loop, which recovers until nothing is overdue, and its world, in which a recovery is a process.

It runs once the process that the guardian waits for has ended or is done (`process`). It is a program like the others: a
simulator can run it, crash it and let time pass.

It is loaded once the process that the guardian waits for has ended: until then the guardian stays small.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from orchestrator.errors import TpujobError
from orchestrator.promise.effects.base import Effect, IsLocked, Now, OpenLeases, Program, Report, Sleep, World
from orchestrator.promise.effects.locks import FileLocks
from orchestrator.promise.lease.lease import Lease, LeaseState, Purpose, release_reason
from orchestrator.promise.ledger.clocks import Clocks
from orchestrator.promise.ledger.file import LedgerUnavailable
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.text.redaction import Redactor

POLL_S = 20.0  # while slices are held: `down`, `extend` or a new hold may have changed what is due
# The system closes the files of a killed process one after the other: a lock may be held for a moment after the pipe ended.
QUICK_LOOKS_S = (0.25, 0.5, 1.0, 2.0)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # between recoveries that could not prove everything gone


@dataclass(frozen=True, slots=True)
class Recover(Effect[None]):
    """Release everything that is overdue, in a process of its own. Returns when that one has ended, however it did."""

    def perform(self, world: World) -> None:
        cast(GuardianWorld, world).recover()


@dataclass(frozen=True, slots=True)
class TakeGuardianLock(Effect[bool]):
    """Become the one guardian of this machine that waits for what is not due yet. False: another one is."""

    def perform(self, world: World) -> bool:
        return cast(GuardianWorld, world).take_lock()


async def guardian_loop() -> None:
    """Return when nothing is open any more, or when another guardian waits for what is."""
    for pause_s in QUICK_LOOKS_S:
        if (due_in_s := await due()) is None:
            return
        if due_in_s <= 0:
            break
        await Sleep(pause_s)
    pause_s = FIRST_PAUSE_S
    has_lock = False
    while (due_in_s := await due()) is not None:
        if due_in_s <= 0:
            await Recover()
            due_in_s = await due()
            if due_in_s is not None and due_in_s <= 0:
                await Sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            continue
        # Nothing is overdue, but something will be. One guardian is enough to wait for that.
        has_lock = has_lock or await TakeGuardianLock()
        if not has_lock:
            return
        pause_s = FIRST_PAUSE_S
        await Sleep(min(due_in_s, POLL_S))


async def due() -> float | None:
    """Return the seconds until the first open lease is overdue (0: one is now); None when nothing is open."""
    try:
        # What another machine made is that one's to end, unless its release has begun here.
        leases = [
            each
            for each in await OpenLeases()
            if each.purpose is not Purpose.ELSEWHERE or each.state is LeaseState.DOWN
        ]
        now = {cloud: await Now(cloud) for cloud in {lease.cloud for lease in leases}}
    except TpujobError as error:
        await Report("guardian", f"{error}; asking again")
        return POLL_S  # locked, or the disk is full: that may pass, and no other guardian may wait
    if not leases:
        return None
    for lease in leases:
        alive = await IsLocked(lease.id)
        if release_reason(lease, now=now[lease.cloud], owner_alive=alive) is not None:
            return 0.0
        if not alive and lease.is_waited_out(now[lease.cloud]):
            return 0.0  # the cloud is asked whether it waits still
    # A lease that a living process or the job on a VM claims is not overdue before its end.
    return max(min(_next(lease) - now[lease.cloud] for lease in leases), 1.0)


def _next(lease: Lease) -> float:
    """Return when the lease has to be looked at."""
    waits = lease.runs_detached and lease.state is LeaseState.CREATING
    return min(lease.ready_by, lease.ends_at) if waits and lease.ready_by is not None else lease.ends_at


CHILD_CRASH_AT = "TPUJOB_RECOVERY_CRASH_AT"


def drive(program: Program[None], world: GuardianWorld) -> None:
    """Perform a program's effects one after the other, in this thread: a guardian is never interrupted."""
    answer: Any = None
    error: Exception | None = None
    while True:
        try:
            effect = program.send(answer) if error is None else program.throw(error)
        except StopIteration:
            return
        answer, error = None, None
        try:
            if isinstance(effect, Sleep):
                time.sleep(effect.seconds)
            else:
                answer = effect.perform(world)  # type: ignore[arg-type]
        except Exception as failed:  # the program decides what it means
            error = failed


@dataclass(slots=True)
class GuardianWorld:
    """The part of the world that `loop` needs. The ledger is opened for each question: it may be moved aside meanwhile."""

    directory: Path
    crash_point: Callable[[str], None]
    locks: FileLocks = field(init=False)
    _guardians: FileLocks = field(init=False)  # the lock of all guardians of this state directory
    _child_crashes_at: str | None = field(default_factory=lambda: os.environ.get(CHILD_CRASH_AT))

    def __post_init__(self) -> None:
        self.locks, self._guardians = FileLocks(self.directory / "locks"), FileLocks(self.directory)

    @property
    def ledger(self) -> GuardianWorld:
        return self

    def open_leases(self) -> list[Lease]:
        path = self.directory / "ledger.sqlite3"
        if not path.exists():
            return []
        with contextlib.closing(Ledger(path)) as ledger:
            return ledger.open_leases()

    def now(self, cloud: str | None = None) -> float:
        """Return the ledger's time of this cloud, in unix seconds. Raises LedgerUnavailable when the ledger is gone."""
        assert cloud is not None, "a guardian has the leases of every cloud"
        path = self.directory / "ledger.sqlite3"
        if not path.exists():
            raise LedgerUnavailable(f"the ledger {path} was moved away")
        with contextlib.closing(Ledger(path)) as ledger:
            return Clocks(ledger).now(cloud)

    def report(self, report: Report) -> None:
        text = Redactor().hide(report.text)  # it may quote an API, and the log is kept
        print(f"{report.stage} {text}", file=sys.stderr, flush=True)

    def recover(self) -> None:
        """Run the recovery in a process of its own, to its end."""
        self.crash_point("before_recovery")
        environment = {name: value for name, value in os.environ.items() if name != CHILD_CRASH_AT}
        if self._child_crashes_at is not None:  # only the first one: the next is to finish what that one left
            environment["TPUJOB_CRASH_AT"], self._child_crashes_at = self._child_crashes_at, None
        argv = [sys.executable, "-m", "orchestrator.api.guarantee.recovery", str(self.directory)]
        try:
            subprocess.run(argv, env=environment, check=False)
        except OSError as error:
            self._complain("the recovery cannot be started", error)  # no memory, no process: that may pass
        self.crash_point("after_recovery")

    def take_lock(self) -> bool:
        """Return whether this is the guardian that waits for what is not due yet; it stays so until it ends."""
        try:
            locked = self._guardians.lock("guardian")
        except OSError as error:
            self._complain("the guardians' lock cannot be opened", error)
            return True  # two that wait are better than none
        if locked:
            self.crash_point("locked")
        return locked

    @staticmethod
    def _complain(what: str, error: OSError) -> None:
        print(f"{what}: {error.strerror}", file=sys.stderr, flush=True)

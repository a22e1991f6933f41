"""A simulated machine and its user: processes, lock files, the ledger, guardians, the OS timer, power cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.errors import TpujobError, UnknownLease, UnknownRun
from orchestrator.promise import server_time
from orchestrator.promise.effects.base import OpenAttempts, OpenLeases, Program
from orchestrator.promise.guardian import guardian_loop
from orchestrator.promise.lease import changes as of_ledger
from orchestrator.promise.lease.access import NO_RULES
from orchestrator.promise.lease.changes import AttemptEvent, Began, Intent, LeaseEvent, RunCanceled
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.lease.run_and_attempt import Attempt
from orchestrator.promise.ledger.clocks import Anchor, Clocks
from orchestrator.promise.ledger.file import LedgerUnavailable
from orchestrator.promise.recover import close_attempts, overdue, recover
from tests.simulation.model.process import Process
from tests.simulation.model.scheduled_faults import Clock, after_restart
from tests.simulation.oracle.invariants import Invariant

if TYPE_CHECKING:
    from tests.simulation.model.world import World


T = TypeVar("T")
RECOVERY_S = 20.0  # what a command spends on older teardowns (api/session/session.py)


async def command(
    world: World,
    then: Callable[[], Program[T]] | None,
    *,
    budget_s: float = RECOVERY_S,
    spare: str | None = None,
    look: bool = True,
) -> T | None:
    """What every tpujob command does (api/session/session.py): first finish what an earlier one left, then its own work."""
    if await OpenLeases() or await OpenAttempts():
        await close_attempts()
        for lease in (await OpenLeases())[:1]:
            await server_time.ask_time(lease)
        if await overdue(world.cloud_kind, spare=spare, look=look):
            await recover(world.cloud_kind, world.capabilities, budget_s=budget_s, spare=spare, look=look)
            await close_attempts()
    return await then() if then is not None else None


class Machine:
    def __init__(
        self, world: World, name: str, edge: str, *, timer_s: float | None = None, correct_clock: bool = False
    ) -> None:
        self.world, self.name, self.edge, self.timer_s = world, name, edge, timer_s
        self.timeline = world.timeline
        wrong = (0.0, 0.0) if correct_clock else (world.plan.clock_offset_s, world.plan.clock_drift)
        self.clock = Clock(world.timeline, *wrong)
        self.ledger = InMemoryLedger(world.oracle.on_lease_change)
        self.clocks = Clocks(self.ledger, self.clock)
        self.locks: dict[str, Process] = {}
        self.processes: list[Process] = []
        self.guardians: list[Guardian] = []
        self.rules = NO_RULES  # what it has learned of policies, on its disk
        self.on, self.asleep = True, False
        self.on_since = world.timeline.now
        self.command_times: list[float] = []  # when a command was typed
        self._count = self._boots = 0
        if timer_s is not None:
            self.timeline.after(timer_s, self._timer, self._boots)

    def now(self) -> float:
        """Return the time that a new command sees."""
        return self.clocks.now(self.world.cloud_kind)

    # -- processes ---------------------------------------------------------------------------------------------------

    def run(
        self, name: str, program: Program[Any], *, role: str = "cli", on_exit: Callable[[Process], None] | None = None
    ) -> Process | None:
        if not self.on:
            return None
        process = Process(self, name, role, program, on_exit)
        self.processes.append(process)
        if self.asleep:
            process.freeze()
        self.timeline.after(0.0, process.start)
        return process

    def type_command(
        self, then: Callable[[], Program[Any]] | None = None, name: str = "", **options: Any
    ) -> Process | None:
        """Run a tpujob command."""
        if not self.on or self.asleep:
            return None
        self._count += 1
        self.command_times.append(self.timeline.now)
        return self.run(name or f"command{self._count}", command(self.world, then, **options))

    def ended(self, process: Process) -> None:
        """The kernel drops the locks of the process and closes its end of the pipe."""
        for lock in [lock for lock, holder in self.locks.items() if holder is process]:
            del self.locks[lock]
        self.processes.remove(process)
        for guardian in self.guardians:
            if guardian.command is process:
                guardian.wake()

    def start_guardian(self, process: Process) -> bool:
        plan = self.world.plan
        if plan.guardian == "off" or not self.world.layers.guardian:
            return False
        if plan.guardian == "fails":
            raise TpujobError("the guardian process did not start; nothing was created")
        self.guardians.append(Guardian(self, process))
        return True

    def guardian_of(self, process: Process | None) -> Guardian | None:
        return next((guardian for guardian in self.guardians if guardian.command is process), None)

    # -- power -------------------------------------------------------------------------------------------------------

    def crash(self, reboot_after_s: float | None) -> None:
        if not self.on:
            return
        self.world.log(f"{self.name} loses power")
        self.on = False
        for guardian in list(self.guardians):
            guardian.kill()
        for process in list(self.processes):
            process.kill()
        if reboot_after_s is not None:
            self.world.scheduled += 1  # the machine is restarted later
            self.timeline.after(reboot_after_s, self._boot)

    def _boot(self) -> None:
        self.world.log(f"{self.name} is back")
        self.world.scheduled -= 1
        self.on, self.asleep, self.on_since = True, False, self.timeline.now
        self._boots += 1
        self.clock.restart()
        self.clocks = Clocks(self.ledger, self.clock)
        if self.timer_s is not None:
            self.timeline.after(min(2.0, self.timer_s), self._timer, self._boots)
        after_restart(self.world, self)

    def sleep(self) -> None:
        if not self.on:
            return
        self.world.log(f"{self.name} goes to sleep")
        self.asleep = True
        for process in self.processes:
            process.freeze()

    def wake_up(self) -> None:
        if not self.on:
            return
        self.world.log(f"{self.name} wakes up")
        self.asleep, self.on_since = False, self.timeline.now
        for process in list(self.processes):
            process.thaw()

    def _timer(self, boot: int) -> None:
        """`tpujob install-gc`: the OS starts the recovery periodically, from this boot to the next power cut."""
        if not self.on or boot != self._boots:
            return
        owed = bool(self.ledger.open_leases() or self.ledger.attempts_open())
        if owed and not self.asleep and not any(process.role == "timer" for process in self.processes):
            self._count += 1
            self.run(f"timer{self._count}", command(self.world, None, budget_s=60.0), role="timer")
        assert self.timer_s is not None
        self.timeline.after(self.timer_s, self._timer, boot)

    def lose_ledger(self) -> None:
        """Delete the file: processes that opened it go on with it, all others start an empty one."""
        self.world.log("the ledger is deleted")
        self.ledger = InMemoryLedger(self.world.oracle.on_lease_change)
        self.clocks = Clocks(self.ledger, self.clock)


WAKE_S, START_S = 0.02, 0.2
BUDGET_S = 3600.0  # api/guarantee/recovery.py


class Guardian:
    def __init__(self, machine: Machine, command: Process) -> None:
        self.machine, self.command, self.world = machine, command, machine.world
        self.name = f"guardian of {command.name}"
        self.alive = True
        self.killed_at: float | None = None
        self.process: Process | None = None
        self.child: Process | None = None

    def wake(self) -> None:
        """The pipe was closed: the command ended."""
        if self.alive and self.machine.on:
            self.machine.timeline.after(WAKE_S, self._start)

    def _start(self) -> None:
        if self.alive:
            self.process = self.machine.run(self.name, guardian_loop(), role="guardian loop", on_exit=self._left)
            if self.process is not None:
                self.process.guardian = self

    def kill(self) -> None:
        """Kill the guardian and the recovery that it started."""
        if not self.alive:
            return
        self.killed_at, self.alive = self.machine.timeline.now, False
        if self.process is None:
            self.world.log(f"{self.name} is killed before it woke")
        for process in (self.process, self.child):
            if process is not None:
                process.kill()

    def _left(self, process: Process) -> None:
        self.alive = False
        if process.error is not None and not process.killed:
            self.world.violated(Invariant.NO_BUG, f"{self.name} ended with {process.error!r}")

    # -- effects of the guardian's program -----------------------------------------------------------------------------

    def recover(self, loop_process: Process, token: int) -> None:
        self.machine.timeline.after(START_S, self._recover, loop_process, token)

    def _recover(self, loop_process: Process, token: int) -> None:
        pass

        if not loop_process.alive:
            return

        def ended(_: Process) -> None:
            self.child = None
            loop_process.answer_later(0.01, token, None, None)

        program: Any = command(self.world, None, budget_s=BUDGET_S, look=False)
        self.child = self.machine.run(f"recovery by the {self.name}", program, role="guardian", on_exit=ended)

    def take_lock(self, loop_process: Process) -> bool:
        return loop_process.locks.lock("guardian")


Heard = Callable[[LeaseEvent, Lease | None, Lease], None]


class InMemoryLedger:
    """A `Ledger` in memory: the production transitions on dictionaries; `test_ledger.py` checks that SQLite does the same.

    It calls `heard` with each committed change of a lease: event, lease before, lease after. Faults: a full disk refuses
    every write; a lost ledger is a new one.
    """

    def __init__(self, heard: Heard | None = None) -> None:
        self.leases: dict[str, Lease] = {}
        self.attempts: dict[str, Attempt] = {}
        self.runs: set[str] = set()
        self.anchors: dict[str, Anchor] = {}
        self.heard = heard
        self.full = False  # is the disk full?

    def record(self, *events: LeaseEvent | AttemptEvent) -> None:
        if self.full:
            raise LedgerUnavailable("the ledger cannot be used: database or disk is full")
        new_runs: set[str] = set()
        new_leases: dict[str, Lease] = {}
        new_attempts: dict[str, Attempt] = {}
        changes: list[tuple[LeaseEvent, Lease | None, Lease]] = []
        queue = list(events)
        while queue:
            event = queue.pop(0)
            match event:
                case Intent(lease=lease):
                    of_ledger.check_not_canceled(self._last_attempt(lease.run, new_attempts), event)
                    if lease.id in self.leases or lease.id in new_leases:
                        raise LedgerUnavailable("the ledger cannot be used: UNIQUE constraint failed: lease.id")
                    new_leases[lease.id] = lease
                    changes.append((event, None, lease))
                case Began(run=run, attempt=attempt):
                    of_ledger.check_not_canceled(self._last_attempt(run.id, new_attempts), event)
                    new_runs.add(run.id)
                    new_attempts[attempt.id] = attempt
                case RunCanceled(run_id=run_id):
                    last = self._last_attempt(run_id, new_attempts)
                    if last is None:
                        raise UnknownRun(f"there is no run {run_id!r}")
                    every = {**self.leases, **new_leases}.values()
                    of_run = sorted((a for a in every if a.open and a.run == run_id), key=lambda a: a.created_at)
                    queue[:0] = of_ledger.events_of_cancel(event, last, of_run)
                case of_ledger.AttemptChange():
                    before_attempt = new_attempts.get(event.attempt_id) or self.attempt(event.attempt_id)
                    after_attempt = new_attempts[event.attempt_id] = of_ledger.apply_to_attempt(before_attempt, event)
                    if after_attempt.lease_id not in {None, *self.leases, *new_leases}:
                        raise LedgerUnavailable("the ledger cannot be used: FOREIGN KEY constraint failed")
                case _:
                    before = new_leases.get(event.lease_id) or self.lease(event.lease_id)
                    after = new_leases[event.lease_id] = of_ledger.apply(before, event)
                    changes.append((event, before, after))
        self.leases |= new_leases
        self.runs |= new_runs
        self.attempts |= new_attempts
        if self.heard is not None:
            for change in changes:
                self.heard(*change)

    def anchor(self, cloud: str, change: Callable[[Anchor | None, list[Lease]], Anchor]) -> Anchor:
        before = self.anchors.get(cloud)
        after = change(before, [lease for lease in self.open_leases() if lease.cloud == cloud])
        if not self.full:
            self.anchors[cloud] = after
        return after

    def lease(self, lease_id: str) -> Lease:
        try:
            return self.leases[lease_id]
        except KeyError:
            raise UnknownLease(f"there is no lease {lease_id!r}") from None

    def _last_attempt(self, run: str | None, new: dict[str, Attempt]) -> Attempt | None:
        return next((each for each in reversed(list({**self.attempts, **new}.values())) if each.run_id == run), None)

    def attempt(self, attempt_id: str) -> Attempt:
        try:
            return self.attempts[attempt_id]
        except KeyError:
            raise UnknownRun(f"there is no attempt {attempt_id!r}") from None

    def open_leases(self) -> list[Lease]:
        return sorted((lease for lease in self.leases.values() if lease.open), key=lambda lease: lease.created_at)

    def attempts_open(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts.values() if not attempt.state.ended]

"""A simulated machine and its user: processes, lock files, the ledger, guardians, the OS timer, power cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.core.lease.access import NO_RULES
from orchestrator.engine.effects.base import OpenAttempts, OpenLeases, Program
from orchestrator.engine.leases import server_time
from orchestrator.engine.leases.recover import close_attempts, overdue, recover
from orchestrator.errors import TpujobError
from orchestrator.ledger.clocks import Clocks
from tests.simulation.model.guardian import Guardian
from tests.simulation.model.ledger import InMemoryLedger
from tests.simulation.model.process import Process
from tests.simulation.model.scheduled_faults import after_restart
from tests.simulation.model.timeline import Clock

if TYPE_CHECKING:
    from tests.simulation.model.world import World

T = TypeVar("T")
RECOVERY_S = 20.0  # what a command spends on older teardowns (client/session.py)


async def command(
    world: World,
    then: Callable[[], Program[T]] | None,
    *,
    budget_s: float = RECOVERY_S,
    spare: str | None = None,
    look: bool = True,
) -> T | None:
    """What every tpujob command does (client/session.py): first finish what an earlier one left, then its own work."""
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

"""The guardian: waits until its command ends, then drives the production `engine.guardian.loop`.

Only the pipe and the start of the child process are simulated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.engine.guardian.loop import guardian_loop
from tests.simulation.model.process import Process
from tests.simulation.oracle.invariants import Invariant

if TYPE_CHECKING:
    from tests.simulation.model.machine import Machine

WAKE_S, START_S = 0.02, 0.2
BUDGET_S = 3600.0  # client/guarantee/recovery.py


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
        from tests.simulation.model.machine import command

        if not loop_process.alive:
            return

        def ended(_: Process) -> None:
            self.child = None
            loop_process.answer_later(0.01, token, None, None)

        program: Any = command(self.world, None, budget_s=BUDGET_S, look=False)
        self.child = self.machine.run(f"recovery by the {self.name}", program, role="guardian", on_exit=ended)

    def take_lock(self, loop_process: Process) -> bool:
        return loop_process.locks.lock("guardian")

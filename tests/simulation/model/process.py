"""One simulated local process: it drives a production program, answers its effects under virtual time, and can be killed.

Signals follow the rules of `promise.effects.interpreter`. Every effect is a step. Before an effect, while it is under way and
after it, the process can die, be stopped or receive a signal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.errors import CloudError, Interrupted
from orchestrator.hosts.fleet import effects
from orchestrator.promise import guardian
from orchestrator.promise.effects import base, cloud
from orchestrator.promise.effects.base import MaskSignals, Now, Program, Report, Sleep, UnmaskSignals
from orchestrator.promise.effects.cloud import Delete, DeleteAll
from orchestrator.promise.effects.interpreter import Abandoned
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.ledger.clocks import Clocks
from tests.simulation.model.cloud_client import CALLS

if TYPE_CHECKING:
    from tests.simulation.model.fleet import SimCrew
    from tests.simulation.model.machine import Guardian, InMemoryLedger, Machine

MICRO_S = 1e-4
ARM_S = 0.05
Token = int | tuple["ParallelCalls", int]
CLOUD = {name: verb for name, verb in CALLS.items() if hasattr(cloud, name)}


class Process:
    """`role` is cli, guardian loop, guardian (its recovery), collector, timer or gc.

    `on_exit(process)` is called however the process ends, a kill included.
    """

    def __init__(
        self,
        machine: Machine,
        name: str,
        role: str,
        program: Program[Any],
        on_exit: Callable[[Process], None] | None = None,
    ) -> None:
        self.machine, self.name, self.role, self.program = machine, name, role, program
        self.world, self.reach = machine.world, self
        self.timeline = machine.world.timeline
        self.on_exit = on_exit
        self.alive, self.frozen = True, False
        self.killed = False  # ended by SIGKILL
        self.result: Any = None
        self.error: BaseException | None = None
        self.started_at, self.ended_at = self.timeline.now, 0.0
        self.steps = 0
        self._ledger = machine.ledger
        self._clocks = Clocks(machine.ledger, machine.clock)
        self.guardian: Guardian | None = None  # of a guardian loop: its guardian
        self.locks = ProcessLocks(machine, self)
        self.own_creates = base.OwnCreates()
        self.cloud = machine.world.client(self)
        self.fleets: list[SimCrew] = []
        self.calls = 0  # calls to the API
        self.masked = False
        self.pending: Interrupted | None = None
        self.signals_received = 0
        self.when_thawed: list[Callable[[], None]] = []  # called after SIGCONT
        self._queued: list[int] = []  # signals, delivered at the next slow effect
        self._token = 0  # of the expected answer; older ones are late answers of abandoned calls
        self._waiting: base.Effect[Any] | None = None
        self._held: tuple[Any, BaseException | None] | None = (
            None  # an answer that arrived while the process was stopped
        )
        self.armed = False

    # -- the World protocol: effects are performed on it -----------------------------------------------------------------

    @property
    def ledger(self) -> InMemoryLedger:
        """A command opens the ledger once and does not notice a replaced file; a guardian opens it for each question."""
        return self._ledger if self.guardian is None else self.machine.ledger

    def now(self, cloud: str | None = None) -> float:
        clocks = self._clocks if self.guardian is None else Clocks(self.machine.ledger, self.machine.clock)
        return clocks.now(self.world.cloud_kind)

    def is_time_certain(self) -> bool:
        return self._clocks.is_certain(self.world.cloud_kind)

    def set_server_time(self, server_now: float, asked_at: float) -> None:
        self._clocks.synchronize(self.world.cloud_kind, server_now, asked_at)

    def report(self, told: Report) -> None:
        self.world.oracle.logins.told(told.text)
        if self.world.trace is not None and not told.passing:
            self.world.log(f"{self.name}: {told.stage} {told.text}")

    def arm(self) -> bool:
        if not self.armed:
            self.armed = self.machine.start_guardian(self)
        return self.armed

    def grant_login(self, lease: Lease, expires_at: float) -> str:
        return self.world.cloud.import_key(lease, expires_at)

    def extend_login(self, lease: Lease, expires_at: float) -> None:
        self.world.cloud.extend_key(lease, expires_at)

    def revoke_login(self, lease: Lease) -> None:
        self.world.cloud.remove_key(lease)

    def connect(self, lease: Lease, workers: Sequence[WorkerAddress], deadline_s: float) -> Any:
        raise AssertionError("Connect is answered by SimFleet")

    # -- start and end -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._advance(None, None)

    def kill(self) -> None:
        """SIGKILL: no line of the program runs any more. Calls under way still have their effect."""
        if self.alive:
            self.killed = True
            self.world.log(f"{self.name} is killed (step {self.steps}: {type(self._waiting).__name__})")
            self._end()

    def freeze(self) -> None:
        self.frozen = True
        self.world.log(f"{self.name} is stopped")

    def thaw(self) -> None:
        if not (self.alive and self.frozen):
            return
        self.frozen = False
        self.world.log(f"{self.name} goes on")
        waiting, self.when_thawed = self.when_thawed, []
        for advance in waiting:
            advance()
        if self._held is not None:
            held, self._held = self._held, None
            self._advance(*held)

    def signal(self, number: int) -> None:
        """Deliver a signal, with the meaning that the production interpreter gives it."""
        if not self.alive:
            return
        if self.frozen or self._waiting is None:
            self._queued.append(number)
            return
        self.world.log(f"{self.name} hears signal {number}")
        self.signals_received += 1
        if self.masked:
            self.pending = self.pending or Interrupted(number)
            if self.signals_received >= 3:
                self.error = Abandoned()
                self._end()
            return
        self.world.oracle.signal_sent(self)
        self._token += 1
        self._advance(None, Interrupted(number))

    def _end(self) -> None:
        self.alive = False
        self.ended_at = self.timeline.now
        self._token += 1
        if self.steps == 0:
            self.program.close()  # it never started
        self.program = None  # type: ignore[assignment]  # not closed: a killed process runs no `finally`
        for fleet in self.fleets:
            fleet.disconnected = True
        self.machine.ended(self)
        if self.on_exit is not None:
            self.on_exit(self)
        self.world.process_ended(self)

    # -- effects -------------------------------------------------------------------------------------------------------

    def _advance(self, answer: Any, error: BaseException | None) -> None:
        if self.frozen:
            self._held = (answer, error)
            return
        world, crash_at = self.world, self.world.crash_steps.get(self.name)
        while True:
            self._waiting = None
            try:
                effect = self.program.send(answer) if error is None else self.program.throw(error)
            except StopIteration as stop:
                self.result = stop.value
                self._end()
                return
            except Exception as failure:
                self.error = failure
                self._end()
                return
            self.steps += 1
            if crash_at is not None and world.tick(self, crash_at):
                return
            answer, error = None, None
            kind = type(effect)
            if kind is Now:
                answer = self.now()
                continue
            if kind is Report:
                self.report(effect)  # type: ignore[arg-type]
                continue
            if kind is MaskSignals or kind is UnmaskSignals:
                self.masked = kind is MaskSignals
            if self.pending is not None and not self.masked:
                error, self.pending = self.pending, None
                world.oracle.signal_sent(self)
                continue
            if kind is MaskSignals or kind is UnmaskSignals:
                continue
            if not kind.slow:
                world.acting = self
                try:
                    answer = effect.perform(self)  # type: ignore[arg-type]
                except Exception as failure:
                    error = failure
                if crash_at is not None and world.tick(self, crash_at):
                    return
                continue
            self._waiting = effect
            self._begin(effect)
            if self._queued:
                self.timeline.after(MICRO_S, self._hear)
            return

    def _hear(self) -> None:
        while self._queued and self.alive and not self.frozen and self._waiting is not None:
            self.signal(self._queued.pop(0))

    def _begin(self, effect: Any) -> None:
        """Start a slow effect. `answered` is called once, at the right time."""
        self._token += 1
        token, kind = self._token, type(effect)
        if kind is Sleep:
            seconds = self.machine.clock.true_s(effect.seconds)
            self.timeline.after(seconds if seconds > MICRO_S else MICRO_S, self.answered, token, None, None)
        elif kind.__name__ in CLOUD:
            self.calls += 1
            self.cloud.send(CLOUD[kind.__name__], effect, token)
        elif kind is DeleteAll:
            self.calls += len(effect.names)
            together = ParallelCalls(self, token, len(effect.names))
            for index, name in enumerate(effect.names):
                self.cloud.send(CLOUD["Delete"], Delete(name), (together, index))
        elif kind.__module__ == effects.__name__:
            self.world.ask_workers(self, effect, token)
        elif kind is guardian.Recover:
            assert self.guardian is not None
            self.guardian.recover(self, token)
        elif kind is guardian.TakeGuardianLock:
            assert self.guardian is not None
            self.answer_later(MICRO_S, token, self.guardian.take_lock(self), None)
        elif kind is base.StartGuardian or kind is base.Make:
            self.timeline.after(ARM_S, self._perform_and_answer, token, effect)
        else:
            raise NotImplementedError(f"the simulator does not know the effect {effect!r}")

    def _perform_and_answer(self, token: int, effect: Any) -> None:
        if not self.alive or token != self._token:
            return
        try:
            self.answered(token, effect.perform(self), None)
        except Exception as failure:
            self.answered(token, None, failure)

    def answer_later(self, delay_s: float, token: Token, answer: Any, error: BaseException | None) -> None:
        self.timeline.after(delay_s, self.answered, token, answer, error)

    def answered(self, token: Token, answer: Any, error: BaseException | None) -> None:
        if isinstance(token, tuple):
            together, index = token
            together.answered(index, answer, error)
            return
        if token != self._token or not self.alive:
            return  # the process is dead, or a signal unwound it meanwhile
        self._token += 1
        if self.world.trace is not None and isinstance(error, CloudError):
            self.world.log(f"{self.name}: {type(self._waiting).__name__} → {type(error).__name__}: {error}")
        expected = self._token
        crash_at = self.world.crash_steps.get(self.name)
        if crash_at is not None and (self.world.tick(self, crash_at) or self._token != expected):
            return  # dead, or a signal has unwound it: the answer comes too late
        self._advance(answer, error)


class ParallelCalls:
    """Parallel calls, until the last of them is answered."""

    def __init__(self, process: Process, token: int, count: int) -> None:
        self._process, self._token, self._missing = process, token, count
        self._answers: list[Any] = [None] * count

    def answered(self, index: int, answer: Any, error: BaseException | None) -> None:
        self._answers[index] = answer if error is None else error
        self._missing -= 1
        if not self._missing:
            self._process.answered(self._token, tuple(self._answers), None)


class ProcessLocks:
    """The file locks of one process. The kernel drops a lock when its holder dies."""

    __slots__ = ("_held", "_process")

    def __init__(self, machine: Machine, process: Process) -> None:
        self._held, self._process = machine.locks, process

    def lock(self, name: str) -> bool:
        return self._held.setdefault(name, self._process) is self._process

    def unlock(self, name: str) -> None:
        if self._held.get(name) is self._process:
            del self._held[name]

    def is_locked(self, name: str) -> bool:
        return name in self._held

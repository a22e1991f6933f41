"""The hands of a runner: the programs of `queue.passes` on the real store, the real cloud and real workers.

Each turn has a thread with a session of its own, as a lane of a sweep has. One more thread renews the turns of this process,
and interrupts one that was lost, or whose job was removed.
"""

from __future__ import annotations

import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Coroutine
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.api.queue import leases, turns
from orchestrator.api.queue.leases import LATE_S
from orchestrator.api.session.reporter import Reporter
from orchestrator.errors import TpujobError
from orchestrator.promise.effects.interpreter import HEARD_WITHIN_S
from orchestrator.queue import record, steps
from orchestrator.queue.passes import Did, Gates, Look, Seen, change, play
from orchestrator.queue.record import Bounds, Queue, QueuedJob, Stage, Turn

if TYPE_CHECKING:
    from orchestrator.api.session.session import Session
    from orchestrator.queue.store import Store
    from orchestrator.run.job_run import Lane

CLAIM_BEATS = 5  # heartbeats: without a word for so long, a turn is free
SETTLE_BEATS = 2.5  # heartbeats, within which every worker has published what runs there


def runner_name(session: Session) -> str:
    """Return a name for this process, and lock it as long as it lives."""
    name = f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(3)}"
    session.locks.lock(_lock(name))
    return name


def _lock(runner: str) -> str:
    return f"queue-{runner}"


class RecordIn:
    """The record of the queue in its store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.alone: AbstractContextManager[Any] = threading.RLock()
        self._last = "", Queue()  # by generation: most reads find what the one before found
        self._reading = threading.Lock()

    async def read(self) -> Seen:
        found = self.store.read(record.NAME)
        with self._reading:
            if self._last[0] != found.generation:
                queue = record.from_json(found.content, self.store.where)
                leases.check(queue, self.store.where)
                self._last = found.generation, queue
            return Seen(self._last[1], found.generation, found.now)

    async def write(self, queue: Queue, generation: str) -> None:
        unique = replace(queue, write=secrets.token_hex(8))
        self.store.write(record.NAME, unique.to_json(), generation)


class RealHands(RecordIn):
    """`interrupted`: the signal that ends this runner, once there was one."""

    def __init__(self, session: Session, store: Store, bounds: Bounds) -> None:
        super().__init__(store)
        self.session, self.bounds = session, bounds
        self.runner = runner_name(session)
        timings = session.target.timings
        self.claim_s, self.pause_s = CLAIM_BEATS * timings.heartbeat_s, timings.heartbeat_s
        self._beat_s = timings.heartbeat_s
        self._lock = threading.RLock()
        self._ended: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._threads: dict[threading.Thread, Session | None] = {}
        self._owned: dict[str, tuple[str, threading.Thread]] = {}
        self._lanes: dict[str, tuple[Lane, Session]] = {}  # by the token of the turn that a slice goes on to
        self._failures: list[BaseException] = []
        self._closed = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="tpujob-queue-renewal", daemon=True)
        self.interrupted: int | None = None
        self._heard: int | None = None

    async def token(self) -> str:
        return secrets.token_hex(8)

    def is_dead(self, runner: str) -> bool:
        """Only a process of this machine and this state directory is known to have ended: its lock is free."""
        mine = runner.startswith(f"{os.uname().nodename}-") and runner != self.runner
        known = (self.session.locks.directory / f"{_lock(runner)}.lock").exists()
        return mine and known and not self.session.locks.is_locked(_lock(runner))

    def cannot(self, job: QueuedJob) -> str:
        target = self.session.target
        if (job.cloud, job.project) != (target.kind, target.project):
            return f"it is for {job.cloud} project {job.project}, and {socket.gethostname()} works for {target.project}"
        lacks = [name for name in job.needs if name not in os.environ]
        if lacks:
            return f"the runner on {socket.gethostname()} lacks the variable{'s'[: len(lacks) > 1]} {', '.join(lacks)}"
        return ""

    async def settle(self) -> None:
        self._closed.wait(SETTLE_BEATS * self._beat_s + min(LATE_S, self._beat_s * 10))

    async def tell(self, job: QueuedJob, text: str) -> None:
        self.session.reporter.notice("queue", f"{job.name} ({job.id}): {text}")

    # -- threads -------------------------------------------------------------------------------------------------------

    async def spawn(self, program: Coroutine[Any, Any, None]) -> None:
        thread = threading.Thread(target=self._serve, args=(program,), name="tpujob-queue-turn")
        with self._lock:
            self._threads[thread] = None
        if self.interrupted is not None:
            program.close()
            self._ended_thread(thread)
            return
        try:
            thread.start()
        except RuntimeError as error:  # the machine has no thread left: the next pass has the turn
            program.close()
            self._ended_thread(thread)
            raise TpujobError(f"this process gets no more threads: {error}") from error

    def stops(self) -> bool:
        return self.interrupted is not None

    def own(self, job: str, token: str) -> None:
        thread = threading.current_thread()
        with self._lock:  # a thread has one turn: that of a job before it is over, once the slice is passed on
            self._owned = {each: turn for each, turn in self._owned.items() if turn[1] is not thread}
            self._owned[job] = token, thread
            if not self._renewal.is_alive():
                with suppress(RuntimeError):
                    self._renewal.start()

    async def wait(self) -> bool:
        """Also returns when a signal came: the threads are interrupted, and no other begins."""
        with self._lock:
            if not self._threads:
                return False
        give_up_at = time.monotonic() + self._beat_s
        while time.monotonic() < give_up_at:
            with suppress(queue.Empty):
                number = self._ended.get(timeout=HEARD_WITHIN_S)  # a wait without an end would hear no signal
                if number is not None:
                    self.interrupt(number)
                break
        return True

    def hear(self, number: int) -> None:
        """Take a signal; called from its handler."""
        self._heard = number
        self._ended.put(number)

    def signal_heard(self) -> int | None:
        """Return the first signal, also one that came while no thread ran."""
        return self._heard

    def interrupt(self, number: int) -> None:
        """End what runs, as this signal does: what is not handed over yet is released, proven."""
        with self._lock:
            first, self.interrupted = self.interrupted is None, number
            sessions = [each for each in self._threads.values() if each is not None]
        if first and sessions:
            self.session.reporter.notice("stop", f"ending {len(sessions)} turn{'s'[: len(sessions) > 1]} of the queue")
        for session in sessions:
            session.interrupt(number, told=True)

    def finish(self) -> None:
        """End the renewal, once no thread runs any more. Raises what a thread raised that is a bug."""
        self._closed.set()
        if self._renewal.is_alive():
            self._renewal.join()
        self.session.locks.unlock(_lock(self.runner))
        with suppress(OSError):  # no other process has this name
            (self.session.locks.directory / f"{_lock(self.runner)}.lock").unlink()
        proven = [each for each in self.session.unproven if not self.session.ledger.lease(each).open]
        for lease_id in proven:  # by another turn, since
            del self.session.unproven[lease_id]
        if self._failures:
            raise self._failures[0]

    def _serve(self, program: Coroutine[Any, Any, None]) -> None:
        thread = threading.current_thread()
        try:
            play(program)
        except TpujobError as error:
            self.session.reporter.fail(error)
        except BaseException as error:
            self._failures.append(error)
            self.session.reporter.fail(TpujobError(f"a bug in tpujob: {type(error).__name__}: {error}"))
        finally:
            self._ended_thread(thread)

    def _ended_thread(self, thread: threading.Thread) -> None:
        with self._lock:
            self._threads.pop(thread, None)
            self._owned = {job: each for job, each in self._owned.items() if each[1] is not thread}
        self._ended.put(None)

    def _renew(self) -> None:
        told: set[str] = set()
        while not self._closed.wait(self.claim_s / 5):
            with self._lock:
                owned = {job: token for job, (token, _) in self._owned.items()}
            if not owned:
                continue
            try:
                after = play(change(self, steps.renew(owned, self.claim_s)))
            except Exception as error:  # the turns last for a while, and each gate asks again
                self.session.reporter.progress("queue", f"the record is not renewed: {error}")
                continue
            for job_id, token in owned.items():
                job = after.job(job_id)
                turn = None if job is None else job.turn
                lost = turn is None or turn.token != token
                if token not in told and (lost or (job and job.removed and turn and turn.stage is Stage.STARTING)):
                    told.add(token)  # once: several would leave a deletion before its proof
                    self._interrupt_turn(job_id, token)

    def _interrupt_turn(self, job_id: str, token: str) -> None:
        with self._lock:
            owned = self._owned.get(job_id)
            session = self._threads.get(owned[1]) if owned is not None and owned[0] == token else None
        if session is not None:
            session.interrupt(by="the queue: another runner has the job, or it was removed", told=True)

    def _session(self, job: QueuedJob) -> Session:
        """Return the session of this thread's turn."""
        reporter = Reporter(self.session.reporter.emit, self.session.reporter.secrets)
        reporter.variant = job.name
        session = self.session.beside(reporter, runs_dir=self._runs_dir(job))
        with self._lock:
            if threading.current_thread() in self._threads:
                self._threads[threading.current_thread()] = session
        if self.interrupted is not None:
            session.interrupt(self.interrupted, told=True)
        return session

    def _runs_dir(self, job: QueuedJob) -> str:
        """Return below which directory the results of a job go: that of who added it, where this machine has it."""
        there = Path(job.runs) if job.runs and Path(job.runs).parent.is_dir() else self.session.directory / "runs"
        return self.session.target.runs_dir or str(there)

    def _close_session(self, session: Session) -> None:
        with self._lock:
            for thread, each in self._threads.items():
                if each is session:
                    self._threads[thread] = None
            self.session.unproven |= session.unproven  # which the exit code of the command tells
        session.close()

    def _hide(self, text: str) -> str:
        return self.session.reporter.secrets.hide(text)

    def _shown(self, did: Did) -> Did:
        """Return it without secrets: all who may read the store read the record."""
        end = None if did.end is None else replace(did.end, text=self._hide(did.end.text))
        again = replace(did.again, why=self._hide(did.again.why))
        return replace(did, problem=self._hide(did.problem), end=end, again=again)

    # -- what a turn does ----------------------------------------------------------------------------------------------

    async def start(self, job: QueuedJob, turn: Turn, gates: Gates) -> Did:
        lane, session = self._lanes.pop(turn.token, None) or (None, self._session(job))
        try:
            return self._shown(turns.start(session, self.store, job, turn, gates, lane, self.pause_s))
        finally:
            self._close_session(session)

    async def look(self, job: QueuedJob, turn: Turn) -> Look:
        session = self._session(job)
        try:
            found = turns.look(session, job, turn)
        except TpujobError as error:
            found = Look("unknown", why=error.message)
        finally:
            self._close_session(session)
        told = {key: self._hide(each) if isinstance(each, str) else each for key, each in found.metrics.items()}
        return replace(found, why=self._hide(found.why), metrics=told)

    async def collect(self, job: QueuedJob, turn: Turn, gates: Gates) -> Did:
        session, did = self._session(job), Did()
        try:
            did, lane = turns.collect(session, job, turn, gates)
            if did.follows is not None and did.follows.turn is not None:  # with the connections of this one
                session.reporter.variant = did.follows.name
                session.target = replace(session.target, runs_dir=self._runs_dir(did.follows))
                self._lanes[did.follows.turn.token] = lane, session
            return self._shown(did)
        finally:
            if did.follows is None:
                self._close_session(session)

    async def undo(self, job: QueuedJob, turn: Turn) -> Did:
        session = self._session(job)
        try:
            return self._shown(turns.undo(session, job, turn))
        except TpujobError as error:
            session.reporter.fail(error)
            return self._shown(Did(problem=error.message))
        finally:
            self._close_session(session)

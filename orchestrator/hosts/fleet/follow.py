"""The calls that last: one follows a phase on a worker to its end, over as many connections as necessary, one sends heartbeats.

The log is fetched by byte offset, so a cut connection loses and repeats nothing; so are the metrics of worker 0. Only a final
status from the worker ends the phase, and that comes after the last byte of both; the end of a stream does not. Of a job that
another process started, the log of its setup comes first, if it had one.

Heartbeats run until their fleet is closed, and never end it: failures are retried, and reported once when they last.
"""

import itertools
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from orchestrator.errors import HostKeyMismatch, RemoteError, Unreachable
from orchestrator.hosts.ssh.call import WorkerCall, parse_json
from orchestrator.hosts.ssh.connection import Connection
from orchestrator.hosts.ssh.fan_out import FanOutAbandoned, Wakeup
from orchestrator.text.terminal import LeftOut, printable

SILENCE_S = 12.0  # the worker sends something every two seconds
RETRY_FIRST_S, RETRY_MOST_S = 0.1, 3.0
DIGITS = 18  # of a number of bytes, at most
MOST_SERVERS, SERVER_CHARS = 8, 200  # of those that a worker says it does not reach
TEXT_CHARS = 300  # of what a worker or its place says of an end
# Values of `why` for phases that the job or its image ended. All others are the place's doing, or the limit of the job.
OWN_ENDS = ("", "setup", "failed", "lost", "OOMKilled", "ContainerCannotRun", "StartError")


class Beside(bytes):
    """A piece of a file that the job's supervisor writes beside its metrics: passed on as these are, and named by `kind`.

    `chips` is tpu-metrics.jsonl, `host` is host.jsonl. An empty one says that the file begins anew.
    """

    kind: str

    def __new__(cls, kind: str, data: bytes) -> "Beside":
        piece = super().__new__(cls, data)
        piece.kind = kind
        return piece


BESIDE = {b"C": "chips", b"H": "host"}


class WorkerState(StrEnum):
    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"  # the worker answers, but the phase is gone without an exit code
    UNREACHABLE = "unreachable"  # for now; the phase may well be running


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    index: int
    state: WorkerState
    since: float  # unix seconds, our clock
    log_bytes: int
    rc: int | None = None
    stopped: bool = False  # it ended because it was asked to
    heard_at: float = math.inf  # unix seconds, when something came last
    unreachable: tuple[str, ...] = ()  # servers that a failed setup cannot download from, each with why
    disk_full: bool = False  # of the worker, when the phase ended
    ran_s: float | None = None  # from its start to its end, by the clock of the worker
    why: str = ""  # of a pod (`places.gke.pods.phase_ends`): what ended its phase, if the job itself did not
    detail: str = ""  # the same in a sentence

    @property
    def final(self) -> bool:
        return self.state in (WorkerState.EXITED, WorkerState.LOST)

    @property
    def failed(self) -> bool:
        return self.final and self.rc != 0

    def silent_s(self, now: float) -> float:
        """Return for how many seconds nothing has come."""
        return max(0.0, now - self.heard_at)


def servers_in(said: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the servers that a worker says it does not reach; nothing it says is trusted."""
    servers = said.get("unreachable")
    named = servers[:MOST_SERVERS] if isinstance(servers, list) else []
    return tuple(printable(str(name)[:SERVER_CHARS])[:SERVER_CHARS] for name in named)


def _ran_s(said: Mapping[str, Any]) -> float | None:
    """Return for how long a phase ran; None for what cannot have been measured."""
    began, ended = said.get("started_at"), said.get("ended_at")
    if not isinstance(began, int | float) or not isinstance(ended, int | float):
        return None
    return float(ended - began) if 0 <= ended - began < math.inf else None


class WorkerFollower:
    """Follows a phase on one worker, in a daemon thread. `status` is replaced as a whole; `wakeup` announces the change."""

    def __init__(self, index: int, wakeup: Wakeup, now: Callable[[], float]) -> None:
        self.index = index
        self.changes = 0  # how often the state changed
        self.error: Exception | None = None  # what ended the following itself
        self.thread = threading.Thread(target=self._run, name=f"follow-worker{index}", daemon=True)
        self._wakeup, self._now = wakeup, now
        self._log_bytes, self._heard_at = 0, now()
        self._status = WorkerStatus(index, WorkerState.RUNNING, now(), 0)

    @property
    def status(self) -> WorkerStatus:
        return replace(self._status, log_bytes=self._log_bytes, heard_at=self._heard_at)

    @property
    def done(self) -> bool:
        return self._status.final or self.error is not None

    def _follow(self) -> None:
        """Follow the phase to its end. Raises FanOutAbandoned, and what the fleet is to raise."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            self._follow()
        except FanOutAbandoned:
            return
        except Exception as error:  # a wrong host key, a full disk under the sink: `wait` of the fleet raises it
            self.error = error
            self._finish()

    def _finish(self) -> None:
        """Let those who wait look."""
        with self._wakeup.changed:
            self._wakeup.changed.notify_all()

    def _move(self, state: WorkerState, rc: int | None = None, why: str = "", detail: str = "", **more: Any) -> None:
        with self._wakeup.changed:
            if self._status.final or self._status.state is state:
                return
            texts: dict[str, Any] = {"why": printable(why)[:TEXT_CHARS], "detail": printable(detail)[:TEXT_CHARS]}
            self._status = WorkerStatus(self.index, state, self._now(), self._log_bytes, rc, **texts, **more)
            self.changes += 1
            self._wakeup.changed.notify_all()


class Follower(WorkerFollower):
    """Of a worker that is reached by a connection."""

    def __init__(
        self, connection: Connection, attempt: str, phase: str, *, opened: WorkerCall | None,
        deliver: Callable[[int, bytes], None], metrics: Callable[[int, bytes], None] | None = None,
        wakeup: Wakeup, now: Callable[[], float],
    ) -> None:  # fmt: skip
        super().__init__(connection.index, wakeup, now)
        self._connection, self._attempt, self._phase = connection, attempt, phase
        self._is_before = opened is None and phase == "main"  # still at the log of the setup
        self._offsets = dict.fromkeys((b"M", *BESIDE), 0)  # of each file, by its frame
        self._opened = opened  # a stream of the log from its first byte, if there is one already
        self._deliver, self._metrics = deliver, metrics

    def _follow(self) -> None:
        pause_s = RETRY_FIRST_S
        while not self._status.final:
            before = self._log_bytes
            try:
                self._follow_once()
            except Unreachable:
                self._move(WorkerState.UNREACHABLE)
                pause_s = RETRY_FIRST_S if self._log_bytes > before else min(2 * pause_s, RETRY_MOST_S)
                self._wakeup.sleep(pause_s)

    def _follow_once(self) -> None:
        with self._stream() as call:
            call.answer()  # the greeting, behind whatever a login shell prints
            for kind, content in call.frames():
                self._heard_at = self._now()
                if kind == b"L" and content:
                    self._deliver(self._connection.index, content)
                    self._log_bytes += len(content)
                elif kind == b"G" and content[:DIGITS].isdigit():
                    self._deliver(self._connection.index, left_out := LeftOut(int(content[:DIGITS])))
                    self._log_bytes += left_out.size_bytes
                elif kind in self._offsets and self._metrics is not None:
                    self._metrics(self._connection.index, content if kind == b"M" else Beside(BESIDE[kind], content))
                    self._offsets[kind] = self._offsets[kind] + len(content) if content else 0
                elif kind == b"S" and self._take(parse_json(content)):
                    return

    def _stream(self) -> WorkerCall:
        call, self._opened = self._opened, None
        if call is None:
            verb = ("follow", self._attempt, "setup" if self._is_before else self._phase, str(self._log_bytes))
            offsets = () if self._metrics is None or self._is_before else map(str, self._offsets.values())
            call = WorkerCall(self._connection, *verb, *offsets, silence_s=SILENCE_S)
            call.end_input()
        call.silence_s = SILENCE_S
        return call

    def _take(self, found: Any) -> bool:
        """Take a status; return whether it is the last one of its stream."""
        if not isinstance(found, dict):
            raise RemoteError(f"{self._connection.name}: a status that is not an object")
        state = found.get("state")
        if self._is_before:  # how the setup ended was judged by who started the job
            if state in ("exited", "lost", "none"):
                self._is_before, self._log_bytes = False, 0
            return not self._is_before
        if state == "exited":
            rc = found.get("rc")
            self._move(
                WorkerState.EXITED, rc=rc if isinstance(rc, int) else None, stopped=bool(found.get("stopped")),
                unreachable=servers_in(found), disk_full=bool(found.get("disk_full")), ran_s=_ran_s(found),
            )  # fmt: skip
        elif state in ("lost", "none"):
            self._move(WorkerState.LOST)
        else:
            self._move(WorkerState.RUNNING)
        return self._status.final


ANSWER_S = 15.0  # for the answer to the first line


class Heartbeats:
    """The fleet starts `thread`; `wakeup` ends it."""

    def __init__(
        self, connection: Connection, every_s: float, wakeup: Wakeup, on_notice: Callable[[str], None]
    ) -> None:
        self._connection, self._every_s, self._wakeup, self._on_notice = connection, every_s, wakeup, on_notice
        # Two processes never send the same line.
        self._lines = (f"{secrets.token_hex(8)}-{number}\n".encode() for number in itertools.count(1))
        self._failures = 0  # in a row
        self._sent_at = time.monotonic()
        self._reported = False
        self.thread = threading.Thread(target=self._run, name=f"heartbeat-{connection.name}", daemon=True)

    def _run(self) -> None:
        # A wrong host key is raised by another call, too, whose caller handles it.
        with suppress(FanOutAbandoned, HostKeyMismatch):
            while True:
                try:
                    self._send_lines()
                except (FanOutAbandoned, HostKeyMismatch):
                    raise
                except RemoteError as error:
                    self._failures += 1
                    if not isinstance(error, Unreachable):  # which the follower of the job's log reports
                        self._report(error)
                self._wakeup.sleep(min(RETRY_FIRST_S * 2 ** min(self._failures, 9), RETRY_MOST_S))

    def _report(self, error: RemoteError) -> None:
        """Report a missed heartbeat, once; a VM that has just booted may need a moment."""
        if not self._reported and time.monotonic() - self._sent_at > 2 * self._every_s:
            self._reported = True
            self._on_notice(f"{self._connection.name} accepts no heartbeat, and may delete the slice: {error.message}")

    def _send_lines(self) -> None:
        """Send until it fails. A failure closes this call only; the connection may still work for others."""
        call = WorkerCall(self._connection, "heartbeat", silence_s=ANSWER_S)
        try:
            call.send(next(self._lines))
            call.answer()
            self._failures, self._sent_at, self._reported = 0, time.monotonic(), False
            for line in self._lines:
                self._wakeup.sleep(self._every_s)
                call.send(line)
                self._sent_at = time.monotonic()
        finally:
            call.close()

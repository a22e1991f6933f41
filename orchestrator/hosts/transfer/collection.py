"""A running collection from all workers of a fleet: in the background, over as many connections as it takes."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from orchestrator.errors import CommandFailed, Unreachable
from orchestrator.hosts.ssh.call import WorkerCall
from orchestrator.hosts.ssh.connection import Connection
from orchestrator.hosts.ssh.fan_out import Rules, Wakeup, combined_error, outcomes
from orchestrator.hosts.transfer.collect import THE_REST, CollectionProgress, CollectResult, Problem
from orchestrator.hosts.transfer.collector import ArchivePart, CollectionStopped, Collector, TooManyFiles
from orchestrator.hosts.transfer.extract import CHANGED, Extracted

STALL_S = 60.0  # a worker that sends nothing for so long, over however many connections, is skipped
ROW_BYTES = 64 << 10  # of the index: a path of 4 KB, each character written as an escape
STOP_WAIT_S = 2.0  # for a thread that was asked to stop


class Source(Protocol):
    """Where the results of one worker come from."""

    @property
    def index(self) -> int:
        """The index of the worker."""


class Packer(AbstractContextManager["Packer"], Protocol):
    """The packer of one worker: what `Collector.receive` talks to."""

    def answer(self, limit: int) -> dict[str, Any]:
        """Return the next answer of the packer, of at most `limit` bytes. Raises CommandFailed for an error of the packer."""

    def send(self, data: bytes) -> None:
        """Send bytes to the packer, as it takes them. Raises CommandFailed when it has ended."""

    def read(self, size: int) -> bytes:
        """Return exactly `size` bytes."""

    def close(self) -> None:
        """End the packer. Callable from any thread."""


def packer_of(connection: Connection) -> WorkerCall:
    """Start the packer of a worker."""
    return WorkerCall(connection, "pack", silence_s=STALL_S)


class Collection:
    """A running collection from all workers, in the background: `wait` returns its progress, `stop` ends it."""

    def __init__(
        self,
        collector: Collector,
        connections: Sequence[Source],
        wakeup: Wakeup,
        on_slow: Callable[[Sequence[Any], Unreachable | None], None],
        open_packer: Callable[[Any], Packer],
    ) -> None:
        """`connections`: one source for each worker; `on_slow` and `open_packer` take them."""
        self._collector, self._connections, self._wakeup, self._on_slow = collector, connections, wakeup, on_slow
        self._open_packer = open_packer
        known = collector.request.known
        self._parts = {c.index: ArchivePart(c.index, Extracted(dict(known.get(c.index, {})))) for c in connections}
        self._calls: dict[int, Packer] = {}  # to the packers, by worker
        self._ended: dict[int, CollectResult] = {}
        self._error: Exception | None = None
        self._done = False
        self._result = CollectResult()
        threading.Thread(target=self._run, name="collect", daemon=True).start()

    def wait(self, timeout_s: float) -> CollectionProgress:
        """Wait until the end, `timeout_s` seconds at most; return the progress. Raises an error that is not of one worker."""
        with self._wakeup.changed:
            self._wakeup.wait_for(lambda: self._done, timeout_s)
        if self._error is not None:
            raise self._error
        parts = list(self._parts.values())
        files = sum(len(part.result.files) for part in parts)
        counts = ("total_files", "size_bytes", "total_bytes", "hashed_bytes", "activity")
        sums = (sum(getattr(part, name) for part in parts) for name in counts)
        return CollectionProgress(self._result if self._done else None, files, *sums)

    def stop(self, why: str) -> CollectResult:
        """Stop, and return what has arrived; the rest is listed as waiting, with this reason."""
        for part in self._parts.values():
            part.stopped = why
        for call in list(self._calls.values()):
            call.close()
        with self._wakeup.changed:
            self._wakeup.wait_for(lambda: self._done, STOP_WAIT_S)
        if self._done and self._error is None:
            return self._result
        late = {i: p.summary(Problem(i, THE_REST, why)) for i, p in self._parts.items() if i not in self._ended}
        every = {**late, **self._ended}
        return CollectResult.of([every[index] for index in sorted(every)])

    def within(self, seconds: float) -> CollectResult:
        """Return what arrives within this time."""
        result = self.wait(seconds).result
        return self.stop(f"it took longer than {seconds:.0f} s") if result is None else result

    def _run(self) -> None:
        rules = Rules(self._until, lambda connection: self._parts[connection.index].progressed_at, self._on_slow)
        try:
            found = outcomes(self._connections, self._collect_one, self._wakeup, rules)
            for connection, outcome in zip(self._connections, found, strict=True):
                if isinstance(outcome, Unreachable):
                    part = self._parts[connection.index]
                    self._ended[part.worker] = part.incomplete(part.stopped or outcome.message)
            if bugs := [each for each in found if isinstance(each, Exception) and not isinstance(each, Unreachable)]:
                raise combined_error(bugs)
            self._result = self._collector.settled(CollectResult.of([self._ended[i] for i in sorted(self._ended)]))
        except Exception as error:  # `wait` raises it
            self._error = error
        with self._wakeup.changed:
            self._done = True
            self._wakeup.changed.notify_all()

    def _until(self, connection: Source) -> float:
        """Collect over as many connections as necessary, as long as data arrives."""
        part = self._parts[connection.index]
        return -math.inf if part.stopped else part.progressed_at + STALL_S

    def _collect_one(self, connection: Source) -> None:
        """Collect over one connection. Raises Unreachable when it was cut."""
        part, collector = self._parts[connection.index], self._collector
        part.progressed_at += time.monotonic() - part.left_at
        try:
            while True:
                result = collector.collect(part, partial(self._fetch, connection, part))
                part.passes += 1
                if part.passes >= collector.request.passes or not any(one.why == CHANGED for one in result.uncollected):
                    break
        except Unreachable:
            part.left_at = time.monotonic()
            raise
        except (CollectionStopped, CommandFailed, TooManyFiles) as error:
            result = part.incomplete(error.message)
        except OSError as error:  # of the local disk: errors of the connection are Unreachable
            result = part.incomplete(f"{error.strerror} ({collector.request.destination})")
        self._ended[part.worker] = result

    def _fetch(self, connection: Source, part: ArchivePart) -> None:
        """Collect over one connection. Raises Unreachable when it was cut."""
        with self._open_packer(connection) as call:
            self._calls[part.worker] = call
            try:
                self._collector.receive(part, lambda: call.answer(ROW_BYTES), call.send, call.read)
            finally:
                del self._calls[part.worker]

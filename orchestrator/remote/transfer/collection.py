"""A running collection from all workers of a fleet: in the background, over as many connections as it takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial

from orchestrator.errors import CommandFailed, Unreachable
from orchestrator.remote.ssh.call import WorkerCall
from orchestrator.remote.ssh.connection import Connection
from orchestrator.remote.ssh.fan_out import Wakeup, fan_out
from orchestrator.remote.transfer.collect import (
    THE_REST,
    ArchivePart,
    CollectionProgress,
    CollectionStopped,
    Collector,
    CollectResult,
    Problem,
    TooManyFiles,
)
from orchestrator.remote.transfer.extract import CHANGED, Extracted

STALL_S = 60.0  # a worker that sends nothing for so long, over however many connections, is skipped
ROW_BYTES = 64 << 10  # of the index: a path of 4 KB, each character written as an escape
RETRY_FIRST_S, RETRY_MOST_S = 0.1, 2.0
STOP_WAIT_S = 2.0  # for a thread that was asked to stop


class Collection:
    """A running collection from all workers, in the background: `wait` returns its progress, `stop` ends it."""

    def __init__(self, collector: Collector, connections: Sequence[Connection], wakeup: Wakeup) -> None:
        self._collector, self._connections, self._wakeup = collector, connections, wakeup
        known = collector.request.known
        self._parts = {c.index: ArchivePart(c.index, Extracted(dict(known.get(c.index, {})))) for c in connections}
        self._calls: dict[int, WorkerCall] = {}  # to the packers, by worker
        self._ended: dict[int, CollectResult] = {}
        self._error: Exception | None = None
        self._done = False
        threading.Thread(target=self._run, name="collect", daemon=True).start()

    def wait(self, timeout_s: float) -> CollectionProgress:
        """Wait until the end, `timeout_s` seconds at most; return the progress. Raises an error that is not of one worker."""
        with self._wakeup.changed:
            self._wakeup.wait_for(lambda: self._done, timeout_s)
        if self._error is not None:
            raise self._error
        parts = list(self._parts.values())
        return CollectionProgress(
            CollectResult.of([self._ended[index] for index in sorted(self._ended)]) if self._done else None,
            sum(len(part.result.files) for part in parts),
            sum(part.total_files for part in parts),
            sum(part.size_bytes for part in parts),
            sum(part.total_bytes for part in parts),
            sum(part.hashed_bytes for part in parts),
            sum(part.activity for part in parts),
        )

    def stop(self, why: str) -> CollectResult:
        """Stop, and return what has arrived; the rest is listed as waiting, with this reason."""
        for part in self._parts.values():
            part.stopped = why
        for call in list(self._calls.values()):
            call.close()
        with self._wakeup.changed:
            self._wakeup.wait_for(lambda: self._done, STOP_WAIT_S)
        late = {i: p.summary(Problem(i, THE_REST, why)) for i, p in self._parts.items() if i not in self._ended}
        every = {**late, **self._ended}
        return CollectResult.of([every[index] for index in sorted(every)])

    def within(self, seconds: float) -> CollectResult:
        """Return what arrives within this time."""
        result = self.wait(seconds).result
        return self.stop(f"it took longer than {seconds:.0f} s") if result is None else result

    def _run(self) -> None:
        try:
            fan_out(self._connections, self._collect_one, self._wakeup)
        except Exception as error:  # `wait` raises it
            self._error = error
        with self._wakeup.changed:
            self._done = True
            self._wakeup.changed.notify_all()

    def _collect_one(self, connection: Connection) -> None:
        """Collect over as many connections as necessary, as long as data arrives."""
        part = self._parts[connection.index]
        part.progressed_at = time.monotonic()  # it may have waited in the queue
        self._ended[part.worker] = self._collect_with_retries(connection, part)

    def _collect_with_retries(self, connection: Connection, part: ArchivePart) -> CollectResult:
        collector, pause_s, passes = self._collector, RETRY_FIRST_S, 0
        while True:
            try:
                result = collector.collect(part, partial(self._fetch, connection, part))
                passes += 1
                if passes >= collector.request.passes or not any(problem.why == CHANGED for problem in result.waiting):
                    return result
            except Unreachable as error:
                why = part.stopped or error.message
                if part.stopped or time.monotonic() - part.progressed_at > STALL_S:
                    return part.incomplete(why)
                self._wakeup.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MOST_S)
            except (CollectionStopped, CommandFailed, TooManyFiles) as error:
                return part.incomplete(error.message)
            except OSError as error:  # of the local disk: errors of the connection are Unreachable
                return part.incomplete(f"{error.strerror} ({collector.request.destination})")

    def _fetch(self, connection: Connection, part: ArchivePart) -> None:
        """Collect over one connection. Raises Unreachable when it was cut."""
        with WorkerCall(connection, "pack", silence_s=STALL_S) as call:
            self._calls[part.worker] = call
            try:
                self._collector.receive(part, lambda: call.answer(ROW_BYTES), call.send, call.read)
            finally:
                del self._calls[part.worker]

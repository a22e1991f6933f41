"""The worker of a job with `on: local`: this machine, without SSH and without a slice.

Each phase runs under the supervisor that runs it on a TPU VM (`vm.agent.local`), in a process of its own. It reads from a
pipe whose write end only this process holds, and ends the job at the end of the pipe. Artifacts are collected by the same
packer, with the same checks and the same manifest as from a worker.
"""

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from orchestrator.errors import RemoteError
from orchestrator.hosts.fleet.crew import FleetStatus, Sink, StartRequest, WorkerFacts
from orchestrator.hosts.fleet.follow import WorkerState, WorkerStatus
from orchestrator.hosts.shipping.shipment import Shipment
from orchestrator.hosts.ssh.call import PREFIX
from orchestrator.hosts.ssh.fan_out import Wakeup
from orchestrator.hosts.transfer.collect import CollectRequest
from orchestrator.hosts.transfer.collection import Collection
from orchestrator.hosts.transfer.collector import CollectionStopped, Collector
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.system import fork, private_files, trees
from orchestrator.text.terminal import LeftOut
from orchestrator.vm.agent.stream import BoundedLog, MetricsTail

AGENT = (sys.executable, "-P", "-m", "orchestrator.vm")
LOOK_S = 0.05
HERE = WorkerAddress(0, "127.0.0.1")


class LocalCrew:
    """`runs` is the directory of the attempts of local jobs; `close` deletes the attempt's part.

    `max_log`: how many bytes of a log are kept.
    """

    workers = (HERE,)
    index = 0  # as the source of results

    def __init__(
        self, runs: Path, attempt: str, *, shipment: Shipment | None = None, max_log: int | None = None
    ) -> None:
        self.runs, self.attempt, self._shipment, self._max_log = runs, attempt, shipment, max_log
        self._reading = threading.Lock()  # a wait that a signal interrupted may still be reading the log
        self._starting = threading.Lock()  # and a start may still be under way
        self._wakeup = Wakeup()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: fork.Descriptor | None = None  # to its stdin
        self._stopped = False
        self._log: BoundedLog | None = None
        self._read = 0
        self._sink: Sink = lambda worker, data: None
        self._metrics: Sink = self._sink
        self._tail = MetricsTail("", 0)
        self._end: WorkerStatus | None = None
        self._is_news = True  # that the phase has begun
        self._collection: Collection | None = None

    def connect(self, deadline_s: float, on_wait: Callable[[str], None] = lambda _text: None) -> None:
        """Do nothing: it is here."""

    def facts(self, worker: int = 0) -> WorkerFacts:
        with socket.socket() as probe:
            probe.bind((HERE.host, 0))
            return WorkerFacts(worker, HERE.host, int(probe.getsockname()[1]))

    @property
    def pid(self) -> int:
        """The process that supervises the phase."""
        assert self._process is not None, "no phase was started"
        return self._process.pid

    def start(self, request: StartRequest) -> None:
        """Start the phase. Raises RemoteError if `stop` came before."""
        private_files.make_directory(self.runs)
        shipment = self._shipment
        asked = {
            "runs": str(self.runs),
            "attempt": self.attempt,
            "phase": request.phase,
            "script": request.script,
            "env": dict(request.env_by_worker[0]),
            "manifest": None if shipment is None else shipment.id,
            "store": None if shipment is None else str(shipment.store),
            "max_log": self._max_log,
        }
        with self._starting:
            if self._stopped:
                raise RemoteError("the job was stopped")
            self.attach(self.attempt, request.phase)
            self._process, self._pipe = fork.start(
                [*AGENT, "local"],
                stdout=subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if name != "TPUJOB_CRASH_AT"},
                start_new_session=True,  # Ctrl-C in the terminal is for this process, which stops the job
            )
            self._send(asked)

    def attach(self, attempt: str, phase: str) -> None:
        self._phase = self.runs / self.attempt / phase
        self._log, self._read, self._end = BoundedLog(str(self._phase / "log"), self._max_log), 0, None
        self._is_news = True
        self._tail = MetricsTail(str(self.runs / self.attempt / "artifacts" / "metrics.jsonl"), 0)
        self._close_pipe()

    def follow(self, sink: Sink, metrics: Sink | None = None) -> None:
        """Pass the log to `sink` and metrics.jsonl to `metrics` during `wait` and `stop`."""
        self._sink, self._metrics = sink, metrics or self._metrics

    def wait(self, timeout_s: float) -> FleetStatus:
        """Pass the log on until the phase ends, `timeout_s` at most; return its state. The first call returns at once."""
        deadline = time.monotonic() + (0.0 if self._is_news else timeout_s)
        self._is_news = False
        while True:
            assert self._process is not None, "no phase was started"
            ended = self._process.poll() is not None  # asked first: then no byte is still to come
            with self._reading:
                self._pass_on(last=ended, until=deadline)
            if ended:
                self._end = self._end or self._ended()
                return FleetStatus((self._end,))
            if time.monotonic() >= deadline:
                return FleetStatus((WorkerStatus(0, WorkerState.RUNNING, time.time(), self._read),))
            time.sleep(LOOK_S)

    def stop(self, grace_s: float) -> None:
        """End the phase and everything it started: SIGTERM, after `grace_s` SIGKILL. No effect when nothing runs."""
        with self._starting:
            self._stopped = True
            if self._process is None:
                return
            self._send({"grace_s": grace_s})
        self._process.wait()
        self._close_pipe()
        with self._reading:
            self._pass_on(last=True, until=math.inf)

    def collect(self, order: CollectRequest) -> Collection:
        """Start collecting the results; go on with a collection whose wait a signal ended: two would write the same files."""
        if self._collection is not None:
            with contextlib.suppress(Exception):  # of one that failed: it is tried again
                self._collection.wait(0.0)
                return self._collection
        collector = Collector(replace(order, attempt=self.attempt, runs=str(self.runs)))
        self._collection = Collection(
            collector, (self,), self._wakeup, lambda slow, why: None, lambda here: LocalPacker()
        )
        return self._collection

    def leave(self) -> Path:
        """Instead of `close`: move what is left to a place where nothing deletes it; return the new directory."""
        _request_to_end(self.runs, self.attempt).unlink(missing_ok=True)
        here, left = self.runs / self.attempt, self.runs.with_name("left") / self.attempt
        try:
            left.parent.mkdir(mode=0o700, exist_ok=True)
            return here.rename(left)
        except OSError:  # a full disk, perhaps: until the next local job begins it stays where it is
            return here

    def asked_to_end(self) -> bool:
        """Return whether a phase runs that is to be ended: `ask_to_end` was called, by whichever process."""
        is_running = self._process is not None and self._process.poll() is None
        return is_running and _request_to_end(self.runs, self.attempt).exists()

    def close(self) -> None:
        """End what still runs, and delete the files of the attempt."""
        self._close_pipe()
        _request_to_end(self.runs, self.attempt).unlink(missing_ok=True)
        trees.remove(self.runs / self.attempt)

    def cancel(self) -> None:
        """End every running call. What runs ends, too: this process is its only claim."""
        self._wakeup.cancel()
        self._close_pipe()

    def canceled(self, timeout_s: float) -> bool:
        return self._wakeup.canceled.wait(timeout_s)

    def _send(self, message: dict[str, Any]) -> None:
        if self._pipe is not None and not self._pipe.closed:
            with contextlib.suppress(BrokenPipeError):  # it has just ended
                _write(self._pipe, json.dumps(message).encode() + b"\n")

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            self._pipe.close()

    def _pass_on(self, *, last: bool, until: float) -> None:
        for piece in self._tail.pieces(last):
            self._metrics(0, piece)
        for left_out, piece in () if self._log is None else self._log.pieces(self._read):
            if left_out:
                self._sink(0, LeftOut(left_out))
            self._read += left_out + len(piece)
            self._sink(0, piece)
            if not last and time.monotonic() > until:  # the job prints faster than this reads
                break

    def _ended(self) -> WorkerStatus:
        assert self._process is not None and self._process.stdout is not None
        self._close_pipe()
        now = time.time()
        try:
            rc = json.loads((self._phase / "exit.json").read_bytes())["rc"]
            return WorkerStatus(0, WorkerState.EXITED, now, self._read, rc, self._stopped)
        except FileNotFoundError:
            said = _reply(self._process.stdout.read()).get("error", "")
            return WorkerStatus(0, WorkerState.LOST, now, self._read, detail=said)


class LocalPacker:
    """The packer of the artifacts, as a process of this machine. Raises CollectionStopped when it ends too early."""

    def __init__(self) -> None:
        self._process, self._pipe = fork.start([*AGENT, "pack"], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._out = self._process.stdout

    def __enter__(self) -> "LocalPacker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        with self._process:
            self._process.kill()

    def answer(self, limit: int) -> dict[str, Any]:
        reply = _reply(self._out.readline(limit))
        if not reply or "error" in reply:
            raise CollectionStopped(f"the artifacts cannot be packed: {reply.get('error', 'the packer ended')}")
        return reply

    def send(self, data: bytes) -> None:
        _write(self._pipe, data)

    def read(self, size: int) -> bytes:
        data = self._out.read(size)
        if len(data) != size:
            raise CollectionStopped("the packer of the artifacts ended before its archive did")
        return data

    def close(self) -> None:
        """End every wait, from any thread."""
        self._process.kill()


def _write(pipe: fork.Descriptor, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(pipe.fileno(), left) :]


def _reply(line: bytes) -> dict[str, Any]:
    """Return the reply in this line (`vm.files.frames`); empty when the program ended without one."""
    answer: dict[str, Any] = json.loads(line.removeprefix(PREFIX)) if line.startswith(PREFIX) else {}
    return answer


def ask_to_end(runs: Path, attempt: str) -> None:
    """Ask the process that runs this attempt to stop it, as a signal would. It looks every two seconds while a phase runs."""
    private_files.make_directory(runs)
    _request_to_end(runs, attempt).touch()


def _request_to_end(runs: Path, attempt: str) -> Path:
    return runs / f"{attempt}.cancel"


def remove_leftovers(runs: Path, alive: Callable[[str], bool]) -> None:
    """Delete what killed commands left. `alive` tells whether the attempt of this id still runs."""
    for path in runs.iterdir() if runs.is_dir() else ():
        if alive(path.name.removesuffix(".cancel")):
            continue
        if path.is_dir():
            trees.remove(path)
        else:
            path.unlink(missing_ok=True)

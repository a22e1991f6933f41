"""The worker of a job with `on: local`: this machine, without SSH and without a slice. The counterpart of `Fleet`.

Each phase runs under the supervisor that runs it on a TPU VM (`vm.local`), in a process of its own. It reads from a pipe whose
write end only this process holds, and ends the job at the end of the pipe. Artifacts are collected by the same packer, with
the same checks and the same manifest as from a worker.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator import fork, private_files, trees
from orchestrator.core.text.gaps import LeftOut
from orchestrator.errors import RemoteError
from orchestrator.remote.shipping.shipment import Shipment
from orchestrator.remote.ssh.call import PREFIX
from orchestrator.remote.transfer.collect import ArchivePart, Collector, CollectRequest, CollectResult
from orchestrator.vm.bounded_log import BoundedLog
from orchestrator.vm.metrics import MetricsTail

AGENT = (sys.executable, "-P", "-m", "orchestrator.vm")
LOOK_S = 0.05

Sink = Callable[[int, bytes], None]


@dataclass(frozen=True, slots=True)
class LocalExit:
    rc: int | None  # None: its supervisor is gone, and the code is unknown
    why: str = "its supervisor is gone"


class LocalWorker:
    """`runs` is the directory of the attempts of local jobs; `close` deletes the attempt's part.

    `max_log`: how many bytes of a log are kept.
    """

    def __init__(self, runs: Path, attempt: str, max_log: int | None = None) -> None:
        self.runs, self.attempt, self._max_log = runs, attempt, max_log
        self._lock = threading.Lock()  # a wait that a signal interrupted may still be reading the log
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: fork.Descriptor | None = None  # to its stdin
        self._log: BoundedLog | None = None
        self._read = 0
        self._sink: Sink = lambda worker, data: None
        self._metrics: Sink = self._sink
        self._tail = MetricsTail("", 0)

    def start(
        self, phase: str, script: str, env: Mapping[str, str], shipment: Shipment | None, sink: Sink, metrics: Sink
    ) -> None:
        """Start the phase; its log goes to `sink`, its metrics.jsonl to `metrics`, during `wait` and `stop`."""
        private_files.make_directory(self.runs)
        request = {
            "runs": str(self.runs),
            "attempt": self.attempt,
            "phase": phase,
            "script": script,
            "env": dict(env),
            "manifest": None if shipment is None else shipment.id,
            "store": None if shipment is None else str(shipment.store),
            "max_log": self._max_log,
        }
        self._phase = self.runs / self.attempt / phase
        self._log, self._read, self._sink = BoundedLog(str(self._phase / "log"), self._max_log), 0, sink
        self._metrics = metrics
        self._tail = MetricsTail(str(self.runs / self.attempt / "artifacts" / "metrics.jsonl"), 0)
        self._close_pipe()
        self._process, self._pipe = fork.start(
            [*AGENT, "local"],
            stdout=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name != "TPUJOB_CRASH_AT"},
            start_new_session=True,  # Ctrl-C in the terminal is for this process, which stops the job
        )
        self._send(request)

    def wait(self, timeout_s: float) -> LocalExit | None:
        """Pass the log on until the phase ends; return its exit, or None after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            assert self._process is not None, "no phase was started"
            ended = self._process.poll() is not None  # asked first: then no byte is still to come
            with self._lock:
                self._pass_on(last=ended, until=deadline)
            if ended:
                return self._ended()
            if time.monotonic() >= deadline:
                return None
            time.sleep(LOOK_S)

    def stop(self, grace_s: float) -> None:
        """End the phase and everything it started: SIGTERM, after `grace_s` SIGKILL. No effect when nothing runs."""
        if self._process is None:
            return
        self._send({"grace_s": grace_s})
        self._process.wait()
        self._close_pipe()
        with self._lock:
            self._pass_on(last=True, until=math.inf)

    def collect(self, destination: Path, artifacts: tuple[str, ...], most_bytes: int | None = None) -> CollectResult:
        runs = str(self.runs)
        collector = Collector(CollectRequest.of_job(artifacts, self.attempt, destination, most_bytes, runs=runs))
        part = ArchivePart(0)
        try:
            return collector.collect(part, partial(self._fetch, collector, part))
        except OSError as error:
            return part.incomplete(f"{error.strerror} ({destination})")
        except RemoteError as error:
            return part.incomplete(error.message)

    def leave(self) -> Path:
        """Instead of `close`: move what is left to a place where nothing deletes it; return the new directory."""
        _request_to_end(self.runs, self.attempt).unlink(missing_ok=True)
        here, left = self.runs / self.attempt, self.runs.with_name("left") / self.attempt
        try:
            left.parent.mkdir(mode=0o700, exist_ok=True)
            return here.rename(left)
        except OSError:  # a full disk, perhaps: until the next local job begins it stays where it is
            return here

    def canceled(self) -> bool:
        """Return whether `ask_to_end` was called, by whichever process."""
        return _request_to_end(self.runs, self.attempt).exists()

    def close(self) -> None:
        """End what still runs, and delete the files of the attempt."""
        self._close_pipe()
        _request_to_end(self.runs, self.attempt).unlink(missing_ok=True)
        trees.remove(self.runs / self.attempt)

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

    def _ended(self) -> LocalExit:
        assert self._process is not None and self._process.stdout is not None
        self._close_pipe()
        try:
            return LocalExit(json.loads((self._phase / "exit.json").read_bytes())["rc"])
        except FileNotFoundError:
            reply = _reply(self._process.stdout.read())
            return LocalExit(None, reply["error"]) if "error" in reply else LocalExit(None)

    def _fetch(self, collector: Collector, part: ArchivePart) -> None:
        process, pipe = fork.start([*AGENT, "pack"], stdout=subprocess.PIPE)
        with process, contextlib.closing(pipe):
            assert process.stdout is not None
            out = process.stdout

            def answer() -> dict[str, Any]:
                reply = _reply(out.readline())
                if not reply or "error" in reply:
                    raise RemoteError(f"the artifacts cannot be packed: {reply.get('error', 'the packer ended')}")
                return reply

            def read(size: int) -> bytes:
                data = out.read(size)
                if len(data) != size:
                    raise RemoteError("the packer of the artifacts ended before its archive did")
                return data

            collector.receive(part, answer, partial(_write, pipe), read)


def _write(pipe: fork.Descriptor, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(pipe.fileno(), left) :]


def _reply(line: bytes) -> dict[str, Any]:
    """Return the reply in this line (`vm.frames`); empty when the program ended without one."""
    answer: dict[str, Any] = json.loads(line.removeprefix(PREFIX)) if line.startswith(PREFIX) else {}
    return answer


def ask_to_end(runs: Path, attempt: str) -> None:
    """Ask the process that runs this attempt to stop it, as a signal would. It looks once a second."""
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""The one worker of a job with `on: local`: this machine, without SSH and without a slice. The counterpart of `fleet`.

Each phase runs under the very supervisor that runs it on a TPU VM (`vm.local`), a process of its own that ends the job when
this one is gone. Artifacts come home through the same packer, the same suspicion and the same manifest check.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import RemoteError
from orchestrator.remote.transfer.collect import (
    EVERYTHING,
    THE_REST,
    ArchivePart,
    Collector,
    CollectRequest,
    CollectResult,
    Problem,
)

AGENT = (sys.executable, "-P", "-m", "orchestrator.vm")
PREFIX = b"tpujob:"
LOOK_S = 0.05
PIECE_BYTES = 65536

Sink = Callable[[int, bytes], None]


@dataclass(frozen=True, slots=True)
class LocalExit:
    rc: int | None  # None: its supervisor is gone, and nobody knows
    why: str = "its supervisor is gone"


class LocalWorker:
    """`runs` is where the attempts of local jobs work; what is in it is gone after `close`."""

    def __init__(self, runs: Path, attempt: str) -> None:
        self.runs, self.attempt = runs, attempt
        self._lock = threading.Lock()  # a wait that a signal interrupted may still be reading the log
        self._process: subprocess.Popen[bytes] | None = None
        self._log: Path | None = None
        self._read = 0
        self._sink: Sink = lambda worker, data: None

    def start(self, phase: str, script: str, env: Mapping[str, str], bundle: Path | None, sink: Sink) -> None:
        """Start the phase; its log goes to `sink` while somebody waits."""
        self.runs.mkdir(mode=0o700, parents=True, exist_ok=True)
        request = {
            "runs": str(self.runs),
            "attempt": self.attempt,
            "phase": phase,
            "script": script,
            "env": dict(env),
            "bundle": None if bundle is None else str(bundle),
        }
        self._log, self._read, self._sink = self.runs / self.attempt / phase / "log", 0, sink
        self._process = subprocess.Popen(
            [*AGENT, "here"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,  # a word about what went wrong, if anything does
            env={name: value for name, value in os.environ.items() if name != "TPUJOB_CRASH_AT"},
            start_new_session=True,  # Ctrl-C in the terminal is for us, and we stop the job
        )
        self._tell(request)

    def wait(self, timeout_s: float) -> LocalExit | None:
        """Pass the log on until the phase has ended, or for so long (None)."""
        deadline = time.monotonic() + timeout_s
        while True:
            assert self._process is not None, "somebody waits for what was not started"
            ended = self._process.poll() is not None  # asked first: then no byte is still to come
            with self._lock:
                self._pass_on()
            if ended:
                return self._ended()
            if time.monotonic() >= deadline:
                return None
            time.sleep(LOOK_S)

    def stop(self, grace_s: float) -> None:
        """End the phase and all that it started. Nothing to do where nothing runs."""
        if self._process is None:
            return
        self._tell({"grace_s": grace_s})
        self._process.wait()
        with self._lock:
            self._pass_on()

    def collect(self, destination: Path, patterns: tuple[str, ...], most_bytes: int | None = None) -> CollectResult:
        collector = Collector(CollectRequest(self.attempt, destination, patterns, most_bytes, runs=str(self.runs)))
        part = ArchivePart(0)
        try:
            return collector.collect(part, lambda: self._fetch(collector, part))
        except OSError as error:
            why = f"{error.strerror} ({destination})"
        except RemoteError as error:
            why = error.message
        return part.summary(Problem(0, THE_REST if part.result.files else EVERYTHING, why))

    def leave(self) -> Path:
        """In place of `close`: puts what is left where nothing takes it away. The answer: where it is now."""
        _request_to_end(self.runs, self.attempt).unlink(missing_ok=True)
        here, left = self.runs / self.attempt, self.runs.with_name("left") / self.attempt
        try:
            left.parent.mkdir(mode=0o700, exist_ok=True)
            return here.rename(left)
        except OSError:  # a full disk, perhaps: until the next local job begins it stays where it is
            return here

    def cancelled(self) -> bool:
        """Has `ask_to_end` been called, in another process perhaps?"""
        return _request_to_end(self.runs, self.attempt).exists()

    def close(self) -> None:
        _request_to_end(self.runs, self.attempt).unlink(missing_ok=True)
        shutil.rmtree(self.runs / self.attempt, ignore_errors=True)

    def _tell(self, word: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has just ended
            self._process.stdin.write(json.dumps(word).encode() + b"\n")
            self._process.stdin.flush()

    def _pass_on(self) -> None:
        if self._log is None or not self._log.exists():
            return
        with self._log.open("rb") as log:
            log.seek(self._read)
            while piece := log.read(PIECE_BYTES):
                self._read += len(piece)
                self._sink(0, piece)

    def _ended(self) -> LocalExit:
        assert self._process is not None and self._process.stdout is not None and self._log is not None
        try:
            return LocalExit(json.loads((self._log.parent / "exit.json").read_bytes())["rc"])
        except FileNotFoundError:
            said = _answer(self._process.stdout.read())
            return LocalExit(None, said["error"]) if "error" in said else LocalExit(None)

    def _fetch(self, collector: Collector, part: ArchivePart) -> None:
        with subprocess.Popen([*AGENT, "pack"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as packer:
            out, to = packer.stdout, packer.stdin
            assert to is not None and out is not None

            def send(data: bytes) -> None:
                to.write(data)
                to.flush()

            def answer() -> dict[str, Any]:
                said = _answer(out.readline())
                if not said or "error" in said:
                    raise RemoteError(f"the artifacts cannot be packed: {said.get('error', 'the packer ended')}")
                return said

            def read(size: int) -> bytes:
                data = out.read(size)
                if len(data) != size:
                    raise RemoteError("the packer of the artifacts ended before its archive did")
                return data

            collector.receive(part, answer, send, read)


def _answer(line: bytes) -> dict[str, Any]:
    """See `vm.frames`. Nothing, when it ended without a word."""
    answer: dict[str, Any] = json.loads(line.removeprefix(PREFIX)) if line.startswith(PREFIX) else {}
    return answer


def ask_to_end(runs: Path, attempt: str) -> None:
    """Whoever runs that attempt looks for this each second, and stops it as a signal would."""
    runs.mkdir(mode=0o700, parents=True, exist_ok=True)
    _request_to_end(runs, attempt).touch()


def _request_to_end(runs: Path, attempt: str) -> Path:
    return runs / f"{attempt}.cancel"


def remove_leftovers(runs: Path, alive: Callable[[str], bool]) -> None:
    """What killed commands left behind."""
    for path in runs.iterdir() if runs.is_dir() else ():
        if alive(path.name.removesuffix(".cancel")):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

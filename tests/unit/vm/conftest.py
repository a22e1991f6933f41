"""The agent as it runs on a worker: a separate process, in a home directory of the test."""

import contextlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli_fixture import kill_all
from tests.waiting import HANG_S, until

PREFIX = b"tpujob:"
HEADER = struct.Struct(">cII")  # of a frame of vm/agent/serve.py


def parsed(line: bytes) -> dict[str, Any]:
    assert line.startswith(PREFIX), line
    answer: dict[str, Any] = json.loads(line[len(PREFIX) :])
    return answer


def frame(kind: bytes, stream: int, content: bytes = b"", size: int | None = None) -> bytes:
    return HEADER.pack(kind, stream, len(content) if size is None else size) + content


@dataclass
class Worker:
    home: Path
    env: dict[str, str] = field(default_factory=dict)
    python: str = sys.executable

    def popen(self, verb: str, *arguments: str) -> subprocess.Popen[bytes]:
        own = {"HOME": str(self.home), "TPUJOB_WATCHDOG_DIR": str(self.home / "watchdog")}
        env = {**os.environ, **own, **self.env}
        argv = [self.python, "-m", "orchestrator.vm", verb, *arguments]
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)

    def output(self, verb: str, *arguments: str, stdin: bytes = b"") -> bytes:
        process = self.popen(verb, *arguments)
        return process.communicate(stdin, timeout=HANG_S)[0]

    def ask(self, verb: str, *arguments: str, stdin: bytes = b"") -> dict[str, Any]:
        return parsed(self.output(verb, *arguments, stdin=stdin).splitlines()[-1])

    def request(self, script: str, *, attempt: str = "a1", phase: str = "main", **more: Any) -> bytes:
        return json.dumps({"attempt": attempt, "phase": phase, "script": script, "env": {}, **more}).encode()

    def start(self, script: str, **more: Any) -> dict[str, Any]:
        """Return its first reply, and ignore the log that follows."""
        process = self.popen("start")
        assert process.stdin and process.stdout
        process.stdin.write(self.request(script, **more))
        process.stdin.close()
        answer = parsed(process.stdout.readline())
        process.kill()
        process.wait()
        process.stdout.close()
        return answer

    def status(self, attempt: str = "a1", phase: str = "main") -> dict[str, Any]:
        return self.ask("status", attempt, phase)

    def path(self, *parts: str) -> Path:
        return self.home.joinpath("tpujob", "runs", "a1", *parts)

    def log(self, phase: str = "main") -> str:
        return self.path(phase, "log").read_text()

    def ended(self) -> dict[str, Any]:
        """Wait for exit.json and return its contents."""
        until(self.path("main", "exit.json").exists, "the end of the phase")
        answer: dict[str, Any] = json.loads(self.path("main", "exit.json").read_text())
        return answer

    def started(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.path("main", "started.json").read_text())
        return answer

    def processes(self) -> list[psutil.Process]:
        """Return the processes of this worker's phases that run, by the mark in their environment."""
        return [process for process in psutil.process_iter() if self._is_mine(process)]

    def supervisors(self) -> list[psutil.Process]:
        """Not the process of the test, which may hold a lock in their place."""
        return [p for p in psutil.process_iter() if p.pid != os.getpid() and self._holds_lock(p)]

    def _is_mine(self, process: psutil.Process) -> bool:
        try:
            marked = process.environ().get("TPUJOB_PHASE_DIR", "").startswith(str(self.home))
            return marked and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def _holds_lock(self, process: psutil.Process) -> bool:
        try:
            files = [entry.resolve() for entry in Path(f"/proc/{process.pid}/fd").iterdir()]
        except OSError:
            return False
        return any(file.name == "lock" and self.home in file.parents for file in files)


@pytest.fixture(params=["this python", pytest.param("python3.10", marks=pytest.mark.exhaustive)])
def python(request: pytest.FixtureRequest) -> str:
    """Of the worker: the one of these tests, and that of TPU VM images."""
    return sys.executable if request.param == "this python" else str(request.getfixturevalue("python310"))


@pytest.fixture
def worker(tmp_path: Path, python: str) -> Iterator[Worker]:
    made = Worker(tmp_path / "home", python=python)
    made.home.mkdir()
    yield made
    supervisors = made.supervisors()
    left = [*supervisors, *made.processes()]
    for supervisor in supervisors:
        with contextlib.suppress(psutil.NoSuchProcess):
            left += supervisor.children(recursive=True)
    kill_all(left)  # some are there only when a test failed

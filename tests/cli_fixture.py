"""The real CLI as a process, on an emulator of its own without delays; the billing meter is the oracle."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.emulator import control

TIMEOUT_S = 60
NO_DELAYS = {f"TPUJOB_EMULATOR_{what}_S": "0" for what in ("PROVISION", "STOP", "START", "DELETE")}


@dataclass
class Cli:
    """`tpujob` in a directory of its own, with a state directory of its own."""

    directory: Path
    env: dict[str, str] = field(default_factory=dict)

    def __call__(
        self, *words: str, env: dict[str, str] | None = None, timeout_s: float = TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(*words, env=env)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start(self, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator.cli", *words],
            cwd=self.directory,
            env={**os.environ, **self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=hear_signals if is_deaf() else None,  # noqa: PLW1509 - it only resets two signals
        )

    def job(self, text: str, name: str = "job.yaml") -> str:
        (self.directory / name).write_text(text)
        return name

    @property
    def emulator_directory(self) -> Path:
        return self.directory / "state" / "emulator"

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        return control.request(control.ensure_running(self.emulator_directory), method, f"/_emulator/{path}", body)

    def settings(self, **changes: Any) -> None:
        self.admin("PATCH", "settings", changes)

    def alive(self) -> list[str]:
        """The nodes that the emulator bills right now."""
        return [row["name"] for row in self.admin("GET", "billing")["nodes"] if row["until"] is None]

    def lived(self) -> int:
        """How many nodes there ever were."""
        return len(self.admin("GET", "billing")["nodes"])

    def bills(self) -> list[dict[str, Any]]:
        return list(self.admin("GET", "billing")["nodes"])

    def requests(self, operation: str | None = None, caller: str | None = None) -> list[dict[str, Any]]:
        """The calls to the API so far, as the emulator logged them."""
        rows = self.admin("GET", "requests")["requests"]
        return [row for row in rows if operation in (None, row["operation"]) and caller in (None, row["caller"])]

    def fault(self, kind: str, operation: str | None = None, **said: Any) -> str:
        """Add one; its id."""
        body = {"kind": kind, **said} | ({"operation": operation} if operation else {})
        return str(self.admin("POST", "faults", body)["faults"][0]["id"])

    def local(self) -> list[psutil.Process]:
        """Every process of tpujob on "this machine": commands, guardians, recoveries, but nothing of the cloud."""
        return [process for process in psutil.process_iter() if _is_local(process, self.env["TPUJOB_STATE_DIR"])]

    def only_run(self) -> dict[str, Any]:
        (run,) = json.loads(self("list", "--json").stdout)
        return json.loads(self("show", run["run"], "--json").stdout)

    def until(self, what: str, process: subprocess.Popen[str]) -> None:
        """Read the process's stdout up to a line with these words."""
        assert process.stdout is not None
        for line in process.stdout:
            if what in line:
                return
        raise AssertionError(f"{what!r} never came: {process.stderr.read() if process.stderr else ''}")


def kill_all(processes: list[psutil.Process]) -> None:
    """SIGKILL for all of them at one moment: none gets the time to notice that another one is gone."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        signal_all(processes, number)


def signal_all(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _is_local(process: psutil.Process, state_dir: str) -> bool:
    try:
        environ, words = process.environ(), process.cmdline()
    except (psutil.Error, OSError):
        return False
    here = environ.get("TPUJOB_STATE_DIR") == state_dir and "TPUJOB_EMULATED_NODE" not in environ
    return here and "orchestrator.emulator" not in words


def is_deaf() -> bool:
    return any(signal.getsignal(number) is signal.SIG_IGN for number in (signal.SIGHUP, signal.SIGINT))


def hear_signals() -> None:
    """Tests may run under nohup or in the background, where SIGHUP and SIGINT are ignored, and children inherit that."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def sandbox(directory: Path) -> dict[str, str]:
    """An environment in which nothing of the real user is read or touched."""
    home = directory / "home"
    home.mkdir()
    env = {
        "TPUJOB_STATE_DIR": str(directory / "state"),
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "CLOUDSDK_CONFIG": str(home / "gcloud"),
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "TPUJOB_GUARDIAN": "off",  # it would finish what a test wants the next command to finish
        **NO_DELAYS,
    }
    for name in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CORE_PROJECT", "TPUJOB_CLOUD"):
        env[name] = ""
    return env


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    before = {name: os.environ.get(name) for name in NO_DELAYS}
    os.environ.update(NO_DELAYS)
    started = Cli(tmp_path, sandbox(tmp_path))
    yield started
    kill_all(started.local())  # a guardian that is still at it would start the emulator again
    control.stop(started.emulator_directory)
    for name, value in before.items():
        if value is None:
            del os.environ[name]


def press(process: subprocess.Popen[str], number: int = signal.SIGINT) -> None:
    process.send_signal(number)


def wait_for(condition: Any, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)

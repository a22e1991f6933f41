"""One private world for one disaster: a directory, an emulator, the real CLI in processes of its own, and who is dead.

`Stage` is what a disaster acts on. Leaving it ends every process that it started, whatever happened, and leaves no file.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import orchestrator
from orchestrator.drill.measure import Deaths
from orchestrator.emulator.daemon import control

PATIENCE_S = 45.0  # for what a disaster needs before it can happen; the promise is not about this
LOOK_S = 0.02
FOREIGN = ("TPUJOB_", "GOOGLE_", "CLOUDSDK_", "XDG_")  # the user's own settings have no place here
JOB = """\
name: drill
tpu: {{zone: us-central1-a}}
command: |
  touch {begun}
  timeout 300 sh -c 'until [ -e "$0" ]; do sleep 0.1; done' {end}
"""


class StageStopped(Exception):
    """Somebody wants the drill to end."""


class Stuck(Exception):
    """What should have come about did not, with what was said last."""


class Stage:
    def __init__(self, directory: Path, *, speed: float, settings: dict[str, Any], stop: threading.Event) -> None:
        self.directory, self.speed, self.stop = directory, speed, stop
        self.deaths = Deaths()
        self.claim_ended_at: float | None = None
        self.ports: set[int] = set()  # at which workers listened
        self._settings = settings
        self._state, self._home = directory / "state", directory / "home"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._endpoint: control.Endpoint | None = None

    def __enter__(self) -> Stage:
        return self

    def open(self) -> None:
        for each in (self.directory, self._state, self._home):
            each.mkdir(mode=0o700)
        self._endpoint = control.ensure_running(self._emulator)
        self.ask("PATCH", "settings", self._settings)
        paths = {"begun": shlex.quote(str(self._begun)), "end": shlex.quote(str(self._end))}
        (self.directory / "job.yaml").write_text(JOB.format(**paths))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill_local()
        for process in self._processes:
            process.wait()
        control.stop(self._emulator)
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- looking -----------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The emulator's own paths: no cloud has these."""
        assert self._endpoint is not None
        return control.request(self._endpoint, method, f"/_emulator/{path}", body)

    def bills(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.ask("GET", "billing")["nodes"]
        return rows

    def billed(self) -> bool:
        return any(row["until"] is None for row in self.bills())

    def requests(self, operation: str) -> list[dict[str, Any]]:
        rows = self.ask("GET", "requests")["requests"]
        return [row for row in rows if row["operation"] == operation]

    def faults(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.ask("GET", "faults")["faults"]
        return rows

    def wait(self, condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
        give_up_at = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > give_up_at:
                raise Stuck(f"{what} did not come about within {patience_s:.0f} s; last words: {self.last_words()}")
            self.pause(LOOK_S)

    def pause(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise StageStopped

    def said(self, words: str) -> bool:
        return words in self._log.read_text(errors="replace")

    def last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return lines[-1] if lines else "(none)"

    # -- acting ------------------------------------------------------------------------------------------------------

    def start_run(self) -> None:
        """A person types `tpujob run`."""
        self._start("run", "job.yaml")

    def run_until_the_job_runs(self) -> None:
        self.start_run()
        self.wait(self._begun.exists, "the job's first line")

    def submit(self) -> None:
        """A person types `tpujob submit` and waits until it is done."""
        process = self._start("submit", "job.yaml")
        self.wait(lambda: process.poll() is not None, "the end of `tpujob submit`")
        if process.returncode != 0:
            raise Stuck(f"`tpujob submit` ended with {process.returncode}: {self.last_words()}")

    def until_creating(self) -> None:
        """The API has confirmed the create, and the slice is not READY yet."""
        self.wait(lambda: any(row["status"] == 200 for row in self.requests("nodes.create")), "the create call's reply")

    def until_armed(self) -> None:
        self.wait(lambda: self.said("armed on every worker"), "an armed switch")

    def fault(self, **fault: Any) -> None:
        self.ask("POST", "faults", fault)

    def press_ctrl_c(self) -> None:
        self._claim_ends()
        self._processes[0].send_signal(signal.SIGINT)

    def kill_cli(self) -> None:
        self._claim_ends()
        self._processes[0].kill()
        self._processes[0].wait()
        self.deaths.cli_at = time.time()

    def kill_everything_local(self) -> None:
        """What a power cut does. The guardian first: it must not see the CLI die."""
        self._claim_ends()
        self._kill_local()
        self.deaths.cli_at = self.deaths.local_at = time.time()

    def let_the_job_end(self) -> None:
        self._claim_ends()
        self._end.touch()

    def gc(self) -> None:
        """`tpujob gc` as from another machine: an empty home, no ledger, only a door to the cloud and its key."""
        assert self._endpoint is not None
        elsewhere = self.directory / "elsewhere"
        shutil.rmtree(elsewhere, ignore_errors=True)
        elsewhere.mkdir(mode=0o700)
        environment = self._environment() | {
            "HOME": str(elsewhere),
            "TPUJOB_STATE_DIR": str(elsewhere / "state"),
            "TPUJOB_ENDPOINT": self._endpoint.url,
            "TPUJOB_TOKEN_FILE": str(self._emulator / "token"),
        }
        process = self._start("gc", environment=environment)
        self.wait(lambda: process.poll() is not None, "the end of `tpujob gc`")
        if process.returncode != 0:
            raise Stuck(f"`tpujob gc` ended with {process.returncode}: {self.last_words()}")

    def _claim_ends(self) -> None:
        """From now on nobody has a claim. Said before the blow falls, so that what is measured is never too short."""
        found = self.ask("GET", "processes")["nodes"]
        self.ports |= {port for row in found for port in row["ports"]}
        self.claim_ended_at = time.time()

    # -- processes ---------------------------------------------------------------------------------------------------

    @property
    def cli_code(self) -> int | None:
        """How the CLI ended; None while it lives."""
        return self._processes[0].poll()

    def local_processes(self) -> list[Any]:
        """All that tpujob started on this machine for this stage, youngest first. The emulator, our cloud, is not of them."""
        import psutil

        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("TPUJOB_STATE_DIR") == str(self._state):  # of a zombie nothing can be read
                    found.append(process)
        return sorted(found, key=lambda process: -process.pid)

    def left_behind(self) -> Iterator[str]:
        """What is still there though all is over: nodes, processes, ports."""
        if self.billed():
            yield "a node"
        for row in self.ask("GET", "processes")["nodes"]:
            yield f"{len(row['pids'])} processes of {row['name'].rpartition('/')[2]}"
        if processes := self.local_processes():
            yield f"{len(processes)} local processes"
        yield from (f"port {port}" for port in self.ports if _listens(port))

    def _kill_local(self) -> None:
        """Until two looks in a row find nobody: one look can miss a process that is just being made."""
        import psutil

        empty = 0
        while empty < 2:
            processes = self.local_processes()
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            for process in self._processes:
                process.poll()  # a zombie is nobody
            empty = 0 if processes else empty + 1

    def _start(self, *words: str, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.cli", *words],
                cwd=self.directory,
                env=environment or self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C on our terminal is for us alone
            )
        self._processes.append(process)
        return process

    def _environment(self) -> dict[str, str]:
        """In which nothing of the user is read or touched."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return own | {
            "HOME": str(self._home),
            "PYTHONPATH": str(orchestrator.ROOT),
            "TPUJOB_STATE_DIR": str(self._state),
            "TPUJOB_CLOUD": "emulated",
            "TPUJOB_EMULATED_SPEED": str(self.speed),
        }

    @property
    def _emulator(self) -> Path:
        return self._state / "emulator"

    @property
    def _log(self) -> Path:
        return self.directory / "said.log"

    @property
    def _begun(self) -> Path:
        return self.directory / "begun"

    @property
    def _end(self) -> Path:
        return self.directory / "end"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0

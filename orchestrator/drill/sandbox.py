"""A private sandbox for one disaster: a directory, an emulator, the real CLI in processes of its own, and what they measure.

Leaving it ends every process that it started, whatever happened, and leaves no file.
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
from typing import Any

import psutil

import orchestrator
from cloud_tpu_emulator.daemon import control


def unclaimed_s(bills: list[dict[str, Any]], claim_ended_at: float, now: float) -> float:
    """Return the seconds that all nodes together were billed after the end of the claim; `now` ends open bills."""
    times = ((bill["since"], now if bill["until"] is None else bill["until"]) for bill in bills)
    return sum((max(0.0, until - max(claim_ended_at, since)) for since, until in times), 0.0)


def ended_by(
    deletes: list[dict[str, Any]], bills: list[dict[str, Any]], cli_at: float | None, local_at: float | None
) -> str:
    """Return what sent the last delete that the API accepted before the end: CLI, guardian, watchdog, gc or nothing.

    `cli_at`, `local_at`: when the CLI, and when every local process, was killed (Unix seconds); None: never.
    The request log distinguishes VMs from clients; clients differ by what was still running to send the call.
    """
    until = {bill["name"].rpartition("/")[2]: bill["until"] for bill in bills}
    if None in until.values():
        return "nothing"
    accepted = [row for row in deletes if row["status"] == 200 and row["at"] <= until.get(row["node"], 0.0)]
    if not accepted:
        return "nothing"
    last = max(accepted, key=lambda row: row["at"])
    if last["caller"] == "vm":
        return "watchdog"
    if local_at is not None and last["at"] > local_at:
        return "gc"
    return "guardian" if cli_at is not None and last["at"] > cli_at else "CLI"


PATIENCE_S = 45.0  # for the preparation of a disaster, to which no promise applies
POLL_S = 0.02
FOREIGN = ("TPUJOB_", "GOOGLE_", "CLOUDSDK_", "XDG_")  # the user's own settings are not passed on
JOB = """\
name: drill
tpu: {{zone: us-central1-a}}
command: |
  touch {begun}
  timeout 300 sh -c 'until [ -e "$0" ]; do sleep 0.1; done' {end}
"""


class DrillStopped(Exception):
    """The drill is being stopped."""


class ConditionTimeout(Exception):
    """An expected condition did not occur in time; the message has the last line of output."""


class Sandbox:
    """What a disaster acts on. Use it as a context manager, and call `open` first."""

    def __init__(self, directory: Path, *, speed: float, settings: dict[str, Any], stop: threading.Event) -> None:
        self.directory, self.speed, self.stop = directory, speed, stop
        self.cli_killed_at: float | None = None
        self.all_killed_at: float | None = None
        self.claim_ended_at: float | None = None
        self.ports: set[int] = set()  # on which workers listened
        self._settings = settings
        self._state, self._home, self._log = directory / "state", directory / "home", directory / "output.log"
        self._begun, self._end = directory / "begun", directory / "end"  # of the job
        self._emulator = self._state / "emulator"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._endpoint: control.Endpoint | None = None

    def __enter__(self) -> Sandbox:
        return self

    def open(self) -> None:
        """Start the emulator and write the job. Raises RuntimeError or OSError."""
        for each in (self.directory, self._state, self._home):
            each.mkdir(mode=0o700)
        self._endpoint = control.ensure_running(self._emulator)
        self.emulator("PATCH", "settings", self._settings)
        paths = {"begun": shlex.quote(str(self._begun)), "end": shlex.quote(str(self._end))}
        (self.directory / "job.yaml").write_text(JOB.format(**paths))

    def __exit__(self, *error: object) -> None:
        self._kill_local()
        for process in self._processes:
            process.wait()
        control.stop(self._emulator)
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- observing ---------------------------------------------------------------------------------------------------

    def emulator(self, method: str, path: str, body: Any = None) -> Any:
        """Call one of the emulator's own paths, and return the decoded JSON."""
        assert self._endpoint is not None
        return control.request(self._endpoint, method, f"/_emulator/{path}", body)

    def bills(self) -> list[dict[str, Any]]:
        """Return the bills of all nodes."""
        rows: list[dict[str, Any]] = self.emulator("GET", "billing")["nodes"]
        return rows

    def billed(self) -> bool:
        """Return whether a node is billed now."""
        return any(row["until"] is None for row in self.bills())

    def requests(self, operation: str) -> list[dict[str, Any]]:
        """Return the logged calls of an operation, such as nodes.delete."""
        rows = self.emulator("GET", "requests")["requests"]
        return [row for row in rows if row["operation"] == operation]

    def faults(self) -> list[dict[str, Any]]:
        """Return all faults with their counts."""
        rows: list[dict[str, Any]] = self.emulator("GET", "faults")["faults"]
        return rows

    def wait(self, condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
        """Wait until the condition is true. Raises ConditionTimeout, or DrillStopped."""
        give_up_at = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > give_up_at:
                raise ConditionTimeout(f"{what}: not within {patience_s:.0f} s; last output: {self.last_line()}")
            self.pause(POLL_S)

    def pause(self, seconds: float) -> None:
        """Sleep. Raises DrillStopped."""
        if self.stop.wait(seconds):
            raise DrillStopped

    def printed(self, text: str) -> bool:
        """Return whether a command has printed this."""
        return text in self._log.read_text(errors="replace")

    def last_line(self) -> str:
        """Return the last line that a command has printed."""
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return lines[-1] if lines else "(none)"

    # -- acting ------------------------------------------------------------------------------------------------------

    def start_run(self) -> None:
        """Start `tpujob run`."""
        self._start("run", "job.yaml")

    def run_until_the_job_runs(self) -> None:
        """Start `tpujob run`, and wait until the job has started."""
        self.start_run()
        self.wait(self._begun.exists, "the start of the job")

    def submit(self) -> None:
        """Run `tpujob submit` to its end."""
        self._run_to_end("submit", "job.yaml")

    def until_creating(self) -> None:
        """Wait until the API has confirmed the create; the slice is not READY yet."""
        self.wait(lambda: any(row["status"] == 200 for row in self.requests("nodes.create")), "the create call's reply")

    def until_armed(self) -> None:
        """Wait until the CLI reports that the watchdog is armed on every worker."""
        self.wait(lambda: self.printed("armed on every worker"), "an armed watchdog")

    def fault(self, **fault: Any) -> None:
        """Add a fault to the emulator."""
        self.emulator("POST", "faults", fault)

    def press_ctrl_c(self) -> None:
        """Send SIGINT to the CLI."""
        self._end_claim()
        self._processes[0].send_signal(signal.SIGINT)

    def kill_cli(self) -> None:
        """Kill the CLI, and nothing else."""
        self._end_claim()
        self._processes[0].kill()
        self._processes[0].wait()
        self.cli_killed_at = time.time()

    def kill_everything_local(self) -> None:
        """Kill every local process, as a power cut does; the guardian first, which must not notice the end of the CLI."""
        self._end_claim()
        self._kill_local()
        self.cli_killed_at = self.all_killed_at = time.time()

    def let_the_job_end(self) -> None:
        """Let the job end with exit code 0."""
        self._end_claim()
        self._end.touch()

    def gc(self) -> None:
        """Run `tpujob gc` as from another machine: an empty home, no ledger, only the emulator's address and token."""
        assert self._endpoint is not None
        other_machine = self.directory / "other_machine"
        shutil.rmtree(other_machine, ignore_errors=True)
        other_machine.mkdir(mode=0o700)
        environment = self._environment() | {
            "HOME": str(other_machine),
            "TPUJOB_STATE_DIR": str(other_machine / "state"),
            "TPUJOB_ENDPOINT": self._endpoint.url,
            "TPUJOB_TOKEN_FILE": str(self._emulator / "tpujob-token"),
        }
        self._run_to_end("gc", environment=environment)

    def _end_claim(self) -> None:
        """Note the end of the claim, before the process is killed, so that no measured time is too short."""
        found = self.emulator("GET", "processes")["nodes"]
        self.ports |= {port for row in found for port in row["ports"]}
        self.claim_ended_at = time.time()

    # -- processes ---------------------------------------------------------------------------------------------------

    @property
    def cli_code(self) -> int | None:
        """The exit code of the CLI; None while it runs."""
        return self._processes[0].poll()

    def local_processes(self) -> list[Any]:
        """Return all processes that tpujob started for this sandbox, youngest first; the emulator is not one of them."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("TPUJOB_STATE_DIR") == str(self._state):  # nothing of a zombie can be read
                    found.append(process)
        return sorted(found, key=lambda process: -process.pid)

    def left_behind(self) -> Iterator[str]:
        """Yield what is left: nodes, processes, ports."""
        if self.billed():
            yield "a node"
        for row in self.emulator("GET", "processes")["nodes"]:
            yield f"{len(row['pids'])} processes of {row['name'].rpartition('/')[2]}"
        if processes := self.local_processes():
            yield f"{len(processes)} local processes"
        yield from (f"port {port}" for port in self.ports if _listens(port))

    def _kill_local(self) -> None:
        """Kill until two searches in a row find nothing: one search can miss a process that is just being created."""
        empty = 0
        while empty < 2:
            processes = self.local_processes()
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            for process in self._processes:
                process.poll()  # so that no zombie stays
            empty = 0 if processes else empty + 1

    def _run_to_end(self, command: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
        process = self._start(command, *arguments, environment=environment)
        self.wait(lambda: process.poll() is not None, f"the end of `tpujob {command}`")
        if process.returncode != 0:
            raise ConditionTimeout(f"`tpujob {command}` ended with {process.returncode}: {self.last_line()}")

    def _start(self, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.cli", *arguments],
                cwd=self.directory,
                env=environment or self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C on the terminal reaches only the drill
            )
        self._processes.append(process)
        return process

    def _environment(self) -> dict[str, str]:
        """Return an environment in which the CLI reads and changes nothing of the user."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return own | {
            "HOME": str(self._home),
            "PYTHONPATH": str(orchestrator.ROOT),
            "TPUJOB_STATE_DIR": str(self._state),
            "TPUJOB_CLOUD": "emulated",
            "TPUJOB_EMULATED_SPEED": str(self.speed),
        }


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0

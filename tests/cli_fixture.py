"""The real CLI on an emulator without delays, whose billing meter is the oracle.

`cli` is a process for every command, and has an emulator of its own. `tpujob` is for what needs neither: its commands run in
the test's process, beside an emulator that many tests share; that costs a quarter.
"""

import contextlib
import fcntl
import itertools
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloud_tpu_emulator.daemon import control
from orchestrator.cli import main
from orchestrator.cli.console import output
from orchestrator.promise.effects.locks import FileLocks
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.ledger.ledger import Ledger
from tests import ROOT
from tests.emulator.fixture import Emulator, running_emulator
from tests.waiting import HANG_S, until

CI_MARKS = ("CI", "RUNNER_TRACKING_ID")
NO_DELAYS = {f"TPUJOB_EMULATOR_{what}_S": "0" for what in ("PROVISION", "STOP", "START", "DELETE")}


class Said(subprocess.CompletedProcess[str]):
    @property
    def text(self) -> str:
        return self.stdout + self.stderr


@dataclass
class Command:
    """A command that goes on; what it says is in two files."""

    process: subprocess.Popen[Any]
    files: tuple[Path, Path]

    @property
    def out(self) -> str:
        return self.files[0].read_text(errors="replace")

    @property
    def err(self) -> str:
        return self.files[1].read_text(errors="replace")

    @property
    def said(self) -> str:
        return self.out + self.err

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def until(self, words: str) -> None:
        """Wait until it says this, on either stream."""
        self.until_true(lambda: words in self.said, f"{words!r}")

    def until_true(self, question: Callable[[], object], what: str) -> None:
        """Wait for what the command brings about. AssertionError with what it said if it ends before, or never does."""
        try:
            until(lambda: self.ended or question(), what)
            assert question(), f"{what} did not come about before the command ended with {self.process.poll()}"
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.out}\n{self.err}") from error

    def press(self, number: int = signal.SIGINT) -> float:
        """Send a signal. Return when."""
        at = time.time()
        self.process.send_signal(number)
        return at

    def press_three_times(self) -> float:
        """Press Ctrl-C three times, each after the one before was noticed. Return when the first one was sent."""
        at = self.press()
        for heard in ("2 more to leave", "1 more to leave"):
            until(lambda heard=heard: heard in self.err or self.ended, heard)  # type: ignore[misc]
            self.press()
        return at

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def code(self) -> int:
        return self.end().returncode

    def end(self) -> Said:
        try:
            return Said(self.process.args, self.process.wait(HANG_S), self.out, self.err)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.out}\n{self.err}") from None


@dataclass
class Cli:
    """`tpujob` in a directory of its own, with a state directory of its own."""

    directory: Path
    env: dict[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = (sys.executable, "-m", "orchestrator.cli")
    _bills_before, _requests_before = 0, 0

    def __call__(self, *words: str, env: dict[str, str] | None = None, timeout_s: float | None = None) -> Said:
        process = self.start(*words, env=env)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return Said(process.args, process.returncode, out, err)

    def start(
        self,
        *words: str,
        env: dict[str, str] | None = None,
        before: tuple[str, ...] = (),
        program: tuple[str, ...] | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        usual = {**streams, "cwd": self.directory, "preexec_fn": hear_signals if is_deaf() else None}
        argv = [*before, *(program or self.program), *words]
        return subprocess.Popen(argv, env={**os.environ, **self.env, **(env or {})}, **{**usual, **options})

    def begin(self, *words: str, **options: Any) -> Command:
        """Start a command whose output goes to files; `options` as for `start`."""
        number = next(each for each in itertools.count(1) if not (self.directory / f"{each}.out").exists())
        files = self.directory / f"{number}.out", self.directory / f"{number}.err"
        with files[0].open("wb") as out, files[1].open("wb") as err:
            return Command(self.start(*words, **{"stdout": out, "stderr": err, **options}), files)

    def answered(self, typed: str, *words: str) -> Said:
        """Run a command at whose terminal this is typed."""
        ours, terminal = pty.openpty()
        process = self.start(*words, stdin=terminal)
        os.write(ours, typed.encode())
        out, err = process.communicate()
        os.close(ours)
        os.close(terminal)
        return Said(process.args, process.returncode, out, err)

    def on_80_columns(self, *words: str) -> list[str]:
        """Return the lines that a command that succeeds shows on a terminal."""
        ours, terminal = pty.openpty()
        env = {"COLUMNS": "80", "TERM": "xterm", "NO_COLOR": "1"}
        process = self.start(*words, stdout=terminal, stderr=terminal, env=env)
        os.close(terminal)
        said = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while data := os.read(ours, 1 << 16):
                said += data
        os.close(ours)
        assert process.wait() == 0, said
        return said.decode().splitlines()

    def job(self, text: str | bytes, name: str = "job.yaml") -> str:
        (self.directory / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    @property
    def own_state(self) -> Path:
        return self.directory / "state"

    @property
    def emulator_directory(self) -> Path:
        return self.own_state / "emulator"

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        return control.request(control.ensure_running(self.emulator_directory), method, f"/_emulator/{path}", body)

    def settings(self, **changes: Any) -> None:
        self.admin("PATCH", "settings", changes)

    def alive(self) -> list[str]:
        """The nodes that the emulator bills right now."""
        return [row["name"] for row in self.bills() if row["until"] is None]

    def lived(self) -> int:
        """How many nodes there ever were."""
        return len(self.bills())

    def bills(self) -> list[dict[str, Any]]:
        return list(self.admin("GET", "billing")["nodes"])[self._bills_before :]

    def requests(self, operation: str | None = None, caller: str | None = None) -> list[dict[str, Any]]:
        """The calls to the API so far, as the emulator logged them."""
        rows = self.admin("GET", f"requests?after={self._requests_before}")["requests"]
        return [row for row in rows if operation in (None, row["operation"]) and caller in (None, row["caller"])]

    def fault(self, kind: str, operation: str | None = None, **said: Any) -> str:
        """Add one; its id."""
        body = {"kind": kind, **said} | ({"operation": operation} if operation else {})
        return str(self.admin("POST", "faults", body)["faults"][0]["id"])

    def local(self, word: str = "") -> list[psutil.Process]:
        """Every process of tpujob on "this machine" (commands, guardians, recoveries; nothing of the cloud), with this word."""
        return [process for process in psutil.process_iter() if _is_local(process, str(self.own_state), word)]

    def leases(self) -> list[Lease]:
        """Every lease of the ledger, the oldest first."""
        with contextlib.closing(Ledger(self.own_state / "ledger.sqlite3")) as ledger:
            return ledger.leases()

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


def kill_all(processes: Collection[psutil.Process]) -> None:
    """SIGKILL for all of them at one moment: none gets the time to notice that another one is gone."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        signal_all(processes, number)


def signal_all(processes: Collection[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _is_local(process: psutil.Process, state_dir: str, word: str) -> bool:
    try:
        environ, words = process.environ(), process.cmdline()
    except (psutil.Error, OSError):
        return False
    here = environ.get("TPUJOB_STATE_DIR") == state_dir and "TPUJOB_EMULATED_NODE" not in environ
    return here and "cloud_tpu_emulator" not in words and (not word or word in words)


def is_deaf() -> bool:
    return any(signal.getsignal(number) is signal.SIG_IGN for number in (signal.SIGHUP, signal.SIGINT))


def hear_signals() -> None:
    """Tests may run under nohup or in the background, where SIGHUP and SIGINT are ignored, and children inherit that."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def take_terminal() -> None:
    hear_signals()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def sandbox(directory: Path) -> dict[str, str]:
    """An environment in which nothing of the real user is read or touched."""
    home = directory / "home"
    home.mkdir()
    env = {
        "TPUJOB_STATE_DIR": str(directory / "state"),
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "CLOUDSDK_CONFIG": str(home / "gcloud"),
        "PYTHONPATH": str(ROOT),
        "TPUJOB_GUARDIAN": "off",  # it would finish what a test wants the next command to finish
        **NO_DELAYS,
    }
    for name in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CORE_PROJECT", "TPUJOB_CLOUD"):
        env[name] = ""
    for name in CI_MARKS:  # a run says more in a CI job, and the tests may run in one
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


@dataclass
class Tpujob(Cli):
    """`tpujob(...)` is one command, in this process, which has imported everything already; `start` still makes one.

    The emulator is shared: what it billed and was asked before this test does not count.
    """

    emulator: Emulator = field(kw_only=True)
    monkeypatch: pytest.MonkeyPatch = field(kw_only=True)
    capfd: pytest.CaptureFixture[str] = field(kw_only=True)

    def __post_init__(self) -> None:
        self._bills_before = len(self.bills())
        self._requests_before = max((row["number"] for row in self.requests()), default=0)
        self.own_state.mkdir(mode=0o700)
        self.emulator_directory.symlink_to(self.state_dir)

    def __call__(self, *words: str, env: dict[str, str] | None = None, timeout_s: float | None = None) -> Said:
        if words[0] in ("ssh", "scp"):  # it becomes another program
            return self.as_process(*words, env=env)

        def end(code: int) -> None:
            raise _Ended(code)

        self.capfd.readouterr()
        output.console.cache_clear()
        self.monkeypatch.setattr(sys, "argv", ["tpujob", *words])
        with self.monkeypatch.context() as patch:
            patch.setattr(os, "_exit", end)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            made = _collect_locks(patch)
            try:
                main.main()
            except _Ended as ended:
                (code,) = ended.args
            for locks in made:  # as the end of a process does
                locks.close()
        return Said(words, code, *self.capfd.readouterr())

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        return self.emulator.request(method, f"/_emulator/{path}", body)

    @property
    def state_dir(self) -> Path:
        """The emulator's, where no other directory of the test leads."""
        return self.emulator.state_dir

    def disks(self) -> tuple[Path, Path]:
        """Everything that is on a disk, here and in the cloud, once nothing is left of VMs that are gone."""
        until(lambda: len([*self.state_dir.glob("vms/*")]) == len(self.alive()), "the disks of deleted VMs to be wiped")
        return self.directory, self.state_dir

    def as_process(self, *words: str, env: dict[str, str] | None = None) -> Said:
        """For what one process cannot be asked: to die, or to have other streams."""
        return super().__call__(*words, env=env)

    @contextmanager
    def starting_no_emulator(self) -> Iterator[None]:
        """It runs somewhere else, so a command that wants one would start it here."""
        self.emulator_directory.unlink()
        yield
        assert not self.emulator_directory.exists(), "a cloud was asked"
        self.emulator_directory.symlink_to(self.state_dir)

    @contextmanager
    def creating_nothing(self) -> Iterator[None]:
        before = self.lived()
        yield
        assert self.lived() == before, "something was created"

    @contextmanager
    def promising_nothing(self) -> Iterator[None]:
        """Not even an intent, in whichever cloud."""
        ledger = Ledger(self.own_state / "ledger.sqlite3")
        before = ledger.leases()
        with self.creating_nothing():
            yield
        assert ledger.leases() == before
        ledger.close()


class _Ended(BaseException):
    """In place of the end of this process."""


def _collect_locks(patch: pytest.MonkeyPatch) -> list[FileLocks]:
    made: list[FileLocks] = []

    def init(locks: FileLocks, directory: Path) -> None:
        original(locks, directory)
        made.append(locks)

    original = FileLocks.__init__
    patch.setattr(FileLocks, "__init__", init)
    return made


class Clouds:
    """The emulator that tests share. One that was left with anything in it is ended, and the next test gets a fresh one."""

    def __init__(self, places: pytest.TempPathFactory) -> None:
        self._places, self._stack = places, ExitStack()
        self._now: tuple[Emulator, dict[str, Any]] | None = None

    def one(self) -> Emulator:
        if self._now is None:
            emulator = self._stack.enter_context(running_emulator(self._places.mktemp("cloud")))
            self._now = emulator, emulator.status()
        return self._now[0]

    def tidy(self) -> None:
        if self._now is not None and not self._is_as_new(*self._now):
            self.close()

    @staticmethod
    def _is_as_new(emulator: Emulator, new: dict[str, Any]) -> bool:
        if control.running(emulator.state_dir) != emulator.endpoint:
            return False
        emulator.request("DELETE", "/_emulator/rehearsal")  # faults, stockouts and preemptions
        emulator.patch_settings(**new["settings"])
        for node in emulator.status()["nodes"]:
            with contextlib.suppress(control.DaemonRefused):  # its deletion was under way, and is done
                emulator.request("POST", f"/_emulator/nodes/{node['name'].rpartition('/')[2]}:vanish", {})
        until(lambda: not emulator.status()["nodes"], "an empty cloud")
        return emulator.status() == new

    def close(self) -> None:
        self._now = None
        self._stack.close()


@pytest.fixture(scope="session")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clouds]:
    shared = Clouds(tmp_path_factory)
    yield shared
    shared.close()


@pytest.fixture
def tpujob(
    clouds: Clouds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Tpujob]:
    for name, value in sandbox(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    started = Tpujob(tmp_path, emulator=clouds.one(), monkeypatch=monkeypatch, capfd=capfd)
    yield started
    kill_all(started.local())
    if not started.emulator_directory.is_symlink():
        control.stop(started.emulator_directory)
    clouds.tidy()


def press(process: subprocess.Popen[str], number: int = signal.SIGINT) -> None:
    process.send_signal(number)


def in_ci(*values: Any) -> list[Any]:
    """Return parameters that only .ci/run plays: the same way as another one, in a longer test."""
    return [pytest.param(value, marks=pytest.mark.ci) for value in values]

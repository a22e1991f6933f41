"""`python -m payload` as the processes that it is, without importing torch anew in each of them.

Importing torch and torch_xla takes seconds of processor, the trainings of these tests tenths. So one process of this test run
has imported them (the fork server of multiprocessing); the command is forked from it, and its training processes from the
command. `real=True` starts new programs all the way down, as a worker does.
"""

import atexit
import importlib.util
import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

pytest.importorskip("numpy")

from payload import rank
from payload.launch import supervise, tpu_launch
from tests import ROOT
from tests.waiting import HANG_S, until

HAS_XLA = importlib.util.find_spec("torch_xla") is not None
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
needs_xla = pytest.mark.skipif(not HAS_XLA, reason="needs torch_xla")
IMPORTED = (
    "tests.payload.command", "payload.train", "payload.data.sources", "payload.backends.native",
    "payload.backends.xla",
)  # fmt: skip
XLA = ("torch_xla.core.xla_model", "torch_xla.distributed.xla_multiprocessing", "torch_xla.distributed.parallel_loader")

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload([*IMPORTED, *XLA])


@dataclass
class Run:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str
    artifacts: Path

    def read(self, name: str) -> Any:
        return json.loads((self.artifacts / name).read_text())


@dataclass
class Command:
    """A command that runs."""

    process: ForkServerProcess
    directory: Path
    artifacts: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def stdout(self) -> str:
        return (self.directory / "stdout").read_text()

    def stderr(self) -> str:
        return (self.directory / "stderr").read_text()

    def wait_for_output(self, text: str) -> None:
        """Wait until the log contains `text`."""
        until(lambda: text in self.stdout() or self.process.exitcode is not None, f"{text!r} in the log")
        assert text in self.stdout(), self.stdout() + self.stderr()

    def trains(self) -> None:
        """Wait until timing.jsonl has a step."""
        timing = self.artifacts / "timing.jsonl"
        begun = lambda: timing.exists() and '"step"' in timing.read_text()  # noqa: E731
        until(lambda: begun() or self.process.exitcode is not None, "a step")
        assert begun(), self.stdout() + self.stderr()

    def send(self, signum: int) -> None:
        os.kill(self.pid, signum)

    def end(self) -> Run:
        """Wait for its end."""
        self.process.join(HANG_S)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
        assert code is not None, f"it did not end in {HANG_S:.0f} s: {self.stdout()}{self.stderr()}"
        return Run(code, self.stdout(), self.stderr(), self.artifacts)


def start(
    directory: Path,
    config: dict[str, Any],
    *arguments: str,
    data: Path | None = None,
    code: Path = ROOT,
    first: Callable[[], object] | None = None,
    real: bool = False,
    **environ: str,
) -> Command:
    """In `directory`, with the job's `code`. `first` is called in the command's process before anything else: what it
    changes there is changed in the training processes, too."""
    directory.mkdir(exist_ok=True)
    path, artifacts = directory / "train.json", directory / "artifacts"
    path.write_text(json.dumps({"data_dir": str(data), **config} if data else config))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TPUJOB_", "PJRT_"))}
    places = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "TPUJOB_ARTIFACTS": str(artifacts)}
    argv = ["--config", str(path), *arguments]
    environment = {**clean, "PJRT_DEVICE": "CPU", **places, **environ}
    process = _forks.Process(target=_command, args=(argv, directory, code, environment, first, real))
    process.start()
    atexit.register(process.kill)  # of a test that failed in the middle of a long one
    return Command(process, directory, artifacts)


def play(directory: Path, config: dict[str, Any], *arguments: str, **more: Any) -> Run:
    """From its start to its end."""
    return start(directory, config, *arguments, **more).end()


def succeeds(directory: Path, config: dict[str, Any], *arguments: str, **more: Any) -> Run:
    """From its start to its end, which is a success."""
    run = play(directory, config, *arguments, **more)
    assert run.code == 0, run.stdout + run.stderr
    return run


def _command(
    argv: list[str],
    directory: Path,
    code: Path,
    environment: Mapping[str, str],
    first: Callable[[], object] | None,
    real: bool,
) -> None:
    written = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_APPEND
    output, errors = (os.open(directory / name, written, 0o644) for name in ("stdout", "stderr"))
    _become(os.open(os.devnull, os.O_RDONLY), output, errors, environment)
    os.chdir(code)
    if real:
        os.execv(sys.executable, [sys.executable, "-m", "payload", *argv])
    sys.path[:0] = [str(code), *environment["PYTHONPATH"].split(os.pathsep)]
    sys.argv, sys.dont_write_bytecode = ["payload", *argv], True
    multiprocessing.set_start_method(None, force=True)  # not ours: that of any program
    supervise.subprocess = SimpleNamespace(  # type: ignore[assignment]
        PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT, Popen=_Fork
    )
    tpu_launch.subprocess = SimpleNamespace(run=_run)  # type: ignore[assignment]
    # One thread each: on a busy machine, those of one process spin while they wait for one another.
    os.sched_getaffinity = lambda _: {0}
    if first is not None:
        first()
    runpy.run_module("payload", run_name="__main__", alter_sys=True)


class _Fork:
    """What supervise.py does with subprocess.Popen, for the one program that it starts."""

    def __init__(self, argv: list[str], *, stdin: int, stdout: int, stderr: int, env: Mapping[str, str]) -> None:
        assert argv == [sys.executable, "-m", "payload.rank"]
        assert (stdin, stdout, stderr) == (subprocess.PIPE, subprocess.PIPE, subprocess.STDOUT)
        from_us, to_it = os.pipe()
        from_it, to_us = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(to_it)
            os.close(from_it)
            _train(from_us, to_us, env)
        os.close(from_us)
        os.close(to_us)
        self.stdin, self.stdout = os.fdopen(to_it, "wb"), os.fdopen(from_it, "rb")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        return self._wait(0)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            # Two threads may ask: neither takes the answer away before it is kept.
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | options)
            if found is not None:
                self.returncode = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _train(stdin: int, stdout: int, environment: Mapping[str, str]) -> NoReturn:
    _become(stdin, stdout, stdout, environment)
    try:
        rank.main()
    finally:
        os._exit(1)


def _run(
    argv: list[str], *, env: Mapping[str, str], capture_output: bool, text: bool, check: bool
) -> subprocess.CompletedProcess[str]:
    """Replace subprocess.run in tpu_launch.py, for the one short program that it runs."""
    assert argv[:3] == [sys.executable, "-m", "payload.launch.tpu_launch"] and capture_output and text and not check
    pipes = [os.pipe(), os.pipe()]
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        (_, to_out), (_, to_err) = pipes
        _become(os.open(os.devnull, os.O_RDONLY), to_out, to_err, env)
        code = 1
        try:
            tpu_launch.main(int(argv[3]))
            code = 0
        except tpu_launch.BadConfig as error:
            print(f"error: {error}", file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    for _, write in pipes:
        os.close(write)
    outputs = [os.fdopen(read).read() for read, _ in pipes]
    return subprocess.CompletedProcess(argv, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), *outputs)


def _become(stdin: int, stdout: int, stderr: int, environment: Mapping[str, str]) -> None:
    """A process of its own: new files for the standard ones, with no lock that a thread of the parent may have held."""
    for descriptor, standard in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(descriptor, standard)
    sys.stdin, sys.stdout, sys.stderr = (open(n, "r" if n == 0 else "w", closefd=False) for n in range(3))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)

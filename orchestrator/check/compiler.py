"""The TPU compiler: an environment of its own, made once by uv, and the process in it that judges programs.

libtpu beside torch_xla may change which device a program takes, so the compiler is neither in the environment of tpujob nor in
that of the program. libtpu is Google's, under its own terms; the user's package manager gets it from the package index.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sysconfig
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any

from orchestrator.errors import NotJudged
from orchestrator.hosts.fleet.local import AGENT
from orchestrator.system import whole_file
from orchestrator.text.scripts import Environment

# What `tpu_compiler.py` was written for and is tested with.
PYTHON, REQUIREMENTS = "3.12", "jax==0.12.0.1\njaxlib==0.12.0.1\nlibtpu==0.0.50.1\n"
SIZE = "about 1 GB"  # on disk; 0.45 GB to download (2026-11-27)
PROGRAM = Path(__file__).with_name("tpu_compiler.py")
Say = Callable[[str, str], None]  # stage, text


def cache_directory() -> Path:
    """Return where the compiler is kept, in `compiler`, and what it has judged, in `judged`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tpujob"


def environment() -> Environment:
    """Return the environment of the compiler, as `vm.environment.virtualenv` makes it."""
    asked = Environment("the TPU compiler", REQUIREMENTS, python=PYTHON, imports="libtpu")
    return replace(asked, root=str(cache_directory() / "compiler"))


def path_with_uv() -> str:
    """Return PATH with the programs of this Python first: the package uv, which comes with tpujob, has one there."""
    return os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))


def python() -> Path:
    """Return the Python of that environment, which may not be made yet."""
    return Path(environment().root, environment().name, "bin", "python")


def install(say: Say) -> None:
    """Make the environment, unless it is there; one at a time, whichever command asks. Raises NotJudged."""
    made = environment()
    if not Path(made.root, made.name, ".complete").exists():
        packages = ", ".join(REQUIREMENTS.split()).replace("==", " ")
        say("check", f"installing the TPU compiler once, {SIZE} in {made.root}: {packages}")
    request = json.dumps(asdict(made) | {"name": made.name})
    environ = {**os.environ, "PATH": path_with_uv()}
    done = subprocess.run(
        [*AGENT, "environment"], input=request, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise NotJudged(
            f"the TPU compiler cannot be installed: {lines[-1] if lines else 'its installation failed'}",
            hint="it comes from the package index, and needs a network once; `tpujob run` needs none of it",
        )


class TpuCompiler:
    """A process that compiles for one topology, such as "v5e:2x4". What it has judged before, it knows by its hash."""

    def __init__(self, topology: str) -> None:
        self.topology = topology
        self._judged = cache_directory() / "judged"
        self._log = TemporaryFile("w+")  # noqa: SIM115 - until `__exit__`
        self._process = subprocess.Popen(
            [str(python()), "-IB", str(PROGRAM), topology],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal is for this process, which ends the other
        )
        self._thread = ThreadPoolExecutor(1)
        self._described: Future[Mapping[str, Any]] = self._thread.submit(self._read)

    def __enter__(self) -> TpuCompiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.shutdown(cancel_futures=True)
        self._log.close()

    def described(self) -> Mapping[str, Any]:
        """Return the topology's devices, the HBM of each that a program may use, and the versions. Raises NotJudged."""
        return self._described.result()

    def judge(self, file: Path, replicas: int, random: str = "") -> Future[Mapping[str, Any]]:
        """Return what the compiler says of a dumped program, once it does (`tpu_compiler.py`). It may raise NotJudged.

        `random`: a part of the paths in the dump that differs each time, and makes no other program of it.
        """
        return self._thread.submit(self._ask, file, replicas, random)

    def _ask(self, file: Path, replicas: int, random: str) -> Mapping[str, Any]:
        content = file.read_bytes().replace(random.encode(), b"") if random else file.read_bytes()
        what = (hashlib.sha256(content).hexdigest(), self.topology, replicas, environment().name)
        kept = self._judged / f"{hashlib.sha256(repr(what).encode()).hexdigest()[:32]}.json"
        with suppress(OSError, ValueError):
            return {**json.loads(kept.read_text()), "known": True}
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # then there is no answer, either
            self._process.stdin.write(json.dumps({"file": str(file), "replicas": replicas}) + "\n")
            self._process.stdin.flush()
        answer = self._read()
        with suppress(OSError):
            self._judged.mkdir(parents=True, exist_ok=True)
            whole_file.replace(kept, json.dumps(answer))
        return answer

    def _read(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            answer: Mapping[str, Any] = json.loads(line)
            return answer
        self._process.wait()
        self._log.seek(0)
        said = [each for each in self._log.read().splitlines() if each.strip()] or ["it says nothing"]
        raise NotJudged(f"the TPU compiler ended: {said[-1][:300]}")

"""Plays the first steps of a program on this machine's CPU, and hands over what XLA compiles as it comes.

The program runs as a job with `on: local` does, under the same supervisor, in the Python of an emulated worker.
`in_program.py` watches it from inside.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from orchestrator.hosts.fleet.crew import StartRequest
from orchestrator.hosts.fleet.follow import WorkerState
from orchestrator.hosts.fleet.local import LocalCrew

LOOK_S = 0.1
SETUP_S = 1800.0  # for what a setup downloads
DUMP = ".before_optimizations.hlo.pb"


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends the program here; neither is a verdict on it."""

    seconds: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Dump:
    """A program that XLA has compiled, as a file, and which one of its process it is, from 0."""

    file: Path
    process: str
    number: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What the program did. `ended`: "steps", "itself", "failed", "time", "memory" or "enough"."""

    ended: str
    seconds: float
    exit_code: int | None = None
    imports: frozenset[str] = frozenset()
    steps: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)  # of each process

    def first_step(self, dump: Dump) -> int:
        """Return the step in which it was compiled, from 1; 0 for before the first, or for one that is not counted."""
        return next((each["step"] for each in self.steps.get(dump.process, ()) if each["graphs"] > dump.number), 0)


class Play:
    """One program, in `directory`, which is for its dumps and what is seen of it."""

    def __init__(self, crew: LocalCrew, directory: Path, limits: Limits) -> None:
        self._crew, self._directory, self._limits = crew, directory, limits
        self._sizes: dict[Path, int] = {}
        self._counts: dict[str, int] = {}
        self.dumps: list[Dump] = []

    def run(
        self, phases: Sequence[StartRequest], on_dump: Callable[[Dump], None], is_enough: Callable[[], bool]
    ) -> Seen:
        """Run the phases in order; `is_enough` ends the last one early. Nothing of the program is left running after it."""
        began = time.monotonic()
        for request in phases:
            began, is_main = time.monotonic(), request is phases[-1]
            ended, code = self._phase(request, is_main, on_dump, is_enough)
            if not is_main and ended != "itself":
                return Seen(ended, time.monotonic() - began, code)
        took_s = time.monotonic() - began
        for dump in self._new(is_last=True):
            on_dump(dump)
        lines = dict(self._lines())
        imports = frozenset(each["imports"] for found in lines.values() for each in found if "imports" in each)
        steps = {process: [each for each in found if "step" in each] for process, found in lines.items()}
        return Seen(ended, took_s, code, imports, steps)

    def _phase(
        self, request: StartRequest, is_main: bool, on_dump: Callable[[Dump], None], is_enough: Callable[[], bool]
    ) -> tuple[str, int | None]:
        self._crew.start(request)
        until = time.monotonic() + (self._limits.seconds if is_main else SETUP_S)
        while True:
            (status,) = self._crew.wait(LOOK_S).workers
            for dump in self._new() if is_main else ():
                on_dump(dump)
            if status.state is not WorkerState.RUNNING:
                return ("itself" if status.rc == 0 else "failed"), status.rc
            why = self._why_to_end(until) or ("enough" if is_main and is_enough() else None)
            if why is not None:
                self._crew.stop(0.0)
                return why, None

    def _why_to_end(self, until: float) -> str | None:
        if any("done" in line for _, lines in self._lines() for line in lines[-1:]):
            return "steps"
        if time.monotonic() > until:
            return "time"
        return "memory" if self._memory() > self._limits.memory_bytes else None

    def _memory(self) -> int:
        total = 0
        for process in self._processes():
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue
        return total

    def _processes(self) -> Iterator[psutil.Process]:
        try:
            supervisor = psutil.Process(self._crew.pid)
            yield from supervisor.children(recursive=True)
        except psutil.Error:
            return

    def _new(self, *, is_last: bool = False) -> Iterator[Dump]:
        """Yield the dumps that are new, in order; one is complete once its size stays."""
        for directory in sorted(self._directory.glob("dumps/*")):
            for file in sorted(directory.iterdir()):
                if not file.name.endswith(DUMP) or self._sizes.get(file) == -1:
                    continue
                size = file.stat().st_size
                # At the end also one that was cut off: it cannot be read, and so is not judged.
                if is_last or (size and self._sizes.get(file) == size):
                    self._sizes[file] = -1
                    number = self._counts.get(directory.name, 0)
                    self._counts[directory.name] = number + 1
                    self.dumps.append(Dump(file, directory.name, number))
                    yield self.dumps[-1]
                else:
                    self._sizes[file] = size
                    break  # the order stays that of compiling

    def world(self, dump: Dump) -> int:
        """Return how many processes a dump's process takes itself to be one of."""
        return next(
            (
                each["world"]
                for process, found in self._lines()
                if process == dump.process
                for each in found
                if "world" in each
            ),
            1,
        )

    def _lines(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        for file in self._directory.glob("steps-*.jsonl"):
            whole = file.read_text().rpartition("\n")[0]
            yield file.stem.partition("-")[2], [json.loads(line) for line in whole.splitlines()]

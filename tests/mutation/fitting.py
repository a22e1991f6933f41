"""Which tests fit a mutant: those that come past its line. Made once by a run under a trace function, and kept by content."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from tests import ROOT
from tests.mutation.mutants import Mutant, path_of

UNIT = (
    "tests/unit/promise",
    "tests/unit/capacity",
    "tests/unit/run",
    "tests/unit/places/google",
    "tests/unit/places/gke/api",
    "tests/unit/places/tpu",
    "tests/unit/places/vms",
    "tests/unit/vm/test_watchdog.py",
    "tests/unit/vm/test_watchdog_edge.py",
    "tests/contract/clouds/test_replies.py",
    "tests/contract/clouds/test_literal_replies.py",
)
WORLDS = ("tests/simulation/test_worlds.py",)
# Left out: worlds by the hundred, other processes. What is left is the seeds that once violated something, and small worlds.
LEFT_OUT = re.compile(r"worlds.*violate_nothing|within_300|every_end|the_same_seed|every_speed|python3.10")
IN_COPY = "in a copy "  # what an outcome begins with that only such a trial has
# What no trace sees, since it runs in other processes: the tests that come past these modules there, the fastest first.
IN_OTHER_PROCESSES = {
    "orchestrator.promise.guardian_process": ("tests/unit/promise/test_guardian.py",),
    "orchestrator.promise.effects.interpreter": ("tests/unit/promise/effects/test_interpreter.py",),
    "orchestrator.promise.effects.cloud": ("tests/unit/promise/effects/test_locks.py",),
    "orchestrator.promise.effects.world": ("tests/unit/promise/effects/test_locks.py",),
    "orchestrator.promise.effects.locks": (
        "tests/unit/promise/effects/test_locks.py",
        "tests/security/test_state_dir.py::test_a_lock_is_still_seen_and_taken_where_none_can_be_made",
        "tests/security/test_bad_moments.py::test_on_a_disk_without_file_locks_nothing_is_created_and_what_exists_is_torn_down",
    ),
    "orchestrator.promise.ledger.file": (
        "tests/unit/promise/ledger/test_ledger.py",
        "tests/unit/promise/ledger/test_schema.py",
        "tests/security/test_state_dir.py::test_28_a_disk_of_another_machine_is_noticed",
        "tests/security/test_state_dir.py::test_28_on_another_machines_disk_the_ledger_keeps_no_shared_memory",
        "tests/security/test_state_dir.py::test_where_mounts_are_not_told_a_disk_counts_as_our_own",
        "tests/security/test_state_dir.py::test_a_ledger_that_was_closed_well_is_read_where_nothing_can_be_written",
    ),
}
# Processor time, under the trace, of the tests that are played for one mutant. Outside of functions each is a new process.
UNIT_S, UNIT_ALONE_S, WORLDS_S = 45.0, 15.0, 20.0


@dataclass
class Trace:
    """What one test comes past: lines of modules with mutants, and functions of all of the product, by file and line."""

    seconds: float = 0.0
    passed: bool = True
    lines: dict[str, list[int]] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)

    @cached_property
    def size(self) -> int:
        return sum(map(len, self.lines.values()))


def traced(play: Callable[[], bool], watched: Iterable[str]) -> Trace:
    """Play a test, and see what it comes past."""
    lines: dict[str, set[int]] = {str(path_of(module)): set() for module in watched}
    product, codes, began = str(ROOT / "orchestrator"), set[CodeType](), time.process_time()

    def called(frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(product):
            return None
        codes.add(code)
        mine = lines.get(code.co_filename)
        if mine is None:
            return None
        add = mine.add

        def line(frame: FrameType, event: str, arg: Any) -> Any:
            add(frame.f_lineno)
            return line

        add(frame.f_lineno)
        return line

    threading.settrace(called)
    sys.settrace(called)
    try:
        passed = play()
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    functions = sorted({f"{code.co_filename}:{code.co_firstlineno}" for code in codes})
    return Trace(
        time.process_time() - began, passed, {file: sorted(seen) for file, seen in lines.items() if seen}, functions
    )


@cache
def digest(*paths: str) -> str:
    """Return a hash of these files and of the Python files in these folders, but for those of these tests."""
    made = hashlib.sha256()
    for each in paths:
        files = sorted((ROOT / each).rglob("*.py")) if (ROOT / each).is_dir() else [ROOT / each]
        for file in files:
            if "tests/mutation" not in str(file):
                made.update(file.read_bytes())
    return made.hexdigest()[:24]


def file_of(test: str) -> str:
    return test.partition("::")[0]


class Fitting:
    """What the tests of a session come past."""

    def __init__(self, session: pytest.Session, watched: Sequence[str], kept_in: Path) -> None:
        self.items = {item.nodeid: item for item in session.items}
        self.watched, self.kept_in = watched, kept_in
        self.traces: dict[str, Trace] = {}
        self._on_line: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._in_function: dict[str, set[str]] = defaultdict(set)

    def _kept(self, file: str) -> Path:
        name = digest("orchestrator", file)
        return self.kept_in / f"{hashlib.sha256((name + file + ''.join(self.watched)).encode()).hexdigest()[:24]}.json"

    def missing(self) -> list[str]:
        """Return the test files whose paths are not known yet."""
        return [file for file in sorted({file_of(each) for each in self.items}) if not self._kept(file).exists()]

    def learn(self, file: str, play: Callable[[pytest.Item], bool]) -> None:
        """Play the tests of one file and keep what they come past. Called in a process of its own."""
        found = {
            test: traced(lambda item=item: play(item), self.watched).__dict__  # type: ignore[misc]
            for test, item in self.items.items()
            if file_of(test) == file
        }
        self.kept_in.mkdir(parents=True, exist_ok=True)
        made = self._kept(file).with_suffix(f".{os.getpid()}")
        made.write_text(json.dumps(found))
        made.replace(self._kept(file))

    def read(self) -> None:
        for file in {file_of(each) for each in self.items}:
            for test, path in json.loads(self._kept(file).read_text()).items():
                self.traces[test] = seen = Trace(**path)
                for where, lines in seen.lines.items():
                    for line in lines:
                        self._on_line[where, line].add(test)
                for function in seen.functions:
                    self._in_function[function].add(test)

    def failing(self) -> list[str]:
        return [test for test, path in self.traces.items() if not path.passed]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests to play, unit tests first, the ones that come past little before those that come past much."""
        where = str(path_of(mutant.module))
        if mutant.owner:
            found = {test for line in range(mutant.line, mutant.end_line + 1) for test in self._on_line[where, line]}
            near = found
        else:
            named = {place for name in mutant.names for place in functions_with(name)}
            found = {test for function in named for test in self._in_function[function]}
            near = {
                test for function in named if function.startswith(f"{where}:") for test in self._in_function[function]
            }
        passing = [test for test in found if test in self.traces and self.traces[test].passed]
        unit = [test for test in passing if file_of(test) not in WORLDS]
        unit.sort(key=lambda test: (test not in near, self.traces[test].size, test))
        worlds = sorted(
            (test for test in passing if file_of(test) in WORLDS), key=lambda test: self.traces[test].seconds
        )
        return [*self._within(unit, UNIT_S if mutant.owner else UNIT_ALONE_S), *self._within(worlds, WORLDS_S)]

    def digest_of(self, outcome: str, tests: list[str]) -> str:
        """Return a hash of what decided: the source of the test that killed, else the files of all tests that did not."""
        kind, _, test = outcome.removeprefix(IN_COPY).partition(" ")
        if kind in ("killed", "timeout") and test:
            item: Any = self.items.get(test)
            if item is None:
                return digest(file_of(test))
            return hashlib.sha256(inspect.getsource(item.function).encode()).hexdigest()[:24]
        files = {file_of(each) for each in tests}
        return digest(*sorted(files), "tests/fakes", *(["tests/simulation"] if files & {*WORLDS} else []))

    def _within(self, tests: list[str], most_s: float) -> list[str]:
        left_s, chosen = most_s, []
        for test in tests:
            left_s -= self.traces[test].seconds
            if left_s >= 0:
                chosen.append(test)
        return chosen


@cache
def functions_with(name: str) -> list[str]:
    """Return the functions of the product whose source names this, as `FILE:LINE`."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    return [place for place, text in _functions() if word.search(text)]


@cache
def _functions() -> list[tuple[str, str]]:
    """Return the functions of the product, as `FILE:LINE`, and their source."""
    found = []
    for file in sorted((ROOT / "orchestrator").rglob("*.py")):
        lines = file.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                found.append((f"{file}:{first}", "\n".join(lines[first - 1 : node.end_lineno])))
    return found

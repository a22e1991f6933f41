"""Try mutants: each in a forked process, whose functions get the mutant's code, or in a new one, where that is impossible.

Neither reaches a program that a test starts: a guardian, a command that is killed, what is shipped to a worker as source.
`in_copy` does: the tests run in a copy of the tree in which the file of the module has the change, and so does every process
that they start, whatever its environment, since all of them find the product beside the tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.machinery
import json
import os
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NoReturn

import pytest

from tests import ROOT
from tests.mutation.mutants import Mutant, changed, mutated, path_of

TRIAL_S = 150.0  # a mutant that takes longer is taken for one that never ends
TEST_S, TEST_IN_COPY_S = 25, 60
OPTIONS = [
    "-o",
    "addopts=",
    "--hypothesis-profile=ci",
    "--capture=sys",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:logging",
    "-q",
]
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class Outcome:
    """What pytest reports of the tests that are played."""

    def __init__(self) -> None:
        self.failed: str | None = None
        self.timed_out = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.failed is None:
            self.failed = report.nodeid
            self.timed_out = "Timeout (>" in report.longreprtext or "Timeout >" in report.longreprtext


class Session:
    """A session of pytest whose loop over the tests is `work`."""

    def __init__(self, work: Callable[[pytest.Session, Outcome], None]) -> None:
        self.work = work

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        outcome = Outcome()
        session.config.pluginmanager.register(outcome)
        self.work(session, outcome)
        return True


def run_pytest(
    paths: list[str], work: Callable[[pytest.Session, Outcome], None], basetemp: Path, test_s: float = TEST_S
) -> int:
    os.chdir(ROOT)
    options = [*OPTIONS, "-m", "not cluster", "--timeout", str(test_s), "--basetemp", str(basetemp)]
    return int(pytest.main([*options, *paths], plugins=[Session(work)]))


def play(items: list[pytest.Item], outcome: Outcome) -> str:
    """Play tests until one fails. Return "survived", or what killed the mutant."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if outcome.failed is not None:
            return f"timeout {outcome.failed}" if outcome.timed_out else f"killed {outcome.failed}"
    return "survived"


# -- the mutant's code -----------------------------------------------------------------------------------------------------


def live_functions() -> dict[tuple[str, str, int], list[FunctionType]]:
    """Return all functions of the product that exist, by file, name and line."""
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename.startswith(str(ROOT / "orchestrator")):
            found.setdefault(_place(each.__code__), []).append(each)
    return found


def _place(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def put_in(mutant: Mutant, functions: dict[tuple[str, str, int], list[FunctionType]]) -> bool:
    """Give the function of the mutant its code. Return False if that is impossible: the module has to run anew."""
    path = path_of(mutant.module)
    module = mutated(path.read_text(encoding="utf-8"), str(path), mutant.number)
    changed = False
    for code in _codes(module):
        for function in functions.get(_place(code), ()) if code.co_qualname == mutant.owner else ():
            try:
                function.__code__ = code
            except ValueError:  # it uses other variables of the functions around it
                return False
            changed = True
    return changed


@contextlib.contextmanager
def loading(module: str, number: int) -> Iterator[None]:
    """Load the module with its change of this number, wherever it is imported."""
    real = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, name: str) -> Any:
        if name != module:
            return real(self, name)
        return mutated(path_of(module).read_text(encoding="utf-8"), str(path_of(module)), number)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        importlib.machinery.SourceFileLoader.get_code = real  # type: ignore[method-assign]


def in_copy(mutant: Mutant, tests: Sequence[str]) -> str:
    """Return what becomes of it where every process of these tests runs the mutant: as `Trials.outcome_of`."""

    def work(told: int, directory: Path) -> None:
        tree = directory / "tree"
        shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(".*", "build"))
        file = tree / path_of(mutant.module).relative_to(ROOT)
        file.write_text(changed(file.read_text(encoding="utf-8"), mutant.number), encoding="utf-8")
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree)
        _become_alone({"tests": tests, "test_s": TEST_IN_COPY_S, "fd": told}, directory)

    return in_child(work)


def _become_alone(task: dict[str, Any], directory: Path) -> NoReturn:
    (directory / "task.json").write_text(json.dumps(task | {"basetemp": str(directory / "t")}))
    command = [sys.executable, "-m", "tests.mutation", "--alone", str(directory / "task.json")]
    os.execv(sys.executable, command)


def alone(task: dict[str, Any]) -> None:
    """Play the tests of a task in this new process, and write to its file descriptor what became of the mutant.

    A test is named without its parameters, or with those that it is played with; or all of a file are.
    """

    def work(session: pytest.Session, outcome: Outcome) -> None:
        session.items[:] = [item for test in task["tests"] for item in session.items if _is_of(item, test)]
        tell(task["fd"], play(session.items, outcome))

    files = sorted({test.partition("::")[0] for test in task["tests"]})
    with loading(task["module"], task["number"]) if "module" in task else contextlib.nullcontext():
        run_pytest(files, work, Path(task["basetemp"]), task["test_s"])


def _is_of(item: pytest.Item, test: str) -> bool:
    return item.nodeid == test or item.nodeid.startswith((f"{test}::", f"{test}["))


def tell(fd: int, words: str) -> NoReturn:
    os.write(fd, words.encode())
    os._exit(0)


# -- the processes ---------------------------------------------------------------------------------------------------------


def adopt_orphans() -> None:
    """Become the parent of every process that a trial leaves behind, so that it can be ended."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def in_child(work: Callable[[int, Path], None], limit_s: float = TRIAL_S) -> str:
    """Return what `work` tells in a forked process, "timeout" or "died". Nothing of that process is left.

    `work` gets the file descriptor to tell it on and a directory of its own.
    """
    news, told = os.pipe()
    directory = Path(tempfile.mkdtemp(prefix="tpujob-mutation-"))
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            end_with_parent()
            nothing = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(nothing, fd)
            os.set_inheritable(told, True)
            work(told, directory)
        finally:
            os._exit(3)
    os.close(told)
    try:
        ready, _, _ = select.select([news], [], [], limit_s)
        words = os.read(news, 4096).decode() if ready else "timeout"
    finally:
        os.close(news)
        _end_children()
        shutil.rmtree(directory, ignore_errors=True)
    return words or "died"


def _end_children() -> None:
    """End all children of this process and of those that ended, until there are none."""
    while True:
        for pid in _children(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children(parent: int) -> list[int]:
    return [
        int(pid) for task in Path(f"/proc/{parent}/task").iterdir() for pid in (task / "children").read_text().split()
    ]


class Trials:
    """Tries mutants in the processes of a session."""

    def __init__(self, items: dict[str, pytest.Item], outcome: Outcome) -> None:
        self.items, self.outcome = items, outcome
        self.functions = live_functions()

    def outcome_of(self, mutant: Mutant, tests: list[str]) -> str:
        """Return "survived", "killed TEST", "timeout" or "died"."""

        def work(told: int, directory: Path) -> None:
            self._own_directory(directory)
            if mutant.owner and put_in(mutant, self.functions):
                tell(told, play([self.items[test] for test in tests], self.outcome))
            task = {"module": mutant.module, "number": mutant.number, "tests": tests, "test_s": TEST_S, "fd": told}
            _become_alone(task, directory)

        return in_child(work) if tests else "survived"

    def _own_directory(self, directory: Path) -> None:
        factory: Any = next(iter(self.items.values())).config._tmp_path_factory  # type: ignore[attr-defined]
        factory._given_basetemp, factory._basetemp = None, directory / "t"
        (directory / "t").mkdir()

    def passes(self, item: pytest.Item) -> bool:
        self.outcome.failed = None
        return play([item], self.outcome) == "survived"

    def learn(self, learn: Callable[[str, Callable[[pytest.Item], bool]], None], file: str) -> str:
        """Let `learn` play the tests of a file in a process of its own."""

        def work(told: int, directory: Path) -> None:
            self._own_directory(directory)
            learn(file, self.passes)
            tell(told, "learned")

        return in_child(work, limit_s=1800.0)

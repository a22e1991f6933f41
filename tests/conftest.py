"""Fixtures for all tests, the order they are played in, and what a failure shows."""

import os
import random
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# Tests start hundreds of processes: let each module be compiled once, also where the machine's owner wants no bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Assertions in the fault matrix explain themselves as those of tests do; said before anything has imported it.
ROWS = ("death", "create", "queue", "delete", "vm", "net", "ledger", "person", "api")
pytest.register_assert_rewrite("tests.faults.world", *(f"tests.faults.rows.{topic}" for topic in ROWS))

from orchestrator.system import sockets  # noqa: E402
from tests import evidence, surroundings  # noqa: E402
from tests.cli_fixture import cli, clouds, tpujob  # noqa: E402
from tests.cluster.fixture import cluster, own_cluster, shared_cluster  # noqa: E402
from tests.cluster.gke_fixture import gke  # noqa: E402
from tests.emulator.fixture import emulator, fault, left_as_found, shared_emulator  # noqa: E402
from tests.fakes.api import stub  # noqa: E402
from tests.programs_fixture import (  # noqa: E402
    browser,
    python310,
    python310_with_torch,
)
from tests.waiting import HANG_S  # noqa: E402

FIXTURES: tuple[object, ...] = (
    browser,
    cli,
    clouds,
    cluster,
    emulator,
    fault,
    left_as_found,
    python310,
    python310_with_torch,
    shared_cluster,
)
FIXTURES += (gke, own_cluster, shared_emulator, stub, tpujob)

# Their rows, builds, trainings and the docs site.
IN_ONE_PIECE = (
    "faults/test_matrix.py",
    "install/test_wheel.py",
    "tests/payload/",
    "unit/test_site.py",
)
LONGEST_FIRST = ("faults", "e2e", "payload", "simulation", "contract", "emulator", "security", "cli", "unit")
PROCESSES_PER_CORE = 2  # much of what these tests do is wait


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="play the tests in an order of their own")


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("--shuffle")
    return None if seed is None else f"shuffled: --shuffle={seed}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return PROCESSES_PER_CORE * len(os.sched_getaffinity(0))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long ones first, so that none of them is left alone at the end; every process of xdist gets the same order."""

    def rank(item: pytest.Item) -> tuple[bool, int]:
        folder = item.path.relative_to(config.rootpath / "tests").parts[0]
        return not item.get_closest_marker("long"), LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else 0

    if (seed := config.getoption("--shuffle")) is not None:
        random.Random(seed).shuffle(items)
    else:
        items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files that do much for all of their tests at once, in one process each, and first; the rest wherever there is room."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return next((piece for piece in IN_ONE_PIECE if piece in nodeid), nodeid)

    return Together(config, log)


# -- nothing of the machine is touched -----------------------------------------------------------------------------------

MACHINE = pytest.StashKey[surroundings.Seen]()
CACHES = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # processes of xdist inherit the variables
        session.config.stash[MACHINE] = surroundings.seen()
        session.config.stash[CACHES] = made = tempfile.TemporaryDirectory(
            prefix="tpujob-tests-", ignore_cleanup_errors=True
        )
        os.environ.update(surroundings.own_caches(Path(made.name)))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if MACHINE in session.config.stash:
        session.config.stash[CACHES].cleanup()
        changed = surroundings.changes(session.config.stash[MACHINE], surroundings.seen())
        if changed:
            print(f"\nFAILED a test wrote outside of its own directories: {', '.join(changed)}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


# -- a failure explains itself -----------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(("what is left of its world", evidence.of_test(getattr(item, "funcargs", {}))))
    return report


class _Teller:
    """Tells a failure the moment it happens: a run that is cut short has still said what broke."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)")
            self.terminal.write_line(report.longreprtext)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:  # none in a worker of xdist: what fails there is told by the process that started it
        config.pluginmanager.register(_Teller(terminal))


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's timeout is for the answer alone. That the server accepts the connection, a busy machine may delay."""
    expect_ours = sockets.expect_ours
    monkeypatch.setattr(sockets, "expect_ours", lambda connection, timeout_s: expect_ours(connection, HANG_S))

"""Fixtures for all tests, and a failure told the moment it happens: a run that is cut short has still said what broke."""

from typing import Any

import pytest

# Assertions in the fault matrix explain themselves as those of tests do; said before anybody has imported it.
ROWS = ("death", "create", "queue", "delete", "vm", "net", "ledger", "person")
pytest.register_assert_rewrite("tests.faults.world", *(f"tests.faults.rows_{topic}" for topic in ROWS))

from tests.cli_fixture import cli  # noqa: E402
from tests.emulator_fixture import emulator, shared_emulator  # noqa: E402

__all__ = ["cli", "emulator", "shared_emulator"]


IN_ONE_PIECE = ("faults/test_matrix.py", "e2e/test_kill.py", "payload/test_run.py")  # their rows, kills and trainings


class _Teller:
    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)")
            self.terminal.write_line(report.longreprtext)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files that do much for all of their tests at once, in one process each, and first; the rest wherever there is room."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file.endswith(IN_ONE_PIECE) else nodeid

    return Together(config, log)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:  # none in a worker of xdist: what fails there is told by the process that started it
        config.pluginmanager.register(_Teller(terminal))

"""Fixtures for all tests, and a failure told the moment it happens: a run that is cut short has still said what broke."""

import pytest

from tests.cli_fixture import cli
from tests.emulator_fixture import emulator, shared_emulator

__all__ = ["cli", "emulator", "shared_emulator"]


class _Teller:
    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)")
            self.terminal.write_line(report.longreprtext)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What belongs together comes first: the longest piece of work, which other processes need not wait for at the end."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:  # none in a worker of xdist: what fails there is told by the process that started it
        config.pluginmanager.register(_Teller(terminal))

"""Says at the end which test kills which mutant."""

from __future__ import annotations

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = terminalreporter.stats.get("passed", ())
    lines = [value for report in reports for name, value in getattr(report, "user_properties", ()) if name == "killed"]
    if lines:
        terminalreporter.section("mutation gate")
        for line in lines:
            terminalreporter.write_line(line)

"""Costs and cells, as every message and command shows them. Pure."""

from typing import Any

from orchestrator.core.lease.run_and_attempt import LOCAL
from orchestrator.core.text.durations import format_usd


def format_cost(usd: float | None, cloud: str) -> str:
    """Return what a slice or a run of this cloud costs: `$0.10`, `$0.10 emulated`, `none (local)`; `unknown` for None."""
    if cloud == LOCAL:
        return "none (local)"
    if usd is None:
        return "unknown"
    return f"{format_usd(usd)} emulated" if cloud == "emulated" else format_usd(usd)


def csv_cell(value: Any) -> Any:
    """Return the value for a CSV file; a text that a spreadsheet would read as a formula is quoted."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value

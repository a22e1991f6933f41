"""Costs and cells of CSV, as every message and command shows them. Pure."""

import csv
import io
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from orchestrator import traits
from orchestrator.text.units import format_usd


def run_name(name: str, sweep: str | None, variant: str | None) -> str:
    """Return the name of a run in a table: of one of a sweep, what is different in it."""
    return f"{sweep} {variant}" if sweep and variant else name


def format_cost(usd: float | None, cloud: str) -> str:
    """Return what a slice or a run of this cloud costs: `$0.10`, `$0.10 emulated`, `none (local)`; `unknown` for None."""
    if not traits.traits_of(cloud).billed:
        return f"none ({cloud})"
    if usd is None:
        return "unknown"
    return f"{format_usd(usd)} emulated" if traits.is_emulated(cloud) else format_usd(usd)


def csv_cell(value: Any) -> Any:
    """Return the value for a CSV file; a text that a spreadsheet would read as a formula is quoted."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value


def csv_lines(rows: Sequence[Mapping[str, Any]], head: Sequence[str] = ()) -> str:
    """Return a header with these columns and those that any row has, and a line for each row; empty where a row has none."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(dict.fromkeys(chain(head, *rows))), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()

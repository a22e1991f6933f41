"""Costs, cells and requests, as every message and command shows them. Pure."""

import csv
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from orchestrator import traits
from orchestrator.text.units import format_usd


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


# A request to the API as a person reads it: method, URL, and its body as YAML, with scripts and keys summarized.

LONG_CHARS = 200  # a text that is longer, or has several lines, is summarized


def request_lines(request: Mapping[str, Any]) -> list[str]:
    """Return the lines of a request that has `method`, `url` and `body`."""
    return [f"{request['method']} {request['url']}", *_lines(request["body"], "")]


def _lines(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _entry(f"{indent}{key}:", inner, indent)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner in value:
            yield from _entry(f"{indent}-", inner, indent)


def _entry(head: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping | list | tuple) and value:
        yield head
        yield from _lines(value, f"{indent}  ")
    else:
        yield f"{head} {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    text = str(value)
    if len(text) > LONG_CHARS or "\n" in text:
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"({len(text.encode()) / 1000:,.1f} KB, sha256 {digest[:16]}; `--json` has it)"
    return text or '""'

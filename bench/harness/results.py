"""A measurement as people read it: a table on the terminal, and the same table as a section of bench/RESULTS.md.

Each script owns the section that bears its name and replaces it when it runs again; the others stay as they are.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "RESULTS.md"
MISSED = "MISSED"
HEAD = """# Measurements

Written by the scripts beside this file, each its own section; run one to measure again. Medians, with the lowest and the
highest value in brackets; what is compared was run alternately, in the same minutes. Loopback only.
"""


def options(
    description: str, *, rounds: int, data: bool = False, parents: Sequence[argparse.ArgumentParser] = ()
) -> argparse.Namespace:
    """The command line of every script here; `data`: it can be given real images. `parents` have what a script adds."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0], parents=parents)
    parser.add_argument("--rounds", type=int, default=rounds, help="how often each is measured (default: %(default)s)")
    parser.add_argument("--print-only", action="store_true", help="leave bench/RESULTS.md as it is")
    parser.add_argument("--check", action="store_true", help="as --print-only; exit with 1 if a target is missed")
    if data:
        parser.add_argument("--data", type=Path, metavar="DIR", help="MNIST's IDX files (default: drawn digits)")
    return parser.parse_args()


def spread(values: Sequence[float], digits: int = 2) -> str:
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}–{max(values):.{digits}f}]"


def verdict(values: Sequence[float], target: float, unit: str = "s", *, at_least: bool = False) -> str:
    """Does the median keep to the target: at most, or at least, so much?"""
    median = statistics.median(values)
    kept = median >= target if at_least else median <= target
    return f"{'≥' if at_least else '≤'} {target:g} {unit}: {judged(kept)}"


def judged(kept: bool) -> str:
    """The word for a target, which `--check` finds again in the section."""
    return "met" if kept else MISSED


@dataclass(slots=True)
class Report:
    """What one script found. Begin it before measuring: it notes the load that the machine has then."""

    script: str
    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _load_before: float = field(default_factory=lambda: os.getloadavg()[0])

    def row(self, *cells: str) -> None:
        assert len(cells) == len(self.columns), "one cell for each column"
        self.rows.append(cells)

    def publish(self, arguments: argparse.Namespace) -> None:
        table = _table([self.columns, *self.rows])
        notes = "\n".join(f"- {note}" for note in self.notes)
        machine = f"{_machine()}; load average {self._load_before:.1f} before, {os.getloadavg()[0]:.1f} after."
        data = " --data DIR" if getattr(arguments, "data", None) else ""
        model = f" --model {arguments.model}" if getattr(arguments, "model", None) else ""
        command = f"python bench/{self.script}{model} --rounds {arguments.rounds}{data}"
        section = f"## {self.script}: {self.title}\n\n{table}\n\n{notes}\n\n`{command}` · {machine}\n"
        print(section, flush=True)
        if getattr(arguments, "check", False):
            if missed := section.count(MISSED):
                raise SystemExit(f"{self.script}: targets missed: {missed}")
        elif not arguments.print_only:
            page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else HEAD
            PAGE.write_text(with_section(page, self.script, section), encoding="utf-8")


def with_section(page: str, script: str, section: str) -> str:
    """The page with this script's section in place of its old one, or at the end."""
    old = re.search(rf"^## {re.escape(script)}:.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    if old is None:
        return f"{page.rstrip()}\n\n{section}"
    after = page[old.end() :]
    return page[: old.start()] + section + ("\n" + after if after else "")


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _machine() -> str:
    """Processors, system, Python, code and day."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    made_by = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=PAGE.parent, capture_output=True, text=True, check=False
    )
    code = f", commit {commit.stdout.strip()}" if commit.returncode == 0 else ""
    return f"{cores} cores ({_processor()}), {made_by}{code}, {datetime.now(UTC):%Y-%m-%d %H:%MZ}"


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or "unknown processor"

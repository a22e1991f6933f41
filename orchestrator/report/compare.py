"""Compare runs: seconds in all, per iteration and per epoch, one column for each run; as text, Markdown or CSV.

Runs that did other work (another model, other data, another batch) are shown side by side all the same, and marked as not
comparable. Pure: figures in, lines out.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.core.lease.run_and_attempt import LOCAL
from orchestrator.report.figures import EpochMeasure, Measure, RunFigures
from orchestrator.report.layout import Table, format_cost

Row = tuple[str, Callable[[RunFigures], str]]

NOTHING = "-"
# Runs that differ in one of these did other work; runs that differ in one of the others did the same work in another way.
SAME_WORK = ("model", "dataset", "train_examples", "batch_size")
SAME_WAY = ("epochs", "precision", "timing")
# What is noted about the runs for which it holds.
REMARKS: dict[str, Callable[[RunFigures], bool]] = {
    "its iterations' σ is measured with a drain after each step (`timing: drained`)": lambda f: f.timing == "drained",
    "no σ of an iteration: its steps were stamped as they left, not as they ended (`timing: drained` measures it)": (
        lambda f: f.timing == "stamped"
    ),
    "each epoch had warm-up in it: s / epoch (≈) follows from its other steps": lambda f: f.epoch_s.estimated,
    "was interrupted and resumed; both parts are in the figures": lambda f: f.resumed,
    "trained on generated digits, not on real images": lambda f: f.synthetic,
    "trained on the MNIST sample that is shipped with tpujob: real images, 6,000 at most, and tested on 2,000": (
        lambda f: f.dataset == "mnist-sample"
    ),
    "the TPU was emulated on this machine's CPU: seconds and dollars are not those of a real one": lambda f: f.emulated,
}
PLAIN = {"train_examples": "number of examples", "batch_size": "batch size", "dataset": "data"}


def as_json(columns: Sequence[RunFigures]) -> dict[str, Any]:
    """Return the shape of `tpujob compare --json`."""
    apart = differences(columns, SAME_WORK)
    return {
        "comparable": not apart,
        "differences": apart + differences(columns, SAME_WAY),
        "notes": notes(columns),
        "runs": [asdict(column) for column in columns],
    }


def differences(columns: Sequence[RunFigures], keys: Sequence[str]) -> list[str]:
    """Return sentences such as `model: mnist_cnn (a, b), alexnet (c)`. An unknown value differs from nothing."""
    found = []
    for key in keys:
        runs_of: dict[Any, list[str]] = {}
        for name, column in zip(titles(columns), columns, strict=True):
            if (value := getattr(column, key)) is not None:
                runs_of.setdefault(value, []).append(name)
        if len(runs_of) > 1:
            each = (f"{_plain(value)} ({', '.join(names)})" for value, names in runs_of.items())
            found.append(f"{PLAIN.get(key, key)}: {', '.join(each)}")
    return found


def titles(columns: Sequence[RunFigures]) -> list[str]:
    """Return the names of the runs; where names are alike, with the beginning of the run's id."""
    names = [column.title for column in columns]
    return [
        name if names.count(name) == 1 else f"{name} {column.run[:4]}"
        for name, column in zip(names, columns, strict=True)
    ]


def headline(columns: Sequence[RunFigures]) -> str:
    """Return what all of the runs did alike."""
    parts = []
    forms = {"train_examples": "{:,} images", "batch_size": "batch {}", "epochs": "{} epochs"}
    for key in (*SAME_WORK, "epochs", "precision"):
        values = {getattr(column, key) for column in columns}
        if len(values) == 1 and None not in values:
            parts.append(forms.get(key, "{}").format(values.pop()))
    return " · ".join(parts)


# -- rows ----------------------------------------------------------------------------------------------------------


def rows() -> list[Row]:
    """Return the label of each row, and the function that formats its cell."""
    return [
        ("total (s)", lambda f: seconds(f.total_s)),
        ("s / iteration (mean ± σ)", lambda f: spread(f.step_s)),
        ("s / epoch (mean ± σ)", lambda f: spread(f.epoch_s)),
        ("images / s", lambda f: NOTHING if f.images_per_s is None else f"{f.images_per_s:,.0f}"),
        ("time to first step (s)", lambda f: seconds(f.first_step_s)),
        ("compile (s)", lambda f: seconds(f.compile_s)),
        ("whole job (s)", lambda f: seconds(f.job_s)),
        ("test accuracy (%)", lambda f: NOTHING if f.test_accuracy is None else f"{100 * f.test_accuracy:.2f}"),
        ("memory (MB)", lambda f: NOTHING if f.peak_rss_bytes is None else f"{f.peak_rss_bytes / 1e6:,.0f}"),
        ("cost", dollars),
        ("device", _device),
        ("on", _place),
        ("run", lambda f: f.run),
    ]


def seconds(value: float | None) -> str:
    """Return seconds with three significant digits: 0.00741, 0.0741, 7.41, 74.1; at least one decimal."""
    return NOTHING if value is None else f"{value:,.{_decimals(value)}f}"


def spread(measure: Measure) -> str:
    """Return mean ± σ with the same decimals; the mean alone without a σ."""
    mean, std = measure.mean, measure.std
    if mean is None:
        return NOTHING
    about = "≈" if isinstance(measure, EpochMeasure) and measure.estimated else ""
    places = _decimals(mean)
    return f"{about}{mean:,.{places}f}" + (f" ± {std:,.{places}f}" if std is not None else "")


def _decimals(value: float) -> int:
    return max(1, min(6, 2 - math.floor(math.log10(value)))) if value > 0 else 1


def dollars(column: RunFigures) -> str:
    """Return the cost of the run."""
    return format_cost(column.usd, column.cloud)


def _device(column: RunFigures) -> str:
    return NOTHING if column.device is None else f"{column.device} ×{column.processes or '?'}"


def _place(column: RunFigures) -> str:
    if column.cloud == LOCAL:
        return "this machine"
    kind = column.accelerator_type or "no slice"
    return f"{kind}, emulated" if column.emulated else kind


def one(column: RunFigures) -> list[str]:
    """Return the lines of a single run, for `tpujob show`; none for a run that measured nothing."""
    if column.total_s is None and column.step_s.mean is None:
        return []
    lines = [f"work     {headline([column])}"]
    lines += [f"figure   {label}: {text}" for label, cell in rows()[:-2] if (text := cell(column)) != NOTHING]
    return lines + [f"note     {note}" for note in notes([column])]


# -- notes ---------------------------------------------------------------------------------------------------------


def notes(columns: Sequence[RunFigures]) -> list[str]:
    """Return what the figures mean, and what limits them."""
    named = list(zip(titles(columns), columns, strict=True))
    found = [
        "total, s / iteration and s / epoch: training alone, without the steps that compiled (warm-up); "
        "s / epoch is of the epochs that had none"
    ]
    for text, holds in REMARKS.items():
        which = [name for name, column in named if holds(column)]
        if which:
            found.append(f"{'all' if len(which) == len(named) > 1 else ', '.join(which)}: {text}")
    if any(column.usd is not None for column in columns):
        found.append(f"dollars from the create call to the proven end, by the {columns[0].prices_as_of}")
    for name, column in named:
        found += [f"{name}: {problem}" for problem in column.problems]
        if column.state != "succeeded":
            found.append(f"{name}: the run is {column.state}")
    return found


# -- as text, Markdown, CSV ------------------------------------------------------------------------------------------


def table(columns: Sequence[RunFigures]) -> Table:
    """Return the table: a row for each figure, a column for each run."""
    body = tuple((label, *(cell(column) for column in columns)) for label, cell in rows())
    return Table((headline(columns), *titles(columns)), body)


def markdown(columns: Sequence[RunFigures]) -> list[str]:
    """Return the lines of a Markdown table, and a list of the notes."""
    found = table(columns)
    head, *body = [[_markdown_cell(cell) for cell in line] for line in (found.head, *found.rows)]
    rule = ["---"] + ["---:"] * len(columns)
    return [
        *(f"| {' | '.join(line)} |" for line in (head, rule, *body)),
        "",
        *(f"- {line.replace('<', '&lt;')}" for line in remarks(columns)),
    ]


def csv_text(columns: Sequence[RunFigures]) -> str:
    """Return a header and one line for each run, every figure as it was measured."""
    out = io.StringIO()
    flat = [_flat(column) for column in columns]
    writer = csv.DictWriter(out, fieldnames=list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def remarks(columns: Sequence[RunFigures]) -> list[str]:
    """Return what makes the runs differ, and what the figures mean."""
    apart = [f"NOT COMPARABLE, other {line}" for line in differences(columns, SAME_WORK)]
    return [*apart, *(f"they differ in {line}" for line in differences(columns, SAME_WAY)), *notes(columns)]


def _flat(column: RunFigures) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in asdict(column).items():
        if isinstance(value, dict):
            flat |= {f"{key}_{part}": inner for part, inner in value.items()}
        else:
            flat[key] = _csv_cell("; ".join(value) if isinstance(value, tuple) else value)
    return flat


def _csv_cell(value: Any) -> Any:
    """Quote a text from a worker that a spreadsheet would read as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value


def _markdown_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`")


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)

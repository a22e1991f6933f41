"""The table people came for: seconds in all, per iteration and per epoch, one column a run; as text, Markdown or CSV.

Runs that did other work (another model, other data, another batch) are shown side by side all the same, and are said not
to be comparable. Pure: figures in, lines out.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.core.lease.attempt import LOCAL
from orchestrator.core.text.durations import format_usd

Figures = dict[str, Any]
Row = tuple[str, Callable[[Figures], str]]

NOTHING = "-"
# Who differs in one of these did other work; who differs in one of the others did the same work in another way.
SAME_WORK = ("model", "dataset", "train_examples", "batch_size")
SAME_WAY = ("epochs", "precision", "timing")
PLAIN = {"train_examples": "number of examples", "batch_size": "batch size", "dataset": "data"}


def shape(columns: Sequence[Figures]) -> dict[str, Any]:
    """The stable shape of `tpujob compare --json`."""
    apart = differences(columns, SAME_WORK)
    return {
        "comparable": not apart,
        "differences": apart + differences(columns, SAME_WAY),
        "notes": notes(columns),
        "runs": list(columns),
    }


def differences(columns: Sequence[Figures], keys: Sequence[str]) -> list[str]:
    """Sentences such as `model: mnist_cnn (a, b), alexnet (c)`. What nobody knows differs from nothing."""
    found = []
    for key in keys:
        who: dict[Any, list[str]] = {}
        for name, column in zip(titles(columns), columns, strict=True):
            if column[key] is not None:
                who.setdefault(column[key], []).append(name)
        if len(who) > 1:
            each = (f"{_plain(value)} ({', '.join(names)})" for value, names in who.items())
            found.append(f"{PLAIN.get(key, key)}: {', '.join(each)}")
    return found


def titles(columns: Sequence[Figures]) -> list[str]:
    """By name; where names are alike, the run's id tells them apart."""
    names = [str(column["title"]) for column in columns]
    return [
        name if names.count(name) == 1 else f"{name} {column['run'][:4]}"
        for name, column in zip(names, columns, strict=True)
    ]


def headline(columns: Sequence[Figures]) -> str:
    """What all of them did alike."""
    words = []
    for key, form in (
        ("model", "{}"),
        ("dataset", "{}"),
        ("train_examples", "{:,} images"),
        ("batch_size", "batch {}"),
        ("epochs", "{} epochs"),
        ("precision", "{}"),
    ):
        values = {column[key] for column in columns}
        if len(values) == 1 and None not in values:
            words.append(form.format(values.pop()))
    return " · ".join(words)


# -- rows ----------------------------------------------------------------------------------------------------------


def rows() -> list[Row]:
    return [
        ("total (s)", lambda f: seconds(f["total_s"])),
        ("s / iteration (mean ± σ)", lambda f: spread(f["step_s"])),
        ("s / epoch (mean ± σ)", lambda f: spread(f["epoch_s"])),
        ("images / s", lambda f: _number(f["images_per_s"])),
        ("time to first step (s)", lambda f: seconds(f["first_step_s"])),
        ("compile (s)", lambda f: seconds(f["compile_s"])),
        ("whole job (s)", lambda f: seconds(f["job_s"])),
        ("test accuracy (%)", lambda f: NOTHING if f["test_accuracy"] is None else f"{100 * f['test_accuracy']:.2f}"),
        ("memory (MB)", lambda f: NOTHING if f["peak_rss_bytes"] is None else f"{f['peak_rss_bytes'] / 1e6:,.0f}"),
        ("dollars", dollars),
        ("device", device),
        ("on", place),
        ("run", lambda f: str(f["run"])),
    ]


def seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.{_decimals(value)}f}"


def spread(measure: dict[str, Any]) -> str:
    """Mean ± σ with the same decimals; the mean alone where no σ was measured."""
    mean, std = measure["mean"], measure["std"]
    if mean is None:
        return NOTHING
    about = "≈" if measure.get("estimated") else ""
    places = _decimals(mean)
    return f"{about}{mean:,.{places}f}" + (f" ± {std:,.{places}f}" if std is not None else "")


def _decimals(value: float) -> int:
    """Three figures that mean something: 0.00741, 0.0741, 7.41, 74.1; never less than a tenth."""
    return max(1, min(6, 2 - math.floor(math.log10(value)))) if value > 0 else 1


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def dollars(found: Figures) -> str:
    if found["cloud"] == LOCAL:
        return "0 (this machine)"
    amount = format_usd(found["usd"]) if found["usd"] is not None else "unknown"
    return f"0 (emulated; {amount})" if found["emulated"] else amount


def device(found: Figures) -> str:
    return NOTHING if found["device"] is None else f"{found['device']} ×{found['processes'] or '?'}"


def place(found: Figures) -> str:
    if found["cloud"] == LOCAL:
        return "this machine"
    kind = found["accelerator_type"] or "no slice"
    return f"{kind}, emulated" if found["emulated"] else kind


def one(found: Figures) -> list[str]:
    """The same figures of a single run, for `tpujob show`; nothing for a run that measured nothing."""
    if found["total_s"] is None and found["step_s"]["mean"] is None:
        return []
    lines = [f"work     {headline([found])}"]
    lines += [f"figure   {label}: {text}" for label, cell in rows()[:-2] if (text := cell(found)) != NOTHING]
    return lines + [f"note     {note}" for note in notes([found])]


# -- what has to be said -------------------------------------------------------------------------------------------


def notes(columns: Sequence[Figures]) -> list[str]:
    """What the figures mean, and where they mean less than they seem to."""
    named = list(zip(titles(columns), columns, strict=True))
    found = [
        "total, s / iteration and s / epoch: training alone, without the steps that compiled (warm-up); "
        "s / epoch is of the epochs that had none"
    ]
    found += _about(
        named,
        "its iterations' σ is measured with a drain after each step (`timing: drained`)",
        lambda f: f["timing"] == "drained",
    )
    found += _about(
        named,
        "no σ of an iteration: its steps were stamped as they left, not as they ended (`timing: drained` measures it)",
        lambda f: f["timing"] == "stamped",
    )
    found += _about(
        named,
        "each epoch had warm-up in it: s / epoch (≈) follows from its other steps",
        lambda f: bool(f["epoch_s"]["estimated"]),
    )
    found += _about(named, "was interrupted and resumed; both parts are in the figures", lambda f: bool(f["resumed"]))
    found += _about(named, "trained on generated digits, not on real images", lambda f: f["synthetic"])
    found += _about(
        named,
        "the TPU was emulated on this machine's CPU: seconds and dollars say nothing about a real one",
        lambda f: f["emulated"],
    )
    if any(column["usd"] is not None for column in columns):
        found.append(f"dollars from the create call to the proven end, by the {columns[0]['prices_as_of']}")
    for name, column in named:
        found += [f"{name}: {problem}" for problem in column["problems"]]
        if column["state"] != "succeeded":
            found.append(f"{name}: the run is {column['state']}")
    return found


def _about(named: list[tuple[str, Figures]], text: str, holds: Callable[[Figures], bool]) -> list[str]:
    who = [name for name, column in named if holds(column)]
    return [f"{', '.join(who)}: {text}" if len(who) < len(named) or len(named) == 1 else f"all: {text}"] if who else []


# -- as text, Markdown, CSV ------------------------------------------------------------------------------------------


def text(columns: Sequence[Figures]) -> list[str]:
    table = _table(columns)
    widths = [max(len(line[index]) for line in table) for index in range(len(table[0]))]
    padded = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    return [*padded, "", *_said(columns)]


def markdown(columns: Sequence[Figures]) -> list[str]:
    head, *body = [[_markdown_cell(cell) for cell in line] for line in _table(columns)]
    rule = ["---"] + ["---:"] * len(columns)
    return [
        *(f"| {' | '.join(line)} |" for line in (head, rule, *body)),
        "",
        *(f"- {line.replace('<', '&lt;')}" for line in _said(columns)),
    ]


def csv_text(columns: Sequence[Figures]) -> str:
    """One line a run, every figure as it was measured: for a spreadsheet or a data frame."""
    out = io.StringIO()
    flat = [_flat(column) for column in columns]
    writer = csv.DictWriter(out, fieldnames=list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _table(columns: Sequence[Figures]) -> list[list[str]]:
    return [
        [headline(columns), *titles(columns)],
        *([label, *(cell(column) for column in columns)] for label, cell in rows()),
    ]


def _said(columns: Sequence[Figures]) -> list[str]:
    apart = [f"NOT COMPARABLE, other {line}" for line in differences(columns, SAME_WORK)]
    return [*apart, *(f"they differ in {line}" for line in differences(columns, SAME_WAY)), *notes(columns)]


def _flat(column: Figures) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in column.items():
        if isinstance(value, dict):
            flat |= {f"{key}_{part}": inner for part, inner in value.items()}
        else:
            flat[key] = _csv_cell("; ".join(value) if isinstance(value, list) else value)
    return flat


def _csv_cell(value: Any) -> Any:
    """A text from a worker must not become a formula of somebody's spreadsheet."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value


def _markdown_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`")


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)

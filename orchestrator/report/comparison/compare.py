"""Compare runs: their figures as text, Markdown or CSV, a column for each run, and the sentences that say why they differ.

A figure that none of the runs has gets no row; of many runs each is a row. Runs that did other work (another model, other data,
another batch) are shown side by side all the same, and marked as not comparable. Pure: figures in, lines out.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from orchestrator import traits
from orchestrator.job.source.params import text_of
from orchestrator.report.comparison.figures import EpochMeasure, Measure, RunFigures
from orchestrator.report.files.metrics import Metric, last_text, short
from orchestrator.report.rows.layout import csv_cell, csv_lines, format_cost
from orchestrator.text.parsing import less_is_better
from orchestrator.text.terminal import Table

# Runs that differ in one of these did other work; runs that differ in one of the others did the same work in another way.
SAME_WORK = ("model", "dataset", "train_examples", "batch_size")
SAME_WAY = ("epochs", "precision", "timing")
Remark = Callable[[RunFigures], bool]

# What is noted about the runs for which it holds: of the σ of their steps, and of all else.
SPREADS: dict[str, Remark] = {
    "its iterations' σ is measured with a drain after each step (`timing: drained`)": lambda f: f.timing == "drained",
    "no σ of an iteration: its steps were stamped as they left, not as they ended (`timing: drained` measures it)": (
        lambda f: f.timing == "stamped"
    ),
}
LIMITS: dict[str, Remark] = {
    "each epoch had warm-up in it: s / epoch (≈) follows from its other steps": lambda f: f.epoch_s.estimated,
    "was interrupted and resumed; both parts are in the figures": lambda f: f.resumed,
    "trained on generated digits, not on real images": lambda f: f.synthetic,
    "trained on the MNIST sample that is shipped with tpujob: real images, 6,000 at most, and tested on 2,000": (
        lambda f: f.dataset == "mnist-sample"
    ),
    "the TPU was emulated on this machine's CPU: seconds and dollars are not those of a real one": lambda f: f.emulated,
}
PLAIN = {"train_examples": "number of examples", "batch_size": "batch size", "dataset": "data"}


def remarks(columns: Sequence[RunFigures], *, with_best: bool = True) -> list[str]:
    """Return what makes the runs differ, and what the figures mean. `with_best`: also which run is the best."""
    return [*apart(columns), *notes(columns, with_best=with_best)]


def apart(columns: Sequence[RunFigures], names: Sequence[str] | None = None) -> list[str]:
    """Return what makes the runs differ in a way that matters. `names`: of the runs, or of the groups that they are in."""
    return [
        *(f"NOT COMPARABLE, other {line}" for line in differences(columns, SAME_WORK, names)),
        *(f"they differ in {line}" for line in differences(columns, SAME_WAY, names)),
    ]


def differences(columns: Sequence[RunFigures], keys: Sequence[str], names: Sequence[str] | None = None) -> list[str]:
    """Return sentences such as `model: mnist_cnn (a, b), alexnet (c)`. An unknown value differs from nothing."""
    found = []
    for key in keys:
        runs_of: dict[Any, dict[str, None]] = {}
        for name, column in zip(names or titles(columns), columns, strict=True):
            if (value := getattr(column, key)) is not None:
                runs_of.setdefault(value, {})[name] = None
        if len(runs_of) > 1:
            each = (f"{_plain(value)} ({', '.join(which)})" for value, which in runs_of.items())
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
            value = values.pop()
            parts.append("1 epoch" if (key, value) == ("epochs", 1) else forms.get(key, "{}").format(value))
    return " · ".join(parts)


def notes(columns: Sequence[RunFigures], *, with_best: bool = True) -> list[str]:
    """Return what the figures mean, and what limits them. `with_best`: also which run is the best."""
    names = titles(columns)
    return [
        *times(columns),
        *holding(columns, names, SPREADS | LIMITS),
        *(best(columns, names, lambda metric: metric.best, lambda metric: short(metric.best)) if with_best else []),
        *prices(columns),
        *problems(columns),
    ]


def times(columns: Sequence[RunFigures]) -> list[str]:
    """Return what the seconds of a training are, if a run has them."""
    if all(column.total_s is None for column in columns):
        return []
    return [
        "total, s / iteration and s / epoch: training alone, without the steps that compiled (warm-up); "
        "s / epoch is of the epochs that had none"
    ]


def holding(columns: Sequence[RunFigures], names: Sequence[str], which: Mapping[str, Remark]) -> list[str]:
    """Return those of the remarks that hold for a run. `names`: of the runs, or of the groups that they are in."""
    found = []
    for text, holds in which.items():
        true = [name for name, column in zip(names, columns, strict=True) if holds(column)]
        if true:
            found.append(f"{'all' if len(true) == len(columns) > 1 else ', '.join(dict.fromkeys(true))}: {text}")
    return found


def prices(columns: Sequence[RunFigures]) -> list[str]:
    """Return what the dollars are, if a run has some."""
    if all(column.cost_usd is None for column in columns):
        return []
    return [f"dollars from the create call to the proven end, by the {columns[0].prices_as_of}"]


def problems(columns: Sequence[RunFigures]) -> list[str]:
    """Return what each run lacks, and that it did not succeed."""
    found = []
    for name, column in zip(titles(columns), columns, strict=True):
        found += [f"{name}: {problem}" for problem in column.problems]
        if column.state != "succeeded":
            found.append(f"{name}: its state is {column.state}")
    return found


def best(
    columns: Sequence[Any], names: Sequence[str], value_of: Callable[[Any], float | None], text_of: Callable[[Any], str]
) -> Iterator[str]:
    """Yield which runs, or groups, have the best value of each metric, unless all of them look alike."""
    for metric in dict.fromkeys(chain.from_iterable(column.metrics for column in columns)):
        values = [
            (value, text_of(each), name)
            for name, column in zip(names, columns, strict=True)
            if (each := column.metrics.get(metric)) and (value := value_of(each)) is not None
        ]
        if len({text for _, text, _ in values}) > 1:
            _, top, _ = (min if less_is_better(metric) else max)(values)
            yield f"best {metric}: {top}, {', '.join(name for _, text, name in values if text == top)}"


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


Plain = Callable[[float], str]


class Row(NamedTuple):
    """A row of a table: its label and the function that formats a cell. `value`, `less`: what is better, and if it is less."""

    label: str
    cell: Callable[[Any], str]
    value: Callable[[RunFigures], float | None] = lambda column: None
    less: bool | None = None


LEAST = ("on", "device", "memory (MB)")  # left out first where a row for each run does not fit
LEAST_WAIT = 0.01  # of the training
PER_CHIP, WHOLE_JOB = "images / s / chip", "whole job (s)"
COLUMNS = 4  # of more runs each gets a row
BUILT_IN = ("images_per_s", "test_accuracy")  # metrics that have rows of their own, from metrics.json
NOTHING = "-"
MOST_PLACES = 6  # decimals; a smaller σ is written as a power of ten
LARGE = 1e9


def seconds(value: float | None) -> str:
    """Return seconds with three significant digits: 0.00741, 0.0741, 7.41, 74.1; at least one decimal."""
    return NOTHING if value is None else f"{value:,.{_decimals(value)}f}"


def _decimals(value: float) -> int:
    return max(1, min(6, 2 - math.floor(math.log10(value)))) if value > 0 else 1


class Shown(NamedTuple):
    """How a figure is shown: its label, the form of a value without σ, the factor of its unit, and whether less is better."""

    label: str
    plain: Plain = seconds
    factor: float = 1
    less: bool | None = None


FIGURES = {  # by their names in JSON and CSV
    "total_s": Shown("total (s)", less=True),
    "step_s": Shown("s / iteration", less=True),
    "epoch_s": Shown("s / epoch", less=True),
    "images_per_s": Shown("images / s", "{:,.0f}".format, less=False),
    "images_per_s_per_chip": Shown(PER_CHIP, "{:,.0f}".format),
    "data_wait_s": Shown("waited for data (s)"),
    "first_step_s": Shown("time to first step (s)", less=True),
    "compile_s": Shown("compile (s)", less=True),
    "test_accuracy": Shown("test accuracy (%)", "{:.2f}".format, 100, less=False),
    "peak_rss_bytes": Shown("memory (MB)", "{:,.0f}".format, 1e-6, less=True),
    "peak_device_bytes": Shown("device memory (GB)", "{:,.1f}".format, 1e-9),
    "duty_cycle_percent": Shown("duty cycle (%)", "{:.1f}".format),
}


def as_json(columns: Sequence[RunFigures]) -> dict[str, Any]:
    """Return the shape of `tpujob compare --json`."""
    return {**comparable(columns), "notes": notes(columns), "runs": [asdict(column) for column in columns]}


def comparable(columns: Sequence[RunFigures], names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return whether they did the same work, and what makes them differ. `names`: of the runs, or of their groups."""
    apart = differences(columns, SAME_WORK, names)
    return {"comparable": not apart, "differences": apart + differences(columns, SAME_WAY, names)}


# -- rows ----------------------------------------------------------------------------------------------------------


def rows(columns: Sequence[RunFigures]) -> list[Row]:
    """Return the label of each row, and the function that formats its cell; only rows of which a run has something."""
    every = [*param_rows(columns), *_built_in(), *metric_rows(columns, _metric), *_of_any_run(columns)]
    return filled(every, columns, {column.accelerator_type for column in columns})


def filled(rows: Iterable[Row], columns: Sequence[Any], types: Collection[str | None]) -> list[Row]:
    """Return the rows of which a column has something. `types`: those of the slices."""
    return [
        row
        for row in rows
        if any(row.cell(column) != NOTHING for column in columns)
        and (row.label != PER_CHIP or len(types) > 1)  # of one type: the same figures once more, divided by one number
    ]


def param_rows(columns: Sequence[Any]) -> list[Row]:
    """Return a row for each parameter of these runs, or groups of runs."""
    names = dict.fromkeys(chain.from_iterable(column.params for column in columns))
    return [Row(name, partial(_cell_of, "params", name, text_of)) for name in names]


def metric_rows(columns: Sequence[Any], text: Callable[[Any], str]) -> list[Row]:
    """Return a row for each metric of these runs, or groups. Those of the built-in training have rows already."""
    shown = {name for name in BUILT_IN if any(column.value(name) is not None for column in columns)}
    names = dict.fromkeys(name for column in columns for name in column.metrics if name not in shown)
    cells = {name: partial(_cell_of, "metrics", name, text) for name in names}
    return [Row(name, cell, partial(_best_of, name), less_is_better(name) is True) for name, cell in cells.items()]


def _cell_of(key: str, name: str, text: Callable[[Any], str], column: Any) -> str:
    found = getattr(column, key)
    return text(found[name]) if name in found else NOTHING


def _best_of(name: str, column: RunFigures) -> float | None:
    return column.metrics[name].best if name in column.metrics else None


def _built_in() -> list[Row]:
    """The figures; of steps and epochs a run has several values."""
    return [
        Row(
            how.label + (" (mean ± σ)" if name in ("step_s", "epoch_s") else ""),
            partial(_figure, name, how),
            partial(RunFigures.value, name=name),
            how.less,
        )
        for name, how in FIGURES.items()
    ]


def _figure(name: str, how: Shown, column: RunFigures) -> str:
    found = getattr(column, name)
    if isinstance(found, Measure):
        return spread(found)
    if name == "peak_device_bytes":
        return device_memory(column) or NOTHING
    unseen = found is None or (name == "data_wait_s" and not waits_for_data(column))
    return NOTHING if unseen else how.plain(found * how.factor)


def _metric(found: Metric) -> str:
    """The last value, and the best in brackets."""
    last = last_text(found)
    return last if found.best in (None, found.last) else f"{last} (best {short(found.best)})"


def _of_any_run(columns: Sequence[RunFigures]) -> list[Row]:
    """Exit codes and restarts only where they are not all 0."""
    found = [Row(WHOLE_JOB, lambda f: seconds(f.job_s), lambda f: f.job_s, less=True)]
    if any(column.restarts for column in columns):
        found.append(Row("restarts", lambda f: str(f.restarts)))
    if any(column.exit_code for column in columns):
        found.append(Row("exit code", lambda f: NOTHING if f.exit_code is None else str(f.exit_code)))
    found.append(Row("cost", dollars, lambda f: f.cost_usd, less=True))
    return [*found, Row("device", device), Row("on", place), Row("run", lambda f: f.run)]


def spread(measure: Measure) -> str:
    """Return mean ± σ with the same decimals; the mean alone without a σ."""
    mean, std = measure.mean, measure.std
    if mean is None:
        return NOTHING
    about = "≈" if isinstance(measure, EpochMeasure) and measure.estimated else ""
    places = _decimals(mean)
    return f"{about}{mean:,.{places}f}" + (f" ± {std:,.{places}f}" if std is not None else "")


def waits_for_data(column: Any) -> bool:
    """Return whether a run, or a group, waited for its data for a share of its training that matters."""
    waited, whole = column.value("data_wait_s"), column.value("total_s")
    return bool(waited and whole and waited >= LEAST_WAIT * whole)


def device_memory(column: RunFigures) -> str:
    """Return the peak of a chip or GPU in GB, and of how much if that is known; "" where the peak is not."""
    peak, whole = column.peak_device_bytes, column.device_bytes
    if peak is None:
        return ""
    return f"{peak / 1e9:,.1f}" + (f" of {whole / 1e9:,.1f}" if whole else "")


def dollars(column: RunFigures) -> str:
    """Return the cost of the run."""
    return format_cost(column.cost_usd, column.cloud)


def device(column: RunFigures) -> str:
    """Return on what it trained, and in how many processes; `-` where that is unknown."""
    return NOTHING if column.device is None else f"{column.device} ×{column.processes or '?'}"


def place(column: RunFigures) -> str:
    """Return the type of its slice, and that it was emulated, or that it was this machine."""
    if not traits.traits_of(column.cloud).tpus:
        return "this machine"
    kind = column.accelerator_type or "no slice"
    return f"{kind}, emulated" if column.emulated else kind


def one(column: RunFigures) -> list[str]:
    """Return the lines of a single run, for `tpujob show`."""
    found = [f"work     {work}"] if (work := headline([column])) else []
    rows_of = [*param_rows([column]), *_built_in(), *_of_any_run([column])[:-2]]
    found += [f"figure   {row.label}: {text}" for row in rows_of if (text := row.cell(column)) != NOTHING]
    found += [f"metric   {name}: {_last_and_best(each)}" for name, each in column.metrics.items()]
    return found + [f"note     {note}" for note in notes([column])]


def _last_and_best(metric: Metric) -> str:
    def at(step: int | None) -> str:
        return "" if step is None else f" at step {step:,}"

    text = last_text(metric) if metric.diverged else f"{short(metric.last)}{at(metric.last_step)}"
    if metric.count > 1:
        best = "" if metric.best is None else f" · best {short(metric.best)}{at(metric.best_step)}"
        text += f"{best} · {metric.count:,} values"
    return text


# -- as text, Markdown, CSV ------------------------------------------------------------------------------------------


def table(columns: Sequence[RunFigures]) -> Table:
    """Return the table: a row for each figure, a column for each run; the other way round for many runs."""
    return turned([(headline(columns), *titles(columns)), *lines(rows(columns), columns)])


def lines(rows: Iterable[Row], columns: Sequence[Any]) -> list[tuple[str, ...]]:
    """Return each row with its label and cells."""
    return [(row.label, *map(row.cell, columns)) for row in rows]


def turned(every: Sequence[tuple[str, ...]]) -> Table:
    """Return the table of these rows, the heading first; where there are many columns, rows and columns change places."""
    if len(every[0]) <= 1 + COLUMNS:
        return Table(every[0], tuple(every[1:]))
    head, *lines = zip(*every, strict=True)
    return Table(head, tuple(lines), optional=tuple(number for number, label in enumerate(head) if label in LEAST))


def markdown(columns: Sequence[RunFigures]) -> list[str]:
    """Return the lines of a Markdown table, and a list of the notes."""
    return markdown_lines(table(columns), remarks(columns))


def csv_text(columns: Sequence[RunFigures]) -> str:
    """Return a header and one line for each run, every figure as it was measured; empty where a run has none."""
    return csv_lines([_flat(column) for column in columns])


def _flat(column: RunFigures) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in asdict(column).items():
        if key == "metrics":
            for name, metric in value.items():
                flat |= {csv_cell(f"{name}_last"): metric["last"], csv_cell(f"{name}_best"): metric["best"]}
        elif key == "params":
            flat |= {csv_cell(f"param_{name}"): csv_cell(inner) for name, inner in value.items()}
        elif isinstance(value, dict):
            flat |= {f"{key}_{part}": inner for part, inner in value.items()}
        else:
            flat[key] = csv_cell("; ".join(value) if isinstance(value, tuple) else value)
    return flat


# The forms of a comparison: Markdown of a table and its notes, and mean ± σ as people write it.


def markdown_lines(found: Table, notes: Iterable[str]) -> list[str]:
    """Return the lines of the table, and a list of the notes."""
    head, *body = [[_cell(cell) for cell in line] for line in (found.head, *found.rows)]
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return [
        *(f"| {' | '.join(line)} |" for line in (head, rule, *body)),
        "",
        *(f"- {line.replace('<', '&lt;')}" for line in notes),
    ]


def mean_and_std(found: Measure, plain: Plain = short) -> str:
    """Return `0.8194 ± 0.0017`: σ with two digits, the mean with as many decimals. Without σ the mean as `plain` has it."""
    mean, std = found.mean, found.std
    if mean is None:
        return NOTHING
    if not std:
        return plain(mean) + (" ± 0" if std == 0 else "")
    places = max(0, 1 - math.floor(math.log10(std)))
    if places > MOST_PLACES or max(abs(mean), std) >= LARGE:
        return f"{mean:.4g} ± {std:.2g}"
    return f"{mean:,.{places}f} ± {std:,.{places}f}"


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`")

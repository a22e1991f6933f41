"""What makes runs differ, which of them are comparable, and what their figures mean: sentences below a comparison. Pure."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from orchestrator.core.text.metric_lines import less_is_better
from orchestrator.report.comparison.figures import RunFigures
from orchestrator.report.files.metrics import short

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
        *(_best(list(zip(names, columns, strict=True))) if with_best else []),
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


def _best(named: Sequence[tuple[str, RunFigures]]) -> list[str]:
    """Return which run has the best value of each metric that several runs report."""
    found = []
    for name in dict.fromkeys(chain.from_iterable(column.metrics for _, column in named)):
        of_runs = [
            (each.best, title)
            for title, column in named
            if (each := column.metrics.get(name)) is not None and each.best is not None
        ]
        if len(of_runs) > 1:
            value, title = min(of_runs) if less_is_better(name) else max(of_runs)
            found.append(f"best {name}: {short(value)}, {title}")
    return found


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)

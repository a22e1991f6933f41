"""Groups of runs side by side: parameters, how many runs, mean ± σ of every figure, cost; as text, JSON, Markdown or CSV.

A row, or a column, for each group, its parameters first. σ is the sample standard deviation over the runs of a group. Pure.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import Any

from orchestrator.core.jobfile.params import text_of
from orchestrator.core.text.metric_lines import less_is_better
from orchestrator.core.text.table import Table
from orchestrator.report.comparison import remarks
from orchestrator.report.comparison.compare import (
    BUILT_IN,
    FIGURES,
    LEAST_WAIT,
    NOTHING,
    Shown,
    device,
    markdown_lines,
    mean_and_std,
    place,
    turned,
)
from orchestrator.report.comparison.figures import Measure, RunFigures
from orchestrator.report.comparison.groups import MetricMeasure, RunGroup
from orchestrator.report.layout import csv_cell, csv_lines, format_cost

Row = tuple[str, Callable[[RunGroup], str]]


WHOLE_JOB = Shown("whole job (s)")


def table(groups: Sequence[RunGroup]) -> Table:
    """Return the table: a column for each group, or a row where there are many. The heading has the first parameter."""
    return turned([(label, *(cell(group) for group in groups)) for label, cell in rows(groups)])


def markdown(groups: Sequence[RunGroup]) -> list[str]:
    """Return the lines of a Markdown table, and a list of the notes."""
    return markdown_lines(table(groups), notes(groups))


def as_json(groups: Sequence[RunGroup], over: Sequence[str]) -> dict[str, Any]:
    """Return the shape of `tpujob compare --over NAME --json`."""
    runs, titles = runs_and_titles(groups)
    apart = remarks.differences(runs, remarks.SAME_WORK, titles)
    return {
        "comparable": not apart,
        "differences": apart + remarks.differences(runs, remarks.SAME_WAY, titles),
        "notes": notes(groups, with_differences=False),
        "over": list(over),
        "groups": [
            _identity(group)
            | {"params": dict(group.params)}
            | {"run_ids": [run.run for run in group.averaged], "accelerator_types": accelerators(group)}
            | {name: asdict(each) for name, each in group.figures.items()}
            | {"metrics": {name: asdict(each) for name, each in group.metrics.items()}, "cost_usd": group.cost_usd}
            for group in groups
        ],
    }


def csv_text(groups: Sequence[RunGroup]) -> str:
    """Return a header and one line for each group: of each figure `NAME_mean`, `NAME_std`, and `NAME_count` runs have it.

    A figure that no run has gets no columns.
    """
    return csv_lines([_flat(group) for group in groups])


def _identity(group: RunGroup) -> dict[str, Any]:
    return {
        "title": group.title,
        "job": group.job,
        "variant": group.variant,
        "cloud": group.cloud,
        "runs": len(group.averaged),
        "left_out": len(group.members) - len(group.averaged),
    }


def _flat(group: RunGroup) -> dict[str, Any]:
    flat = {key: csv_cell(value) for key, value in _identity(group).items()}
    flat |= {csv_cell(f"param_{name}"): csv_cell(value) for name, value in group.params.items()}
    measures: dict[str, Measure] = {}
    for name, metric in group.metrics.items():
        measures[name] = metric.last
        if metric.best.count and f"{name}_best" not in group.metrics:
            measures[f"{name}_best"] = metric.best
    measures |= {name: each for name, each in group.figures.items() if each.count}
    for name, each in measures.items():
        flat |= {csv_cell(f"{name}_{part}"): value for part, value in asdict(each).items()}
    return flat | {"cost_usd": group.cost_usd, "accelerator_types": " ".join(accelerators(group))}


# -- rows ----------------------------------------------------------------------------------------------------------


def rows(groups: Sequence[RunGroup]) -> list[Row]:
    """Return the label of each row, and the function that formats its cell; only rows of which a group has something."""
    every: list[Row] = [*_of_what(groups), ("runs", _count), *_figures(groups), *_metrics(groups)]
    every += [(WHOLE_JOB.label, partial(_figure, "job_s", WHOLE_JOB)), ("cost", _cost)]
    every += [("device", partial(_each, device)), ("on", partial(_each, place))]
    return [row for row in every if any(row[1](group) != NOTHING for group in groups)]


def _of_what(groups: Sequence[RunGroup]) -> list[Row]:
    """The parameters, and what else tells the groups from each other; the job where there is nothing."""
    names = dict.fromkeys(chain.from_iterable(group.params for group in groups))
    found: list[Row] = [("variant", lambda g: g.variant or NOTHING)] if any(g.variant for g in groups) else []
    found += [(name, partial(_param, name)) for name in names]
    if len({group.job for group in groups}) > 1 or not found:
        found.insert(0, ("job", lambda g: g.job))
    return found


def _param(name: str, group: RunGroup) -> str:
    return text_of(group.params[name]) if name in group.params else NOTHING


def _count(group: RunGroup) -> str:
    averaged, of = len(group.averaged), len(group.members)
    return str(of) if averaged == of else f"{averaged} of {of}"


def _figures(groups: Sequence[RunGroup]) -> Iterator[Row]:
    types = {kind for group in groups for kind in accelerators(group)}
    for name, how in FIGURES.items():
        if name == "images_per_s_per_chip" and len(types) < 2:
            continue  # the same figures once more, divided by one number
        if name == "data_wait_s" and not any(map(_waits, groups)):
            continue
        yield how.label, partial(_figure, name, how)


def _figure(name: str, how: Shown, group: RunGroup) -> str:
    found = group.figures[name]
    if found.mean is None:
        return NOTHING
    std = None if found.std is None else found.std * how.factor
    return mean_and_std(replace(found, mean=found.mean * how.factor, std=std), how.plain)


def _waits(group: RunGroup) -> bool:
    waited, whole = group.figures["data_wait_s"].mean, group.figures["total_s"].mean
    return bool(waited and whole and waited >= LEAST_WAIT * whole)


def _metrics(groups: Sequence[RunGroup]) -> list[Row]:
    shown = {name for name in BUILT_IN if any(group.figures[name].count for group in groups)}
    names = dict.fromkeys(name for group in groups for name in group.metrics if name not in shown)
    return [(name, partial(_metric, name)) for name in names]


def _metric(name: str, group: RunGroup) -> str:
    found = group.metrics.get(name)
    return NOTHING if found is None else _last_and_best(found)


def _last_and_best(metric: MetricMeasure) -> str:
    """Mean ± σ of the last values, and in brackets that of the best ones where they are others."""
    last, best = mean_and_std(metric.last), mean_and_std(metric.best)
    return last if best in (NOTHING, last) else f"{last} (best {best})"


def _cost(group: RunGroup) -> str:
    return format_cost(group.cost_usd, group.cloud)


def _each(cell: Callable[[RunFigures], str], group: RunGroup) -> str:
    found = dict.fromkeys(text for run in group.members if (text := cell(run)) != NOTHING)
    return " / ".join(found) or NOTHING


# What the figures of groups of runs mean, what limits them, and which group is the best: sentences below the table.

SIGMA = "mean ± sample standard deviation (σ) over the runs that succeeded; cost: the sum of all runs of a group"


def notes(groups: Sequence[RunGroup], *, with_differences: bool = True) -> list[str]:
    """Return what the figures mean, what limits them, and which group is the best. `with_differences`: first, in what the
    runs differ that matters."""
    runs, titles = runs_and_titles(groups)
    headline = remarks.headline(runs)
    return [
        *(remarks.apart(runs, titles) if with_differences else []),
        *([f"all: {headline}"] if headline else []),
        SIGMA,
        *remarks.times(runs),
        *chain.from_iterable(map(_limits, groups)),
        *remarks.holding(runs, titles, remarks.LIMITS),
        *_best(groups),
        *remarks.prices(runs),
        *remarks.problems(runs),
    ]


def runs_and_titles(groups: Sequence[RunGroup]) -> tuple[list[RunFigures], list[str]]:
    """Return the runs of all groups, and for each of them the title of its group."""
    return [run for group in groups for run in group.members], [group.title for group in groups for _ in group.members]


def accelerators(group: RunGroup) -> list[str]:
    """Return the types of the slices that its runs had."""
    return list(dict.fromkeys(run.accelerator_type for run in group.members if run.accelerator_type))


def _limits(group: RunGroup) -> Iterator[str]:
    """What it has of some of its runs only, and what makes them unlike."""
    runs = len(group.averaged)
    counts = {name: each.last.count for name, each in group.metrics.items()}
    counts |= {name: each.count for name, each in group.figures.items() if each.count}
    partly = [f"{name} ({count} of {runs} runs)" for name, count in counts.items() if count < runs]
    if partly:
        yield f"{group.title}: not measured in all of its runs: {', '.join(partly)}"
    if len(kinds := accelerators(group)) > 1:
        yield f"{group.title}: its times are of different slices: {', '.join(kinds)}"


def _best(groups: Sequence[RunGroup]) -> Iterator[str]:
    """Which group has the best mean of each metric that several groups report."""
    for name in dict.fromkeys(chain.from_iterable(group.metrics for group in groups)):
        means = [
            (best.mean, number)
            for number, group in enumerate(groups)
            if name in group.metrics and (best := group.metrics[name].best).mean is not None
        ]
        if len(means) > 1:
            _, number = min(means) if less_is_better(name) else max(means)
            yield f"best {name}: {mean_and_std(groups[number].metrics[name].best)}, {groups[number].title}"

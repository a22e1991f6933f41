"""Groups of runs that differ only in some parameters, such as a seed: the mean and σ of each figure, and their tables.

Only runs that succeeded are averaged. The cost is the sum of all runs of the group: what its figures took. Jobs, named variants
and clouds are never mixed: emulated seconds and dollars are not those of a TPU. Pure.

A row, or a column, for each group, its parameters first. σ is the sample standard deviation over the runs of a group.
"""

import difflib
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from orchestrator.errors import UserError
from orchestrator.job.source.params import text_of
from orchestrator.promise.lease.run_and_attempt import AttemptState
from orchestrator.report.comparison import compare
from orchestrator.report.comparison.compare import FIGURES, NOTHING, WHOLE_JOB, Row, Shown, device, mean_and_std, place
from orchestrator.report.comparison.figures import Measure, RunFigures
from orchestrator.report.rows import costs
from orchestrator.report.rows.layout import csv_cell, csv_lines, format_cost
from orchestrator.text.names import for_display
from orchestrator.text.terminal import Table

# The figures of a group, by their names in JSON and CSV: those of a run, of steps and epochs the means.
AVERAGED = (
    *(
        "total_s",
        "step_s",
        "epoch_s",
        "images_per_s",
        "images_per_s_per_chip",
        "data_wait_s",
        "first_step_s",
        "compile_s",
    ),
    *("eval_s", "test_accuracy", "train_loss", "peak_rss_bytes", "peak_device_bytes", "duty_cycle_percent", "job_s"),
)


@dataclass(frozen=True, slots=True)
class MetricMeasure:
    """One metric over the runs of a group: their last values, and their best ones where its name tells what is better."""

    last: Measure
    best: Measure


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs that differ in the named parameters only. `members`: all of them; `averaged`: those that succeeded.

    `title`: in what it differs from the other groups, such as `lr=0.1`. `params`: those that its runs have in common by
    definition. `figures`: by the names in AVERAGED; a Measure has how many runs it is of. `cost_usd`: of all members; None if
    it is unknown for one of them.
    """

    title: str
    job: str
    variant: str | None
    cloud: str
    params: Mapping[str, Any]
    members: tuple[RunFigures, ...]
    averaged: tuple[RunFigures, ...]
    figures: Mapping[str, Measure]
    metrics: Mapping[str, MetricMeasure]
    cost_usd: float | None

    def value(self, name: str) -> float | None:
        """Return the mean of a figure."""
        return self.figures[name].mean


def grouped(columns: Sequence[RunFigures], over: Sequence[str]) -> tuple[RunGroup, ...]:
    """Return the groups of these runs, in the order of their first ones. Raises UserError for a parameter that no run has."""
    _check(columns, over)
    found: dict[Any, list[RunFigures]] = {}
    for column in columns:
        found.setdefault(_key(column, over), []).append(column)
    firsts = [members[0] for members in found.values()]
    titles = _titles(firsts, [_params(first, over) for first in firsts])
    return tuple(_group(title, members, over) for title, members in zip(titles, found.values(), strict=True))


def measure(values: Iterable[float | None]) -> Measure:
    """Return mean and sample standard deviation of the values that there are. `std`: None of one, or if it is no float."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return Measure()
    std = None
    with suppress(OverflowError):
        std = statistics.stdev(known) if len(known) > 1 else None
    return Measure(statistics.mean(known), std, len(known))


def _check(columns: Sequence[RunFigures], over: Sequence[str]) -> None:
    known = list(dict.fromkeys(chain.from_iterable(column.params for column in columns)))
    for name in over:
        if name in known:
            continue
        near = difflib.get_close_matches(name[:40], known, n=1)
        if near:
            advice = f"did you mean `{near[0]}`?"
        else:
            advice = f"they have {', '.join(map(for_display, known))}" if known else "they have none"
        raise UserError(f"--over `{for_display(name)}`: none of these runs has such a parameter; {advice}")


def _params(column: RunFigures, over: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in column.params.items() if name not in over}


def _key(column: RunFigures, over: Sequence[str]) -> Any:
    """Return the same for runs of one group. 1 and 1.0 are the same number; `true` and "1" are other values."""
    values = ((name, isinstance(value, bool), value) for name, value in _params(column, over).items())
    return column.job, column.variant, column.cloud, frozenset(values)


def _titles(firsts: Sequence[RunFigures], params: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what tells each group from the others; the name of the job where there is nothing."""
    differing = [
        name
        for name in dict.fromkeys(chain.from_iterable(params))
        if len({(name in each, isinstance(each.get(name), bool), each.get(name)) for each in params}) > 1
    ]
    jobs, clouds = ({getattr(first, key) for first in firsts} for key in ("job", "cloud"))
    titles = []
    for first, own in zip(firsts, params, strict=True):
        parts = [first.job] if len(jobs) > 1 else []
        parts += [first.variant] if first.variant else []
        parts += [f"{name}={text_of(own[name])}" for name in differing if name in own]
        parts += [first.cloud] if len(clouds) > 1 else []
        titles.append(" ".join(parts) or first.job)
    return titles


def labels(columns: Sequence[RunFigures]) -> list[str]:
    """Return what tells each run from the others: the parameters that differ, or its name where that is not enough."""
    found = _titles(columns, [column.params for column in columns])
    params = len({_key(column, ()) for column in columns}) == len(columns) == len(set(found))
    return found if params else compare.titles(columns)


def _group(title: str, members: Sequence[RunFigures], over: Sequence[str]) -> RunGroup:
    first = members[0]
    averaged = tuple(column for column in members if column.state == AttemptState.SUCCEEDED)
    names = dict.fromkeys(chain.from_iterable(column.metrics for column in averaged))
    return RunGroup(
        title=title,
        job=first.job,
        variant=first.variant,
        cloud=first.cloud,
        params=_params(first, over),
        members=tuple(members),
        averaged=averaged,
        figures={name: measure(column.value(name) for column in averaged) for name in AVERAGED},
        metrics={name: _measured(name, averaged) for name in names},
        cost_usd=costs.total(column.cost_usd for column in members),
    )


def _measured(name: str, averaged: Sequence[RunFigures]) -> MetricMeasure:
    having = [column.metrics[name] for column in averaged if name in column.metrics]
    return MetricMeasure(measure(each.last for each in having), measure(each.best for each in having))


def table(groups: Sequence[RunGroup]) -> Table:
    """Return the table: a column for each group, or a row where there are many. The heading has the first parameter."""
    return compare.turned(compare.lines(rows(groups), groups))


def markdown(groups: Sequence[RunGroup]) -> list[str]:
    """Return the lines of a Markdown table, and a list of the notes."""
    return compare.markdown_lines(table(groups), remarks(groups))


def as_json(groups: Sequence[RunGroup], over: Sequence[str]) -> dict[str, Any]:
    """Return the shape of `tpujob compare --over NAME --json`."""
    runs, titles = runs_and_titles(groups)
    return {
        **compare.comparable(runs, titles),
        "notes": remarks(groups, with_differences=False),
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
    figures = {
        name: how for name, how in FIGURES.items() if name != "data_wait_s" or any(map(compare.waits_for_data, groups))
    }
    every = [*_of_what(groups), Row("runs", _count)]
    every += [Row(how.label, partial(_figure, name, how)) for name, how in figures.items()]
    every += [*compare.metric_rows(groups, _last_and_best), Row(WHOLE_JOB, partial(_figure, "job_s", Shown(WHOLE_JOB)))]
    every.append(Row("cost", lambda group: format_cost(group.cost_usd, group.cloud)))
    every += [Row("device", partial(_each, device)), Row("on", partial(_each, place))]
    return compare.filled(every, groups, {kind for group in groups for kind in accelerators(group)})


def _of_what(groups: Sequence[RunGroup]) -> list[Row]:
    """The parameters, and what else tells the groups from each other; the job where there is nothing."""
    found = [Row("variant", lambda g: g.variant or NOTHING)] if any(g.variant for g in groups) else []
    found += compare.param_rows(groups)
    if len({group.job for group in groups}) > 1 or not found:
        found.insert(0, Row("job", lambda g: g.job))
    return found


def _count(group: RunGroup) -> str:
    averaged, of = len(group.averaged), len(group.members)
    return str(of) if averaged == of else f"{averaged} of {of}"


def _figure(name: str, how: Shown, group: RunGroup) -> str:
    found = group.figures[name]
    if found.mean is None:
        return NOTHING
    std = None if found.std is None else found.std * how.factor
    return mean_and_std(replace(found, mean=found.mean * how.factor, std=std), how.plain)


def _last_and_best(metric: MetricMeasure) -> str:
    """Mean ± σ of the last values, and in brackets that of the best ones where they are others."""
    last, best = mean_and_std(metric.last), mean_and_std(metric.best)
    return last if best in (NOTHING, last) else f"{last} (best {best})"


def _each(cell: Callable[[RunFigures], str], group: RunGroup) -> str:
    found = dict.fromkeys(text for run in group.members if (text := cell(run)) != NOTHING)
    return " / ".join(found) or NOTHING


# What the figures of groups of runs mean, what limits them, and which group is the best: sentences below the table.

SIGMA = "mean ± sample standard deviation (σ) over the runs that succeeded; cost: the sum of all runs of a group"


def remarks(groups: Sequence[RunGroup], *, with_differences: bool = True) -> list[str]:
    """Return what the figures mean, what limits them, and which group is the best. `with_differences`: first, in what the
    runs differ that matters."""
    runs, titles = runs_and_titles(groups)
    headline = compare.headline(runs)
    return [
        *(compare.apart(runs, titles) if with_differences else []),
        *([f"all: {headline}"] if headline else []),
        SIGMA,
        *compare.times(runs),
        *chain.from_iterable(map(_limits, groups)),
        *compare.holding(runs, titles, compare.LIMITS),
        *compare.best(
            groups,
            [group.title for group in groups],
            lambda metric: metric.best.mean,
            lambda metric: mean_and_std(metric.best),
        ),
        *compare.prices(runs),
        *compare.problems(runs),
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

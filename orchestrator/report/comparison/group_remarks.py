"""What the figures of groups of runs mean, what limits them, and which group is the best: sentences below the table. Pure."""

from collections.abc import Iterator, Sequence
from itertools import chain

from orchestrator.core.text.metric_lines import less_is_better
from orchestrator.report.comparison import remarks
from orchestrator.report.comparison.figures import RunFigures
from orchestrator.report.comparison.formats import mean_and_std
from orchestrator.report.comparison.groups import RunGroup

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

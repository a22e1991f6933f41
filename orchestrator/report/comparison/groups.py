"""Runs that differ only in some parameters, such as a seed, as one group: the mean and σ of each figure over its runs.

Only runs that succeeded are averaged. The cost is the sum of all runs of the group: what its figures took. Jobs, named variants
and clouds are never mixed: emulated seconds and dollars are not those of a TPU. Pure.
"""

import difflib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from orchestrator.core.jobfile.params import text_of
from orchestrator.core.lease.run_and_attempt import AttemptState
from orchestrator.core.text.names import shown
from orchestrator.errors import UserError
from orchestrator.report import costs
from orchestrator.report.comparison.figures import Measure, RunFigures

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
            advice = f"they have {', '.join(map(shown, known))}" if known else "they have none"
        raise UserError(f"--over `{shown(name)}`: none of these runs has such a parameter; {advice}")


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
        metrics={name: _metric(name, averaged) for name in names},
        cost_usd=costs.total(column.cost_usd for column in members),
    )


def _metric(name: str, averaged: Sequence[RunFigures]) -> MetricMeasure:
    having = [column.metrics[name] for column in averaged if name in column.metrics]
    return MetricMeasure(measure(each.last for each in having), measure(each.best for each in having))

"""The table of several runs on a page: a row for each run, its parameters first, the best value of each column marked. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.core.text.metric_lines import less_is_better
from orchestrator.report.comparison import compare, remarks
from orchestrator.report.comparison.figures import RunFigures

PLACES = ("device", "on")
# Of which rows of `report.compare` less, or more, is better, and their figures.
BETTER = {compare.label_of(name): (name, how.less) for name, how in compare.FIGURES.items() if how.less is not None}
BETTER |= {"whole job (s)": ("job_s", True), "cost": ("cost_usd", True)}
TIMES = (
    *("cost", "images / s", "s / iteration (mean ± σ)", "s / epoch (mean ± σ)", "total (s)", "time to first step (s)"),
    *("compile (s)", "whole job (s)", "memory (MB)", "restarts", "exit code", *PLACES),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """`more`: what is shown smaller below the text."""

    text: str
    more: str = ""
    best: bool = False


@dataclass(frozen=True, slots=True)
class Best:
    """The best value of a column, and the run that has it."""

    label: str
    value: str
    run: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """`rows`: the name of a run and its cells. `best`: of each column of a metric that has one, in the order of columns.

    `remarks`: what makes the runs differ, and what the figures mean.
    """

    headline: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    best: tuple[Best, ...]
    remarks: tuple[str, ...]


def comparison(columns: Sequence[RunFigures]) -> Comparison:
    """Return the table of these runs, as `tpujob compare` has it. Only runs that succeeded and did the same work have a best
    among them."""
    every = [row for row in compare.rows(columns) if row[0] != "run"]
    # What all have in common needs no column.
    common = [
        (label, cell(columns[0])) for label, cell in every if label in PLACES and len(set(map(cell, columns))) == 1
    ]
    rows = sorted((row for row in every if row[0] not in dict(common)), key=lambda row: _rank(row[0]))
    alike = not remarks.differences(columns, remarks.SAME_WORK)
    best = [_best(label, columns) if alike else set() for label, _ in rows]
    cells = [
        tuple(_cell(cell(column), number in best[index]) for index, (_, cell) in enumerate(rows))
        for number, column in enumerate(columns)
    ]
    head = tuple(label for label, _ in rows)
    names = remarks.titles(columns)
    named = tuple(zip(names, cells, strict=True))
    first = [(index, min(best[index])) for index, label in enumerate(head) if best[index] and _rank(label) < 0]
    bests = tuple(Best(head[index], _best_value(cells[number][index]), names[number]) for index, number in first)
    headline = " · ".join(filter(None, (remarks.headline(columns), *dict(common).values())))
    return Comparison(headline, head, named, bests, tuple(remarks.remarks(columns, with_best=False)))


def _cell(text: str, best: bool) -> Cell:
    last, bracket, more = text.partition(" (")
    return Cell(last, more.removesuffix(")") if bracket else "", best)


def _best_value(cell: Cell) -> str:
    return cell.more.removeprefix("best ") if cell.more.startswith("best ") else cell.text


def _rank(label: str) -> int:
    """Parameters and what came out are first: the table may be wider than the page."""
    return TIMES.index(label) if label in TIMES else -1


def _best(label: str, columns: Sequence[RunFigures]) -> set[int]:
    """Return the numbers of the runs with the best value of a row; none where all are alike or it is only shown."""
    value_of: Callable[[RunFigures], float | None]
    if label in BETTER:
        name, less = BETTER[label]
        value_of = lambda f: f.value(name)  # noqa: E731
    elif any(label in column.metrics for column in columns) and not any(label in c.params for c in columns):
        less = less_is_better(label) is True
        value_of = lambda f: f.metrics[label].best if label in f.metrics else None  # noqa: E731
    else:
        return set()
    known = [
        (value, number)
        for number, column in enumerate(columns)
        if column.state == "succeeded" and (value := value_of(column)) is not None
    ]
    if len({value for value, _ in known}) < 2:
        return set()
    top = (min if less else max)(value for value, _ in known)
    return {number for value, number in known if value == top}

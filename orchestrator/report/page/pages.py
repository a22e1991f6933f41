"""Put a page together: of one run, or of several with the table that compares them. Data in, HTML out."""

import os
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from orchestrator.report.comparison import compare
from orchestrator.report.comparison.figures import RunFigures
from orchestrator.report.page import pictures, summary, timeline
from orchestrator.report.page.html import Hide, render
from orchestrator.report.page.pictures import charts, clock
from orchestrator.report.page.timeline import RunData
from orchestrator.report.results import RunReport
from orchestrator.report.results import remarks as remarks_of
from orchestrator.report.rows import worker_ends
from orchestrator.text.parsing import less_is_better
from orchestrator.text.units import day_clock, format_duration

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
    alike = not compare.differences(columns, compare.SAME_WORK)
    best = [_best(label, columns) if alike else set() for label, _ in rows]
    cells = [
        tuple(_cell(cell(column), number in best[index]) for index, (_, cell) in enumerate(rows))
        for number, column in enumerate(columns)
    ]
    head = tuple(label for label, _ in rows)
    names = compare.titles(columns)
    named = tuple(zip(names, cells, strict=True))
    first = [(index, min(best[index])) for index, label in enumerate(head) if best[index] and _rank(label) < 0]
    bests = tuple(Best(head[index], _best_value(cells[number][index]), names[number]) for index, number in first)
    headline = " · ".join(filter(None, (compare.headline(columns), *dict(common).values())))
    return Comparison(headline, head, named, bests, tuple(compare.remarks(columns, with_best=False)))


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


def run_page(data: RunData, *, link: str, hide: Hide, trace: bool) -> str:
    """Return the page of one run.

    `link`: its directory as seen from the page, such as `.`. `hide` takes the secrets out of a text. `trace`: the directory has
    a `trace.json`.
    """
    report, rows = data.report, timeline.rows(data)
    files, more_files = files_of(report, link)
    page = {
        "kind": "run",
        "title": report.name,
        "state": summary.state_of(report),
        "state_name": report.state,
        "sentence": summary.sentence(data),
        "place": summary.place(data),
        "again": "" if report.ended_at is not None else f"tpujob report {report.run}",
        "emulated": summary.EMULATED if report.figures.emulated else "",
        "facts": summary.facts(data),
        "workers": worker_ends.lines(report.workers),
        "tiles": summary.tiles(data),
        "timeline": pictures.timeline_of(rows),
        "attempts": summary.attempts(data, rows),
        "tried": summary.tried(data),
        "losses": summary.losses(data),
        "events": [(day_clock(event.at), event.what) for event in report.events],
        "phases": pictures.phases(data, rows),
        "histogram": pictures.histogram(data),
        "device": summary.device_facts(data),
        "metrics": summary.metric_rows(data),
        "notes": compare.notes([report.figures]),
        "logs": data.logs,
        "files": files,
        "more_files": more_files,
        "results": [f"{kind}: {text}" for kind, text in remarks_of(report)],
        "trace": f"{link}/trace.json" if trace else "",
        "job": job_text(report.spec),
        "job_path": report.job,
        "environment": environment(data.provenance),
        "directory": report.directory,
    }
    return _render(page, [data], [report.name], hide)


def runs_page(runs: Sequence[RunData], *, title: str, links: Sequence[str], hide: Hide) -> str:
    """Return the page of several runs. `links`: the page of each run as seen from this one; empty where it has none."""
    columns = [data.report.figures for data in runs]
    names, table = compare.titles(columns), comparison(columns)
    rows = [_row(data, name) for data, name in zip(runs, names, strict=True)]
    page = {
        "kind": "runs",
        "title": title,
        "sentence": _counts(runs),
        "place": table.headline,
        "again": "",
        "tiles": _tiles(runs, table),
        "state": _state(runs),
        "state_name": "",
        "emulated": summary.EMULATED if any(column.emulated for column in columns) else "",
        "comparison": table,
        "histogram": None,
        "device": [],
        "links": dict(zip(names, links, strict=True)),
        "timeline": pictures.timeline_of(rows),
    }
    return _render(page, runs, names, hide)


def _row(data: RunData, name: str) -> timeline.Row:
    spans = [span for row in timeline.rows(data) if not row.minor for span in row.spans]
    return timeline.Row(name, tuple(spans), data.report.state)


def _state(runs: Sequence[RunData]) -> str:
    states = {summary.state_of(data.report) for data in runs}
    return next(state for state in ("bad", "open", "good") if state in states)


def _tiles(runs: Sequence[RunData], table: Comparison) -> list[summary.Tile]:
    """Return the best run by each of the first metrics, and what all of them took."""
    reports = [data.report for data in runs]
    found = [summary.Tile(f"Best {each.label}", each.value, each.run) for each in table.best[: summary.MOST_METRICS]]
    ended = [report.ended_at for report in reports if report.ended_at is not None]
    if len(ended) == len(reports):
        took = max(ended) - min(report.started_at for report in reports)
        found.append(summary.Tile("From first start to last end", format_duration(took)))
    if len({report.cloud for report in reports}) == 1:
        found.append(summary.cost_tile(reports))
    return found


def _counts(runs: Sequence[RunData]) -> str:
    states = [data.report.state for data in runs]
    return f"{len(runs)} runs: {', '.join(f'{states.count(state)} {state}' for state in dict.fromkeys(states))}."


def _render(page: dict[str, Any], runs: Sequence[RunData], names: Sequence[str], hide: Hide) -> str:
    """Add what every page has, and render it."""
    drawn, not_drawn = charts(runs)
    page |= {
        "charts": list(enumerate(drawn)),
        "not_drawn": not_drawn,
        "names": names,
        "has_clock": any(clock(data) for data in runs),
        "restarted": any(timeline.restarts(data) for data in runs),
        "written_at": day_clock(max(data.now for data in runs)),
    }
    data = {
        "runs": [
            {"name": hide(name), "clock": clock(run), "restarts": timeline.restarts(run)}
            for name, run in zip(names, runs, strict=True)
        ],
        "charts": [chart.as_json() | {"name": hide(chart.name)} for chart in drawn],
    }
    return render(page, data, hide)


# What a page keeps of a run for later: its files with links, the job as it was run, what it was made with.

MOST_FILES = 200
OWN_FILES = ("report.html", "trace.json", "results.json")
NO_KEYS = ("sweep", "secret_sources")  # of a job as recorded: not of its file


@dataclass(frozen=True, slots=True)
class FileLink:
    path: str
    href: str
    size: str


def files_of(report: RunReport, link: str) -> tuple[list[FileLink], int]:
    """Return the files of the run, and how many are left out. `link`: the run's directory as seen from the page."""
    every = [file for file in report.files if file.path not in OWN_FILES]
    # The first part of a link is never from a job, so that no file name is read as the scheme of an address.
    found = [
        FileLink(file.path, f"{link}/{urllib.parse.quote(os.fsencode(file.path))}", _size(file.size_bytes))
        for file in every[:MOST_FILES]
    ]
    return found, max(len(every) - MOST_FILES, 0)


def _size(size_bytes: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:,.1f} {unit}"
    return f"{size_bytes} bytes"


def job_text(spec: Mapping[str, Any]) -> str:
    """Return the job as it was run, as YAML: what was resolved, without what is empty and without values of variables."""
    return yaml.safe_dump(_filled({k: v for k, v in spec.items() if k not in NO_KEYS}), sort_keys=False, width=100)


def _filled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: kept for key, inner in value.items() if (kept := _filled(inner)) not in (None, {}, [], "")}
    return [_filled(each) for each in value] if isinstance(value, list | tuple) else value


def environment(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the run was made with, from `provenance.json` of its first worker."""
    found = []
    for key in ("device", "hardware", "processes", "seed", "written_at"):
        if (value := provenance.get(key)) is not None and not isinstance(value, dict | list):
            found.append((key.replace("_", " "), str(value)))
    for key in ("versions", "host", "dataset"):
        inner = provenance.get(key)
        if isinstance(inner, dict):
            plain = {name: value for name, value in inner.items() if isinstance(value, str | int | float)}
            found += [(f"{key}: {name}", str(value)) for name, value in list(plain.items())[:20]]
    return [(name[:80], value[:300]) for name, value in found]

"""Put a page together: of one run, or of several with the table that compares them. Data in, HTML out."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from orchestrator.report.comparison import compare
from orchestrator.report.comparison.figures import RunFigures
from orchestrator.report.comparison.groups import labels
from orchestrator.report.files import made
from orchestrator.report.page import making, pictures, summary, timeline
from orchestrator.report.page.html import Hide, render
from orchestrator.report.page.pictures import charts, clock
from orchestrator.report.page.timeline import RunData
from orchestrator.report.results import event_table
from orchestrator.report.results import remarks as remarks_of
from orchestrator.report.rows import worker_ends
from orchestrator.text.units import day_clock, format_duration

PLACES = ("device", "on")
TIMES = (
    *("cost", "images / s", "s / iteration (mean ± σ)", "s / epoch (mean ± σ)", "total (s)", "time to first step (s)"),
    *("compile (s)", "whole job (s)", "memory (MB)", "restarts", "exit code", *PLACES),
)


def comparison(columns: Sequence[RunFigures]) -> dict[str, Any]:
    """Return the table of these runs, as `tpujob compare` has it, and a tile for the best of each metric that has one.

    `best`: for each row, the numbers of the runs with its best value, among those that succeeded and did the same work.
    """
    every = [row for row in compare.rows(columns) if row.label != "run"]
    # What all have in common needs no column.
    common = [row for row in every if row.label in PLACES and len(set(map(row.cell, columns))) == 1]
    rows = sorted((row for row in every if row not in common), key=lambda row: _rank(row.label))
    alike, names = not compare.differences(columns, compare.SAME_WORK), labels(columns)
    best = [_best(row, columns) if alike else set() for row in rows]
    tiles = []
    for row, top in zip(rows, best, strict=True):
        if top and _rank(row.label) < 0:
            which = names[min(top)] + (f" and {len(top) - 1} more" if len(top) > 1 else "")
            tiles.append(summary.Tile(f"Best {row.label}", _best_text(row, columns[min(top)]), which))
    return {
        "headline": " · ".join(filter(None, (compare.headline(columns), *(row.cell(columns[0]) for row in common)))),
        "rows": rows,
        "columns": columns,
        "best": best,
        "tiles": tiles,
        "remarks": compare.remarks(columns, with_best=False),
    }


def _rank(label: str) -> int:
    """Parameters and what came out are first: the table may be wider than the page."""
    return TIMES.index(label) if label in TIMES else -1


def _best(row: compare.Row, columns: Sequence[RunFigures]) -> set[int]:
    """Return the numbers of the runs with the best value of a row; none where all look alike or it is only shown."""
    ended = [number for number, each in enumerate(columns) if each.state == "succeeded"]
    known = {number: value for number in ended if (value := row.value(columns[number])) is not None}
    texts = {number: _best_text(row, columns[number]) for number in known}
    if row.less is None or len(set(texts.values())) < 2:
        return set()
    top = (min if row.less else max)(known, key=known.__getitem__)
    return {number for number, text in texts.items() if text == texts[top]}


def _best_text(row: compare.Row, column: RunFigures) -> str:
    """Return the best value as it is shown: values that look alike are equally good."""
    last, _, best = row.cell(column).partition(" (best ")
    return best.removesuffix(")") or last.partition(" ±")[0]


def run_page(data: RunData, *, link: str, hide: Hide, trace: bool, live: bool = False, awaited: bool = False) -> str:
    """Return the page of one run.

    `link`: its directory as seen from the page, such as `.`. `hide` takes the secrets out of a text. `trace`: the directory has
    a `trace.json`. `live`: it is served, and renews itself until the run has ended. `awaited`: another attempt may follow.
    """
    report, rows = data.report, timeline.rows(data)
    leases = [data.leases.get(each.lease_id or "") for each in data.attempts]
    ran = [sum(span.seconds for span in row.spans if span.kind == "main") for row in rows if not row.minor]
    files = [file for file in report.files if file.path not in OWN_FILES]
    page = {
        "kind": "run",
        "title": report.name,
        "state": summary.state_of(report),
        "state_name": report.state,
        "sentence": summary.sentence(data),
        "place": summary.place(data),
        "again": "" if live or report.ended_at is not None else f"tpujob report {report.run}",
        "renews": live and (awaited or report.ended_at is None),
        "emulated": summary.EMULATED if report.figures.emulated else "",
        "report": report,
        "params": summary.hyperparameters(report),
        "last_words": summary.last_words(data),
        "workers": worker_ends.lines(report.workers),
        "tiles": summary.tiles(data),
        "timeline": pictures.timeline_of(rows),
        "attempts": list(zip(report.attempts, leases, ran, strict=True)),
        "tried": [each for attempt in report.attempts for each in attempt.tried],
        "losses": timeline.losses(data),
        "events": event_table(report).rows,
        "phases": pictures.phases(data, rows),
        "histogram": pictures.histogram(data),
        "device": summary.device_facts(data),
        "notes": compare.notes([report.figures]),
        "logs": data.logs,
        "link": link,
        "files": files[:MOST_FILES],
        "more_files": max(len(files) - MOST_FILES, 0),
        "results": [f"{kind}: {text}" for kind, text in remarks_of(report)],
        "trace": f"{link}/trace.json" if trace else "",
        "job": job_text(report.spec),
        "environment": environment(data.provenance),
        "made": making.section(data),
        "hosts": making.hosts(data),
    }
    return _render(page, [data], [report.name], hide, live=live)


def runs_page(runs: Sequence[RunData], *, title: str, links: Sequence[str], hide: Hide) -> str:
    """Return the page of several runs. `links`: the page of each run as seen from this one; empty where it has none."""
    columns = [data.report.figures for data in runs]
    names, table = labels(columns), comparison(columns)
    rows = [_row(data, name) for data, name in zip(runs, names, strict=True)]
    page = {
        "kind": "runs",
        "title": title,
        "sentence": _counts(runs),
        "place": table["headline"],
        "again": "",
        "renews": False,
        "tiles": _tiles(runs, table["tiles"]),
        "state": _state(runs),
        "state_name": "",
        "emulated": summary.EMULATED if any(column.emulated for column in columns) else "",
        "comparison": table,
        "histogram": None,
        "device": [],
        "hosts": None,
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


def _tiles(runs: Sequence[RunData], best: Sequence[summary.Tile]) -> list[summary.Tile]:
    """Return the best run by each of the first metrics, and what all of them took."""
    reports = [data.report for data in runs]
    found = [*best[: summary.MOST_METRICS]]
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


def _render(
    page: dict[str, Any], runs: Sequence[RunData], names: Sequence[str], hide: Hide, *, live: bool = False
) -> str:
    """Add what every page has, and render it."""
    drawn, not_drawn = charts(runs)
    clocks = [clock(data) for data in runs]
    page |= {
        "charts": list(enumerate(drawn)),
        "not_drawn": not_drawn,
        "names": names,
        "has_clock": any(clocks[each.run] for chart in drawn for each in chart.series if each.stepped),
        "has_steps": not drawn or any(each.stepped for chart in drawn for each in chart.series),
        "restarted": any(timeline.restarts(data) for data in runs),
        "written_at": day_clock(max(data.now for data in runs)),
    }
    data = {
        "runs": [
            {"name": hide(name), "clock": clocks[number], "restarts": timeline.restarts(runs[number])}
            for number, name in enumerate(names)
        ],
        "charts": [chart.as_json() | {"name": hide(chart.name)} for chart in drawn],
    }
    return render(page, data, hide, live=live)


# What a page keeps of a run for later: its files with links, the job as it was run, what it was made with.

MOST_FILES = 200
OWN_FILES = ("report.html", "trace.json", "results.json", made.NAME, made.ARCHIVE)
NO_KEYS = ("sweep", "secret_sources")  # of a job as recorded: not of its file


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

"""Put a page together: of one run, or of several beside each other. Data in, HTML out."""

from collections.abc import Sequence
from typing import Any

from orchestrator.core.text.durations import format_duration
from orchestrator.core.text.times import day_clock
from orchestrator.report import worker_ends
from orchestrator.report.comparison import remarks
from orchestrator.report.page import device, pictures, record, summary, tables, timeline
from orchestrator.report.page.charts import Chart, charts, clock
from orchestrator.report.page.comparison import Comparison, comparison
from orchestrator.report.page.html import Hide, render
from orchestrator.report.page.run_data import RunData
from orchestrator.report.results import remarks as remarks_of


def run_page(data: RunData, *, link: str, hide: Hide, trace: bool) -> str:
    """Return the page of one run.

    `link`: its directory as seen from the page, such as `.`. `hide` takes the secrets out of a text. `trace`: the directory has
    a `trace.json`.
    """
    report, rows = data.report, timeline.rows(data)
    drawn, not_drawn = charts([data])
    files, more_files = record.files(report, link)
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
        "attempts": tables.attempts(data, rows),
        "tried": tables.tried(data),
        "losses": tables.losses(data),
        "events": [(day_clock(event.at), event.what) for event in report.events],
        "phases": pictures.phases(data, rows),
        "histogram": pictures.histogram(data),
        "device": device.facts(data),
        "metrics": tables.metric_rows(data),
        "notes": remarks.notes([report.figures]),
        "logs": data.logs,
        "files": files,
        "more_files": more_files,
        "results": [f"{kind}: {text}" for kind, text in remarks_of(report)],
        "trace": f"{link}/trace.json" if trace else "",
        "job": record.job_text(report.spec),
        "job_path": report.job,
        "environment": record.environment(data.provenance),
        "directory": report.directory,
        **_drawn(drawn, not_drawn, [data], [report.name]),
    }
    return _render(page, drawn, [data], [report.name], hide)


def runs_page(runs: Sequence[RunData], *, title: str, links: Sequence[str], hide: Hide) -> str:
    """Return the page of several runs. `links`: the page of each run as seen from this one; empty where it has none."""
    columns = [data.report.figures for data in runs]
    names, table = remarks.titles(columns), comparison(columns)
    drawn, not_drawn = charts(runs)
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
        **_drawn(drawn, not_drawn, runs, names),
    }
    return _render(page, drawn, runs, names, hide)


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


def _drawn(drawn: Sequence[Chart], not_drawn: Sequence[str], runs: Sequence[RunData], names: Sequence[str]) -> Any:
    return {
        "charts": list(enumerate(drawn)),
        "not_drawn": not_drawn,
        "names": names,
        "has_clock": any(clock(data) for data in runs),
        "restarted": any(timeline.restarts(data) for data in runs),
        "written_at": day_clock(max(data.now for data in runs)),
    }


def _render(
    page: dict[str, Any], drawn: Sequence[Chart], runs: Sequence[RunData], names: Sequence[str], hide: Hide
) -> str:
    data = {
        "runs": [
            {"name": hide(name), "clock": clock(run), "restarts": timeline.restarts(run)}
            for name, run in zip(names, runs, strict=True)
        ],
        "charts": [chart.as_json() | {"name": hide(chart.name)} for chart in drawn],
    }
    return render(page, data, hide)

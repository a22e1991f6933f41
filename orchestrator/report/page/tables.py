"""What a run did, lost, asked for and measured, as rows of text for the tables of its page. Pure."""

from collections.abc import Sequence

from orchestrator.core.text.durations import format_duration
from orchestrator.core.text.times import clock
from orchestrator.report.files.metrics import last_text, short
from orchestrator.report.layout import format_cost
from orchestrator.report.page import timeline
from orchestrator.report.page.run_data import RunData


def losses(data: RunData) -> list[tuple[str, ...]]:
    """Return a row for each lost slice: what was lost, why, when, and what that cost."""
    return [
        (
            str(each.attempt),
            each.cause,
            clock(each.at),
            "none ran" if each.gap_s is None else format_duration(each.gap_s),
            "unknown" if each.redone_s is None else format_duration(each.redone_s),
            "unknown" if each.behind_s is None else format_duration(each.behind_s),
            format_cost(each.usd, data.report.cloud),
        )
        for each in timeline.losses(data)
    ]


def attempts(data: RunData, rows: Sequence[timeline.Row]) -> list[tuple[str, ...]]:
    """Return a row for each attempt. `rows`: those of the timeline."""
    found: list[tuple[str, ...]] = []
    ran_of = [row for row in rows if not row.minor]
    for number, each in enumerate(data.report.attempts, 1):
        lease = data.leases.get(data.attempts[number - 1].lease_id or "")
        spans = ran_of[number - 1].spans
        ran = None if each.running_at is None else sum(span.seconds for span in spans if span.kind == "main")
        waited = None if each.ready_at is None else max(each.ready_at - each.began_at, 0.0)
        found.append(
            (
                str(number),
                lease.accelerator_type if lease else "none",
                f"{each.zone} {each.provisioning}" if each.zone else "no slice",
                "" if waited is None else format_duration(waited),
                "never" if ran is None else format_duration(ran),
                each.cause or each.state,
                each.continued or "",
                format_cost(each.usd, data.report.cloud),
            )
        )
    return found


def tried(data: RunData) -> list[tuple[str, str, str]]:
    """Return which places gave no slice: when, where, why."""
    return [(clock(t.at), t.where, t.why) for each in data.report.attempts for t in each.tried]


def metric_rows(data: RunData) -> list[tuple[str, ...]]:
    """Return a row for each metric: name, last, best and its step, lowest, highest, how many values."""
    return [
        (
            name,
            last_text(m),
            "" if m.best is None else short(m.best),
            "" if m.best is None or m.best_step is None else f"{m.best_step:,}",
            short(m.low),
            short(m.high),
            f"{m.count:,}",
        )
        for name, m in data.report.figures.metrics.items()
    ]

"""What a page says first: how a run ended, what it was, its figures; and its attempts and metrics as rows of tables. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator import catalog
from orchestrator.core.lease.run_and_attempt import LOCAL, AttemptState, end_text
from orchestrator.core.text.durations import format_duration
from orchestrator.report.files.metrics import short
from orchestrator.report.layout import clock, day_clock, format_cost
from orchestrator.report.page import timeline
from orchestrator.report.page.run_data import RunData
from orchestrator.report.results import RunReport

EMULATED = (
    "This TPU was emulated on a CPU: its seconds are not those of a real TPU, and nothing was billed. "
    f"Dollars are what the same time would cost by the {catalog.PRICES_AS_OF}."
)


def state_of(report: RunReport) -> str:
    """Return how the page shows the state: `good`, `bad` or `open`."""
    if report.state == AttemptState.SUCCEEDED:
        return "good"
    return "bad" if AttemptState(report.state).ended else "open"


def sentence(data: RunData) -> str:
    """Return in words how the run ended, or how far it was."""
    report = data.report
    if report.ended_at is None:
        ago = format_duration(max(data.now - report.started_at, 0.0))
        return f"Not ended: {report.state}, {ago} after its start, when this page was written."
    took = format_duration(report.ended_at - report.started_at)
    if report.state == AttemptState.SUCCEEDED:
        again = f", in attempt {len(report.attempts)}" if len(report.attempts) > 1 else ""
        return f"Succeeded after {took}{again}."
    how = end_text(report.state, report.detail)
    return f"{how[:1].upper()}{how[1:]}, after {took}."


def facts(data: RunData) -> list[tuple[str, str]]:
    """Return what the run was, where, how long and for how much."""
    report, figures, lease = data.report, data.report.figures, data.report.lease
    found = []
    if report.cloud == LOCAL:
        found.append(("Ran on", "this machine, without a TPU slice"))
    elif lease is None:
        found.append(("Accelerator", "no slice was had"))
    else:
        emulated = ", EMULATED" if lease.emulated else ""
        found += [
            ("Accelerator", f"{lease.accelerator_type}{emulated}"),
            ("Zone", f"{lease.zone} · {report.attempts[-1].provisioning or 'on-demand'}"),
        ]
    found.append(("Cost", cost_text(report)))
    if figures.job_s is not None:
        found.append(("Job ran", format_duration(figures.job_s)))
    found.append(("Started", day_clock(report.started_at)))
    if report.ended_at is not None:
        found.append(("Ended", day_clock(report.ended_at)))
    if report.exit_code:
        found.append(("Exit code", str(report.exit_code)))
    if report.sweep:
        found.append(("Sweep", f"{report.sweep} · {report.variant}"))
    found += [(name, str(value)) for name, value in report.params.items()]
    return [*found, ("Run", report.run)]


def cost_text(report: RunReport) -> str:
    """Return the cost of the whole run, over all of its attempts."""
    text = format_cost(report.cost_usd, report.cloud)
    return f"{text}, over all {len(report.attempts)} attempts" if len(report.attempts) > 1 else text


def tiles(data: RunData) -> list[tuple[str, str, str]]:
    """Return the figures that people look for first: label, value, remark."""
    report, figures = data.report, data.report.figures
    found = []
    if figures.test_accuracy is not None:
        found.append(("Test accuracy", f"{100 * figures.test_accuracy:.2f} %", ""))
    shown = {"images_per_s", "test_accuracy"}
    for name, metric in list(figures.metrics.items())[:20]:
        if len(found) < 2 and name not in shown and metric.last is not None:
            best = f"best {short(metric.best)}" if metric.best != metric.last else ""
            found.append((name, short(metric.last), best))
    if figures.images_per_s is not None:
        found.append(("Throughput", f"{figures.images_per_s:,.0f}", "images/s"))
    took = None if report.ended_at is None else report.ended_at - report.started_at
    if took is not None:
        found.append(("From start to end", format_duration(took), ""))
    amount, _, remark = format_cost(report.cost_usd, report.cloud).partition(" ")
    return [*found, ("Cost", amount, remark)]


# -- rows of tables --------------------------------------------------------------------------------------------------


def losses(data: RunData) -> list[tuple[str, ...]]:
    """Return a row for each lost slice: what was lost, why, when, and what that cost."""
    return [
        (
            str(each.attempt),
            each.cause,
            clock(each.at),
            "none ran" if each.gap_s is None else format_duration(each.gap_s),
            "unknown" if each.redone_s is None else format_duration(each.redone_s),
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
    """Return a row for each metric: name, last, best, lowest, highest, how many values."""
    return [
        (
            name,
            short(m.last) if m.last is not None else "not a number",
            f"{short(m.best)}{'' if m.best_step is None else f' at step {m.best_step:,}'}",
            short(m.low),
            short(m.high),
            f"{m.count:,}",
        )
        for name, m in data.report.figures.metrics.items()
    ]

"""The queue for people: a row for each job, and the lines below."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.text.units import format_duration, format_usd, minute_clock

if TYPE_CHECKING:
    from orchestrator.api.queue.queue import QueueEntry, QueueReport

HEAD = ("ID", "JOB", "STATE", "SINCE", "FIGURES", "COST", "WHERE, OR WHY")
MOST_FIGURES = 2


def cells(job: QueueEntry) -> tuple[str, ...]:
    """Return the row of a job under HEAD."""
    name = f"{job.sweep} {job.variant}" if job.sweep and job.variant else job.name
    since = job.ended_at or job.since or job.added_at
    return job.id, name, job.state, minute_clock(since), figures(job), _cost(job), _where(job)


def _cost(job: QueueEntry) -> str:
    if job.cost_usd is None:
        return "unknown"
    if job.at_most_usd is not None:
        return f"≤ {format_usd(job.cost_usd + job.at_most_usd)}"
    return format_usd(job.cost_usd) if job.cost_usd else "-"


def _where(job: QueueEntry) -> str:
    if job.ended_at is not None or job.node is None:
        more = f" · lost {job.losses}×" if job.losses and job.ended_at is None else ""
        return f"{job.why or job.asks}{more}"
    where = f"{job.node} {job.zone}"
    return f"{where} · {job.why}" if job.why else where


def figures(job: QueueEntry) -> str:
    """Return the newest figures of a job that runs: its step first; `-`: none are known."""
    metrics = dict(job.metrics)
    told = [f"step {metrics.pop('step'):,.0f}"] if isinstance(metrics.get("step"), (int, float)) else []
    rest = [f"{key} {value:.4g}" for key, value in metrics.items() if isinstance(value, (int, float))]
    return " · ".join([*told, *rest[: MOST_FIGURES - len(told)]]) or "-"


def lines(report: QueueReport) -> Iterator[tuple[str, str]]:
    """Yield what is to be said below the table, each with its stage."""
    yield "queue", f"{_counts(report)} · {bounds(report)} · in {report.store}"
    if report.emulated:
        yield "note", "EMULATED: dollars are those that Google would ask"
    yield "note", f"goes on by {report.runner}" if report.runner else "no timer on this machine carries it on"


def _counts(report: QueueReport) -> str:
    living = [each for each in report.jobs if each.ended_at is None]
    waiting = sum(each.state in ("waiting", "held") for each in living)
    return f"{len(living) - waiting} with a slice, {waiting} waiting, {len(report.jobs) - len(living)} ended"


def bounds(report: QueueReport) -> str:
    """Return what the queue may use: `2 slots · at most $200.00 in 30d, $12.10 spent or claimed`."""
    slots = f"{report.slots} slot{'s'[: report.slots != 1]}"
    if report.max_cost is None:
        return f"{slots} · no bound in dollars"
    per = format_duration(report.per_s)
    return (
        f"{slots} · at most {format_usd(report.max_cost)} in {per}, {format_usd(report.committed_usd)} spent or claimed"
    )


def added(report: QueueReport, count: int) -> str:
    """Return the line for jobs that were added: `added 7 jobs · 2 slots · at most …`."""
    by = report.runner or "`tpujob queue run`"
    return f"added {count} job{'s'[: count != 1]} · {bounds(report)} · goes on by {by}"

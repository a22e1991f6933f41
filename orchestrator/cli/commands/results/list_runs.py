"""`tpujob list`: the runs, newest first."""

from __future__ import annotations

from orchestrator.cli.console import console, emit_result
from orchestrator.cli.options import Json
from orchestrator.client import history
from orchestrator.client.history import RunSummary
from orchestrator.client.session import Session
from orchestrator.core.lease.run_and_attempt import LOCAL
from orchestrator.core.text.durations import format_duration, format_usd
from orchestrator.report.layout import day_clock


def list_runs(as_json: Json = False) -> int:
    """List the runs of this machine, newest first."""
    session = Session.open(reporter=console().reporter)
    runs = history.runs(session)
    lines = [_line(run) for run in runs] or ["no runs yet; `tpujob run jobs/hello.yaml` makes one"]
    emit_result([run.as_json() for run in runs], lines, as_json=as_json)
    return session.exit_code()


def _line(run: RunSummary) -> str:
    took = format_duration(run.ended_at - run.started_at) if run.ended_at else "-"
    usd = "" if run.cloud == LOCAL else format_usd(run.cost_usd)
    return "\t".join((run.run, run.name, run.state, day_clock(run.started_at), took, run.cloud, usd))

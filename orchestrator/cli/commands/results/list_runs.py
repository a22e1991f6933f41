"""`tpujob list`: the runs, newest first."""

from __future__ import annotations

from orchestrator.cli.console import console, emit, emit_json
from orchestrator.cli.options import Json
from orchestrator.cli.tables import print_table
from orchestrator.client import history
from orchestrator.client.history import RunSummary
from orchestrator.client.session import Session
from orchestrator.core.text.durations import format_duration
from orchestrator.report.layout import format_cost, minute_clock

HEAD = ("RUN", "JOB", "STATE", "STARTED", "TOOK", "COST")


def list_runs(as_json: Json = False) -> int:
    """List the runs of this machine, newest first."""
    session = Session.open(reporter=console().reporter)
    runs = history.runs(session)
    if as_json:
        emit_json([run.as_json() for run in runs])
    elif runs:
        print_table(HEAD, map(_cells, runs), right=(4,), states=(2,), shortens=(1,), wraps=(5,))
    else:
        emit("no runs yet; `tpujob run jobs/hello.yaml` makes one")
    return session.exit_code()


def _cells(run: RunSummary) -> tuple[str, ...]:
    took = format_duration(run.ended_at - run.started_at) if run.ended_at else "-"
    return run.run, run.name, run.state, minute_clock(run.started_at), took, format_cost(run.cost_usd, run.cloud)

"""`tpujob list`: the runs, newest first."""

from __future__ import annotations

from orchestrator.cli.console import emit, emit_json
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Json
from orchestrator.cli.session import open_session
from orchestrator.client import history
from orchestrator.client.history import RunSummary
from orchestrator.core.lease.run_and_attempt import LOCAL
from orchestrator.core.text.durations import format_duration, format_usd
from orchestrator.report.layout import day_clock


def list_runs(as_json: Json = False) -> None:
    """List the runs of this machine, newest first."""
    session = open_session()
    runs = history.runs(session)
    if as_json:
        emit_json([run.as_json() for run in runs])
    elif not runs:
        emit("no runs yet; `tpujob run jobs/hello.yaml` makes one")
    else:
        for run in runs:
            emit(_line(run))
    raise ExitCode(session.exit_code())


def _line(run: RunSummary) -> str:
    took = format_duration(run.ended_at - run.created_at) if run.ended_at else "-"
    usd = "" if run.cloud == LOCAL else format_usd(run.usd)
    return "\t".join((run.run, run.name, run.state, day_clock(run.created_at), took, run.cloud, usd))

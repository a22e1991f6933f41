"""`tpujob list`: the runs, newest first."""

from orchestrator.api.results import history
from orchestrator.api.session import sweep_progress
from orchestrator.cli.console import emit, emit_json, open_session
from orchestrator.cli.options import Json
from orchestrator.cli.tables import print_table
from orchestrator.report.rows.layout import format_cost
from orchestrator.report.rows.whole_run import RunSummary
from orchestrator.text.units import format_duration, minute_clock

HEAD = ("RUN", "JOB", "STATE", "STARTED", "TOOK", "COST")


def list_runs(as_json: Json = False) -> None:
    """List the runs of this machine, newest first. What is queued in a sweep that goes on comes before them."""
    session = open_session()
    runs = history.runs(session)
    if as_json:
        emit_json([run.as_json() for run in runs])
        return
    waiting = [("-", each.name, each.state, "-", "-", "") for each in sweep_progress.queued(session)]
    if runs or waiting:
        print_table(HEAD, [*waiting, *map(_cells, runs)], right=(4,), states=(2,), shortens=(1,), wraps=(5,))
    else:
        emit("no runs yet; `tpujob run jobs/hello.yaml` makes one")


def _cells(run: RunSummary) -> tuple[str, ...]:
    took = format_duration(run.ended_at - run.started_at) if run.ended_at else "-"
    return run.run, run.name, run.state, minute_clock(run.started_at), took, format_cost(run.cost_usd, run.cloud)

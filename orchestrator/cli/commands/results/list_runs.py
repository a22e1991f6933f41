"""`tpujob list`: the runs, newest first."""

from orchestrator.cli.console.output import emit, emit_json, open_client
from orchestrator.cli.console.tables import print_table
from orchestrator.cli.options import Json
from orchestrator.report.rows.layout import format_cost
from orchestrator.report.rows.whole_run import RunSummary
from orchestrator.text.units import format_duration, minute_clock

HEAD = ("RUN", "JOB", "STATE", "STARTED", "TOOK", "COST")


def list_runs(as_json: Json = False) -> None:
    """List the runs of this machine, newest first. What is queued in a sweep that goes on comes before them."""
    client = open_client()
    runs = client.runs()
    if as_json:
        emit_json([run.as_json() for run in runs])
        return
    waiting = [("-", each.name, each.state, "-", "-", "") for each in client.queued()]
    if runs or waiting:
        print_table(HEAD, [*waiting, *map(_cells, runs)], right=(4,), states=(2,), shortens=(1,), wraps=(5,))
    else:
        emit("no runs yet; `tpujob run jobs/hello.yaml` makes one")


def _cells(run: RunSummary) -> tuple[str, ...]:
    took = format_duration(run.ended_at - run.started_at) if run.ended_at else "-"
    return run.run, run.name, run.state, minute_clock(run.started_at), took, format_cost(run.cost_usd, run.cloud)

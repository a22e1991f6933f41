"""`tpujob list`: the runs, newest first."""

from typing import TYPE_CHECKING, Any

from orchestrator.cli.console.filtering import only_those
from orchestrator.cli.console.output import emit, emit_json, open_client
from orchestrator.cli.console.tables import print_table
from orchestrator.cli.options import Filters, Json
from orchestrator.report.rows.layout import format_cost, run_name
from orchestrator.report.rows.whole_run import RunSummary
from orchestrator.system.lazy import Later
from orchestrator.text.units import format_duration, minute_clock

if TYPE_CHECKING:
    from orchestrator.report.files import metrics
else:  # where there is a run
    metrics = Later("orchestrator.report.files.metrics")

HEAD = ("RUN", "JOB", "STATE", "TYPE", "ZONE", "STARTED", "TOOK", "FIGURE", "COST")


def list_runs(filters: Filters = None, as_json: Json = False) -> None:
    """List the runs of this machine, newest first. What is queued in a sweep that goes on comes before them.

    FIGURE is the last value of the main metric. `--filter` takes the keys of `--json` and the heads of the table.
    """
    client = open_client()
    runs = client.runs()
    if as_json:
        emit_json([run.as_json() for run in only_those([(_row(run), run) for run in runs], filters)])
        return
    queued = [({"job": each.name, "name": each.name, "state": each.state}, each) for each in client.queued()]
    waiting = [(row, ("-", each.name, each.state, *["-"] * 5, "")) for row, each in queued]
    cells = only_those([*waiting, *((_row(run), _cells(run)) for run in runs)], filters)
    if cells:
        # A figure is worth more than a place and a time, which `--json` and `show` have, too.
        print_table(HEAD, cells, right=(6,), states=(2,), optional=(4, 3, 6, 5), shortens=(1,))
    elif runs or waiting:
        emit("no run meets the conditions")
    else:
        emit("no runs yet; `tpujob run jobs/hello.yaml` makes one")


def _row(run: RunSummary) -> dict[str, Any]:
    """Return the fields of a run, also under the heads of the table."""
    took = run.ended_at - run.started_at if run.ended_at else None
    heads = {"job": _names(run), "type": run.accelerator_type, "took": took, "figure": run.value, "cost": run.cost_usd}
    return run.as_json() | heads


def _names(run: RunSummary) -> tuple[str, ...]:
    return run_name(run.name, run.sweep, run.variant), run.name, run.sweep or run.name


def _cells(run: RunSummary) -> tuple[str, ...]:
    took = format_duration(run.ended_at - run.started_at) if run.ended_at else "-"
    figure = metrics.figure_text(run.metric, run.value) if run.metric else "-"
    place, started = (run.accelerator_type or "-", run.zone or "-"), minute_clock(run.started_at)
    return run.run, _names(run)[0], run.state, *place, started, took, figure, format_cost(run.cost_usd, run.cloud)

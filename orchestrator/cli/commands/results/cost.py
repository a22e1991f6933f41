"""`tpujob cost`: the dollars of a month, by job, run, project or accelerator."""

from typing import Annotated, cast, get_args

from orchestrator.cli import completion
from orchestrator.cli.console import cost_tables as tables
from orchestrator.cli.console.output import emit, emit_json, emit_wrapped, open_client
from orchestrator.cli.console.tables import print_table
from orchestrator.cli.options import Json, Option
from orchestrator.errors import UserError
from orchestrator.report.spending import By, CostReport


def cost(
    month: Annotated[
        str | None, Option(metavar="YYYY-MM", help="A month of UTC; by default this one, up to now.")
    ] = None,
    since: Annotated[
        str | None, Option(metavar="DAY|DURATION", help="From a day on (2026-11-01), or for so long (30d), up to now.")
    ] = None,
    by: Annotated[
        str,
        Option(metavar="run|job|project|accelerator", help="One row for each.", autocompletion=completion.cost_rows),
    ] = "job",
    as_json: Json = False,
    as_csv: Annotated[bool, Option("--csv", help="Print one line for each row, with every figure.")] = False,
) -> None:
    """Show what this machine's slices and runs cost in a month: by job, what idled, what was lost, what spot saved.

    It is an estimate by a dated price table, from this machine's ledger: no other machine's runs, and no invoice. All
    attempts count, and slices that lost a race. A slice counts from its create call until it is proven gone, one that is not
    proven gone until now; over the end of a month it is split there. Sweeps are one job.
    """
    if as_json and as_csv:
        raise UserError("--json and --csv exclude each other")
    if month is not None and since is not None:
        raise UserError("--month and --since exclude each other")
    if by not in get_args(By):
        raise UserError(f"--by {by}: must be one of {', '.join(get_args(By))}")
    found = open_client().cost(month=month, since=since, by=cast("By", by))
    if as_csv:
        emit(tables.csv_text(found).rstrip("\n"))
    elif as_json:
        emit_json(found.as_json())
    else:
        _print(found)


def _print(found: CostReport) -> None:
    emit_wrapped([tables.title(found)])
    if not found.clouds:
        emit("no slice was billed and nothing ran on this machine in that time")
    for cloud in found.clouds:
        emit()
        emit(tables.head(cloud))
        shown = tables.table(cloud, found.by)
        print_table(
            shown.head, shown.rows, right=shown.right, optional=shown.optional, shortens=(0,), head_is_data=True
        )
        emit_wrapped(tables.remarks(cloud))

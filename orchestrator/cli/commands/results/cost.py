"""`tpujob cost`: the dollars of a month or of a run, by job, run, project, accelerator, owner or cause; as a page, too."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

from orchestrator.api.results import pages
from orchestrator.api.session.events import relative
from orchestrator.cli import completion
from orchestrator.cli.console import cost_tables as tables
from orchestrator.cli.console.output import emit, emit_json, emit_wrapped, open_client
from orchestrator.cli.console.tables import print_table
from orchestrator.cli.options import Argument, Json, Option
from orchestrator.errors import UserError
from orchestrator.report.spending import By, CostReport
from orchestrator.system.lazy import Later

if TYPE_CHECKING:
    from orchestrator.report.page import cost_page
else:  # Jinja2, only where there is a page to write
    cost_page = Later("orchestrator.report.page.cost_page")


def cost(
    name: Annotated[
        str | None,
        Argument(
            metavar="[NAME]",
            help="Only a run, a job or a sweep, by default of all time.",
            autocompletion=completion.runs_and_sweeps,
        ),
    ] = None,
    month: Annotated[
        str | None, Option(metavar="YYYY-MM", help="A month of UTC; by default this one, up to now.")
    ] = None,
    since: Annotated[
        str | None, Option(metavar="DAY|DURATION", help="From a day on (2026-11-01), or for so long (30d), up to now.")
    ] = None,
    by: Annotated[
        str,
        Option(
            metavar="run|job|project|accelerator|owner|cause",
            help="One row for each.",
            autocompletion=completion.cost_rows,
        ),
    ] = "job",
    of_queue: Annotated[bool, Option("--queue", help="Only the jobs of the queue, each with who added it.")] = False,
    page: Annotated[
        Path | None, Option(metavar="FILE", help="Write a page for a research grant: one HTML file that opens offline.")
    ] = None,
    as_json: Json = False,
    as_csv: Annotated[bool, Option("--csv", help="Print one line for each row, with every figure.")] = False,
) -> None:
    """Show what this machine's slices and runs cost in a month: by job, what idled, what was lost, what spot saved.

    It is an estimate by a dated price table, from this machine's ledger: no other machine's runs, and no invoice. All
    attempts count, and slices that lost a race. A slice counts from its create call until it is proven gone, one that is not
    proven gone until now; over the end of a month it is split there. Sweeps are one job. A second
    table has the hours by cause: waiting, setup, compile, input, work, preemption, failed, idle, teardown.
    """
    if as_json + as_csv + (page is not None) > 1:
        raise UserError("--json, --csv and --page exclude each other")
    if month is not None and since is not None:
        raise UserError("--month and --since exclude each other")
    if by not in get_args(By):
        raise UserError(f"--by {by}: must be one of {', '.join(get_args(By))}")
    client = open_client()
    ask = client.queue.cost if of_queue else client.cost
    found = ask(name, month=month, since=since, by="run" if page is not None else cast("By", by))
    if page is not None:
        text = cost_page.cost_page(found, tables.title(found), client.session.reporter.secrets.hide)
        pages.write_file(page, text, "--page")
        emit(str(relative(page.absolute())))
        return
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
        if found.by != "cause" and cloud.total.causes:
            emit()
            causes = tables.causes(cloud.total, billed=cloud.billed)
            print_table(causes.head, causes.rows, right=causes.right, head_is_data=True)
        emit_wrapped(tables.remarks(cloud))

"""`tpujob report`: a run, or several, as one HTML page."""

import webbrowser
from pathlib import Path
from typing import Annotated

from orchestrator.api.results import pages
from orchestrator.api.session.events import relative
from orchestrator.cli.console.output import console, emit, open_client
from orchestrator.cli.options import Option, Runs
from orchestrator.errors import UserError
from orchestrator.report.comparison import compare


def report(
    runs: Runs,
    opens: Annotated[bool, Option("--open", help="Open the page in your browser.")] = False,
    out: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="Write this file; by default report.html in the directory of the run or the sweep."
        ),
    ] = None,
    as_csv: Annotated[
        bool, Option("--csv", help="Instead of the page: one line a run with every figure as it was measured.")
    ] = False,
) -> None:
    """Write a page of a run, or of several beside each other: one HTML file that opens offline.

    Every run has its page when it ends, and every sweep. This command writes it again, compares any runs, and prints the path.
    """
    if as_csv and opens:
        raise UserError("--csv writes no page, and --open opens one")
    client = open_client()
    if as_csv:
        text = compare.csv_text(client.figures(runs))
        if out is None:
            emit(text.rstrip("\n"))
        else:
            pages.write_file(out, text)
    else:
        out = client.report(*runs, out=out)
        if opens and not webbrowser.open(out.as_uri()):
            console().notice("note", "no browser could be started; open the file yourself")
    if out is not None:
        emit(str(relative(out.absolute())))

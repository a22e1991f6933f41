"""`tpujob top`: what goes on, as a table that is drawn again and again, or as a page."""

from __future__ import annotations

import sys
import time
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from orchestrator.api.live.tables import SORTS, remarks, title
from orchestrator.cli.console import top_table
from orchestrator.cli.console.console import is_terminal
from orchestrator.cli.console.output import console, emit, emit_json, emit_wrapped, open_client
from orchestrator.cli.console.screen import Screen, whole_terminal
from orchestrator.cli.options import Cloud, Filters, Json, Option, Project
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.api.live.top import Top

DRAWN_EVERY_S = 2.0


def top(
    filters: Filters = None,
    sort: Annotated[
        str | None, Option(metavar="COLUMN", help=f"Order of the rows: {', '.join(SORTS)}; figures from the highest.")
    ] = None,
    ended: Annotated[bool, Option("--all", help="Also runs that ended more than an hour ago.")] = False,
    once: Annotated[bool, Option("--once", help="Print the table once, also on a terminal.")] = False,
    as_page: Annotated[
        bool, Option("--open", help="Serve a page on this machine, with its own filter, and open it; until Ctrl-C.")
    ] = False,
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Watch what goes on: every run, queued job and slice of yours, its step, figures, speed and chips, its cost and its end.

    On a terminal the table is drawn every two seconds, and keys sort and filter it; elsewhere it is printed once. What runs do
    is what their processes keep here: no worker is asked. The API is asked every 30 seconds.
    """
    if as_page and (as_json or once or filters or sort is not None):
        raise UserError("--open excludes --json, --once, --filter and --sort: the page filters and sorts itself")
    if sort is not None and sort not in SORTS:
        raise UserError(f"--sort {sort}: must be one of {', '.join(SORTS)}")
    client = open_client(cloud, project)
    if as_page:
        client.serve(_opened)
        return
    if as_json or once or not (is_terminal(sys.stdout) and sys.stdin.isatty()):
        found = client.top(ended=ended)
        rows = top_table.ordered(found.rows, filters, sort)
        if as_json:
            emit_json(replace(found, rows=tuple(rows)).as_json())
            return
        if is_terminal(sys.stdout):
            emit_wrapped([title(found, len(rows))])
        if rows:
            top_table.write(found, rows)
        else:
            emit("no row meets the conditions" if found.rows else "nothing goes on; `tpujob list` shows what ended")
        emit_wrapped([*remarks(rows), *found.problems])
        return
    shown = top_table.TopScreen(filters or [], sort, ended=ended)
    with client.watching() as watch:
        found = watch.look(ended=ended)
        top_table.ordered(found.rows, filters, sort)  # raises for a condition that no row can meet
        with whole_terminal() as screen:
            while _again(shown, screen, found):
                found = watch.look(ended=shown.ended)


def _opened(address: str, path: Path) -> None:
    emit(address)
    if not webbrowser.open(path.as_uri()):
        console().notice("note", "no browser could be started; open the address yourself")
    console().notice(
        "top",
        "serves this page on this machine and for you only, until Ctrl-C or an hour after the last look; "
        "if the browser can't read the file that leads there, open the address",
    )


def _again(shown: top_table.TopScreen, screen: Screen, found: Top) -> bool:
    """Draw, and take the keys until it is time for the next look; return False at the end."""
    screen.draw(shown.lines(found, *screen.size))
    until = time.monotonic() + DRAWN_EVERY_S  # also while keys come all the time
    while (key := screen.key(until - time.monotonic())) is not None:
        before = shown.ended
        if not shown.press(key, max(screen.size[1] - 8, 1)):
            return False
        if shown.ended is not before:
            return True
        screen.draw(shown.lines(found, *screen.size))
    return True

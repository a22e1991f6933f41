"""`tpujob down`: delete a slice, and prove its absence."""

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from orchestrator.api.command_line import CommandClient
from orchestrator.api.slices.down import DownResult, NameNeeded
from orchestrator.cli.console.output import console, emit_json, emit_lines, emit_wrapped, open_client
from orchestrator.cli.options import Cloud, Json, Name, Option, Owner, Project
from orchestrator.errors import UserError
from orchestrator.text.units import clock


def down(
    name: Name = None,
    everything: Annotated[bool, Option("--all", help="Every slice in this machine's ledger.")] = False,
    owner: Owner = None,
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Delete a slice and prove that it is gone. Nothing to delete is no error.

    Without a NAME, the slice of `tpujob up` without a NAME. If there is none, it asks for another one on a terminal,
    and elsewhere lists the others (exit code 64). NAME may also be that of the node, or the id of a run; a name that
    several slices have is refused with their list (exit code 64). A slice that is not in the ledger, such as one of
    another machine, is looked for in the API.
    """
    if name and everything:
        raise UserError("give a NAME or --all, not both")
    if everything and owner:
        raise UserError("--all is what this machine's ledger has: give a NAME with --owner")
    taken_down = _take_down(
        open_client(cloud, project), name, owner, everything=everything, may_ask=not as_json and sys.stdin.isatty()
    )
    if taken_down is None:
        return
    result, name = taken_down
    if as_json:
        emit_json({"released": [asdict(each) for each in result.released], "alive": list(result.alive)})
    else:
        emit_lines(f"{each.node} absent (checked {clock(each.checked_at)})" for each in result.released if each.absent)
    if result.error is not None:
        raise result.error
    if not result.released and not as_json:
        alive = f"; alive: {', '.join(result.alive)}" if result.alive else ""
        emit_wrapped([f"nothing to release{f' named {name}' if name else ''}{alive}"])


def _take_down(
    client: CommandClient, name: str | None, owner: str | None, *, everything: bool, may_ask: bool
) -> tuple[DownResult, str | None] | None:
    """Ask which slice to delete, where there is no default one. None: the answer is none of them."""
    try:
        return client.down(name, owner=owner, everything=everything), name
    except NameNeeded as needed:
        if not may_ask:
            raise
        console().notice("alive", needed.alive)
    name = typer.prompt("Which one is to be deleted (Enter: none)", default="", show_default=False, err=True).strip()
    return (client.down(name, owner=owner), name) if name else None

"""`tpujob emulator stop`: end the daemon, and everything that runs on its VMs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from cloud_tpu_emulator.daemon import control
from orchestrator.api.session.connections import own_emulator
from orchestrator.cli.console.output import console, emit
from orchestrator.cli.options import Option
from orchestrator.errors import UserError


def stop(
    yes: Annotated[
        bool, Option("--yes", "-y", help="Stop it without asking, also while something runs on it.")
    ] = False,
) -> None:
    """Stop the emulator, with every emulated VM and its processes. Nodes are kept.

    While nodes are billed it asks on a terminal, and elsewhere refuses without --yes (exit code 64).
    """
    state = own_emulator()
    if not yes and (alive := _alive(state)) and not _agreed(alive):
        emit("left running")
    else:
        emit("stopped" if control.stop(state) else "it was not running")


def _alive(state: Path) -> list[str]:
    """Return the nodes on which something may run; none of an emulator that does not answer."""
    endpoint = control.running(state)
    if endpoint is None:
        return []
    try:
        billing = control.request(endpoint, "GET", "/_emulator/billing")
    except (OSError, RuntimeError, ValueError):
        return []
    return [row["name"].rpartition("/")[2] for row in billing["nodes"] if row["until"] is None]


def _agreed(alive: list[str]) -> bool:
    """Ask on a terminal. Raises UserError elsewhere."""
    what = f"the emulator has {len(alive)} node{'s'[: len(alive) > 1]} on which something may run: {', '.join(alive)}"
    if not sys.stdin.isatty():
        raise UserError(what, hint="`tpujob emulator stop --yes` ends its processes; the nodes stay")
    console().quiet()
    return typer.confirm(f"{what}. Stop it and its processes", err=True)

"""`tpujob init`: an example job to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from orchestrator.cli.console import console, emit
from orchestrator.cli.options import Argument, Option
from orchestrator.client import examples


def init(
    name: Annotated[str | None, Argument(help="The example; without it, list the examples.")] = None,
    directory: Annotated[
        Path, Argument(metavar="DIR", help="The directory to copy it to; created if it is missing.")
    ] = Path("jobs"),
    example: Annotated[
        bool, Option("--example", help="NAME is an example that comes with tpujob. This is the default.")
    ] = False,
) -> None:
    """Copy an example job with the files that it names, or list the examples. It never overwrites a file."""
    if name is None:
        for each in examples.find_all().values():
            emit(f"{each.name}\t{each.description}")
        return
    chosen = examples.find(name)
    copied = examples.copy(chosen, directory)
    for path in copied:
        emit(str(path))
    console().notice("next", f"tpujob {chosen.command} {copied[0]}")

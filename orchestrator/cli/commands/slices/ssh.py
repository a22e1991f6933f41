"""`tpujob ssh`: a shell, or one command, on a worker of a held slice."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from orchestrator.cli.console import console
from orchestrator.cli.options import Argument, Cloud, Option, Project
from orchestrator.client.session import Session
from orchestrator.client.slices.slices import ssh_argv
from orchestrator.errors import UserError


def ssh(
    words: Annotated[list[str] | None, Argument(metavar="[NAME] [-- CMD…]", help="Slice, then a command.")] = None,
    worker: Annotated[int, Option(min=0, help="Worker index, from 0.")] = 0,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Open a shell on a worker, or run one command there."""
    name, command = _split(words or [])
    argv = ssh_argv(Session.open(cloud, project, reporter=console().reporter), name, worker, command)
    console().quiet()
    os.execvp(argv[0], argv)  # noqa: S606 - the terminal is ssh's from here on, and so is the exit code


def _split(words: list[str]) -> tuple[str | None, list[str]]:
    """Return the slice's name, before `--`, and the command, after it. Raises UserError for several names."""
    typed = sys.argv[1:]
    command = typed[typed.index("--") + 1 :] if "--" in typed else []
    before = words[: len(words) - len(command)]
    if len(before) > 1:
        raise UserError(f"one slice at a time, not {' '.join(before)!r}", hint="a command stands after `--`")
    return (before[0] if before else None), command

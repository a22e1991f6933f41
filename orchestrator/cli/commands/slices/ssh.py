"""`tpujob ssh`: a shell, or one command, on a worker of a held slice."""

from __future__ import annotations

import os
from typing import Annotated

from orchestrator.cli.console import console
from orchestrator.cli.options import AFTER_DASHES, Argument, Cloud, Name, Option, Project
from orchestrator.client.session import Session
from orchestrator.client.slices.held import ssh_argv


def ssh(
    name: Name = None,
    command: Annotated[
        list[str] | None, Argument(metavar=AFTER_DASHES, help="One command, in place of a shell.")
    ] = None,
    worker: Annotated[int, Option(min=0, help="Worker index, from 0.")] = 0,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Open a shell on a worker, or run one command there."""
    argv = ssh_argv(Session.open(cloud, project, reporter=console().reporter), name, worker, command or [])
    console().quiet()
    os.execvp(argv[0], argv)  # noqa: S606 - the terminal is ssh's from here on, and so is the exit code

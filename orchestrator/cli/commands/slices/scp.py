"""`tpujob scp`: copy files between this machine and the workers of a slice."""

import os
from typing import Annotated

from orchestrator.cli.console import console, emit_errors, open_session
from orchestrator.cli.options import Argument, Cloud, Option, Project
from orchestrator.client.slices.copies import copy_argv, copy_everywhere, open_copy, parse


def scp(
    places: Annotated[
        list[str],
        Argument(
            metavar="SRC... DST", help="Local files, and SLICE:PATH, or SLICE:N:PATH for worker N (by default 0)."
        ),
    ],
    recursive: Annotated[bool, Option("-r", help="Copy directories with all that is in them.")] = False,
    worker: Annotated[
        str | None, Option("--worker", metavar="N|all", help="The worker of a SLICE:PATH, or all of them.")
    ] = None,
    cloud: Cloud = None,
    project: Project = None,
) -> int:
    """Copy files to a worker or from one, or to all workers or from all.

    Paths are those of scp: they begin at the home directory, and the worker expands a quoted `*`. With `--worker all` every
    worker gets the files, or DST gets a directory for each worker: worker0 and so on. A local name with a colon is `./NAME:X`.
    """
    copy = parse(places, worker, recursive=recursive)
    session = open_session(cloud, project)
    shell = open_copy(session, copy)
    if not copy.everywhere:
        argv = copy_argv(shell, copy)
        console().quiet()
        os.execvp(argv[0], argv)  # noqa: S606 - its progress is shown by scp itself, and the exit code is its own
    return copy_everywhere(session, shell, copy, _print)


def _print(worker: int, lines: list[str]) -> None:
    emit_errors(f"worker{worker} | {line}" for line in lines)

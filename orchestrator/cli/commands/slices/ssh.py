"""`tpujob ssh`: a shell, or one command, on a worker of a slice; or one command on all of them."""

import os
from typing import Annotated

from orchestrator.cli.console import console, emit_errors, emit_lines, open_session
from orchestrator.cli.options import AFTER_DASHES, Argument, Cloud, Name, Option, Project, WorkerOrAll
from orchestrator.client.arguments import worker_or_all
from orchestrator.client.slices.on_all_workers import run_on_all
from orchestrator.client.slices.shell import SshOptions, check_forwards, ssh_argv
from orchestrator.errors import UserError

FORWARD = "[ADDRESS:]PORT:HOST:PORT"


def ssh(
    name: Name = None,
    command: Annotated[
        list[str] | None, Argument(metavar=AFTER_DASHES, help="One command, in place of a shell.")
    ] = None,
    worker: WorkerOrAll = "0",
    forward: Annotated[
        list[str] | None,
        Option("-L", metavar=FORWARD, help="Forward a port of this machine, as ssh does; may be repeated."),
    ] = None,
    remote_forward: Annotated[
        list[str] | None, Option("-R", metavar=FORWARD, help="Forward a port of the worker; may be repeated.")
    ] = None,
    dynamic_forward: Annotated[
        list[str] | None, Option("-D", metavar="[ADDRESS:]PORT", help="Be a SOCKS proxy; may be repeated.")
    ] = None,
    no_command: Annotated[bool, Option("-N", help="Run nothing: only forward ports.")] = False,
    terminal: Annotated[bool, Option("-t", help="Give the command a terminal.")] = False,
    cloud: Cloud = None,
    project: Project = None,
) -> int:
    """Open a shell on a worker, or run one command there or on all workers.

    On all workers the command runs side by side, without input; each line of its output begins with its worker. The exit code
    is that of the first worker that failed. Ctrl-C ends the command everywhere.
    """
    index = worker_or_all(worker)
    check_forwards("-L", forward or ())
    check_forwards("-R", remote_forward or ())
    check_forwards("-D", dynamic_forward or ())
    forwards = (tuple(values or ()) for values in (forward, remote_forward, dynamic_forward))
    options = SshOptions(index or 0, terminal, no_command, *forwards)
    if index is None and (not command or options.words()):
        raise UserError("--worker all runs one command", hint="`tpujob ssh NAME --worker all -- COMMAND`")
    session = open_session(cloud, project)
    if index is not None:
        argv = ssh_argv(session, name, options, command or [])
        console().quiet()
        os.execvp(argv[0], argv)  # noqa: S606 - the terminal is ssh's from here on, and so is the exit code
    return run_on_all(session, name, command or [], _print)


def _print(worker: int, is_error: bool, lines: list[str]) -> None:
    """Print lines of a worker. Raises BrokenPipeError once the reader of stdout has left."""
    (emit_errors if is_error else emit_lines)([f"worker{worker} | {line}" for line in lines])
    if console().is_unread:
        raise BrokenPipeError

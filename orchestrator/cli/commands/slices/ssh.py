"""`tpujob ssh|scp|forward|ssh-config`: shells, commands, copies and ports of the workers of a slice, by the user's ssh."""

import os
from typing import Annotated

from orchestrator.api.session.arguments import worker_or_all
from orchestrator.api.session.session import Session
from orchestrator.api.slices import shell as client
from orchestrator.api.slices.copies import copy_argv, copy_everywhere, open_copy, parse
from orchestrator.cli import completion
from orchestrator.cli.console import console, emit, emit_errors, emit_lines, open_session
from orchestrator.cli.options import AFTER_DASHES, Argument, Cloud, Name, Option, Project, WorkerOrAll
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
    client.check_forwards("-L", forward or ())
    client.check_forwards("-R", remote_forward or ())
    client.check_forwards("-D", dynamic_forward or ())
    forwards = (tuple(values or ()) for values in (forward, remote_forward, dynamic_forward))
    options = client.SshOptions(index or 0, terminal, no_command, *forwards)
    if index is None and (not command or options.words()):
        raise UserError("--worker all runs one command", hint="`tpujob ssh NAME --worker all -- COMMAND`")
    session = open_session(cloud, project)
    if index is not None:
        argv = client.ssh_argv(session, name, options, command or [])
        console().quiet()
        os.execvp(argv[0], argv)  # noqa: S606 - the terminal is ssh's from here on, and so is the exit code
    return client.run_on_all(session, name, command or [], _print_lines)


def _print_lines(worker: int, is_error: bool, lines: list[str]) -> None:
    """Print lines of a worker. Raises BrokenPipeError once the reader of stdout has left."""
    (emit_errors if is_error else emit_lines)([f"worker{worker} | {line}" for line in lines])
    if console().is_unread:
        raise BrokenPipeError


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
    return copy_everywhere(session, shell, copy, _print_errors)


def _print_errors(worker: int, lines: list[str]) -> None:
    emit_errors(f"worker{worker} | {line}" for line in lines)


def forward(
    words: Annotated[
        list[str] | None,
        Argument(
            metavar="[NAME] [PORT]...",
            help="A slice (by default yours) or a run, and ports of the worker, or LOCAL:PORT. By default the run's `ports:`.",
            autocompletion=completion.slices,
        ),
    ] = None,
    worker: Annotated[int, Option(min=0, help="Worker index, from 0.")] = 0,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Let ports of this machine lead to ports of a worker, such as TensorBoard's, until Ctrl-C or the end of the slice.

    Where a port is in use here, another one takes its place; with LOCAL:PORT it is that one or none. Only programs of this
    machine can connect, and only to what listens on the worker's own loopback or on all of its addresses.
    """
    ports = list(words or ())
    name = ports.pop(0) if ports and client.port_wish(ports[0]) is None else None
    wishes = []
    for port in ports:
        wish = client.port_wish(port)
        if wish is None:
            raise UserError(f"{port} is no port", hint="`6006`, or `8080:6006` for port 8080 here")
        wishes.append(wish)
    session = open_session(cloud, project)
    with client.forwarding(session, name, wishes, worker) as (shell, forwarded):
        for each in forwarded:
            emit(str(each))
        session.reporter.notice("end", client.wait_for_end(session, shell))


def ssh_config(
    name: Annotated[
        str | None, Argument(help="Print the configuration of this slice.", autocompletion=completion.slices)
    ] = None,
    install: Annotated[bool, Option("--install", help="Put the line at the top of ~/.ssh/config.")] = False,
    remove: Annotated[bool, Option("--remove", help="Take the line out of ~/.ssh/config.")] = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Print the line for ~/.ssh/config with which ssh, rsync and editors know the workers of every slice.

    Worker 1 of the slice `trainer` is the host tpu-trainer-1, as long as the slice exists. It also has the name of its node:
    NODE-1. `--install` adds the line, once, and `--remove` takes it out.
    """
    if (name is not None) + install + remove > 1:
        raise UserError("give one of NAME, --install and --remove")
    session = open_session(cloud, project)
    if name is not None:
        emit_lines(client.config_of(session, name).splitlines())
    elif install or remove:
        change = client.install_include if install else client.remove_include
        _report(session, change(session), installed=install)
    else:
        emit(client.include(session).line)
        session.reporter.notice("hint", "it goes to the top of ~/.ssh/config: `tpujob ssh-config --install`")


def _report(session: Session, done: client.Include, *, installed: bool) -> None:
    if installed:
        what = "now includes" if done.changed else "already includes"
    else:
        what = "no longer includes" if done.changed else "does not include"
    emit(f"{done.file} {what} the slices of tpujob")
    if installed:
        session.reporter.notice("ssh", "ssh tpu-NAME-0 is worker 0 of the slice NAME; so for rsync, scp and editors")
        if (home := client.foreign_home()) is not None:
            session.reporter.notice(
                "warning", f"OpenSSH itself reads {home}/.ssh/config, since HOME does not count there"
            )

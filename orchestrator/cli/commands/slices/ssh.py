"""`tpujob ssh|scp|forward|ssh-config`: shells, commands, copies and ports of the workers of a slice, by the user's ssh."""

import os
from typing import Annotated

from orchestrator.api.session.arguments import worker_or_all
from orchestrator.api.slices import shell
from orchestrator.api.slices.copies import parse
from orchestrator.cli import completion
from orchestrator.cli.console.output import console, emit, emit_errors, emit_lines, open_client
from orchestrator.cli.options import AFTER_DASHES, Argument, Cloud, Name, Option, Owner, Project, WorkerOrAll
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
    owner: Owner = None,
    cloud: Cloud = None,
    project: Project = None,
) -> int:
    """Open a shell on a worker, or run one command there or on all workers.

    On all workers the command runs side by side, without input; each line of its output begins with its worker. The exit code
    is that of the first worker that failed. Ctrl-C ends the command everywhere.
    """
    index = worker_or_all(worker)
    shell.check_forwards("-L", forward or ())
    shell.check_forwards("-R", remote_forward or ())
    shell.check_forwards("-D", dynamic_forward or ())
    forwards = (tuple(values or ()) for values in (forward, remote_forward, dynamic_forward))
    options = shell.SshOptions(index or 0, terminal, no_command, *forwards)
    if index is None and (not command or options.words()):
        raise UserError("--worker all runs one command", hint="`tpujob ssh NAME --worker all -- COMMAND`")
    client = open_client(cloud, project)
    if index is not None:
        argv = client.ssh(name, options, command or [], owner=owner)
        console().quiet()
        os.execvp(argv[0], argv)  # noqa: S606 - the terminal is ssh's from here on, and so is the exit code
    return client.ssh_everywhere(name, command or [], _print_lines, owner=owner)


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
    copied = open_client(cloud, project).copy(copy, _print_errors)
    if isinstance(copied, list):
        console().quiet()
        os.execvp(copied[0], copied)  # noqa: S606 - its progress is shown by scp itself, and the exit code is its own
    return copied


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
    name = ports.pop(0) if ports and shell.port_wish(ports[0]) is None else None
    wishes = []
    for port in ports:
        wish = shell.port_wish(port)
        if wish is None:
            raise UserError(f"{port} is no port", hint="`6006`, or `8080:6006` for port 8080 here")
        wishes.append(wish)
    client = open_client(cloud, project)
    with client.forwarding(name, wishes, worker) as (opened, forwarded):
        for each in forwarded:
            emit(str(each))
        console().notice("end", client.wait_for_end(opened))


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
    client = open_client(cloud, project)
    if name is not None:
        emit_lines(client.ssh_config(name).splitlines())
    elif install or remove:
        _report(client.include(install=install, remove=remove), installed=install)
    else:
        emit(client.include().line)
        console().notice("hint", "it goes to the top of ~/.ssh/config: `tpujob ssh-config --install`")


def _report(done: shell.Include, *, installed: bool) -> None:
    if installed:
        what = "now includes" if done.changed else "already includes"
    else:
        what = "no longer includes" if done.changed else "does not include"
    emit(f"{done.file} {what} the slices of tpujob")
    if installed:
        console().notice("ssh", "ssh tpu-NAME-0 is worker 0 of the slice NAME; so for rsync, scp and editors")
        if (home := shell.foreign_home()) is not None:
            text = f"OpenSSH itself reads {home}/.ssh/config, since HOME does not count there"
            console().notice("warning", text)

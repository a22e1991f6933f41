"""`tpujob ssh`: a shell, or one command, on a worker of a held slice."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from orchestrator.cli.options import Cloud, Project
from orchestrator.errors import UserError


def ssh(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME] [-- CMD…]", help="Slice, then a command.")
    ] = None,
    worker: Annotated[int, typer.Option(min=0, help="Worker index, from 0.")] = 0,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Open a shell on a worker, or run one command there."""
    import shutil

    from orchestrator.cli.console import console
    from orchestrator.cli.session import open_session
    from orchestrator.core.lease.slices import SliceState
    from orchestrator.engine.effects.cloud import Get, Workers
    from orchestrator.engine.runtime.retry import until
    from orchestrator.engine.runtime.world import open_fleet

    name, command = _split(words or [])
    if shutil.which("ssh") is None:
        raise UserError("there is no `ssh` on this machine's PATH", hint="install an OpenSSH client")
    session = open_session(cloud, project)
    session.announce()
    session.recover()
    lease = session.need(name)
    give_up_at = session.now() + 30
    view = session.run(until(give_up_at, Get(lease.name)))
    if view is None or view.state is not SliceState.READY:
        state = view.native_state if view else "gone"
        raise UserError(f"{lease.handle} is {state}", hint=f"`tpujob up {lease.handle}` brings it to READY")
    workers = session.run(until(give_up_at, Workers(lease.name)))
    if worker >= len(workers):
        raise UserError(f"{lease.handle} has no worker {worker}; its last one is worker {len(workers) - 1}")
    fleet = open_fleet(
        session.lease_directory(lease.id), workers, lambda text: session.reporter.say("ssh", text), session.now
    )
    if len(command) == 1:
        command = ["bash", "-c", command[0]]  # one word is a line for the shell, as with ssh itself
    argv = fleet.openssh_argv(worker, command)
    console().quiet()
    session.ledger.close()
    os.execvp(argv[0], argv)  # noqa: S606 - the terminal is ssh's from here on; its exit code is ours


def _split(words: list[str]) -> tuple[str | None, list[str]]:
    """`ssh alice -- uptime`, `ssh -- uptime`, `ssh alice`: what stands before `--` is the name, what follows the command."""
    typed = sys.argv[1:]
    command = typed[typed.index("--") + 1 :] if "--" in typed else []
    before = words[: len(words) - len(command)]
    if len(before) > 1:
        raise UserError(f"one slice at a time, not {' '.join(before)!r}", hint="a command stands after `--`")
    return (before[0] if before else None), command

"""`tpujob ssh-config`: slices in the configuration of the user's own ssh."""

from typing import Annotated

from orchestrator.cli import completion
from orchestrator.cli.console import emit, emit_lines, open_session
from orchestrator.cli.options import Argument, Cloud, Option, Project
from orchestrator.client.session import Session
from orchestrator.client.slices import ssh_config as client
from orchestrator.errors import UserError


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
        emit_lines(client.of_slice(session, name).splitlines())
    elif install or remove:
        _report(session, client.install(session) if install else client.remove(session), installed=install)
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

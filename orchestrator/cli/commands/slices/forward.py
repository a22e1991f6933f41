"""`tpujob forward`: ports of a worker on this machine."""

from typing import Annotated

from orchestrator.cli import completion
from orchestrator.cli.console import emit, open_session
from orchestrator.cli.options import Argument, Cloud, Option, Project
from orchestrator.client.slices.forward import forwarding, port_wish, wait_for_end
from orchestrator.errors import UserError


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
    name = ports.pop(0) if ports and port_wish(ports[0]) is None else None
    wishes = []
    for port in ports:
        wish = port_wish(port)
        if wish is None:
            raise UserError(f"{port} is no port", hint="`6006`, or `8080:6006` for port 8080 here")
        wishes.append(wish)
    session = open_session(cloud, project)
    with forwarding(session, name, wishes, worker) as (shell, forwarded):
        for each in forwarded:
            emit(str(each))
        session.reporter.notice("end", wait_for_end(session, shell))

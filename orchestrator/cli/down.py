"""`tpujob down`: delete, and prove it."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import Cloud, Name, Project


def down(
    name: Name = None,
    everything: Annotated[bool, typer.Option("--all", help="Every slice that this machine's ledger knows.")] = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Delete a slice and prove that it is gone. Nothing to delete is fine too."""
    from orchestrator.cli.session import Session
    from orchestrator.cli.talk import emit
    from orchestrator.engine import hold
    from orchestrator.errors import UserError
    from orchestrator.report.times import clock

    if name and everything:
        raise UserError("give a NAME or --all, not both")
    session = Session.open(cloud, project, quiet=True)
    session.announce()
    if everything:
        leases = tuple(session.open_leases())
    else:
        lease = session.held(name)
        leases = (lease,) if lease else tuple(one for one in session.open_leases() if one.handle == name)
    if not leases:
        session.recover()
        emit(f"nothing to release{f' named {name}' if name else ''}")
        raise typer.Exit(session.exit_code())
    for released in session.on_cloud(lambda can: hold.down(leases, can, reason="tpujob down")):
        session.note(released)
        if released.gone:
            emit(f"{released.lease.name.node} absent (checked {clock(released.checked_at)})")
    session.recover()
    raise typer.Exit(session.exit_code())

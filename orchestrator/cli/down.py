"""`tpujob down`: delete, and prove it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.done import Done
from orchestrator.cli.options import Cloud, Name, Project

if TYPE_CHECKING:
    from orchestrator.core.lease import Lease


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
    session = Session.open(cloud, project, quiet=True, ends=True)
    session.announce()
    if everything:
        leases = session.ledger.open_leases()  # of every cloud: the help says so
    else:
        leases = session.named(name)
        if name is None:
            session.one_of(leases)
    if not leases:
        session.recover()
        if name is not None and name not in {lease.handle for lease in session.ledger.leases()}:
            alive = ", ".join(lease.handle for lease in session.open_leases()) or "nothing is"
            raise UserError(f"no slice was ever named {name!r} here", hint=f"alive: {alive}")
        emit(f"nothing to release{f' named {name}' if name else ''}{_in_use(session.open_leases())}")
        raise Done(session.exit_code())
    for kind in sorted({lease.cloud for lease in leases}):
        mine = tuple(lease for lease in leases if lease.cloud == kind)
        for released in session.on_cloud(lambda can, mine=mine: hold.down(mine, can, reason="tpujob down"), kind):  # type: ignore[misc]
            session.note(released)
            if released.gone:
                emit(f"{released.lease.name.node} absent (checked {clock(released.checked_at)})")
    session.recover()
    raise Done(session.exit_code())


def _in_use(leases: list[Lease]) -> str:
    """Slices that a running job brought for itself are only deleted by name: their run ends with them."""
    return "".join(f"; {lease.handle} runs on {lease.name.node} (`tpujob down {lease.handle}`)" for lease in leases)

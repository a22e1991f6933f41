"""`tpujob stop`: stop a held slice without deleting it."""

from __future__ import annotations

from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Cloud, Name, Project


def stop(name: Name = None, cloud: Cloud = None, project: Project = None) -> None:
    """Stop a held slice: it keeps its disk and its name. This is not a teardown."""
    from orchestrator.cli.console import emit
    from orchestrator.cli.session import open_session
    from orchestrator.engine.slices import held
    from orchestrator.errors import UserError

    session = open_session(cloud, project)
    session.announce()
    session.recover()
    lease = session.need(name)
    if session.locks.alive(lease.id):
        raise UserError(
            f"{lease.handle} is in use by a running tpujob command", hint="end that one first (Ctrl-C there)"
        )
    view = session.run(held.stop(lease))
    emit(f"{lease.handle}: {view.native_state} ({lease.name.node}); it holds its quota until `tpujob down`")
    raise ExitCode(session.exit_code())

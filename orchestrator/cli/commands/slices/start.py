"""`tpujob start`: start a stopped slice."""

from __future__ import annotations

from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Cloud, Name, Project


def start(name: Name = None, cloud: Cloud = None, project: Project = None) -> None:
    """Start a stopped slice again."""
    from orchestrator.cli.console import emit
    from orchestrator.cli.session import open_session
    from orchestrator.engine.slices import held

    session = open_session(cloud, project)
    session.announce()
    session.recover()
    lease = session.need(name)
    session.on_cloud(lambda capabilities: held.start(lease, capabilities))
    emit(f"{lease.handle}: READY ({lease.name.node})")
    raise ExitCode(session.exit_code())

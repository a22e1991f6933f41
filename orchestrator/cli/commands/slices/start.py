"""`tpujob start`: start a stopped slice."""

from __future__ import annotations

from orchestrator.cli.console import emit
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Cloud, Name, Project
from orchestrator.cli.session import open_session
from orchestrator.client.slices import slices


def start(name: Name = None, cloud: Cloud = None, project: Project = None) -> None:
    """Start a stopped slice again."""
    session = open_session(cloud, project)
    started = slices.start(session, name)
    emit(f"{started.name}: {started.state} ({started.node})")
    raise ExitCode(session.exit_code())

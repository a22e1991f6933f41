"""`tpujob start`: start a stopped slice."""

from orchestrator.cli.console import console, emit
from orchestrator.cli.options import Cloud, Name, Project
from orchestrator.client.session import Session
from orchestrator.client.slices import held


def start(name: Name = None, cloud: Cloud = None, project: Project = None) -> int:
    """Start a stopped slice again."""
    session = Session.open(cloud, project, reporter=console().reporter)
    started = held.start(session, name)
    emit(f"{started.name}: {started.state} ({started.node})")
    return session.exit_code()

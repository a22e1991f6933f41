"""`tpujob stop`: stop a held slice without deleting it."""

from __future__ import annotations

from orchestrator.cli.console import console, emit
from orchestrator.cli.options import Cloud, Name, Project
from orchestrator.client.session import Session
from orchestrator.client.slices import slices


def stop(name: Name = None, cloud: Cloud = None, project: Project = None) -> int:
    """Stop a held slice: it keeps its disk, its name and its quota. This is not a teardown."""
    session = Session.open(cloud, project, reporter=console().reporter)
    stopped = slices.stop(session, name)
    emit(f"{stopped.name}: {stopped.state} ({stopped.node}); it holds its quota until `tpujob down`")
    return session.exit_code()

"""`tpujob stop`: stop a held slice without deleting it."""

from __future__ import annotations

from orchestrator.cli.console import emit
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Cloud, Name, Project
from orchestrator.cli.session import open_session
from orchestrator.client.slices import slices


def stop(name: Name = None, cloud: Cloud = None, project: Project = None) -> None:
    """Stop a held slice: it keeps its disk, its name and its quota. This is not a teardown."""
    session = open_session(cloud, project)
    stopped = slices.stop(session, name)
    emit(f"{stopped.name}: {stopped.state} ({stopped.node}); it holds its quota until `tpujob down`")
    raise ExitCode(session.exit_code())

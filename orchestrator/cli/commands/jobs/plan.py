"""`tpujob plan`: check a job file and show what `run` would ask the cloud for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from orchestrator.cli.console import console, emit, emit_json
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Argument, Cloud, Json, Project
from orchestrator.cli.session import open_session
from orchestrator.client.jobs.planning import PlanPreview, preview_file
from orchestrator.client.session import Session


def plan(
    job: Annotated[Path, Argument(metavar="JOB.yaml", help="The job file.")],
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Check a job file and show what `run` would do: candidates, prices, the exact request. Creates nothing."""
    session = open_session(cloud, project)
    preview = preview_file(session, job)
    if as_json:
        emit_json(preview.shape)
    else:
        _print(session, preview)
    raise ExitCode(session.exit_code())


def _print(session: Session, preview: PlanPreview) -> None:
    if preview.requests:
        session.announce()
    for note in preview.notes:
        console().notice("plan", note)
    for line in preview.table:
        emit(line)
    if preview.requests:
        first, *others = preview.requests
        body = "; `--json` has its body, and the others" if others else "; `--json` has its body"
        console().notice("request", f"{first['method']} {first['url']}{body}")

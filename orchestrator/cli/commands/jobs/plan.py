"""`tpujob plan`: check a job and show what `run` would ask the cloud for."""

from __future__ import annotations

from orchestrator.cli.console import console, emit_json
from orchestrator.cli.options import Cloud, JobArguments, Json, Project
from orchestrator.cli.tables import print_table
from orchestrator.client.jobs.planning import PlanPreview, preview_request
from orchestrator.client.session import Session


def plan(job: JobArguments, as_json: Json = False, cloud: Cloud = None, project: Project = None) -> int:
    """Check a job and show what `run` would do: candidates, prices, the exact request. Creates nothing."""
    session = Session.open(cloud, project, reporter=console().reporter)
    preview = preview_request(session, job.request())
    if as_json:
        emit_json(preview.shape)
    else:
        _print(session, preview)
    return session.exit_code()


def _print(session: Session, preview: PlanPreview) -> None:
    if preview.requests:
        session.announce()
    for note in preview.notes:
        console().notice("plan", note)
    if preview.table is not None:
        print_table(preview.table.head, preview.table.rows, right=preview.table.right, optional=(4,), wraps=(7, 3))
    if preview.requests:
        first, *others = preview.requests
        body = "; `--json` has its body, and the others" if others else "; `--json` has its body"
        console().notice("request", f"{first['method']} {first['url']}{body}")

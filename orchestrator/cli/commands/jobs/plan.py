"""`tpujob plan`: check a job and show what `run` would ask the cloud for."""

from orchestrator.cli.console import console, emit_json, open_session
from orchestrator.cli.options import Cloud, JobArguments, Json, KeepOnFailure, Project
from orchestrator.cli.tables import print_table
from orchestrator.client.jobs.job_files import JobRequest, environment, parted, read
from orchestrator.client.jobs.planning import PlanPreview, preview
from orchestrator.client.session import Session
from orchestrator.client.sweeps.plans import SweepPreview, on_slices
from orchestrator.client.sweeps.plans import preview as preview_sweep
from orchestrator.errors import JobSpecError


def plan(
    job: JobArguments,
    keep_on_failure: KeepOnFailure = None,
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Check a job and show what `run` would do: candidates, prices, the exact request. Creates nothing."""
    session = open_session(cloud, project)
    made = _preview(session, job.request(keep_on_failure))
    if as_json:
        emit_json(made.shape)
    elif isinstance(made, SweepPreview):
        _print_sweep(session, made)
    else:
        _print(session, made)


def _preview(session: Session, request: JobRequest) -> PlanPreview | SweepPreview:
    try:
        found, path = read(request)
    except JobSpecError as error:
        error.hint = None  # it names `tpujob plan`
        raise
    spec, sweep = parted(found)
    if sweep is not None:
        return preview_sweep(session, sweep, path)
    assert spec is not None
    environment(spec, session.reporter)
    return preview(session, spec, path)


def _print_sweep(session: Session, made: SweepPreview) -> None:
    if any(made.plans.values()) and on_slices(made.sweep):
        session.announce()
    for note in made.notes:
        console().notice("plan", note)
    print_table(made.table.head, made.table.rows, right=made.table.right, shortens=(1,))


def _print(session: Session, preview: PlanPreview) -> None:
    if preview.requests and preview.table is not None:  # a job on a cluster names that itself
        session.announce()
    for note in preview.notes:
        console().notice("plan", note)
    if preview.table is not None:
        rows, optional = preview.table.rows, [4]
        if len(reasons := {row[7] for row in rows}) == 1 < len(rows):
            console().notice("plan", f"why these {len(rows)}: {reasons.pop()}")
            optional = [7, 4]
        print_table(preview.table.head, rows, right=preview.table.right, optional=optional, wraps=(7, 3))
    if preview.requests:
        first, *others = preview.requests
        body = "; `--json` has its body, and the others" if others else "; `--json` has its body"
        console().notice("request", f"{first['method']} {first['url']}{body}")

"""`tpujob plan`: check a job file and show what would be asked of the cloud."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from orchestrator.cli.done import Done
from orchestrator.cli.options import Cloud, Json, Project

if TYPE_CHECKING:
    from orchestrator.cli.session import Session
    from orchestrator.core.job import JobSpec


def plan(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")],
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Check a job file and show what `run` would do: candidates, prices, the exact request. Creates nothing."""
    from orchestrator.cli import slices
    from orchestrator.cli.jobs import load
    from orchestrator.cli.planning import plan_of
    from orchestrator.cli.session import Session
    from orchestrator.cli.talk import emit, emit_json
    from orchestrator.core.durations import format_usd_per_hour
    from orchestrator.core.lease import Purpose
    from orchestrator.engine import prepare

    spec, _ = load(job)
    prepare.check_directories(spec, job)
    session = Session.open(cloud, project)
    session.recover()
    if spec.on == "local":
        _nothing_asked(session, spec, as_json=as_json)
    made = plan_of(session, spec)
    drafts = prepare.drafts(made, slices.place(session), handle=str(spec.name), purpose=Purpose.RUN)
    shape: dict[str, Any] = {
        "job": spec.name,
        "cloud": session.target.kind,
        "project": session.target.project,
        "candidates": [
            {
                "accelerator_type": candidate.accelerator_type,
                "zone": candidate.zone,
                "runtime_version": candidate.runtime_version,
                "provisioning": candidate.provisioning,
                "queued": candidate.queued,
                "spot": candidate.spot,
                "workers": candidate.workers,
                "cores": candidate.cores,
                "usd_per_hour": candidate.usd_per_hour,
                "list_usd_per_hour": candidate.list_usd_per_hour,
                "granted": candidate.granted,
                "life_s": candidate.life_s,
                "worst_case_usd": candidate.worst_case_usd,
                "why": candidate.why,
            }
            for candidate in made.candidates
        ],
        "dropped": [asdict(dropped) for dropped in made.dropped],
        "order": made.order,
        "race": made.race,
        "wait_s": made.wait_s,
        "workers": made.candidates[0].workers,
        "cores": made.candidates[0].cores,
        "max_duration_s": made.max_duration_s,
        "worst_case_usd": made.worst_case_usd,
        "request": session.preview(drafts[0][1]),
    }
    for draft, _ in drafts:
        session.forget_keys(draft.id)
    if as_json:
        emit_json(shape)
        raise Done(session.exit_code())
    session.announce()
    slices.show_plan(session, made)
    for candidate in made.candidates:
        price = format_usd_per_hour(candidate.usd_per_hour)
        emit(f"{candidate.accelerator_type}\t{candidate.zone}\t{candidate.runtime_version}\t{price}\t{candidate.why}")
    raise Done(session.exit_code())


def _nothing_asked(session: Session, spec: JobSpec, *, as_json: bool) -> NoReturn:
    """The plan of a job that needs no cloud, in the same shape."""
    from orchestrator.cli.talk import emit, emit_json
    from orchestrator.core.attempt import LOCAL

    nothing: dict[str, Any] = {"candidates": [], "dropped": [], "workers": 1, "cores": None, "request": None}
    if as_json:
        limits = {"max_duration_s": spec.limits.max_duration_s, "worst_case_usd": 0.0}
        emit_json({"job": spec.name, "cloud": LOCAL, "project": None, **nothing, **limits})
    else:
        emit("this machine\tnothing is asked of any cloud")
    raise Done(session.exit_code())

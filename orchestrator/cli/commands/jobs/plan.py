"""`tpujob plan`: check a job file and show what would be asked of the cloud."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Cloud, Json, Project

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.jobfile.model import JobSpec
    from orchestrator.core.planning.plan import Plan


def plan(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")],
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Check a job file and show what `run` would do: candidates, prices, the exact request. Creates nothing."""
    from orchestrator.cli.console import console, emit, emit_json
    from orchestrator.client import plan_report
    from orchestrator.client.jobs.job_files import load
    from orchestrator.client.jobs.planning import plan_of
    from orchestrator.core.lease.lease import Purpose
    from orchestrator.engine.jobs import prepare
    from orchestrator.report import plan as words

    spec, _ = load(job, console().reporter)
    prepare.check_directories(spec, job)
    from orchestrator.cli.session import open_session

    session = open_session(cloud, project)
    session.recover()
    if spec.on == "local":
        _nothing_asked(session, spec, as_json=as_json)
    prepare.check_bucket(spec, session.target.kind, os.environ)
    made = plan_of(session, spec)
    drafts = prepare.drafts(made, plan_report.place(session), handle=str(spec.name), purpose=Purpose.RUN)
    requests = [session.preview(request) for _, request in drafts]
    for draft, _ in drafts:
        session.forget_keys(draft.id)
    if as_json:
        emit_json(_shape(session, spec, made, requests))
        raise ExitCode(session.exit_code())
    session.announce()
    plan_report.show_plan(session, made, spec=spec)
    for line in words.table(made):
        emit(line)
    body = "; `--json` has its body" if len(requests) == 1 else "; `--json` has its body, and the others"
    session.reporter.say("request", f"{requests[0]['method']} {requests[0]['url']}{body}")
    raise ExitCode(session.exit_code())


def _shape(session: Session, spec: JobSpec, made: Plan, requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    from orchestrator.report.plan import candidate_shape

    first = made.candidates[0]
    return {
        "job": spec.name,
        "cloud": session.target.kind,
        "project": session.target.project,
        "candidates": [
            {**candidate_shape(one), "request": request} for one, request in zip(made.candidates, requests, strict=True)
        ],
        "dropped": [asdict(dropped) for dropped in made.dropped],
        "order": made.order,
        "race": made.race,
        "wait_s": made.wait_s,
        "asked": made.asked,
        "workers": first.workers,
        "cores": first.cores,
        "max_duration_s": made.max_duration_s,
        "max_results_bytes": spec.limits.max_results,
        "worst_case_usd": made.worst_case_usd,
        "overlap_usd": made.overlap_usd(session.target.timings.absent_s),
        "request": requests[0],
    }


def _nothing_asked(session: Session, spec: JobSpec, *, as_json: bool) -> NoReturn:
    """The plan of a job that needs no cloud, in the same shape."""
    from orchestrator.cli.console import emit, emit_json
    from orchestrator.core.lease.attempt import LOCAL

    nothing: dict[str, Any] = {"candidates": [], "dropped": [], "workers": 1, "cores": None, "request": None}
    nothing |= {"order": spec.tpu.order, "race": False, "wait_s": 0.0, "asked": None, "overlap_usd": 0.0}
    if as_json:
        limits = {"max_duration_s": spec.limits.max_duration_s, "max_results_bytes": spec.limits.max_results}
        emit_json({"job": spec.name, "cloud": LOCAL, "project": None, **nothing, **limits, "worst_case_usd": 0.0})
    else:
        emit("this machine\tnothing is asked of any cloud")
    raise ExitCode(session.exit_code())

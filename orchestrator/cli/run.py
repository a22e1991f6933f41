"""`tpujob run`: run a job file from YAML to proven absence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.done import Done
from orchestrator.cli.options import Cloud, Project

if TYPE_CHECKING:
    from orchestrator.cli.session import Session
    from orchestrator.core.job import JobSpec
    from orchestrator.core.lease import Lease
    from orchestrator.core.plan import Plan
    from orchestrator.engine.job_run import Outcome


def run(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")],
    keep: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Hold the slice for so long after a successful run, such as 30m."),
    ] = None,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Run a job: create a slice (or use the one `up` brought), train, collect, delete, prove it."""
    from orchestrator.cli import slices
    from orchestrator.cli.jobs import load
    from orchestrator.cli.session import Session
    from orchestrator.cli.stream import JobOutput
    from orchestrator.core.lease import Purpose
    from orchestrator.core.plan import make
    from orchestrator.engine import prepare
    from orchestrator.engine.run import run_job

    keep_s = _keep_s(keep)
    spec, env = load(job)
    prepare.check_directories(spec, job)
    session = Session.open(cloud, project)
    emulated = session.target.kind == "emulated"
    plan = make(prepare.wish(spec, session.target.pace, keep_s=keep_s or 0.0), default_zone=session.target.zone)
    if emulated and spec.train is not None:
        prepare.check_local_training()
    session.announce()
    emulation = prepare.Emulation(_emulated_cores(session, spec, plan.cores_per_worker)) if emulated else None
    slices.show_plan(session, plan, emulation.cores if emulation else None)
    session.recover()

    new, attempt = prepare.new_run(spec, job, session.target.kind, Path(session.target.runs_dir or "runs").absolute())
    bundle = prepare.bundle(spec, job, session.directory / "bundles")
    _make_directory(Path(new.directory))
    drafts = prepare.drafts(plan, slices.place(session), handle=new.name, purpose=Purpose.RUN)
    output = JobOutput(Path(new.directory), session.talk.quiet)
    prepared = prepare.job_run(
        spec,
        new,
        attempt,
        drafts=drafts,
        held=_held(session, plan, spec),
        shipped=bundle,
        phases=prepare.phases(spec, new, attempt, shipped=bundle, env=env, emulation=emulation),
        sink=output,
        keep_s=keep_s,
    )
    outcome = session.on_cloud(lambda can: run_job(prepared, can))
    output.close()
    _finish(session, outcome, [draft.id for draft, _ in drafts])


def _make_directory(path: Path) -> None:
    from orchestrator.errors import ConfigError

    try:
        path.mkdir(parents=True)
    except OSError as error:
        hint = "`runs_dir:` in the settings names another place"
        raise ConfigError(f"{path} cannot be made: {error.strerror}", hint=hint) from error


def _keep_s(keep: str | None) -> float | None:
    from orchestrator.core.durations import parse_duration
    from orchestrator.errors import UserError

    if keep is None:
        return None
    try:
        seconds = parse_duration(keep)
    except ValueError as error:
        raise UserError(f"--keep {keep}: {error}") from error
    if not 60 <= seconds <= 7 * 86400:
        raise UserError(f"--keep {keep}: must be between 1m and 7d")
    return seconds


def _emulated_cores(session: Session, spec: JobSpec, real: int) -> int:
    """How many processes stand for the cores of one emulated host: never more than it has, few by default."""
    from orchestrator.cli.slices import DEFAULT_EMULATED_CORES

    declared = spec.train.emulated.cores if spec.train and spec.train.emulated else None
    return min(declared or session.target.emulated_cores or DEFAULT_EMULATED_CORES, real)


def _held(session: Session, plan: Plan, spec: JobSpec) -> Lease | None:
    """The slice that `up` brought, if the job can run on it."""
    import time

    from orchestrator.engine import prepare

    fitting = [lease for lease in session.open_leases() if prepare.fits(lease, plan, spec, time.time())]
    return fitting[0] if fitting else None


def _finish(session: Session, outcome: Outcome, drafted: list[str]) -> None:
    from orchestrator.cli.talk import emit
    from orchestrator.core.durations import format_duration
    from orchestrator.report.results import describe, payload_spans
    from orchestrator.report.words import outcome_lines

    session.talk.quiet()
    kept = outcome.lease.id if outcome.lease is not None and outcome.tenure.kept_until is not None else None
    if outcome.tenure.released is not None and not outcome.tenure.released.gone:
        session.note(outcome.tenure.released)
    for lease_id in drafted:
        if lease_id != kept and lease_id not in session.unproven:
            session.forget_keys(lease_id)
    if outcome.error is not None:
        session.talk.fail(outcome.error)
    inside = payload_spans(Path(outcome.run.directory))
    emulated = session.target.kind == "emulated"
    for line in outcome_lines(outcome, emulated=emulated, result=describe(outcome), inside=inside):
        emit(line)
    took = format_duration(outcome.ended_at - outcome.started_at)
    session.talk.say(
        "run", f"{outcome.run.id} · {took} · {_relative(outcome.run.directory)} · tpujob show {outcome.run.id}"
    )
    raise Done(session.exit_code(outcome.exit_code))


def _relative(directory: str) -> str:
    path = Path(directory)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else directory

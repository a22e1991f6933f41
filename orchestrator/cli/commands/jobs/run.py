"""`tpujob run`: run a job file from YAML to proven absence."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Cloud, Project

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.jobfile.model import JobSpec
    from orchestrator.core.lease.lease import Lease
    from orchestrator.core.planning.plan import Plan
    from orchestrator.engine.jobs.job_run import Outcome
    from orchestrator.engine.leases.obligations import Draft


def run(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")],
    keep: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Hold the slice for so long after a successful run, such as 30m."),
    ] = None,
    ttl: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Instead of the file's limits.max_duration, such as 2h.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave once the job has started; `tpujob attach` comes back to it.")
    ] = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Run a job: create a slice (or use the one `up` brought), train, collect, delete, prove it."""
    launch(job, keep=keep, ttl=ttl, detach=detach, cloud=cloud, project=project)


def launch(
    path: Path, *, keep: str | None, ttl: str | None, detach: bool, cloud: str | None, project: str | None
) -> NoReturn:
    """The work of `run` and `submit`."""
    from orchestrator.cli.console import console
    from orchestrator.client.jobs.job_files import load

    spec, env = load(path, console().reporter)
    start(spec, env, path, keep=keep, ttl=ttl, detach=detach, cloud=cloud, project=project)


def start(
    spec: JobSpec,
    env: dict[str, str],
    path: Path,
    *,
    keep: str | None = None,
    ttl: str | None = None,
    detach: bool = False,
    cloud: str | None = None,
    project: str | None = None,
    bench: dict[str, str] | None = None,
) -> NoReturn:
    """Run a job that has been read. `bench`: the comparison that it is a variant of."""
    from orchestrator.cli.options import duration
    from orchestrator.client import plan_report
    from orchestrator.client.jobs.local_run import run_here
    from orchestrator.client.jobs.output import JobOutput
    from orchestrator.client.jobs.planning import plan_of
    from orchestrator.client.jobs.sleep_inhibitor import stay_awake
    from orchestrator.core.lease.lease import Purpose
    from orchestrator.core.text.durations import format_duration
    from orchestrator.engine.jobs import prepare
    from orchestrator.engine.jobs.run import run_job
    from orchestrator.errors import UserError

    if keep and detach:
        raise UserError("--keep holds a slice after a run that is followed to its end; a detached one ends by itself")
    keep_s = duration("--keep", keep, least="1m", most="7d") if keep is not None else None
    if ttl is not None:
        spec = spec.with_max_duration(duration("--ttl", ttl, least="6m", most="7d"))
    prepare.check_directories(spec, path)
    if spec.on == "local":
        if keep or detach or cloud or project:
            raise UserError(
                "a job with `on: local` uses no cloud: --keep, --detach, --cloud and --project mean nothing"
            )
        run_here(spec, env, path, bench=bench)
    from orchestrator.cli.session import open_session

    session = open_session(cloud, project)
    emulated = session.target.kind == "emulated"
    plan = plan_of(session, spec, keep_s=keep_s or 0.0)
    if detach and spec.on_preemption == "restart":
        raise UserError(
            "on_preemption: restart needs somebody who makes the next attempt; a detached run has nobody",
            hint="run it attached (`tpujob run`), or leave on_preemption out",
        )
    if emulated and spec.train is not None:
        prepare.check_local_training()
    env = {**env, **prepare.check_bucket(spec, session.target.kind, os.environ)}
    session.announce()
    emulation = prepare.Emulation(_emulated_cores(session, spec, plan)) if emulated else None
    if not detach and (there := _held(session, plan, spec)) is not None:
        session.reporter.say(
            "plan", f"on {there.name.node} ({there.handle}), which `tpujob up` brought; if it is busy or gone:"
        )
    plan_report.show_plan(session, plan, emulation.cores if emulation else None, spec)
    session.recover(look=True)

    runs_directory = Path(session.target.runs_dir or "runs").absolute()
    new, attempt = prepare.new_run(spec, path, session.target.kind, runs_directory, session.now(), bench=bench)
    bundle = prepare.bundle(spec, path, session.directory / "bundles")
    make_directory(Path(new.directory))
    place, drafted = plan_report.place(session), list[str]()

    def draft(used_s: float, spent_usd: float) -> tuple[Draft, ...]:
        made = prepare.drafts(
            plan,
            place,
            handle=new.name,
            purpose=Purpose.RUN,
            linger_s=spec.limits.linger,
            used_s=used_s,
            spent_usd=spent_usd,
            run=new.id,
        )
        drafted.extend(lease.id for lease, _ in made)
        return made

    output = JobOutput(Path(new.directory), session.reporter)
    prepared = prepare.job_run(
        spec,
        new,
        attempt,
        plan=plan,
        draft=draft,
        held=None if detach else _held(session, plan, spec),
        shipped=bundle,
        phases=prepare.phases(spec, new, shipped=bundle, env=env, emulation=emulation),
        sink=output,
        keep_s=keep_s,
        detach=detach,
    )
    if not emulated and not detach and not stay_awake(f"run {new.id} is attached to this machine"):
        ttl_text = format_duration(session.target.timings.ttl_s)
        session.reporter.say(
            "note", f"if this machine sleeps for longer than {ttl_text}, the slice is deleted (or: --detach)"
        )
    with closing(output):
        outcome = session.on_cloud(lambda capabilities: run_job(prepared, capabilities))
    if outcome.detached:
        _left_running(session, outcome, drafted)
    finish(session, outcome, drafted)


def _left_running(session: Session, outcome: Outcome, drafted: list[str]) -> NoReturn:
    """The job has the claim now. A process of ours waits for its end, to bring the artifacts home; it may die."""
    from orchestrator.cli.console import console, emit
    from orchestrator.core.text.durations import format_usd
    from orchestrator.report.layout import day_clock

    lease = outcome.lease
    assert lease is not None
    console().quiet()
    for lease_id in drafted:
        if lease_id != lease.id:
            session.forget_keys(lease_id)
    session.collect_later(outcome.run)
    worst = "an unknown amount"
    if lease.usd_per_hour is not None:
        worst = format_usd(lease.usd_per_hour * (lease.deadline - lease.created_at) / 3600)
    session.reporter.say(
        "detach", f"the job goes on without this process, until {day_clock(lease.deadline)} at the latest"
    )
    session.reporter.say(
        "cost", f"worst case if everything fails: {worst}{' (emulated)' if lease.cloud == 'emulated' else ''}"
    )
    session.reporter.say("bounds", _bounds(session, lease))
    run = outcome.run.id
    session.reporter.say(
        "next", f"tpujob attach {run} · tpujob logs -f {run} · tpujob cancel {run} · tpujob extend {run} --by 1h"
    )
    emit(run)
    raise ExitCode(session.exit_code())


def _bounds(session: Session, lease: Lease) -> str:
    """Who would end it if this machine never came back."""

    from orchestrator.core.text.durations import format_duration

    swept = [ran for ran in session.ledger.sweeps(lease.cloud, lease.name.project) if ran.scope != "local"]
    sweep = (
        f"a sweep ran {format_duration(session.now() - swept[0].at)} ago" if swept else "no sweep was ever seen here"
    )
    return f"the switch on every worker ✓ · {sweep} (`tpujob doctor`) · no end by the cloud itself"


def make_directory(path: Path) -> None:
    from orchestrator.errors import ConfigError

    try:
        path.mkdir(parents=True)
    except OSError as error:
        hint = "`runs_dir:` in the settings names another place"
        raise ConfigError(f"{path} cannot be made: {error.strerror}", hint=hint) from error


def _emulated_cores(session: Session, spec: JobSpec, plan: Plan) -> int:
    """How many processes stand for the cores of one emulated host: never more than it has, few by default."""
    from orchestrator.client.plan_report import DEFAULT_EMULATED_CORES

    declared = spec.train.emulated.cores if spec.train and spec.train.emulated else None
    real = max(candidate.cores_per_worker for candidate in plan.candidates)
    return min(declared or session.target.emulated_cores or DEFAULT_EMULATED_CORES, real)


def _held(session: Session, plan: Plan, spec: JobSpec) -> Lease | None:
    """The slice that `up` brought, if the job can run on it."""

    from orchestrator.engine.jobs import prepare

    fitting = [
        lease
        for lease in session.open_leases()
        if prepare.fits(lease, plan, spec, session.now()) and session.results_on(lease) is None
    ]
    return fitting[0] if fitting else None


def finish(session: Session, outcome: Outcome, drafted: list[str]) -> NoReturn:
    """Say how a run ended, and end."""
    from orchestrator.cli.console import console, emit
    from orchestrator.core.text.durations import format_duration
    from orchestrator.report.results import describe, payload_spans
    from orchestrator.report.words import left_behind, outcome_lines

    console().quiet()
    kept = outcome.lease.id if outcome.lease is not None and outcome.owed.kept_until is not None else None
    if outcome.owed.released is not None and not outcome.owed.released.gone:
        session.note(outcome.owed.released)
    for lease_id in drafted:
        if lease_id != kept and lease_id not in session.unproven:
            session.forget_keys(lease_id)
    if outcome.error is not None:
        session.reporter.fail(outcome.error)
    if outcome.collected is not None and outcome.collected.waiting and outcome.lease is not None:
        session.reporter.loud(left_behind(outcome))
    _unpack_luggage(session, outcome)
    inside = payload_spans(Path(outcome.run.directory))
    emulated = session.target.kind == "emulated"
    usd = _usd(session, outcome)
    for line in outcome_lines(outcome, emulated=emulated, result=describe(outcome), inside=inside, usd=usd):
        emit(line)
    took = format_duration(outcome.ended_at - outcome.started_at)
    session.reporter.say(
        "run", f"{outcome.run.id} · {took} · {_relative(outcome.run.directory)} · tpujob show {outcome.run.id}"
    )
    raise ExitCode(session.exit_code(outcome.exit_code))


def _usd(session: Session, outcome: Outcome) -> float | None:
    """A ledger that cannot be read costs the figure and nothing else: result and exit code stay what they are."""
    from orchestrator.errors import TpujobError
    from orchestrator.report import costs

    try:
        return costs.of_run(session.ledger, outcome.run, outcome.ended_at)
    except TpujobError as error:
        session.reporter.say("warning", f"{error.message}; what the run cost is not known")
        return None


def _unpack_luggage(session: Session, outcome: Outcome) -> None:
    """What was saved for another attempt is of no use once the job is done; else it may be all that is left of it."""
    import shutil

    saved = Path(outcome.run.directory) / "carried"
    if outcome.collected is not None and not outcome.collected.waiting:
        shutil.rmtree(saved, ignore_errors=True)
    elif any(saved.glob("worker*")):
        session.reporter.say("saved", f"what the job had made when it was lost: {_relative(str(saved))}")


def _relative(directory: str) -> str:
    path = Path(directory)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else directory

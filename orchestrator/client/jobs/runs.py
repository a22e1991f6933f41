"""Run a job: plan, checks, candidates, code and environment, then the engine's program, then the result."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.client import lookup, plans, shown_logs
from orchestrator.client.events import RunResult
from orchestrator.client.jobs import data, job_files, results, tpu_use
from orchestrator.client.jobs.code import shipment_of, survey_of
from orchestrator.client.jobs.log_output import JobOutput, make_directory
from orchestrator.client.jobs.planning import plan_of
from orchestrator.client.jobs.sleep_inhibitor import about_sleep, inhibit_sleep
from orchestrator.client.results import pages
from orchestrator.core.lease import access
from orchestrator.core.lease.access import NO_WISH, AccessWish
from orchestrator.core.lease.lease import HeldFor, Purpose
from orchestrator.errors import JobSpecError, UserError
from orchestrator.places.tpu.stay import SliceStay
from orchestrator.remote.transfer.collect import MOST_BESIDE
from orchestrator.remote.transfer.saved_work import SavedWork
from orchestrator.report.layout import day_clock
from orchestrator.run.job_run import JobRun
from orchestrator.run.preparation import checks, runs
from orchestrator.run.preparation.phases import phases
from orchestrator.run.preparation.variables import Emulation
from orchestrator.run.program import run_job

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.client.shown_logs import Choice
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.core.lease.lease import Lease
    from orchestrator.core.planning.plan import Plan
    from orchestrator.run.lane import Lane

__all__ = ["RunOptions", "RunResult", "run_spec", "start_run"]

DOCTOR = "tpujob doctor"
CLUSTER_ONLY = "a job with `on: gke` names its cluster below `gke:`: --cloud and --project do not apply"
LOCAL_ONLY = "a job with `on: local` uses no cloud: --keep, --detach, --cloud and --project do not apply"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a job, beside what its file says."""

    keep_s: float | None = None  # hold the slice for so long after a success
    keep_on_failure_s: float | None = None  # instead of the file's `keep_on_failure`
    max_duration_s: float | None = None  # instead of the file's `limits.max_duration`
    detach: bool = False  # return once the job has started
    sweep: Mapping[str, Any] | None = None  # of which sweep the run is, and which of its variants
    logs: Choice = None  # of which workers the caller shows the logs; each must be there
    lane: Lane | None = None  # the slice of the run before, and what the next one gets


def run_spec(session: Session, spec: JobSpec, path: Path, options: RunOptions) -> RunResult:
    """Run a job that a command has read; see `start_run`."""
    env = job_files.environment(spec, session.reporter)
    if spec.on != "tpu" and session.cloud_is_named:
        raise UserError(LOCAL_ONLY if spec.on == "local" else CLUSTER_ONLY)
    return start_run(session, spec, env, path, options)


def start_run(session: Session, spec: JobSpec, env: Mapping[str, str], path: Path, options: RunOptions) -> RunResult:
    """Run a job and return its result; with `options.detach`, return once the job has started.

    `path` is the job file, or any path in the directory to which `code:` is relative. `env` has the secrets' values. How
    the job ended, a failure included, is in the result. Raises UserError for what cannot be run, and CloudError or
    TpujobError for what comes before the first candidate is asked for: then nothing was created. Raises TeardownUnproven
    when signals ended the wait for the proof.
    """
    if options.max_duration_s is not None:
        spec = spec.with_max_duration(options.max_duration_s)
    if options.keep_on_failure_s is not None:
        spec = spec.with_keep_on_failure(options.keep_on_failure_s)
    _check(spec, options)
    checks.check_directories(spec, path)
    plans.check_machine(session)
    if options.lane is None:
        for line in tpu_use.warnings(spec, path):
            session.reporter.notice("warning", line)
    if spec.on == "local":
        shown_logs.check("--logs", options.logs, 1)
        from orchestrator.client.jobs.local_run import run_here

        return run_here(session, spec, env, path, sweep=options.sweep)
    if spec.on == "gke":
        from orchestrator.client.cluster.runs import run_there

        return run_there(session, spec, env, path, options)
    return _run_on_slice(session, spec, env, path, options)


def _run_on_slice(
    session: Session, spec: JobSpec, env: Mapping[str, str], path: Path, options: RunOptions
) -> RunResult:
    emulated = session.target.kind == "emulated"
    found = survey_of(session, spec, path)
    fetched = [] if options.lane is not None else data.lines_of(session, spec)  # of a sweep, they were looked at before
    plan = plan_of(session, spec, keep_s=options.keep_s or 0.0)
    shown_logs.check("--logs", options.logs, max(candidate.workers for candidate in plan.candidates))
    if options.detach and spec.on_preemption == "restart":
        raise UserError(
            "on_preemption: restart has no effect on a detached run: no process starts the next attempt",
            hint="run it attached (`tpujob run`), or leave on_preemption out",
        )
    checks.check_python(spec, session.target.kind)
    if emulated and spec.train is not None:
        checks.check_local_training("none" if spec.train.backend == "none" else "xla")
    env = {**env, **checks.check_bucket(spec, session.target.kind, os.environ)}
    if options.lane is None:
        session.announce()
    emulation = Emulation(_emulated_cores(session, spec, plan), session.target.timings.chip_s) if emulated else None
    owned = options.lane is not None and options.lane.lease is not None
    held = None if options.detach or owned else _held(session, plan, spec, say=True)
    if held is not None:
        why = "the held slice of `tpujob up`"
        if held.held_for is HeldFor.FAILURE:
            why = f"held since this job failed on it, until {day_clock(held.deadline)} at the latest"
        reached = f"reached {access.describe(held.route)}"
        session.reporter.notice(
            "plan", f"on {held.name.node} ({held.handle}), {why}, {reached}; if it is busy or gone:"
        )
    if options.lane is None:
        plans.show_plan(session, plan, emulation.cores if emulation else None, spec, after_held=held is not None)
    for line in fetched:
        session.reporter.notice("plan", line)
    session.recover(look=True)

    run, attempt = runs.new_run(
        spec, path, session.target.kind, session.runs_directory, session.now(), sweep=options.sweep
    )
    drafter = plans.drafter(
        session, plan, spec.access.wish, handle=run.name, purpose=Purpose.RUN, linger_s=spec.limits.linger, run=run.id
    )
    with ExitStack() as stack:
        shipment = shipment_of(session, found, stack)
        make_directory(Path(run.directory))
        output = stack.enter_context(closing(JobOutput(Path(run.directory), session.reporter, spec)))
        restarts = spec.max_restarts if spec.on_preemption == "restart" else 0
        is_copied = restarts > 0 or (spec.copy_while_running and not options.detach)
        saved = SavedWork(Path(run.directory) / "saved", tuple(spec.artifacts), None if restarts else MOST_BESIDE)
        job = JobRun(
            run=run,
            attempt=attempt,
            stay=SliceStay(drafter.make(), drafter, plan.wait_s, plan.race),
            phases=phases(spec, run, shipment=shipment, env=env, emulation=emulation, job_path=path),
            artifacts=tuple(spec.artifacts),
            directory=Path(run.directory),
            sink=output,
            metrics=output.metrics,
            max_duration_s=spec.limits.max_duration_s,
            held=None if options.detach or owned else _held(session, plan, spec),
            lane=options.lane,
            shipment=shipment,
            keep_s=options.keep_s,
            keep_on_failure_s=spec.keep_on_failure,
            detach=options.detach,
            max_restarts=restarts,
            saved_work=saved if is_copied else None,
            stall_s=spec.limits.stall,
            linger_s=spec.limits.linger,
            most_bytes=spec.limits.max_results,
            ports=spec.ports,
        )
        if not emulated and not options.detach and options.lane is None:
            inhibited = stack.enter_context(inhibit_sleep(f"run {run.id} is attached to this machine"))
            ttl_s = session.target.timings.ttl_s
            if text := about_sleep(inhibited=inhibited, ttl_s=ttl_s, else_do="; `tpujob submit` outlives that"):
                session.reporter.notice("note", text)

        with pages.reported_if_it_raises(session, run):
            outcome = session.on_cloud(lambda capabilities: run_job(job, capabilities))
    if outcome.detached:
        return results.left_running(session, outcome, drafter.made)
    if outcome.error is not None and spec.access.wish != NO_WISH:
        outcome.error.hint = _about_the_job(outcome.error.hint, spec, path)
    return results.finish(session, outcome, drafter.made)


def _check(spec: JobSpec, options: RunOptions) -> None:
    if options.keep_s is not None and options.detach:
        raise UserError("--keep holds the slice of an attached run; the slice of a detached run deletes itself")
    if spec.keep_on_failure is not None and options.detach:
        why = "holds the slice of an attached run; the slice of a detached run deletes itself"
        raise JobSpecError([spec.mistake(("keep_on_failure",), f"{why}; run it attached, or leave this out")])
    if spec.on == "local" and (options.keep_s is not None or options.detach):
        raise UserError(LOCAL_ONLY)


def _about_the_job(hint: str | None, spec: JobSpec, path: Path) -> str | None:
    """Return the hint with the command that looks at the way of this job, which by itself looks at that of the settings."""
    words = ["tpujob", "doctor", *([str(path)] if path.is_file() else [])]
    if not path.is_file() and spec.access.wish.via not in (None, "auto"):
        words += ["--via", str(spec.access.wish.via)]
    return hint and hint.replace(f"`{DOCTOR}`", f"`{shlex.join(words)}`")


def _emulated_cores(session: Session, spec: JobSpec, plan: Plan) -> int:
    """Return how many processes stand for the cores of one emulated host: never more than it has, few by default."""
    declared = spec.train.emulated.cores if spec.train and spec.train.emulated else None
    real = max(candidate.cores_per_worker for candidate in plan.candidates)
    return min(declared or session.target.emulated_cores or plans.DEFAULT_EMULATED_CORES, real)


def _held(session: Session, plan: Plan, spec: JobSpec, *, say: bool = False) -> Lease | None:
    """Return the held slice on which the job can run: of this job since it failed, else of `tpujob up`, rather a free one.

    One that is reached otherwise than the job says is none of them. `say`: report that.
    """
    fitting = []
    for lease in session.open_leases():
        if not runs.fits(lease, plan, spec, session.now()) or lookup.uncollected_run(session, lease) is not None:
            continue
        why_not = access.contradiction(lease.route, _made_with(session, lease), spec.access.wish)
        if why_not is None:
            fitting.append(lease)
        elif say:
            session.reporter.notice("plan", f"not on {lease.name.node} ({lease.handle}): {why_not}")
    ordered = sorted(
        fitting, key=lambda lease: (lease.held_for is not HeldFor.FAILURE, session.locks.is_locked(lease.id))
    )
    return next(iter(ordered), None)


def _made_with(session: Session, lease: Lease) -> AccessWish:
    """Return what `access:` said when the slice was created: that of its run, else that of the settings."""
    said = next((run.spec.access for run, _ in session.ledger.runs() if run.id == lease.run), AccessWish())
    made = AccessWish(
        network=said.network or None,
        subnetwork=said.subnetwork or None,
        tags=said.tags or None,
        secure_boot=said.secure_boot or None,
    )
    return made.over(session.target.access)

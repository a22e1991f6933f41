"""Run a job with `on: local`: on this machine, without a cloud."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.client.jobs import results
from orchestrator.client.jobs.code import told_shipment
from orchestrator.client.jobs.log_output import JobOutput, make_directory
from orchestrator.client.results import pages
from orchestrator.core.lease.cloud_api import NO_CLOUD
from orchestrator.core.lease.run_and_attempt import LOCAL, AttemptState
from orchestrator.core.text import scripts
from orchestrator.places.local.crew import AGENT, LocalCrew, remove_leftovers
from orchestrator.places.local.stay import LocalStay
from orchestrator.places.place import Phase
from orchestrator.remote.fleet.steps import StartRequest
from orchestrator.remote.transfer.collect import CollectRequest
from orchestrator.run.job_run import JobRun
from orchestrator.run.preparation import checks, requirements, runs
from orchestrator.run.program import run_job

if TYPE_CHECKING:
    from orchestrator.client.events import RunResult
    from orchestrator.client.session import Session
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.core.lease.lease import Lease
    from orchestrator.core.lease.run_and_attempt import Attempt, RunRecord
    from orchestrator.core.text.environments import Environment


def run_here(
    session: Session, spec: JobSpec, env: Mapping[str, str], path: Path, *, sweep: Mapping[str, Any] | None = None
) -> RunResult:
    """Run the job, collect its artifacts in the run's directory, and return the result."""
    if spec.train is not None:
        checks.check_local_training(spec.train.backend, "a job with `on: local` trains")
    session.reporter.notice("cloud", "none: `on: local` runs the job on this machine, as your user")
    session.recover()
    working = session.directory / "local"
    remove_leftovers(working, session.locks.is_locked)
    run, attempt = runs.new_run(spec, path, LOCAL, session.runs_directory, session.now(LOCAL), sweep=sweep)
    with ExitStack() as stack:
        shipment = told_shipment(session, spec, path, stack)
        asked = requirements.read(spec, path, code_sha256=shipment.id if shipment else None)
        crew = LocalCrew(working, attempt.id, shipment=shipment, max_log=spec.limits.max_log)
        make_directory(Path(run.directory))
        output = stack.enter_context(closing(JobOutput(Path(run.directory), session.reporter, spec)))
        most_bytes = spec.limits.max_results
        job = JobRun(
            run=run,
            attempt=attempt,
            stay=LocalStay(crew, CollectRequest.of_job(spec.artifacts, attempt.id, Path(run.directory), most_bytes)),
            phases=phases(spec, run, working, env, asked),
            artifacts=tuple(spec.artifacts),
            directory=Path(run.directory),
            sink=output,
            metrics=output.metrics,
            max_duration_s=spec.limits.max_duration_s,
            most_bytes=most_bytes,
        )
        with pages.reported_if_it_raises(session, run):
            outcome = session.run(run_job(job, NO_CLOUD), LOCAL)
    return results.finish(session, outcome)


def phases(
    spec: JobSpec, run: RunRecord, working: Path, env: Mapping[str, str], asked: Environment
) -> tuple[Phase, ...]:
    """Return `setup` (if there is anything to set up) and `main`. `working`: the directory of the attempts of local jobs."""
    python = "python3" if asked.is_asked_for else shlex.quote(sys.executable)
    main = f"{spec.command}\n" if spec.train is None else scripts.train_main(python)
    setup = scripts.chain(spec.setup) if spec.setup else ""
    if asked.is_asked_for:
        environment = replace(asked, root=str(working.with_name("envs")))
        setup = environment.setup(shlex.join([*AGENT, "environment"])) + (environment.use(setup) if setup else "")
        main = environment.use(main)

    def request(phase: str, script: str) -> Callable[[Attempt, Lease | None, Sequence[str], str], StartRequest]:
        def made(attempt: Attempt, lease: Lease | None, hosts: Sequence[str], coordinator: str) -> StartRequest:
            own = {"TPUJOB_RUN": run.id, "TPUJOB_WORKER": "0", "TPUJOB_WORKERS": "1", "TPUJOB_COORDINATOR": coordinator}
            return StartRequest(attempt.id, phase, script, ({**own, **env},))

        return made

    first = [Phase("setup", AttemptState.SETUP, request("setup", setup))] if setup else []
    return (*first, Phase("main", AttemptState.RUNNING, request("main", main)))

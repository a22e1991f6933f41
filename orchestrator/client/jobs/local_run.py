"""Run a job with `on: local` on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.client.events import RunResult
from orchestrator.client.jobs.code import told_shipment
from orchestrator.client.jobs.log_output import JobOutput, make_directory
from orchestrator.client.jobs.results import finish
from orchestrator.client.results import pages
from orchestrator.core.lease.run_and_attempt import LOCAL
from orchestrator.places.local.worker import LocalWorker, free_port, remove_leftovers
from orchestrator.run import local
from orchestrator.run.preparation import checks, requirements, runs

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.jobfile.keys import JobSpec


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
        make_directory(Path(run.directory))
        output = stack.enter_context(closing(JobOutput(Path(run.directory), session.reporter, spec)))
        worker = LocalWorker(working, attempt.id, spec.limits.max_log)
        asked = requirements.read(spec, path, code_sha256=shipment.id if shipment else None)
        job = local.prepare(
            spec,
            run,
            attempt,
            worker,
            shipment=shipment,
            env=env,
            asked=asked,
            port=free_port(),
            sink=output,
            metrics=output.metrics,
        )
        with pages.reported_if_it_raises(session, run):
            outcome = session.run(local.run_local(job), LOCAL)
    return finish(session, outcome)

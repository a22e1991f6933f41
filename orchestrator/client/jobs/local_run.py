"""A job with `on: local`, run on this machine: what `run` does when it needs no cloud."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from orchestrator.core.jobfile.model import JobSpec


def run_here(spec: JobSpec, env: dict[str, str], path: Path, *, bench: dict[str, str] | None = None) -> NoReturn:
    """Run it, bring its artifacts to the run's directory, and end with its exit code."""
    from orchestrator.cli.commands.jobs.run import finish, make_directory
    from orchestrator.client.jobs.output import JobOutput
    from orchestrator.client.session import Session
    from orchestrator.core.lease.attempt import LOCAL
    from orchestrator.engine.jobs import local, prepare
    from orchestrator.remote.fleet.local import LocalWorker, free_port, remove_leftovers

    if spec.train is not None:
        prepare.check_local_training(spec.train.backend, "a job with `on: local` trains")
    session = Session.open()
    session.reporter.say("cloud", "none: the job says `on: local`; it runs on this machine, as you")
    session.recover()
    runs = session.directory / "local"
    remove_leftovers(runs, session.locks.alive)

    runs_directory = Path(session.target.runs_dir or "runs").absolute()
    new, attempt = prepare.new_run(spec, path, LOCAL, runs_directory, session.now(LOCAL), bench=bench)
    bundle = prepare.bundle(spec, path, session.directory / "bundles")
    make_directory(Path(new.directory))
    output = JobOutput(Path(new.directory), session.reporter)
    here = LocalWorker(runs, attempt.id)
    job = local.prepare(spec, new, attempt, here, shipped=bundle, env=env, port=free_port(), sink=output)
    with closing(output):
        outcome = session.run(local.run_local(job), LOCAL)
    finish(session, outcome, [])

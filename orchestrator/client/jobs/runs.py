"""Run a job: checks, the plan of its place, the program, then the result."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import places, whole_file
from orchestrator.client import shown_logs
from orchestrator.client.events import RunResult
from orchestrator.client.jobs import job_files, results
from orchestrator.client.jobs.log_output import JobOutput, make_directory
from orchestrator.client.jobs.sleep_inhibitor import awake
from orchestrator.client.results import pages
from orchestrator.client.session import Session
from orchestrator.client.shown_logs import Choice
from orchestrator.core.lease.access import NO_WISH
from orchestrator.errors import TpujobError
from orchestrator.places.place import Prepared, Wish
from orchestrator.places.preparation import code, requirements
from orchestrator.run.job_run import JobRun, Lane
from orchestrator.run.program import run_job
from orchestrator.run.progress import Outcome

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec

DOCTOR = "tpujob doctor"


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
    cloud_is_named: bool = False  # by the command, not by the settings

    def wish(self) -> Wish:
        """Return what of it is for the place."""
        return Wish(
            self.keep_s,
            self.detach,
            self.cloud_is_named,
            one_of_several=self.lane is not None,
            has_slice=self.lane is not None and self.lane.lease is not None,
            sweep=self.sweep,
            check_workers=partial(shown_logs.check, "--logs", self.logs),
        )


def start_run(session: Session, spec: JobSpec, path: Path, options: RunOptions) -> RunResult:
    """Run a job and return its result; with `options.detach`, return once the job has started.

    `path` is the job file, or any path in the directory to which `code:` is relative. How the job ended, a failure included,
    is in the result. Raises UserError for what cannot be run, and CloudError or
    TpujobError for what comes before the first candidate is asked for: then nothing was created. Raises TeardownUnproven
    when signals ended the wait for the proof.
    """
    env = job_files.environment(spec, session.reporter)
    if options.max_duration_s is not None:
        spec = spec.with_max_duration(options.max_duration_s)
    if options.keep_on_failure_s is not None:
        spec = spec.with_keep_on_failure(options.keep_on_failure_s)
    place, wish = places.place_on(spec.on), options.wish()
    place.check(session, spec, path, wish)
    code.check_directories(spec, path)
    session.check_machine()
    if options.lane is None:
        for line in requirements.warnings(spec, path):
            session.reporter.notice("warning", line)
    with ExitStack() as stack:
        prepared = place.prepare(session, spec, env, path, wish, stack)
        outcome = _played(session, spec, options, prepared, stack)
    if not outcome.detached:
        place.tidy(session, outcome.run)
    if outcome.detached:
        return results.left_running(session, outcome, prepared.drafted)
    if outcome.error is not None and spec.access.wish != NO_WISH:
        outcome.error.hint = _about_the_job(outcome.error.hint, spec, path)
    result = results.finish(session, outcome, prepared.drafted)
    if options.sweep is None:
        results.watch_rest(session, outcome, prepared.stay)
    return result


def _played(session: Session, spec: JobSpec, options: RunOptions, prepared: Prepared, stack: ExitStack) -> Outcome:
    run, traits = prepared.run, prepared.stay.traits
    directory = Path(run.directory)
    try:
        make_directory(directory)
    except TpujobError:
        session.forget_drafts(prepared.drafted)
        raise
    for name, text in prepared.files.items():
        whole_file.replace(directory / name, text)
    output = stack.enter_context(closing(JobOutput(directory, session.reporter, spec)))
    job = JobRun(
        run=run,
        attempt=prepared.attempt,
        stay=prepared.stay,
        phases=prepared.phases,
        artifacts=tuple(spec.artifacts),
        directory=directory,
        sink=output,
        metrics=output.metrics,
        max_duration_s=spec.limits.max_duration_s,
        held=prepared.held,
        lane=options.lane if traits.held else None,
        shipment=prepared.shipment,
        keep_s=options.keep_s,
        keep_on_failure_s=spec.keep_on_failure,
        detach=options.detach,
        max_restarts=prepared.max_restarts,
        saved_work=prepared.saved_work,
        stall_s=spec.limits.stall if traits.watched else None,
        linger_s=spec.limits.linger,
        most_bytes=spec.limits.max_results,
        ports=spec.ports if traits.watched else (),
    )
    if traits.watched and not options.detach and options.lane is None:
        why = f"run {run.id} is attached to this machine"
        stack.enter_context(awake(session, why, else_do="; `tpujob submit` outlives that"))
    with pages.reported_if_it_raises(session, run):
        return session.on_cloud(lambda capabilities: run_job(job, capabilities), run.cloud)


def _about_the_job(hint: str | None, spec: JobSpec, path: Path) -> str | None:
    """Return the hint with the command that looks at the way of this job, which by itself looks at that of the settings."""
    words = ["tpujob", "doctor", *([str(path)] if path.is_file() else [])]
    if not path.is_file() and spec.access.wish.via not in (None, "auto"):
        words += ["--via", str(spec.access.wish.via)]
    return hint and hint.replace(f"`{DOCTOR}`", f"`{shlex.join(words)}`")

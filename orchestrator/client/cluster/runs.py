"""Run a job on a cluster, or follow one: the manifests, then the engine's program, then the result and the nodes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import whole_file
from orchestrator.client import shown_logs
from orchestrator.client.cluster import bucket
from orchestrator.client.cluster.draft import draft_of
from orchestrator.client.cluster.preparation import prepare
from orchestrator.client.events import RunResult
from orchestrator.client.jobs import data, results
from orchestrator.client.jobs.log_output import JobOutput, make_directory
from orchestrator.client.results import pages
from orchestrator.core.text import names
from orchestrator.errors import JobSpecError, TpujobError, UserError
from orchestrator.places.gke.api import clusters
from orchestrator.places.gke.nodes import report_nodes
from orchestrator.places.gke.objects.yaml_text import to_yaml
from orchestrator.places.gke.stay import ClusterStay
from orchestrator.places.place import STATES, Phase
from orchestrator.report.cluster_plan import cluster_plan_lines, program_line
from orchestrator.run.job_run import JobRun
from orchestrator.run.preparation import runs
from orchestrator.run.program import run_job
from orchestrator.settings import GKE

if TYPE_CHECKING:
    from orchestrator.client.cluster.preparation import Prepared
    from orchestrator.client.jobs.runs import RunOptions
    from orchestrator.client.session import Session
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.core.lease.run_and_attempt import RunRecord
    from orchestrator.run.progress import Outcome

MANIFEST = "jobset.yaml"  # in the directory of a run: what was submitted, without the values of the Secret


def run_there(session: Session, spec: JobSpec, env: Mapping[str, str], path: Path, options: RunOptions) -> RunResult:
    """Run a job on its cluster and return its result; with `options.detach`, return once its JobSet is submitted.

    Parameters, results and errors are those of `client.jobs.runs.start_run`.
    """
    _check(spec, options)
    fetched = data.lines_of(session, spec) if options.sweep is None else []
    session.recover(look=True)
    record, attempt = runs.new_run(spec, path, GKE, session.runs_directory, session.now(GKE), sweep=options.sweep)
    env = {**env, **bucket.variables(spec)}
    lease_id = names.new_run_id(secrets.randbits(names.RUN_BITS))
    with ExitStack() as stack:
        made = prepare(session, spec, path, run=record.id, lease_id=lease_id, env=env, stack=stack)
        target = made.job.target
        project = clusters.identity(target.context, target.cluster, os.environ)
        documents = made.documents()
        draft = draft_of(
            session, spec, made.job, documents, project=project, run=record.id, lease_id=lease_id, detach=options.detach
        )
        record = replace(record, spec=record.spec.having(cluster=_about(made)))
        shown_logs.check("--logs", options.logs, made.job.pods)
        bucket.check(session, spec, target.location or clusters.location(project))
        if options.sweep is None:  # of a sweep, it was said before the first of its runs
            session.reporter.notice("cloud", f"cluster {clusters.short_name(project)}: `on: gke`")
            for line in (*cluster_plan_lines(made.job), program_line(made.job.program), *fetched):
                session.reporter.notice("plan", line)
        make_directory(Path(record.directory))
        without_secret = [each for each in documents if each["kind"] != "Secret"]
        whole_file.replace(Path(record.directory) / MANIFEST, to_yaml(without_secret))
        output = stack.enter_context(closing(JobOutput(Path(record.directory), session.reporter, spec)))
        stay = ClusterStay((draft,), upload=_upload(session, made), bucket=run_bucket(record))
        job = JobRun(
            run=record,
            attempt=attempt,
            stay=stay,
            phases=tuple(Phase(name, STATES[name]) for name in record.spec.cluster.phases),
            artifacts=tuple(spec.artifacts),
            directory=Path(record.directory),
            sink=output,
            metrics=output.metrics,
            max_duration_s=spec.limits.max_duration_s,
            detach=options.detach,
            most_bytes=spec.limits.max_results,
        )

        with pages.reported_if_it_raises(session, record):
            outcome = session.on_cloud(lambda capabilities: run_job(job, capabilities), GKE)
    if not outcome.detached:
        bucket.remove_code(session.reporter, record)
    if outcome.detached:
        return results.left_running(session, outcome, ())
    result = results.finish(session, outcome)
    if options.sweep is None:
        watch_nodes(session, outcome, stay.seen.nodes)
    return result


def watch_nodes(session: Session, outcome: Outcome, nodes: tuple[str, ...]) -> None:
    """Watch the nodes that ran the job until the cluster has deleted them, for a bounded time. Ctrl-C ends that."""
    if outcome.lease is None or not nodes or outcome.unproven:
        return
    try:
        session.run(report_nodes(outcome.lease.name.project, nodes), GKE)
    except TpujobError as error:  # nothing depends on the watch
        session.reporter.notice("nodes", f"not watched any more: {error.message}")


def _check(spec: JobSpec, options: RunOptions) -> None:
    if options.keep_s is not None:
        raise UserError("--keep holds a slice: on a cluster nothing is left to hold once the pods have ended")
    if spec.keep_on_failure is not None:
        why = "holds a slice: on a cluster nothing is left to hold once the pods have ended; remove it"
        raise JobSpecError([spec.mistake(("keep_on_failure",), why)])


def _about(made: Prepared) -> dict[str, Any]:
    """What the record of a run says of its objects, for later commands."""
    phases = [each["name"] for each in made.job.program.request["phases"]]
    return {"phases": phases, "pods": made.job.pods, "code_object": made.code_object}


def _upload(session: Session, made: Prepared) -> Callable[[], None] | None:
    """Return what stores the code that no ConfigMap holds; None if there is none."""
    return None if made.upload is None else partial(bucket.upload, session.reporter, made.upload, made.code_object)


def run_bucket(run: RunRecord) -> str | None:
    """Return where the results of a run are in its bucket; None for a run without one."""
    return f"{run.spec.bucket}/{run.id}" if run.spec.bucket else None

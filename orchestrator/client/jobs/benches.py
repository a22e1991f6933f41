"""Run the variants of a job one after the other. What succeeded before is not run again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.client.jobs.code import shipment_of
from orchestrator.client.jobs.job_files import environment, read_file
from orchestrator.client.jobs.results import command_exit_code
from orchestrator.client.jobs.runs import RunOptions, start_run
from orchestrator.core.jobfile import keys, variants
from orchestrator.core.lease.run_and_attempt import LOCAL, AttemptState
from orchestrator.core.text import names
from orchestrator.engine.jobs import prepare

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.jobfile.keys import JobSpec

# After these codes the next variant may fare better: the job's own, damaged artifacts, no capacity, a lost slice, time.
GO_ON = {*range(1, 64), 65, 69, 71, 124}


@dataclass(frozen=True, slots=True)
class BenchResult:
    """`runs` has the newest run of each variant that succeeded, in the order of the file."""

    runs: tuple[str, ...]
    failed: Mapping[str, int]  # variant → exit code
    stopped: bool  # before the last variant; the same call continues there
    exit_code: int


def run_bench(session: Session, file: Path, *, again: bool = False) -> BenchResult:
    """Run the variants of a bench file; with `again`, also those that succeeded before with the same job, code and cloud.

    Each variant reports a RunResult when it ends. Raises JobSpecError before the first one for a mistake in any of them,
    and what `start_run` raises.
    """
    base, specs = _read(file)
    done_keys = {name: _key(session, spec, base) for name, spec in specs.items()}
    _check(session, specs, base)
    failed: dict[str, int] = {}
    for number, (name, spec) in enumerate(specs.items(), 1):
        title = f"{name} ({number} of {len(specs)})"
        run = None if again else _succeeded(session, done_keys[name])
        if run is not None:
            session.reporter.notice("bench", f"{title}: done before, run {run}; --again runs it again")
            continue
        session.reporter.notice("bench", title)
        env = environment(spec, session.reporter)
        result = start_run(session, spec, env, base, RunOptions(bench={"variant": name, "key": done_keys[name]}))
        if (code := command_exit_code(session, result)) == 0:
            continue
        failed[name] = code
        session.reporter.notice("bench", f"{name} ended with code {code}")
        if code not in GO_ON:
            session.reporter.notice("bench", "stopped; the same command continues here")
            return BenchResult((), failed, True, code)
    runs = tuple(run for name in specs if name not in failed and (run := _succeeded(session, done_keys[name])))
    return BenchResult(runs, failed, False, session.exit_code(next(iter(failed.values()), 0)))


def _read(file: Path) -> tuple[Path, dict[str, JobSpec]]:
    """Return the path of the base job, to which paths in the variants are relative, and the variants, all checked."""
    outline = variants.outline(read_file(file), path=str(file), default_name=names.to_job_name(file.stem))
    base = file.parent / outline.base
    return base, variants.variants(outline, read_file(base), base_path=str(base))


def _check(session: Session, specs: Mapping[str, JobSpec], base: Path) -> None:
    """Raise UserError for what any variant lacks, before the first one is run."""
    for spec in specs.values():
        prepare.check_directories(spec, base)
        keys.resolve_env(spec, os.environ)
        if spec.train is not None and spec.on == "local":
            prepare.check_local_training(spec.train.backend, "a job with `on: local` trains")
        elif spec.train is not None and session.target.kind == "emulated":
            prepare.check_local_training("none" if spec.train.backend == "none" else "xla")


def _key(session: Session, spec: JobSpec, base: Path) -> str:
    """Return the same key for the same work: the job as resolved (secrets by name only), its code and data, the cloud."""
    with ExitStack() as stack:
        shipment = shipment_of(session, spec, base, stack)
    cloud = LOCAL if spec.on == "local" else f"{session.target.kind} {session.target.project}"
    work = {"job": spec.model_dump(mode="json"), "code": shipment.id if shipment else None, "cloud": cloud}
    return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()


def _succeeded(session: Session, key: str) -> str | None:
    """Return the newest run of this very work that succeeded and whose files are still there."""
    for run, attempt in session.ledger.runs():
        if (
            (run.spec.get("bench") or {}).get("key") == key
            and attempt.state is AttemptState.SUCCEEDED
            and Path(run.directory, "worker0").is_dir()
        ):
            return run.id
    return None

"""The record of a run, before it begins."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UserError
from orchestrator.job.rules.env import secret_sources
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.promise.lease.run_spec import RunSpec
from orchestrator.text import names

OF_A_SWEEP = {"matrix", "variants", "parallel"}  # keys that no single job has

if TYPE_CHECKING:
    from orchestrator.job.job_spec import JobSpec


def _printable(path: Path) -> str:
    return str(path).encode("utf-8", "replace").decode()


def new_run(
    spec: JobSpec,
    job_path: Path,
    cloud: str,
    runs_directory: Path,
    now: float,
    *,
    sweep: Mapping[str, Any] | None = None,
) -> tuple[RunRecord, Attempt]:
    """Return a new run and its first attempt. `now`: the ledger's time of this cloud. `sweep`: of which sweep it is, and
    which of its variants.
    """
    run_id = names.new_run_id(secrets.randbits(names.RUN_BITS))
    directory = runs_directory / f"{spec.name}-{run_id}"
    job_text, directory_text = _printable(job_path), _printable(directory)
    if directory_text != str(directory):
        raise UserError(
            f"{directory_text}: a path that is not UTF-8", hint="run from another directory, or set runs_dir"
        )
    described: dict[str, Any] = spec.model_dump(mode="json", exclude={"env", *OF_A_SWEEP})
    described["secret_sources"] = secret_sources(spec.env)  # names: `attach` hides their values too
    if sweep is not None:
        described["sweep"] = dict(sweep)
    run = RunRecord(run_id, str(spec.name), job_text, cloud, now, directory_text, RunSpec.of(described))
    return run, Attempt(id=f"{run_id}-1", run_id=run_id)


def record_of(run: RunRecord, attempt: Attempt) -> dict[str, Any]:
    """Return what worker 0 keeps of an attempt, for machines that have not the ledger: JSON values, none of them secret."""
    told = {key: value for key, value in asdict(run).items() if key not in ("spec", "directory")}
    return {"run": {**told, "spec": run.spec.values}, "attempt": attempt.id}


def read_record(record: Mapping[str, Any], runs_directory: Path) -> tuple[RunRecord, Attempt] | None:
    """Return the run and the attempt of such a record, with a directory on this machine; None if it cannot be read."""
    told, attempt = record.get("run"), record.get("attempt")
    if not isinstance(told, dict) or not isinstance(attempt, str):
        return None
    texts = [told.get(key) for key in ("id", "name", "job_path", "cloud")]
    run_id, name, job_path, cloud = (each if isinstance(each, str) else "" for each in texts)
    created_at = told.get("created_at")
    is_whole = names.is_run_id(run_id) and names.job_name_problem(name) is None and attempt.startswith(f"{run_id}-")
    if not is_whole or not isinstance(created_at, int | float):
        return None
    directory = str(runs_directory / f"{name}-{run_id}")
    spec = RunSpec.of(told.get("spec"))
    return RunRecord(run_id, name, job_path, cloud, float(created_at), directory, spec), Attempt(attempt, run_id)

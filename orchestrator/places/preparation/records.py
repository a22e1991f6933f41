"""The record of a run, before it begins."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UserError
from orchestrator.job.rules.env import secret_sources
from orchestrator.job.rules.notify import variable_of
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
    address = variable_of(spec.notify.url) if spec.notify is not None else None
    # Names: `attach` hides their values too.
    described["secret_sources"] = [*secret_sources(spec.env), *filter(None, [address])]
    if sweep is not None:
        described["sweep"] = dict(sweep)
    run = RunRecord(run_id, str(spec.name), job_text, cloud, now, directory_text, RunSpec.of(described))
    return run, Attempt(id=f"{run_id}-1", run_id=run_id)

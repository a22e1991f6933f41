"""The record of a run, before it begins."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UnknownRun, UserError
from orchestrator.job.rules.env import secret_sources
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.promise.lease.run_spec import RunSpec
from orchestrator.text import names

OF_A_SWEEP = {"matrix", "variants", "parallel"}  # keys that no single job has

if TYPE_CHECKING:
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.promise.ledger.ledger import Ledger


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
    run_id: str | None = None,
) -> tuple[RunRecord, Attempt]:
    """Return a new run and its first attempt. `now`: the ledger's time of this cloud. `sweep`: of which sweep it is, and
    which of its variants. `run_id`: of a run that began elsewhere.
    """
    run_id = run_id or names.new_run_id(secrets.randbits(names.RUN_BITS))
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


def next_attempt(ledger: Ledger, run: RunRecord, last: int) -> tuple[RunRecord, Attempt]:
    """Return a run that goes on, and its attempt after number `last`: as this machine knows it, or else `run`.

    Raises UserError for a run of this machine that has not ended, or that was canceled.
    """
    with contextlib.suppress(UnknownRun):
        run, attempt = ledger.run(run.id)
        if not attempt.state.ended or attempt.state is AttemptState.CANCELED:
            state = "was canceled" if attempt.state.ended else "has not ended"
            raise UserError(f"{run.id} {state}", hint=f"`tpujob show {run.id}` says what became of it")
        last = max(last, attempt.number)
    return run, Attempt(id=f"{run.id}-{last + 1}", run_id=run.id)

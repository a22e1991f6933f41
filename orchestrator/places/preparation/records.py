"""The record of a run, before it begins."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import Canceled, UnknownRun, UserError
from orchestrator.job.rules.env import secret_sources
from orchestrator.job.rules.notify import variable_of
from orchestrator.promise.lease.lease import CANCEL
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.promise.lease.run_spec import RunSpec
from orchestrator.text import names

MOST_PATH_CHARS, LATEST = 4096, 4e9  # of a record of another machine
OF_THIS_MACHINE = {"notify", "access"}  # keys of a job that say what this machine runs
MOST = {"max_results": 10 << 30, "max_log": 100 << 20}  # bytes, where such a record names no limit
OF_A_SWEEP = {"matrix", "variants", "parallel"}  # keys that no single job has

if TYPE_CHECKING:
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.promise.lease.lease import Lease
    from orchestrator.promise.ledger.ledger import Ledger


def _printable(path: Path) -> str:
    return str(path).encode("utf-8", "replace").decode()


def values_of(spec: JobSpec) -> dict[str, Any]:
    """Return what the record of a run keeps of its job: JSON values, none of them secret."""
    described: dict[str, Any] = spec.model_dump(mode="json", exclude={"env", *OF_A_SWEEP})
    address = variable_of(spec.notify.url) if spec.notify is not None else None
    # Names: `attach` hides their values too.
    described["secret_sources"] = [*secret_sources(spec.env), *filter(None, [address])]
    return described


def new_run(
    spec: JobSpec,
    job_path: Path,
    cloud: str,
    runs_directory: Path,
    now: float,
    *,
    sweep: Mapping[str, Any] | None = None,
    run_id: str | None = None,
    queued: bool = False,
) -> tuple[RunRecord, Attempt]:
    """Return a new run and its first attempt. `now`: the ledger's time of this cloud. `sweep`: of which sweep it is, and
    which of its variants. `run_id`: of a run that began elsewhere. `queued`: a queue makes its attempts.
    """
    run_id = run_id or names.new_run_id(secrets.randbits(names.RUN_BITS))
    directory = runs_directory / f"{spec.name}-{run_id}"
    job_text, directory_text = _printable(job_path), _printable(directory)
    if directory_text != str(directory):
        raise UserError(
            f"{directory_text}: a path that is not UTF-8", hint="run from another directory, or set runs_dir"
        )
    described = values_of(spec)
    if sweep is not None:
        described["sweep"] = dict(sweep)
    if queued:
        described["queued"] = True
    run = RunRecord(run_id, str(spec.name), job_text, cloud, now, directory_text, RunSpec.of(described))
    return run, Attempt(id=f"{run_id}-1", run_id=run_id)


def record_of(run: RunRecord, attempt: Attempt) -> dict[str, Any]:
    """Return what worker 0 keeps of an attempt, for machines that have not the ledger: JSON values, none of them secret."""
    told = {key: value for key, value in asdict(run).items() if key not in ("spec", "directory")}
    return {"run": {**told, "spec": run.spec.values}, "attempt": attempt.id}


def read_record(
    record: Mapping[str, Any], attempt: str, lease: Lease, runs_directory: Path
) -> tuple[RunRecord, Attempt] | None:
    """Return the run and the attempt of such a record, with a directory on this machine; None if it cannot be read.

    `attempt`: whose directory on the worker has it. The worker may say anything: what names files here, and what is known of
    the slice without it, is not taken from there.
    """
    told = record.get("run")
    if not isinstance(told, dict) or lease.run is None or record.get("attempt") != attempt:
        return None
    name, job_path, created_at = (told.get(key) for key in ("name", "job_path", "created_at"))
    number = attempt.removeprefix(f"{lease.run}-")
    is_whole = told.get("id") == lease.run and re.fullmatch(r"[1-9][0-9]{0,3}", number) is not None
    if not is_whole or not isinstance(name, str) or names.to_label_value(name) != names.to_label_value(lease.handle):
        return None
    if names.job_name_problem(name) is not None or not isinstance(job_path, str) or len(job_path) > MOST_PATH_CHARS:
        return None
    if not isinstance(created_at, float) or not 0 < created_at < LATEST:
        created_at = lease.created_at
    values = told.get("spec")
    # What is run on this machine, or told to whom, is not for a worker to say: the settings of this one count.
    spec = RunSpec.of(
        {key: value for key, value in values.items() if key not in OF_THIS_MACHINE} if isinstance(values, dict) else {}
    )
    if spec.limits.max_results is None or spec.limits.max_log is None:  # no worker says how much this disk takes
        spec = RunSpec.of({**spec.values, "limits": {**dict(spec.values.get("limits") or {}), **MOST}})
    directory = str(runs_directory / f"{name}-{lease.run}")
    run = RunRecord(lease.run, name, names.for_path(job_path), lease.cloud, created_at, directory, spec)
    return run, Attempt(attempt, lease.run)


def next_attempt(ledger: Ledger, run: RunRecord, last: int, *, exact: bool = False) -> tuple[RunRecord, Attempt]:
    """Return a run that goes on, and its attempt after number `last`: as this machine knows it, or else `run`.

    `exact`: the queue counts its attempts, and not this ledger.

    Raises UserError for a run of this machine that has not ended, or that was canceled.
    """
    with contextlib.suppress(UnknownRun):
        run, attempt = ledger.run(run.id)
        if exact and attempt.state is AttemptState.CANCELED:
            raise Canceled(CANCEL)
        if not exact and (not attempt.state.ended or attempt.state is AttemptState.CANCELED):
            state = "was canceled" if attempt.state.ended else "has not ended"
            raise UserError(f"{run.id} {state}", hint=f"`tpujob show {run.id}` says what became of it")
        last = last if exact else max(last, attempt.number)
    return run, Attempt(id=f"{run.id}-{last + 1}", run_id=run.id)

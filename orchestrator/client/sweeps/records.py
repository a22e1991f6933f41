"""Sweeps in the ledger: which variants one has, and what became of each, by the runs of this machine.

A sweep is alive while its process holds its lock. The key of a variant stands for its work: the job as resolved, its code and
data, and the cloud. A run with that key that succeeded counts in every later sweep.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import places
from orchestrator.client.events import VariantResult
from orchestrator.client.jobs import results
from orchestrator.client.jobs.code import shipment_of, survey_of
from orchestrator.client.sweeps.board import result_of
from orchestrator.client.sweeps.progress import living_records, lock_of
from orchestrator.core.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.core.text import names
from orchestrator.errors import UserError
from orchestrator.ledger.rows import SweepRecord, VariantRecord
from orchestrator.run.preparation import requirements, runs

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.client.sweeps.sweeps import SweepRequest
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.core.jobfile.sweep import Sweep

STARTING = "sweeps"  # the lock of a sweep that looks whether another one does the same


def work_key(session: Session, spec: JobSpec, path: Path) -> str:
    """Return the same key for the same work: the job as resolved (secrets by name only), its code and data, the cloud."""
    with ExitStack() as stack:
        shipment = shipment_of(session, survey_of(session, spec, path), stack)
        code = shipment.id if shipment else None
        asked = requirements.read(spec, path, code_sha256=code)
    cloud = f"{session.target.kind} {session.target.project}" if places.traits_on(spec.on).billed else spec.on
    job = spec.model_dump(mode="json", exclude={"name", *runs.OF_A_SWEEP})
    work = {"job": job, "code": code, "environment": asdict(asked), "cloud": cloud}
    return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()


def done_before(session: Session, sweep: Sweep, work_keys: Mapping[int, str]) -> dict[int, VariantResult]:
    """Return the variants of which a run succeeded before, and its files are still there."""
    succeeded: dict[str, tuple[RunRecord, Attempt]] = {}
    for run, attempt in session.ledger.runs():
        key = run.spec.sweep.key
        if key and attempt.state is AttemptState.SUCCEEDED and Path(run.directory, "worker0").is_dir():
            succeeded.setdefault(key, (run, attempt))
    found = {}
    for variant in sweep.variants:
        if pair := succeeded.get(work_keys[variant.number]):
            run, attempt = pair
            lease = session.ledger.lease(attempt.lease_id) if attempt.lease_id else None
            result = replace(results.recorded(session, run, attempt, lease), variant=variant.label)
            made = replace(result_of(variant), state=result.state, run=run.id, exit_code=0, done_before=True)
            found[variant.number] = replace(made, result=result)
    return found


@contextmanager
def recorded(
    session: Session, request: SweepRequest, work_keys: Mapping[int, str], done: Mapping[int, VariantResult]
) -> Iterator[SweepRecord]:
    """Record the sweep, for `status` and `compare`. It is alive while its lock is held: within this block, and this process.

    Raises UserError if another process runs a variant of it already.
    """
    sweep = request.sweep
    rows = tuple(
        VariantRecord(
            variant.number,
            variant.name,
            variant.label,
            dict(variant.params),
            work_keys[variant.number],
            done[variant.number].run if variant.number in done else None,
        )
        for variant in sweep.variants
    )
    identity = names.new_run_id(secrets.randbits(names.RUN_BITS))
    record = SweepRecord(identity, sweep.name, str(request.path), session.now(), rows)
    session.lock(STARTING)
    try:
        mine = {key for number, key in work_keys.items() if number not in done}
        for other in living_records(session):
            if mine & {each.key for each in other.variants}:
                hint = "`tpujob status` shows how far it is"
                raise UserError(f"{other.name} is being run already, by another process", hint=hint)
        session.ledger.record_sweep(record)
        session.locks.lock(lock_of(record))
    finally:
        session.locks.unlock(STARTING)
    try:
        yield record
    finally:
        session.locks.unlock(lock_of(record))


def of_run(row: VariantRecord) -> dict[str, Any]:
    """Return what a run's record has about its variant."""
    return {key: getattr(row, key) for key in ("number", "variant", "params", "key")}

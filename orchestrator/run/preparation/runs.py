"""What a job asks for, the held slice that fits, and the record of its run. Sends nothing."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.jobfile.rules.env import secret_sources
from orchestrator.core.lease.lease import HeldFor, Lease, LeaseState
from orchestrator.core.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.core.lease.run_spec import RunSpec
from orchestrator.core.lease.timings import Timings
from orchestrator.core.planning.capacity_request import CapacityRequest
from orchestrator.core.planning.plan import Plan
from orchestrator.core.text import names
from orchestrator.errors import UserError

OF_A_SWEEP = {"matrix", "variants", "parallel"}  # keys that no single job has

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec


def capacity_requests(spec: JobSpec, timings: Timings, *, keep_s: float = 0.0) -> tuple[CapacityRequest, ...]:
    """Return what the job asks for, one request for each alternative. `keep_s`: hold the slice so long after a success."""
    held_s = max(keep_s, spec.keep_on_failure or 0.0)
    return tuple(
        CapacityRequest(
            accelerator=one.accelerator,
            places=one.zone,
            runtime=one.runtime,
            provisioning=one.effective_provisioning,
            queue=one.queue,
            max_duration_s=spec.limits.max_duration_s + held_s,
            max_cost=spec.limits.max_cost,
            absent_s=timings.absent_s,
            unlisted=one.unlisted,
        )
        for one in spec.tpu.alternatives
    )


def fits(lease: Lease, plan: Plan, spec: JobSpec, now: float) -> bool:
    """Return whether the job can run on this held slice: it is READY, fits an alternative, and has time enough.

    One that is held because a job failed is for the next run of that job, which may use it up to its deadline.
    """
    retried = lease.held_for is HeldFor.FAILURE
    ends_at = lease.deadline if retried else lease.ends_at
    planned = {(one.accelerator_type, one.zone, one.spot) for one in plan.candidates}
    return (
        lease.state is LeaseState.READY
        and lease.hold_until is not None
        and (not retried or lease.handle == spec.name)
        and (lease.accelerator_type, lease.name.zone, lease.spot) in planned
        and any(
            lease.accelerator_type == one.accelerator
            and lease.spot == one.effective_provisioning.spot
            and one.runtime in (None, lease.runtime_version)
            for one in spec.tpu.alternatives
        )
        and ends_at - now > min(spec.limits.max_duration_s, 600)
    )


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

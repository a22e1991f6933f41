"""What a job on VMs asks for, and the held slice that fits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.capacity.capacity_request import CapacityRequest
from orchestrator.capacity.plan import Plan
from orchestrator.promise.lease import access
from orchestrator.promise.lease.access import AccessWish
from orchestrator.promise.lease.cloud_api import Timings
from orchestrator.promise.lease.lease import HeldFor, Lease, LeaseState
from orchestrator.promise.lease.run_and_attempt import has_uncollected_results

if TYPE_CHECKING:
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.places.desk import Desk


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


def held_slice(desk: Desk, plan: Plan, spec: JobSpec, *, say: bool = False) -> Lease | None:
    """Return the held slice on which the job can run: of this job since it failed, else of `tpujob up`, rather a free one.

    One that is reached otherwise than the job says is none of them. `say`: report that.
    """
    fitting = []
    for lease in desk.open_leases():
        if not fits(lease, plan, spec, desk.now()) or _waits_for_results(desk, lease):
            continue
        why_not = access.contradiction(lease.route, _made_with(desk, lease), spec.access.wish)
        if why_not is None:
            fitting.append(lease)
        elif say:
            desk.reporter.notice("plan", f"not on {lease.name.node} ({lease.handle}): {why_not}")
    ordered = sorted(fitting, key=lambda lease: (lease.held_for is not HeldFor.FAILURE, desk.locks.is_locked(lease.id)))
    return next(iter(ordered), None)


def _waits_for_results(desk: Desk, lease: Lease) -> bool:
    attempts = [] if lease.run is None else desk.ledger.attempts_of(lease.run)
    return bool(attempts) and has_uncollected_results(attempts[-1], lease)


def _made_with(desk: Desk, lease: Lease) -> AccessWish:
    """Return what `access:` said when the slice was created: that of its run, else that of the settings."""
    said = next((run.spec.access for run, _ in desk.ledger.runs() if run.id == lease.run), AccessWish())
    made = AccessWish(
        network=said.network or None,
        subnetwork=said.subnetwork or None,
        tags=said.tags or None,
        secure_boot=said.secure_boot or None,
    )
    return made.over(desk.target.access)

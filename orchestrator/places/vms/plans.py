"""What every plan of slices shares: its inputs beside the shipped table, its sentences, and where its slices are created."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from orchestrator.capacity import grants
from orchestrator.capacity.capacity_request import PlanInputs
from orchestrator.capacity.plan import Plan
from orchestrator.places.desk import Desk
from orchestrator.places.preparation import buckets
from orchestrator.places.vms.known import known_availability, rules_of
from orchestrator.places.vms.plan_lines import dropped_lines, plan_lines
from orchestrator.promise.lease import access
from orchestrator.promise.lease.access import AccessWish
from orchestrator.promise.lease.lease import Purpose
from orchestrator.promise.lease.periods import is_emulated
from orchestrator.promise.obtain.drafts import PlanDrafter, Site
from orchestrator.text.units import format_duration, format_size

if TYPE_CHECKING:
    from orchestrator.capacity.egress import Bucket
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.promise.obtain.startup_script import Watched


DEFAULT_EMULATED_CORES = 2
DOCTOR_OF = "tpujob doctor JOB.yaml"  # or --via: about another way than that of the settings


def known_to(desk: Desk, spec: JobSpec | None = None) -> PlanInputs:
    """Return the plan inputs. `spec`: the job, whose bucket is looked up; an unknown region is reported. Raises BadRequest."""
    return PlanInputs(
        grants=grants.remaining(desk.target.grants, _used(desk)),
        availability=known_availability(desk),
        buckets=_buckets(desk, spec) if spec is not None else (),
    )


def _used(desk: Desk) -> list[tuple[str, str, bool]]:
    """Return the slices in this machine's ledger. Those of other machines count when the cloud refuses a request."""
    return [(lease.accelerator_type, lease.name.zone, lease.spot) for lease in desk.open_leases()]


def _buckets(desk: Desk, spec: JobSpec) -> tuple[Bucket, ...]:
    """Return the job's buckets and their regions; none where no region is excluded. Raises BadRequest if one is missing."""
    emulated = is_emulated(desk.target.kind)
    emulator = os.environ.get("STORAGE_EMULATOR_HOST") if emulated else None
    return () if emulated and not emulator else buckets.buckets_of(desk, spec, emulator)


def drafter(
    desk: Desk, plan: Plan, wish: AccessWish, watched: Watched, *, purpose: Purpose, **about: Any
) -> PlanDrafter:
    """Return what drafts the slices of a plan. Raises ConfigError where this machine could not use them."""
    where = place(desk, wish, watched)
    route = access.route(where.access, where.rules())
    files = 1 if route.via is not access.Via.IAP and route.ssh_proxy_command is None else 3
    workers = max(candidate.workers for candidate in plan.candidates)
    desk.check_machine(*((workers, files) if purpose is not Purpose.HOLD else ()))
    return PlanDrafter(plan, where, purpose=purpose, **about)


def place(desk: Desk, wish: AccessWish, watched: Watched) -> Site:
    """Return where the slices of this session are created. `wish`: of the job or the command, before the settings' own."""
    rules = rules_of(desk)
    return Site(
        cloud=desk.target.kind,
        project=desk.target.project,
        owner=desk.owner,
        lease_directory=desk.lease_directory,
        timings=desk.target.timings,
        now=desk.certain_now,
        watched=watched,
        access=wish.over(desk.target.access),
        rules=rules.known,
        learn=rules.learn,
        service_account=desk.target.service_account,
    )


def lines_of(
    desk: Desk,
    plan: Plan,
    emulated_cores: int | None = None,
    spec: JobSpec | None = None,
    wish: AccessWish = access.NO_WISH,
    *,
    after_held: bool = False,
) -> list[str]:
    """Return the plan in sentences. `spec`: of the job that is to run there, or `wish`, without a job.

    `after_held`: the plan is for the case that a held slice cannot be used.
    """
    wish = (wish if spec is None else spec.access.wish).over(desk.target.access)
    emulated = is_emulated(desk.target.kind)
    has_code = spec is not None and (spec.train is None or spec.train.entry is not None)
    has_python = spec is not None and spec.python is not None
    backend = spec.train.backend if spec is not None and spec.train is not None else None
    lines = plan_lines(
        plan,
        desk.now(),
        emulated=emulated,
        emulated_cores=emulated_cores,
        overlap_s=desk.target.timings.absent_s,
        python="{}.{}".format(*sys.version_info) if emulated and has_code and not has_python else None,
        torch_tpu=backend == "tpu" and not has_python,
        chooses_torch=backend == "auto",
    )
    if (taken := access.route(wish, rules_of(desk).known())) != access.DIRECT:
        whose = "workers of a new slice" if after_held else "the workers"
        lines.append(f"{whose} are reached {access.describe(taken)}")
    if taken.via is not access.Via.EXTERNAL:
        needs = "their watchdog needs Private Google Access, and packages need Cloud NAT or an index in the network"
        doctor = "tpujob doctor" if taken == access.route(desk.target.access, rules_of(desk).known()) else DOCTOR_OF
        lines.append(f"they have no external address: {needs} (`{doctor}` looks)")
    if spec is not None and spec.keep_on_failure is not None:
        for_s = format_duration(spec.keep_on_failure)
        lines.append(f"keeps the slice of a job that fails for {for_s} (keep_on_failure), which end and price include")
    if spec is not None and buckets.saves(spec):
        lines.append(buckets.saving_line(spec))
    if spec is not None and spec.limits.max_results is not None:
        lines.append(f"collects {format_size(spec.limits.max_results)} of results at most (limits.max_results)")
    return [*lines, *dropped_lines(plan.dropped)]

"""The base of a place whose workers are VMs: a slice is planned, held ones are used again, and the job is sent over SSH."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.capacity.capacity_request import CapacityRequest
from orchestrator.capacity.plan import CandidateOrder, Plan, make
from orchestrator.errors import JobSpecError, UserError
from orchestrator.hosts.fleet.saved_work import SavedWork
from orchestrator.hosts.transfer.collect import MOST_BESIDE
from orchestrator.job.job_spec import resolve_env
from orchestrator.job.rules.env import secret_sources
from orchestrator.places.leased import LeasedPlace
from orchestrator.places.place import STATES, CompileTarget, Phase, PlanMade, Prepared, Stay, Wish
from orchestrator.places.preparation import buckets, code, records, resolving
from orchestrator.places.preparation.code import shipment_of, survey_of
from orchestrator.places.preparation.phases import Emulation, phases
from orchestrator.places.preparation.resolving import EMULATED, TPU_VM
from orchestrator.places.vms import plans
from orchestrator.places.vms.plan_lines import table
from orchestrator.places.vms.reach import Reach
from orchestrator.places.vms.stay import VmStay
from orchestrator.promise.lease import access
from orchestrator.promise.lease.access import AccessWish
from orchestrator.promise.lease.lease import HeldFor, Lease, LeaseState, Purpose
from orchestrator.promise.lease.periods import Timings, is_emulated
from orchestrator.promise.lease.run_and_attempt import SavedState, has_uncollected_results
from orchestrator.text.units import day_clock

if TYPE_CHECKING:
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.places.desk import Desk
    from orchestrator.promise.lease.run_and_attempt import RunRecord
    from orchestrator.promise.obtain.drafts import Draft
    from orchestrator.promise.obtain.startup_script import Watched
    from orchestrator.traits import Traits


class VmPlace(LeasedPlace):
    """What a place of VMs does not say of itself: `traits`, what its watchdog asks, its create call, its client."""

    traits: Traits
    watched: Watched

    def request_of(self, draft: Draft) -> Mapping[str, Any]:
        """Return method, url and body of the create call of a draft."""
        raise NotImplementedError

    def check(self, desk: Desk, spec: JobSpec, path: Path, wish: Wish) -> None:
        if wish.keep_s is not None and wish.detach:
            raise UserError("--keep holds the slice of an attached run; the slice of a detached run deletes itself")
        if spec.keep_on_failure is not None and wish.detach:
            why = "holds the slice of an attached run; the slice of a detached run deletes itself"
            raise JobSpecError([spec.mistake(("keep_on_failure",), f"{why}; run it attached, or leave this out")])
        if wish.detach and spec.on_preemption == "restart" and spec.bucket is None and wish.queued is None:
            raise UserError(
                "on_preemption: restart has no effect on a detached run: no process starts the next attempt",
                hint="put it into the queue (`tpujob submit`), run it attached (`tpujob run`), add a `bucket:` for its saved "
                "work, or leave on_preemption out",
            )
        code.check_bucket(spec, desk.target.kind, os.environ)
        code.check_python(spec, desk.target.kind)
        if is_emulated(desk.target.kind) and spec.train is not None and not wish.only_plan:
            code.check_local_training("none" if spec.train.backend == "none" else "xla")

    def capacity(self, desk: Desk, spec: JobSpec, wish: Wish) -> Plan:
        return make(
            capacity_requests(spec, desk.target.timings, keep_s=wish.keep_s or 0.0),
            default_zone=desk.target.zone,
            order=CandidateOrder(spec.tpu.order),
            max_price_per_hour=spec.tpu.max_price_per_hour,
            race=spec.tpu.race,
            wait_s=spec.tpu.wait if wish.queued is None or any(one.queue for one in spec.tpu.alternatives) else 0.0,
            inputs=plans.known_to(desk, spec),
        )

    def describe(self, desk: Desk, spec: JobSpec, plan: Plan) -> list[str]:
        return plans.lines_of(desk, plan, spec=spec)

    def plan(self, desk: Desk, spec: JobSpec, path: Path) -> PlanMade:
        plan = self.capacity(desk, spec, Wish())
        drafter = plans.drafter(desk, plan, spec.access.wish, self.watched, handle=str(spec.name), purpose=Purpose.RUN)
        requests = tuple(map(self.request_of, drafter.make()))
        desk.forget_drafts(drafter.made)
        overlap_usd = plan.overlap_usd(desk.target.timings.absent_s)
        emulated = is_emulated(desk.target.kind)
        emulation = Emulation(_emulated_cores(desk, spec, plan)) if emulated else None
        env = resolve_env(spec, {**dict.fromkeys(secret_sources(spec.env), ""), **os.environ})
        chosen = resolving.resolve(desk, spec, path, env, EMULATED if emulated else TPU_VM, emulation)
        lines = (*self.describe(desk, spec, plan), *chosen.lines, *chosen.warnings)
        return PlanMade(
            desk.target.kind, desk.target.project, plan, requests, lines, table(plan), overlap_usd, chosen.shape
        )

    def prepare(
        self, desk: Desk, spec: JobSpec, env: Mapping[str, str], path: Path, wish: Wish, stack: ExitStack
    ) -> Prepared:
        emulated = is_emulated(desk.target.kind)
        found = survey_of(desk, spec, path)
        fetched = [] if wish.one_of_several else buckets.lines_of(desk, spec)
        plan = self.capacity(desk, spec, wish)
        wish.check_workers(max(candidate.workers for candidate in plan.candidates))
        env = {**env, **code.check_bucket(spec, desk.target.kind, os.environ)}
        if not wish.one_of_several:
            desk.announce()
        emulation = Emulation(_emulated_cores(desk, spec, plan), desk.target.timings.chip_s) if emulated else None
        may_use_held = not (wish.detach or wish.has_slice)
        held = held_slice(desk, plan, spec, say=True) if may_use_held else None
        if held is not None:
            why = "the held slice of `tpujob up`"
            if held.held_for is HeldFor.FAILURE:
                why = f"held since this job failed on it, until {day_clock(held.deadline)} at the latest"
            reached = f"its workers are reached {access.describe(held.route)}"
            desk.reporter.notice(
                "plan", f"on {held.name.node} ({held.handle}), {why}; {reached}; if it is busy or gone:"
            )
        if not wish.one_of_several:
            cores = emulation.cores if emulation else None
            fetched = [*plans.lines_of(desk, plan, cores, spec, after_held=held is not None), *fetched]
        for line in fetched:
            desk.reporter.notice("plan", line)
        chosen = resolving.resolve(desk, spec, path, env, EMULATED if emulated else TPU_VM, emulation)
        if not wish.one_of_several:
            chosen.tell(desk.reporter)
        desk.recover(look=True)
        last, resumed, saves = 0, None, buckets.saves(spec)
        if wish.resume is not None:
            last, resumed = buckets.resumable(desk, spec, wish.resume)
        elif wish.queued is not None and wish.queued.attempt > 1:
            last = wish.queued.attempt - 1
            resumed = buckets.saved_of(desk.target.kind, str(spec.bucket), wish.queued.run)() if saves else SavedState()
        run, attempt = records.new_run(
            spec,
            path,
            desk.target.kind,
            desk.runs_directory,
            desk.now(),
            sweep=wish.sweep,
            run_id=wish.resume if wish.queued is None else wish.queued.run,
            queued=wish.queued is not None,
        )
        if resumed is not None:
            exact = wish.queued is not None
            run, attempt = records.next_attempt(desk.ledger, run, last, exact=exact)
        linger_s = spec.limits.linger
        drafter = plans.drafter(
            desk,
            plan,
            spec.access.wish,
            self.watched,
            handle=run.name,
            purpose=Purpose.RUN if wish.queued is None else Purpose.QUEUE,
            linger_s=linger_s,
            run=run.id,
        )
        shipment = shipment_of(desk, found, stack)
        restarts = spec.max_restarts if spec.on_preemption == "restart" and wish.queued is None else 0
        is_copied = not wish.detach and (restarts > 0 or spec.copy_while_running)
        saved = SavedWork(Path(run.directory) / "saved", tuple(spec.artifacts), None if restarts else MOST_BESIDE)
        if saves:
            saved.look_in_bucket = buckets.saved_of(desk.target.kind, str(spec.bucket), run.id)
        made = phases(
            spec,
            run,
            shipment=shipment,
            env=env,
            emulation=emulation,
            environment=chosen.environment,
            save_s=desk.target.timings.save_s if saves else None,
        )
        return Prepared(
            run,
            attempt,
            VmStay(self.traits, drafter.make(), drafter, plan.wait_s, plan.race),
            made,
            shipment,
            held=held_slice(desk, plan, spec) if may_use_held else None,
            saved_work=saved if is_copied else None,
            resumed=resumed,
            max_restarts=restarts,
            drafted=drafter.made,
            files=chosen.files,
        )

    def attached(self, run: RunRecord, lease: Lease) -> tuple[Stay, tuple[Phase, ...]]:
        return VmStay(self.traits), (Phase("main", STATES["main"]),)

    def compiles_for(self, desk: Desk, spec: JobSpec) -> CompileTarget:
        return CompileTarget(tuple(dict.fromkeys(one.accelerator for one in spec.tpu.alternatives)), TPU_VM)

    def reach(self, desk: Desk, cloud: str) -> Reach:
        return Reach(partial(desk.emulator, cloud), desk.lease_directory, desk.keys_left)


def _emulated_cores(desk: Desk, spec: JobSpec, plan: Plan) -> int:
    """Return how many processes stand for the cores of one emulated host: never more than it has, few by default."""
    declared = spec.train.emulated.cores if spec.train and spec.train.emulated else None
    real = max(candidate.cores_per_worker for candidate in plan.candidates)
    return min(declared or desk.target.emulated_cores or plans.DEFAULT_EMULATED_CORES, real)


# What a job on VMs asks for, and the held slice that fits it.


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
        and lease.purpose is not Purpose.ELSEWHERE  # only locks of this machine tell whether it is free
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

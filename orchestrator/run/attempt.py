"""One attempt of a run: get a slice, ship the code, run the phases, collect the artifacts.

An attempt releases nothing: it raises what ends it, and `run.program` releases what `progress.owed` names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.core.lease.cloud_api import Capabilities, SliceState, WorkerAddress
from orchestrator.core.lease.lease import Held, HeldFor, Lease, Mode
from orchestrator.core.lease.run_and_attempt import AttemptState, Leased, Moved
from orchestrator.core.text.sizes import format_size
from orchestrator.engine.effects.base import Lock, Make, Now, Record, Report, Unlock
from orchestrator.engine.effects.cloud import Get, Workers
from orchestrator.engine.effects.workers import (
    Connect,
    FindCoordinator,
    ForwardPorts,
    Push,
    RestoreWork,
    SendHeartbeats,
    StartPhase,
)
from orchestrator.engine.leases.release import try_record, try_start_guardian
from orchestrator.engine.leases.renewal import LeaseRenewal, hand_over, move_claim, wait_for_watchdogs
from orchestrator.engine.provision.candidate_search import Search, find
from orchestrator.engine.provision.race import LoserRelease
from orchestrator.engine.runtime import retry
from orchestrator.errors import (
    CloudError,
    DeadlineExceeded,
    Interrupted,
    PayloadFailed,
    SliceLost,
    TpujobError,
    Vanished,
)
from orchestrator.run import collection, monitor
from orchestrator.run.chips import ChipWatch
from orchestrator.run.job_run import JobRun
from orchestrator.run.lane import take_over
from orchestrator.run.ports import by_command, forward
from orchestrator.run.progress import JobProgress
from orchestrator.run.saved_work import BEFORE_RELEASE_S, PeriodicSave

if TYPE_CHECKING:
    from orchestrator.remote.shipping.sending import PushResult
    from orchestrator.remote.shipping.shipment import Shipment

CONNECT_S = 300.0  # sshd of a fresh VM may take minutes to come up
# The work of a job that may be restarted is saved so many times as often as labels are renewed: at least every 5 minutes.
SAVES_PER_RENEWAL = 6


async def attempt(job: JobRun, capabilities: Capabilities, progress: JobProgress) -> None:
    """Run the job once. Raises whatever kept it from succeeding."""
    asked_at = began = await Now()
    await progress.enter("wait")
    lease = progress.lease = await _obtain(job, capabilities, progress)
    ready_at = await Now()
    await Record(Leased(progress.attempt.id, ready_at, lease.id))
    await progress.enter("connect")
    # `limits.max_duration` does not count the wait for capacity. A slice that was held before was created earlier.
    began = max(began, lease.created_at if lease.ready_by is None else ready_at)
    end = monitor.end_of(lease, began, job.max_duration_s - progress.used_s)
    if progress.fleet is None:
        await Report("connect", f"waiting for SSH on {lease.name.node}", passing=True)
        patience_s = max(min(CONNECT_S, lease.ends_at - ready_at), 1.0)  # not past the end of its claim
        workers = await retry.until(ready_at + patience_s, Workers(lease.name))
        progress.fleet = await Connect(lease, workers, patience_s)
    else:
        workers = progress.fleet.workers
    if lease.mode is Mode.RUN:
        await SendHeartbeats(progress.fleet, capabilities.timings.heartbeat_s)
    bill = monitor.Bill(max(lease.billed_from or ready_at, asked_at), progress.spent_usd)
    await _work(job, capabilities, progress, lease, workers, end, bill)


async def _obtain(job: JobRun, capabilities: Capabilities, progress: JobProgress) -> Lease:
    """Return the slice to work on: that of the run before, or a held one that is free, else the first that can be had."""
    if progress.owed.lease is not None and (lease := await take_over(job, capabilities, progress)) is not None:
        return lease
    if job.held is not None and not progress.losses:
        why_not = await _why_unusable(job.held)
        if why_not is None and job.held.held_for is HeldFor.FAILURE:
            why_not = await _take_held(job.held, capabilities, progress)
            if progress.owed.lease is not None:
                await Report("ready", f"{job.held.name.node} ({job.held.handle}, held since this job failed on it)")
                return progress.owed.lease
        elif why_not is None:
            await Report("ready", f"{job.held.name.node} ({job.held.handle}, held by `tpujob up`)")
            return job.held
        await Report("plan", f"{job.held.handle} {why_not}: this run creates a slice of its own")
    drafts = job.drafts
    if progress.losses:
        assert job.drafter is not None
        drafts = await Make(partial(job.drafter.make, progress.used_s, progress.spent_usd))
    search = Search(
        drafts,
        wait_s=job.wait_s,
        race=job.race,
        drafter=job.drafter,
        used_s=progress.used_s,
        spent_usd=progress.spent_usd,
        attempt=progress.attempt.id,
    )
    return await find(search, capabilities, progress.owed)


async def _why_unusable(lease: Lease) -> str | None:
    """Lock the held slice and return None, or return why the job cannot run on it."""
    view = await retry.until(await Now() + 60, Get(lease.name))
    if view is None:
        return "does not exist any more"
    if view.state is SliceState.STOPPED:
        return f"is {view.native_state} (`tpujob start {lease.handle}` starts it)"
    if view.state is not SliceState.READY:
        return f"is {view.native_state}"
    return None if await Lock(lease.id) else "is busy with another command"


async def _take_held(held: Lease, capabilities: Capabilities, progress: JobProgress) -> str | None:
    """Make the slice, which is locked, one that this run has to release. Return why that cannot be.

    It stays held while the job runs, for one time to live ahead: if this process dies, the slice ends as a held one does.
    """
    now = await Now()
    until = max(held.hold_until or now, now + capabilities.timings.ttl_s)
    try:
        lease = await move_claim(held, Held(held.id, now, until, HeldFor.FAILURE), capabilities)
    except CloudError as error:
        await Unlock(held.id)
        return f"cannot be taken over ({error.message})"
    progress.owed.lease, progress.taken_over_at = lease, now
    await try_start_guardian()
    return None


async def _work(
    job: JobRun,
    capabilities: Capabilities,
    progress: JobProgress,
    lease: Lease,
    workers: tuple[WorkerAddress, ...],
    end: monitor.End,
    bill: monitor.Bill,
) -> None:
    fleet = progress.fleet
    assert fleet is not None
    await monitor.report_workers(fleet, job.run)
    taken_over = progress.taken_over_at is not None
    renewal = LeaseRenewal(lease, len(workers), capabilities, await Now(), taken_over=taken_over)
    losers = LoserRelease(progress.owed, capabilities)
    claims: list[monitor.PeriodicTask] = [renewal, losers]
    if taken_over and lease.mode is Mode.HOLD:
        claims.append(collection.HoldRenewal(lease, capabilities))
    tasks, saving = list(claims), None
    if job.saved_work is not None:
        every_s = capabilities.timings.renew_s / SAVES_PER_RENEWAL
        saving = PeriodicSave(lease, fleet, job.saved_work, every_s, progress, often=job.max_restarts > 0)
        tasks.append(saving)
    if job.detach:
        await wait_for_watchdogs(lease, len(workers), capabilities)
    saved = await _ship(job, progress)
    facts = await FindCoordinator(fleet)
    coordinator = f"{facts.address}:{facts.free_port}"
    hosts = tuple(worker.internal or worker.host for worker in workers)
    failure: TpujobError | None = None
    for phase in job.phases:
        await progress.enter(phase.name)
        await Record(Moved(progress.attempt.id, await Now(), phase.state))
        request = phase.request(progress.attempt, lease, hosts, coordinator)
        request = replace(request, saved_by_worker=saved, delete=job.lane.collected if job.lane else None)
        await StartPhase(fleet, request, job.sink, job.metrics)
        if phase is job.phases[-1]:
            if job.detach:
                if job.ports:
                    await Report("ports", by_command(job.run.id, job.ports))
                progress.lease = await hand_over(lease, capabilities)
                progress.detached = True
                return
            await forward(fleet, job.ports)
        if phase is job.phases[-1] and job.run.spec.tpu_metrics:
            tasks.append(ChipWatch(lease, progress.attempt.id, capabilities.timings.chip_s, bill, await Now()))
        try:
            await monitor.monitor(
                lease,
                fleet,
                phase.name,
                end,
                job.run.id,
                tasks,
                bill=bill,
                attempt=None if lease.run == job.run.id else progress.attempt.id,
                stall_s=job.stall_s,
            )
        except (PayloadFailed, DeadlineExceeded) as error:
            failure = error
        except SliceLost as lost:
            if saving is not None:
                await (saving.last() if lost.still_there else saving.stop())
                await saving.tell()
            raise
        except Interrupted:
            if saving is not None:
                await Report("save", "copying what the job has written (another Ctrl-C skips it)", passing=True)
                await saving.last(BEFORE_RELEASE_S, look=False)
                await saving.tell()
            raise
        if failure is not None:
            break
    if job.ports:
        await ForwardPorts(fleet, ())
    if saving is not None:
        await saving.stop()
    await renewal.tick()
    await progress.enter("collect")
    await Report("collect", "collecting the results", passing=True)
    # A ledger that cannot be written, such as on a full disk, must not cost the results.
    await try_record(Moved(progress.attempt.id, await Now(), AttemptState.COLLECTING))
    try:
        order = job.collect_request(progress.attempt)
        progress.collected = await collection.collect_results(lease, fleet, order, claims)
    except (SliceLost, Vanished):
        if saving is not None:
            await saving.tell()
        if failure is not None:
            raise failure from None  # the results are lost with the slice; the failure is the job's own
        raise
    if failure is not None:
        raise failure
    collection.check_collected(progress.collected)


async def _ship(job: JobRun, progress: JobProgress) -> tuple[str | None, ...]:
    """Ship code and data, and the work that earlier attempts saved. Return the hash of that work for each worker, or ()."""
    assert progress.fleet is not None
    workers = len(progress.fleet.workers) if progress.losses else 0
    if job.shipment is not None:
        await progress.enter("ship")
        sent = await Push(progress.fleet, job.shipment)
        count = len(progress.fleet.workers)
        await progress.enter("connect")
        what = _shipped(job.shipment, sent)
        await Report("ship", f"{what} → {count} worker{'s'[: count > 1]} in {progress.spans['ship']:.1f} s")
    if not workers or job.saved_work is None:
        return ()
    saved = await RestoreWork(progress.fleet, job.saved_work)
    if some := sum(manifest is not None for manifest in saved):
        await Report("restore", f"saved work → {some} worker{'s'[: some > 1]}")
    return saved


def _shipped(shipment: Shipment, sent: Sequence[PushResult]) -> str:
    """Return what travelled, in words: `148 files, 1.3 MB (300 MB left out by .gitignore)`, `3 of 148 files, 12 KB changed`."""
    from orchestrator.remote.shipping.tree import count, left_out_text

    most = max(sent, key=lambda result: (result.files, result.size_bytes), default=None)
    left_out = left_out_text(shipment.left_out)
    rest = f" ({left_out})" if left_out else ""
    # Each content is sent once, and no empty one.
    contents = len({file.sha256 for file in shipment.manifest.files if file.size_bytes})
    if most is not None and 0 < most.files < contents:
        return f"{most.files:,} of {count(shipment.files)}, {format_size(most.size_bytes)} changed{rest}"
    there = ", nothing new" if most is not None and not most.files and shipment.size_bytes else ""
    return f"{count(shipment.files)}, {format_size(shipment.size_bytes)}{there}{rest}"

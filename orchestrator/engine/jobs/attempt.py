"""One attempt of a run: a slice, its workers, code shipped, phases followed, artifacts brought home.

It releases nothing: whatever happens to it is raised, and `engine.jobs.run` knows from `progress.owed` what to give back.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from orchestrator.core.lease.attempt import AttemptState, Leased, Moved
from orchestrator.core.lease.lease import Lease, Mode
from orchestrator.core.lease.slices import Capabilities, SliceState, WorkerAddress
from orchestrator.engine.effects.base import Lock, Make, Now, Record, Report
from orchestrator.engine.effects.cloud import Get, Workers
from orchestrator.engine.effects.workers import Connect, FindCoordinator, Push, RestoreWork, SendHeartbeats, StartPhase
from orchestrator.engine.jobs import collection, monitor
from orchestrator.engine.jobs.job_run import JobRun
from orchestrator.engine.jobs.progress import JobProgress
from orchestrator.engine.jobs.saved_work import PeriodicSave
from orchestrator.engine.leases.release import note
from orchestrator.engine.leases.renewal import LeaseRenewal, hand_over, wait_for_watchdogs
from orchestrator.engine.provision.race import Losers
from orchestrator.engine.provision.search import Search, find
from orchestrator.engine.runtime import retry
from orchestrator.errors import DeadlineExceeded, PayloadFailed, SliceLost, TpujobError, Vanished

CONNECT_S = 300.0  # sshd of a fresh VM may take minutes to come up
# What the job has made is brought home so many times as often as labels are renewed: each 5 minutes.
PULLS_A_RENEWAL = 6


async def attempt(job: JobRun, capabilities: Capabilities, progress: JobProgress) -> None:
    """Raises whatever kept the job from succeeding."""
    began = await Now()
    await progress.enter("wait")
    lease = progress.lease = await _obtain(job, capabilities, progress)
    ready_at = await Now()
    await Record(Leased(progress.attempt.id, ready_at, lease.id))
    await progress.enter("connect")
    if job.wait_s or progress.losses:  # waiting for capacity is not what `limits.max_duration` is about
        began = lease.created_at if lease.ready_by is None else ready_at
    end = monitor.end_of(lease, began, job.max_duration_s - progress.used_s)
    await Report("connect", f"waiting for SSH on {lease.name.node}", passing=True)
    patience_s = max(min(CONNECT_S, lease.deadline - ready_at), 1.0)  # nobody waits past the slice's own end
    workers = await retry.until(ready_at + patience_s, Workers(lease.name))
    progress.fleet = await Connect(lease, workers, patience_s)
    if lease.mode is Mode.RUN:
        await SendHeartbeats(progress.fleet, capabilities.timings.heartbeat_s)
    await _work(job, capabilities, progress, lease, workers, end)


async def _obtain(job: JobRun, capabilities: Capabilities, progress: JobProgress) -> Lease:
    """The slice to work on: the one that `up` brought, if it is READY and free, else the first candidate that exists."""
    if job.held is not None:
        if await _usable(job.held):
            await Report("ready", f"{job.held.name.node} ({job.held.handle}, brought by `tpujob up`)")
            return job.held
        await Report("plan", f"{job.held.handle} is not ready or busy: this run takes a slice of its own")
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


async def _usable(lease: Lease) -> bool:
    view = await retry.until(await Now() + 60, Get(lease.name))
    return view is not None and view.state is SliceState.READY and await Lock(lease.id)


async def _work(
    job: JobRun,
    capabilities: Capabilities,
    progress: JobProgress,
    lease: Lease,
    workers: tuple[WorkerAddress, ...],
    end: monitor.End,
) -> None:
    fleet = progress.fleet
    assert fleet is not None
    upkeep = LeaseRenewal(lease, len(workers), capabilities, await Now())
    losers = Losers(progress.owed, capabilities)
    tasks: list[monitor.PeriodicTask] = [upkeep, losers]
    rescue = None
    if job.saved_work is not None:
        rescue = PeriodicSave(fleet, job.saved_work, capabilities.timings.renew_s / PULLS_A_RENEWAL)
        tasks.append(rescue)
    if job.detach:
        await wait_for_watchdogs(lease, len(workers), capabilities)
    carried = await _ship(job, progress)
    meet = await FindCoordinator(fleet)
    meeting_point = f"{meet.address}:{meet.free_port}"
    hosts = tuple(worker.internal or worker.host for worker in workers)
    failure: TpujobError | None = None
    for phase in job.phases:
        await progress.enter(phase.name)
        await Record(Moved(progress.attempt.id, await Now(), phase.state))
        request = phase.request(progress.attempt, lease, hosts, meeting_point)
        await StartPhase(fleet, replace(request, saved_by_worker=carried) if carried else request, job.sink)
        if job.detach and phase is job.phases[-1]:
            progress.lease = await hand_over(lease, capabilities)
            progress.detached = True
            return
        try:
            await monitor.monitor(lease, fleet, phase.name, end, tasks, stall_s=job.stall_s)
        except (PayloadFailed, DeadlineExceeded) as error:
            failure = error
        except SliceLost as lost:
            if rescue is not None and lost.still_there:
                await rescue.last()
            raise
        if failure is not None:
            break
    await upkeep.tick()
    await progress.enter("collect")
    # A ledger that cannot be written, on a disk that is full perhaps, must not cost the results.
    await note(Moved(progress.attempt.id, await Now(), AttemptState.COLLECTING))
    try:
        order = job.order(progress.attempt)
        progress.collected = await collection.bring_home(lease, fleet, order, (upkeep, losers))
    except (SliceLost, Vanished):
        if failure is not None:
            raise failure from None  # its results are lost with the slice, and would not have changed that
        raise
    if failure is not None:
        raise failure
    collection.check_collected(progress.collected)


async def _ship(job: JobRun, progress: JobProgress) -> tuple[str | None, ...]:
    """Code and data; and for each worker the hash of what an earlier attempt left for it."""
    assert progress.fleet is not None
    workers = len(progress.fleet.workers) if progress.losses else 0
    if job.bundle is not None:
        await progress.enter("ship")
        shipped = await Push(progress.fleet, job.bundle)
        size = f"{job.bundle.size_bytes / 1000:,.0f} KB"
        there = "" if shipped else " (was there already)"
        count = len(progress.fleet.workers)
        await progress.enter("connect")
        await Report("ship", f"{size} → {count} worker{'s'[: count > 1]} in {progress.spans['ship']:.1f} s{there}")
    if not workers or job.saved_work is None:
        return ()
    carried = await RestoreWork(progress.fleet, job.saved_work, job.saved_work.directory / "bundles")
    given = sum(sha256 is not None for sha256 in carried)
    await Report(
        "carry", f"what was saved goes on to {given} worker{'s'[: given > 1]}" if given else "nothing was saved yet"
    )
    return carried

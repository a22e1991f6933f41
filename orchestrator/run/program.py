"""Run a job at its place: one attempt, or several if it may be restarted, and whatever is billed released, proven.

An attempt is obtain → settle → connect → deliver → start → follow → collect; `attach` begins in the middle, with a job that
runs without a process. Attempt and lease end separately. However the attempt ends, by success, failure, signal or bug, becomes
the outcome; then the lease is released in any case, and a release without a proof decides the exit code.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from orchestrator import errors
from orchestrator.hosts.fleet.effects import (
    FindCoordinator,
    FollowPhase,
    ForwardPorts,
    Push,
    RestoreWork,
    SendHeartbeats,
    StartPhase,
)
from orchestrator.hosts.shipping.shipment import shipped_text
from orchestrator.places.place import Ask, PeriodicTask, Phase, Standing
from orchestrator.promise.effects.base import Lock, MaskSignals, Now, Record, Report
from orchestrator.promise.lease.changes import Moved
from orchestrator.promise.lease.cloud_api import Capabilities
from orchestrator.promise.lease.lease import Lease, LeaseState, Mode
from orchestrator.promise.lease.run_and_attempt import AttemptState, what_ended_it
from orchestrator.promise.obligations import keep_slice
from orchestrator.promise.obtain.candidate_search import LoserRelease
from orchestrator.promise.release import try_record
from orchestrator.promise.renewal import LeaseRenewal, hand_over, wait_for_watchdogs
from orchestrator.run import collection
from orchestrator.run.finish import capture, finish
from orchestrator.run.following import give_slice, hold_attempt, leave_unstarted
from orchestrator.run.held import is_borrowed, leave_held, pass_on, take_over, tell_end, use_held
from orchestrator.run.job_run import JobRun
from orchestrator.run.monitor import ChipWatch, by_command, forward_ports, monitor, report_workers
from orchestrator.run.progress import JobProgress, Outcome
from orchestrator.run.restart import begin, count_starts, goes_on, with_saved_work

if TYPE_CHECKING:
    from orchestrator.hosts.fleet.crew import Crew, FleetPort, StartedCrew
    from orchestrator.places.place import End


async def run_job(job: JobRun, capabilities: Capabilities) -> Outcome:
    """Run the job, or follow one that runs detached, and release what it ran on.

    Raises no TpujobError: whatever happens is in the outcome. With `outcome.detached` the job goes on without this process, and
    `error` says why this has ended. Who attaches holds the lock of the attempt.
    """
    lease, traits = job.attached_to, job.stay.traits
    progress = JobProgress(job.run, job.attempt, lease, detached=lease is not None)
    if lease is None:
        await Lock(job.attempt.id)
        await begin(job)
    if job.lane is not None:
        job.lane.hand_to(progress)
    await capture(progress, _attempts(job, capabilities, progress), shield=traits.billed)
    progress.collected = await job.stay.leave(progress.error, progress.collected)
    await MaskSignals()  # release before anything else: after Ctrl-C the delete leaves now
    await progress.enter(None)
    if lease is not None and not progress.detached:
        await Lock(lease.id)
        progress.owed.lease = lease
    await tell_end(job, progress)
    if progress.detached or not traits.held:
        pass
    elif is_borrowed(job, progress):
        await leave_held(job.stay, progress)
    elif await pass_on(job, progress):
        pass
    elif progress.error is None and job.keep_s is not None:
        try:
            await keep_slice(progress.owed, await Now() + job.keep_s, capabilities)
        except errors.TpujobError as error:
            progress.fail(error)
    else:
        await collection.hold_slice(progress, job.linger_s, capabilities, keep_on_failure_s=job.keep_on_failure_s)
    return await finish(progress, capabilities)


async def _attempts(job: JobRun, capabilities: Capabilities, progress: JobProgress) -> None:
    while not await _tried(job, capabilities, progress):
        pass


async def _tried(job: JobRun, capabilities: Capabilities, progress: JobProgress) -> bool:
    """Make one attempt; return False when its slice was lost and another attempt may follow."""
    try:
        await _classified(job, capabilities, progress)
    except errors.TpujobError as error:
        if isinstance(error, errors.SliceLost) and await goes_on(job, capabilities, progress, error):
            return False
        if progress.detached:
            progress.detached = job.stay.goes_on(error, progress.collected)
        raise
    if job.attached_to is not None:
        progress.detached = False
    return True


async def _classified(job: JobRun, capabilities: Capabilities, progress: JobProgress) -> None:
    """Make one attempt. If workers do not answer because the slice was preempted, raise what the API says of it."""
    try:
        try:
            await _attempt(job, capabilities, progress)
        except errors.RemoteError as error:
            if progress.lease is not None:
                try:
                    await job.stay.look(progress.lease)
                except errors.SliceLost as lost:
                    raise lost from error
                except errors.CloudError:
                    pass  # no answer, or another process deleted it
            raise
    except errors.SliceLost as lost:
        if (ended := what_ended_it(lost)) is not lost:
            raise ended from lost
        raise


async def _attempt(job: JobRun, capabilities: Capabilities, progress: JobProgress) -> None:
    """Run the job once. Raises whatever kept it from succeeding; `run_job` releases what `progress.owed` names."""
    stay, attached = job.stay, job.attached_to is not None
    ask = Ask(
        progress.attempt,
        await Now(),
        job.max_duration_s - progress.used_s,
        progress.used_s,
        progress.spent_usd,
        again=bool(progress.losses),
        attached=attached,
    )
    if not attached:
        await progress.enter("wait")
    lease = await _obtain(job, ask, capabilities, progress)
    if job.detach and stay.traits.made_with_job and lease is not None:
        await leave_unstarted(lease, progress)
        return
    if attached and lease is not None:
        await progress.enter("connect" if lease.state is LeaseState.READY else "wait")
    at = await stay.settle(ask, lease, capabilities)
    progress.lease = at.lease
    if progress.owed.lease is not None:
        progress.owed.lease = at.lease
    await count_starts(job, progress, at)
    await progress.enter("connect")
    if progress.crew is None:
        progress.crew = await stay.connect(ask, at.lease)
    if attached and stay.traits.watched:
        await hold_attempt(_reached(progress), progress.attempt.id)
    if stay.traits.watched and not attached and at.lease is not None and at.lease.mode is Mode.RUN:
        await SendHeartbeats(_reached(progress), capabilities.timings.heartbeat_s)
    await report_workers(progress.crew, job.run)
    await _Work(job, capabilities, progress, at).to_the_end()


async def _obtain(job: JobRun, ask: Ask, capabilities: Capabilities, progress: JobProgress) -> Lease | None:
    """Return the slice to work on: that of the run before, or a held one that is free, else the first that can be had."""
    if (on := job.attached_to or (None if progress.follows is None else progress.lease)) is not None:
        return await job.stay.check(on)
    if progress.owed.lease is not None and (taken := await take_over(job, capabilities, progress)) is not None:
        return taken
    if job.held is not None and not progress.losses:
        progress.lease = await use_held(job, job.held, capabilities, progress)
        if progress.lease is not None:
            return progress.lease
    return await job.stay.obtain(ask, progress.owed, capabilities)


def _reached(progress: JobProgress) -> FleetPort:
    """Return the workers of a place with watchdogs, which are reached by connections."""
    return cast("FleetPort", progress.crew)


class _Work:
    """An attempt whose workers are connected."""

    def __init__(self, job: JobRun, capabilities: Capabilities, progress: JobProgress, at: Standing) -> None:
        assert progress.crew is not None
        self.job, self.capabilities, self.progress, self.at = job, capabilities, progress, at
        self.crew: Crew = progress.crew
        self.attached = job.attached_to is not None
        self.claims: list[PeriodicTask] = []
        self.tasks: list[PeriodicTask] = []
        self.renewal: LeaseRenewal | None = None
        self.saving: collection.PeriodicSave | None = None
        self.ran_s: float | None = None  # the phase that ended last

    async def to_the_end(self) -> None:
        """Deliver, start, follow and collect. Raises what made the job fail."""
        job, progress = self.job, self.progress
        coordinator, saved = "", tuple[str | None, ...]()
        if not self.attached:
            await self._claim()
            saved = await self._deliver()
        if any(phase.request is not None for phase in job.phases):
            facts = await FindCoordinator(cast("StartedCrew", self.crew))
            coordinator = f"{facts.address}:{facts.free_port}"
        failure: errors.TpujobError | None = None
        for phase in job.phases:
            await progress.enter(phase.name)
            is_last = phase is job.phases[-1]
            if is_last and job.queued is not None and self.at.lease is not None:
                await give_slice(job.queued, self.at.lease, progress, self.capabilities)
            await self._start(phase, coordinator, saved)
            if is_last:
                if job.detach:
                    await self._leave()
                    return
                if job.ports and not self.attached:
                    await forward_ports(_reached(progress), job.ports)
                self._watch_chips(await Now())
            try:
                await self._follow(phase)
            except (errors.PayloadFailed, errors.DeadlineExceeded) as error:
                failure = error
                break
        await self._collect(failure)

    async def _claim(self) -> None:
        """Begin what is done beside the job: the claim is renewed, losers of a race are released, the work is saved."""
        job, progress, lease = self.job, self.progress, self.at.lease
        if not job.stay.traits.watched or lease is None:
            return
        workers, taken_over = len(self.crew.workers), progress.taken_over_at is not None
        self.renewal = LeaseRenewal(lease, workers, self.capabilities, await Now(), taken_over=taken_over)
        self.claims = [self.renewal, LoserRelease(progress.owed, self.capabilities)]
        if taken_over and lease.mode is Mode.HOLD:
            self.claims.append(collection.HoldRenewal(lease, self.capabilities))
        self.tasks = list(self.claims)
        if job.saved_work is not None:
            every_s = self.capabilities.timings.save_s
            often = job.max_restarts > 0
            self.saving = collection.PeriodicSave(lease, self.crew, job.saved_work, every_s, progress, often=often)
            self.tasks.append(self.saving)
        if job.detach:
            await wait_for_watchdogs(lease, workers, self.capabilities)

    async def _deliver(self) -> tuple[str | None, ...]:
        """Ship code and data, and the work that earlier attempts saved. Return the hash of that work for each worker, or ()."""
        job, progress, count = self.job, self.progress, len(self.crew.workers)
        workers = f"{count} worker{'s'[: count > 1]}"
        if job.shipment is not None:
            await progress.enter("ship")
            sent = await Push(_reached(progress), job.shipment)
            await progress.enter("connect")
            await Report("ship", f"{shipped_text(job.shipment, sent)} → {workers} in {progress.spans['ship']:.1f} s")
        if not progress.losses or job.saved_work is None or job.saved_work.is_in_bucket:
            return ()
        saved = await RestoreWork(_reached(progress), job.saved_work)
        if some := sum(manifest is not None for manifest in saved):
            await Report("restore", f"saved work → {some} worker{'s'[: some > 1]}")
        return saved

    async def _start(self, phase: Phase, coordinator: str, saved: tuple[str | None, ...]) -> None:
        """Start the phase, or follow one that starts without this machine."""
        job, attempt = self.job, self.progress.attempt
        moved = Moved(attempt.id, await Now(), phase.state)
        if phase.request is None:
            if not self.attached or job.stay.traits.made_with_job:
                await try_record(moved)
            await FollowPhase(self.crew, attempt.id, phase.name, job.sink, job.metrics)
            return
        await Record(moved)
        hosts = tuple(worker.internal or worker.host for worker in self.crew.workers)
        request = phase.request(attempt, self.at.lease, hosts, coordinator)
        request = with_saved_work(replace(request, delete=job.lane.collected if job.lane else None), job, saved)
        await StartPhase(cast("StartedCrew", self.crew), request, job.sink, job.metrics)

    async def _leave(self) -> None:
        """Leave the job, which has started, to its slice."""
        job, lease = self.job, self.at.lease
        assert lease is not None
        if job.ports:
            await Report("ports", by_command(job.run.id, job.ports))
        if job.queued is None:
            self.progress.lease = await hand_over(lease, self.capabilities)
        self.progress.detached = True

    def _watch_chips(self, now: float) -> None:
        lease = self.at.lease
        if self.job.run.spec.tpu_metrics and self.job.stay.traits.watched and lease is not None:
            began = self.at.began if self.attached else now
            chip_s = self.capabilities.timings.chip_s
            self.tasks.append(ChipWatch(lease, self.at, self.progress.attempt.id, chip_s, began))

    async def _follow(self, phase: Phase) -> None:
        """Follow the phase to its end; copy what the job has written before its slice goes."""
        job, at = self.job, self.at
        began = at.began if phase.request is None else None
        not_its_own = at.lease is not None and at.lease.run != job.run.id and not self.attached

        async def watch(end: End) -> None:
            attempt = self.progress.attempt.id if not_its_own else None
            more = {"attempt": attempt, "began": began, "stall_s": None if self.attached else job.stall_s}
            self.ran_s = await monitor(job.stay, at, self.crew, phase.name, job.run, self.tasks, end=end, **more)  # type: ignore[arg-type]

        try:
            await job.stay.follow(watch, at, self.crew)
        except errors.SliceLost as lost:
            if self.saving is not None:
                await (self.saving.last() if lost.still_there else self.saving.stop())
                await self.saving.tell()
            raise
        except errors.Interrupted:
            if self.saving is not None:
                await Report("save", "copying what the job has written (another Ctrl-C skips it)", passing=True)
                await self.saving.last(collection.BEFORE_RELEASE_S, look=False)
                await self.saving.tell()
            raise

    async def _collect(self, failure: errors.TpujobError | None) -> None:
        """Collect the results. Raises the failure of the job, if it has failed, whatever becomes of the results."""
        job, progress, lease = self.job, self.progress, self.at.lease
        if job.ports and not self.attached:
            await ForwardPorts(_reached(progress), ())
        if self.saving is not None:
            await self.saving.stop()
        if self.renewal is not None:
            await self.renewal.tick()
        await progress.enter("collect")
        await Report("collect", "collecting the results", passing=True)
        # A ledger that cannot be written, such as on a full disk, must not cost the results.
        await try_record(Moved(progress.attempt.id, await Now(), AttemptState.COLLECTING, self.ran_s))
        if self.attached and job.stay.traits.watched:
            await hold_attempt(_reached(progress), progress.attempt.id)  # the connection may have been lost meanwhile
            # The watchdogs delete the slice `limits.linger` after its job, unless heartbeats show that a process collects.
            await SendHeartbeats(_reached(progress), self.capabilities.timings.heartbeat_s, everywhere=True)
        ended = failure
        try:
            order = job.collect_request(progress.attempt)
            progress.collected = await collection.collect_results(job.stay, lease, self.crew, order, self.claims)
        except errors.Interrupted:
            raise  # of a detached run: the results stay there for a while; another `attach` can collect them
        except errors.TpujobError as error:
            if self.saving is not None and isinstance(error, errors.SliceLost | errors.Vanished):
                await self.saving.tell()
            ended = failure or error  # a failure is the job's own, whatever became of its results
            if failure is not None:
                await Report("warning", f"the results were not collected: {error.message}")
        if failure is not None or job.stay.traits.held:
            progress.detached = False  # the job is over, and what is not collected by now is lost, or its slice is held
        if ended is not None:
            raise ended
        collection.check_collected(progress.collected)

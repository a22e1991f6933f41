"""Run a job on a cluster: submit its JobSet, follow its pods, collect the results, and prove that all of it is gone.

The pods bring code and limits with them, and the control plane keeps the deadlines: a process here only follows. Attempt and
lease end separately, as on a slice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from orchestrator import errors
from orchestrator.core.lease.cloud_api import Capabilities
from orchestrator.core.lease.lease import Detached, Lease, NotAllowed
from orchestrator.core.lease.run_and_attempt import (
    AT_LIMIT,
    LIMIT,
    Attempt,
    AttemptState,
    Began,
    Leased,
    Moved,
    RunRecord,
    what_ended_it,
)
from orchestrator.engine.effects.base import Lock, Now, Record, Report, Shield
from orchestrator.engine.effects.workers import FollowPhase, WaitForWorkers
from orchestrator.engine.leases.release import try_record
from orchestrator.engine.leases.standing import check_lease, check_slice
from orchestrator.engine.provision.acquire import create_slice
from orchestrator.engine.provision.drafts import Draft
from orchestrator.places.gke.effects import UploadCode
from orchestrator.run import collection, monitor
from orchestrator.run.cluster.start import connected, started
from orchestrator.run.finish import capture, finish
from orchestrator.run.progress import JobProgress, Outcome

if TYPE_CHECKING:
    from orchestrator.remote.fleet.port import FleetPort
    from orchestrator.remote.transfer.collect import CollectRequest

LATE_S = 60.0  # a pod ends its job by itself; for so long this waits for it

# Errors of an `attach` after which the job does not go on, or never began. After all others it may.
_OVER = (errors.Vanished, errors.SliceLost, errors.CapacityError, errors.PayloadFailed, errors.DeadlineExceeded)

Sink = Callable[[int, bytes], None]


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """A job whose JobSet is drafted, and how to follow it. `phases`: `setup` (if there is anything to set up) and `main`."""

    run: RunRecord
    attempt: Attempt
    draft: Draft
    phases: tuple[str, ...]
    request: CollectRequest
    max_duration_s: float
    sink: Sink
    metrics: Sink | None = None
    upload: Callable[[], None] | None = None  # stores code that no ConfigMap holds
    detach: bool = False  # end once the JobSet is submitted


@dataclass(frozen=True, slots=True)
class ClusterAttachment:
    """A detached run on a cluster and its lease, from the ledger."""

    run: RunRecord
    attempt: Attempt
    lease: Lease
    phases: tuple[str, ...]
    request: CollectRequest
    max_duration_s: float
    sink: Sink
    metrics: Sink | None = None


async def run_on_cluster(job: ClusterRun, capabilities: Capabilities) -> Outcome:
    """Run the job and delete its JobSet. Raises no TpujobError: whatever happens is in the outcome."""
    progress = JobProgress(job.run, job.attempt)
    await Lock(job.attempt.id)
    await Record(Began(job.run, job.attempt))
    await capture(progress, _submitted(job, capabilities, progress))
    await Shield()
    await progress.enter(None)
    return await finish(progress, capabilities)


async def attach_on_cluster(to: ClusterAttachment, capabilities: Capabilities) -> Outcome:
    """Follow a detached run to its end. Raises no TpujobError: whatever happens is in the outcome.

    With `outcome.detached` the job goes on as before, and `error` says why. The caller holds the lock of the attempt.
    """
    progress = JobProgress(to.run, to.attempt, to.lease, detached=True)
    await capture(progress, _attached(to, capabilities, progress))
    await Shield()
    await progress.enter(None)
    if not progress.detached:
        await Lock(to.lease.id)
        progress.owed.lease = to.lease
    return await finish(progress, capabilities)


async def _submitted(job: ClusterRun, capabilities: Capabilities, progress: JobProgress) -> None:
    await progress.enter("wait")
    lease, node = job.draft.lease, job.draft.lease.name.node
    if job.upload is not None:
        await UploadCode(job.upload)
    await Report("create", f"JobSet {node}", passing=True)
    progress.owed.lease = lease
    try:
        lease = progress.owed.lease = await create_slice(*job.draft, capabilities)
        if job.detach:
            await Record(Leased(job.attempt.id, await Now(), lease.id), Detached(lease.id, await Now()))
            progress.detached, progress.lease = True, lease
            return
    except NotAllowed as error:
        raise errors.Vanished(f"{node} was released by another tpujob command") from error
    await _to_the_end(job, lease, capabilities, progress)


async def _attached(to: ClusterAttachment, capabilities: Capabilities, progress: JobProgress) -> None:
    try:
        await _to_the_end(to, await check_lease(to.lease), capabilities, progress)
    except _OVER:
        progress.detached = False  # nothing is left to follow; its absence is to be proven
        raise
    except errors.ArtifactError:
        # What can still be collected waits in the logs of the pods, for the next `attach` or until the cluster deletes them.
        progress.detached = progress.collected is not None and bool(progress.collected.waiting)
        raise
    progress.detached = False


async def _to_the_end(
    job: ClusterRun | ClusterAttachment, lease: Lease, capabilities: Capabilities, progress: JobProgress
) -> None:
    try:
        lease, began = await started(lease, capabilities, progress)
        await _follow(job, lease, began, progress)
    except errors.SliceLost as lost:
        raise what_ended_it(lost) from lost


async def _follow(job: ClusterRun | ClusterAttachment, lease: Lease, began: float, progress: JobProgress) -> None:
    """Follow the pods through every phase and collect the results. Raises what made the job fail. `began`: when they did."""
    await progress.enter("connect")
    try:
        fleet = progress.fleet = await connected(lease)
    except errors.ArtifactError as error:
        if place := job.run.spec.bucket:
            raise errors.ArtifactError(error.message, hint=f"its results are in {place}/{job.run.id}/") from error
        raise
    of_workers = (worker.instance for worker in fleet.workers if worker.instance)
    progress.nodes = tuple(dict.fromkeys((*progress.nodes, *of_workers)))
    await monitor.report_workers(fleet, job.run)
    end = monitor.End(min(lease.deadline, began + job.max_duration_s + LATE_S), LIMIT, movable=False, spare_s=LATE_S)
    failure: errors.TpujobError | None = None
    for phase in job.phases:
        await progress.enter(phase)
        state = AttemptState.SETUP if phase == "setup" else AttemptState.RUNNING
        await try_record(Moved(progress.attempt.id, await Now(), state))
        await FollowPhase(fleet, progress.attempt.id, phase, job.sink, job.metrics)
        try:
            await _watch(lease, fleet, phase, end, job.run.id, began)
        except errors.DeadlineExceeded as error:
            failure = error
        except errors.PayloadFailed as error:
            await _check_pods(lease)
            failure = error
        except errors.SliceLost as lost:
            failure = what_ended_it(lost)
            if failure is lost:
                raise
        if failure is not None:
            break
    await progress.enter("collect")
    await Report("collect", "collecting the results", passing=True)
    await try_record(Moved(progress.attempt.id, await Now(), AttemptState.COLLECTING))
    try:
        progress.collected = await collection.collect_results(lease, fleet, job.request)
    except errors.Interrupted:
        raise
    except errors.TpujobError:
        if failure is None:
            raise
    if failure is not None:
        raise failure
    collection.check_collected(progress.collected)


async def _watch(lease: Lease, fleet: FleetPort, phase: str, end: monitor.End, run: str, began: float) -> None:
    """Monitor a phase. Of pods that do not answer at `end`, or that have ended by then, only the cluster knows how."""
    bill = monitor.Bill(lease.billed_from or began)
    watch = partial(monitor.monitor, lease, fleet, phase, run=run, bill=bill, began=began, patience_s=math.inf)
    try:
        return await watch(end=end)
    except errors.DeadlineExceeded:
        status = await WaitForWorkers(fleet, 0.0)  # this machine may have slept with the one before
        if not (status.failed or status.ended or status.silent_s(await Now())):
            raise
    try:
        await watch(end=monitor.End(lease.deadline, movable=False))
    except errors.DeadlineExceeded as error:
        status = await WaitForWorkers(fleet, 0.0)
        if status.failed or not status.silent_s(await Now()):
            raise
        raise errors.CloudUnavailable("how the job ended is not known: its cluster does not answer") from error


async def _check_pods(lease: Lease) -> None:
    """Raise SliceLost if the cluster took a pod away: what the others did without it is no failure of the job."""
    try:
        await check_slice(lease)
    except errors.SliceLost as lost:
        if lost.reason != AT_LIMIT:
            raise
    except errors.CloudError:
        pass  # without an answer the job failed

"""Attach to a detached run: follow its job, collect the artifacts, release the slice.

Until the job has ended the claim is the job's, so an interrupted or killed `attach` changes nothing. After that the run
ends like an attached one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator import errors
from orchestrator.core.lease.cloud_api import Capabilities
from orchestrator.core.lease.lease import Lease
from orchestrator.core.lease.run_and_attempt import Attempt, AttemptState, Moved, RunRecord
from orchestrator.engine.effects.base import Lock, Now, Report, Shield
from orchestrator.engine.effects.cloud import Workers
from orchestrator.engine.effects.workers import Connect, FollowPhase, SendHeartbeats
from orchestrator.engine.leases.release import try_record
from orchestrator.engine.leases.standing import check_slice
from orchestrator.engine.runtime import retry
from orchestrator.run import collection, monitor
from orchestrator.run.chips import ChipWatch
from orchestrator.run.finish import capture, finish
from orchestrator.run.progress import JobProgress, Outcome

if TYPE_CHECKING:
    from orchestrator.remote.fleet.port import FleetPort
    from orchestrator.remote.transfer.collect import CollectRequest

CONNECT_S = 120.0


@dataclass(frozen=True, slots=True)
class Attachment:
    """A detached run and its lease, from the ledger. `sink` gets the output, `metrics` metrics.jsonl, from the first byte."""

    run: RunRecord
    attempt: Attempt
    lease: Lease
    request: CollectRequest
    max_duration_s: float
    sink: Callable[[int, bytes], None]
    metrics: Callable[[int, bytes], None] | None = None
    linger_s: float | None = None  # hold the slice for uncollected results; None: the cloud's timings


async def attach(to: Attachment, capabilities: Capabilities) -> Outcome:
    """Follow the run to its end. Raises no TpujobError: whatever happens is in the outcome.

    With `outcome.detached` the job goes on as before, and `error` says why. The caller holds the lock of the attempt.
    """
    progress = JobProgress(to.run, to.attempt, to.lease, detached=True)
    await capture(progress, _until_the_end(to, progress, capabilities))
    await Shield()
    await progress.enter(None)
    if not progress.detached:
        await Lock(to.lease.id)
        progress.owed.lease = to.lease
        await collection.hold_slice(progress, to.linger_s, capabilities)
    return await finish(progress, capabilities)


async def _until_the_end(to: Attachment, progress: JobProgress, capabilities: Capabilities) -> None:
    failure: errors.TpujobError | None = None
    await progress.enter("connect")
    try:
        fleet = progress.fleet = await _connect(to.lease)
        await progress.enter("main")
        await monitor.report_workers(fleet, to.run)
        await FollowPhase(fleet, to.attempt.id, "main", to.sink, to.metrics)
        began = to.attempt.started_at or to.lease.created_at
        # An extension before this attach is in the lease already, not in the job file.
        end = monitor.end_of(to.lease, began, max(to.max_duration_s, to.lease.deadline - began))
        bill = monitor.Bill(to.lease.billed_from or began)
        watch = ChipWatch(to.lease, to.attempt.id, capabilities.timings.chip_s, bill, began)
        tasks = [watch] if to.run.spec.tpu_metrics else []
        await monitor.monitor(to.lease, fleet, "main", end, to.run.id, tasks, bill=bill, began=began)
    except (errors.PayloadFailed, errors.DeadlineExceeded) as error:
        failure = error
    except (errors.Vanished, errors.Preempted):
        progress.detached = False  # nothing is left to follow; its absence is to be proven
        raise  # after any other loss the job may go on
    await progress.enter("collect")
    await Report("collect", "collecting the results", passing=True)
    await try_record(Moved(to.attempt.id, await Now(), AttemptState.COLLECTING))
    # The watchdogs delete the slice `limits.linger` after its job, unless heartbeats show that a process collects.
    await SendHeartbeats(fleet, capabilities.timings.heartbeat_s, everywhere=True)
    try:
        progress.collected = await collection.collect_results(to.lease, fleet, to.request)
    except errors.Interrupted:
        raise  # the artifacts stay on the VM for a while; another `attach` can collect them
    except errors.TpujobError as error:
        failure = failure or error
    progress.detached = False
    if failure is not None:
        raise failure
    collection.check_collected(progress.collected)


async def _connect(lease: Lease) -> FleetPort:
    await Report("attach", f"connecting to {lease.name.node}", passing=True)
    try:
        workers = await retry.until(await Now() + CONNECT_S, Workers(lease.name))
        return await Connect(lease, workers, CONNECT_S)
    except (errors.WrongState, errors.RemoteError):
        await check_slice(lease)  # its watchdog may be deleting it: then the job does not go on
        raise

"""Attach to a detached run: follow its job, bring the artifacts home, release the slice. Leaving early costs nothing.

Until the job has ended the claim is the job's, so an interrupted or killed `attach` changes nothing. What happens after
the end is what happens after the end of an attached run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.core.lease.attempt import Attempt, AttemptEnded, AttemptState, Moved, RunRecord
from orchestrator.core.lease.lease import Lease
from orchestrator.core.lease.slices import Capabilities
from orchestrator.engine.effects.base import Lock, Now, Report, Shield, Unlock
from orchestrator.engine.effects.cloud import Workers
from orchestrator.engine.effects.workers import Connect, Disconnect, FollowPhase, SendHeartbeats
from orchestrator.engine.jobs import collection, monitor
from orchestrator.engine.jobs.job_run import Outcome
from orchestrator.engine.jobs.run import state_after
from orchestrator.engine.leases.obligations import release_owed
from orchestrator.engine.leases.release import note
from orchestrator.engine.runtime import retry
from orchestrator.errors import (
    DeadlineExceeded,
    Interrupted,
    PayloadFailed,
    Preempted,
    RemoteError,
    TpujobError,
    Vanished,
    WrongState,
)

if TYPE_CHECKING:
    from orchestrator.remote.fleet.fleet import Fleet
    from orchestrator.remote.transfer.collect import CollectRequest

CONNECT_S = 120.0


@dataclass(frozen=True, slots=True)
class Attachment:
    """A detached run and its lease, as the ledger has them. `sink` hears the log from its first byte."""

    run: RunRecord
    attempt: Attempt
    lease: Lease
    order: CollectRequest
    max_duration_s: float
    sink: Callable[[int, bytes], None]
    linger_s: float | None = None  # results that are not at home wait for so long; None: as the cloud's pace says


async def attach(to: Attachment, capabilities: Capabilities) -> Outcome:
    """Never raises a TpujobError. With `outcome.detached` the job goes on as before, and `error` says why we left it.

    Whoever calls holds the claim on the attempt, so that only one process collects.
    """
    outcome = Outcome(to.run, to.attempt, started_at=await Now(), lease=to.lease, detached=True)
    try:
        await _until_the_end(to, outcome, capabilities)
        outcome.state = AttemptState.SUCCEEDED
    except TpujobError as error:
        outcome.error, outcome.state = error, state_after(error)
    except Exception as error:
        outcome.error = TpujobError(f"a bug in tpujob: {type(error).__name__}: {error}", hint="please report it")
        outcome.state = AttemptState.ERROR
    await Shield()
    await outcome.enter(None)
    if not outcome.detached:
        await Lock(to.lease.id)
        outcome.owed.lease = to.lease
        await collection.keep_what_waits(outcome, to.linger_s, capabilities)
    if outcome.fleet is not None:
        await Disconnect(outcome.fleet)  # signs of life end with the claim
    if outcome.owed.lease is not None:
        await release_owed(
            outcome.owed, capabilities, "the run ended" if outcome.error is None else outcome.error.message
        )
    await _write_down(to, outcome)
    return outcome


async def _until_the_end(to: Attachment, outcome: Outcome, capabilities: Capabilities) -> None:
    failure: TpujobError | None = None
    await outcome.enter("connect")
    try:
        fleet = outcome.fleet = await _reach(to.lease)
        await outcome.enter("main")
        await FollowPhase(fleet, to.attempt.id, "main", to.sink)
        began = to.attempt.started_at or to.lease.created_at
        # An extension that came before us is in the lease already, and not in what the job file says.
        end = monitor.end_of(to.lease, began, max(to.max_duration_s, to.lease.deadline - began))
        await monitor.monitor(to.lease, fleet, "main", end)
    except (PayloadFailed, DeadlineExceeded) as error:
        failure = error
    except (Vanished, Preempted):
        outcome.detached = False  # nothing is left to attach to, but its absence is to be proven
        raise  # of any other slice that looks lost from here, the job may well go on
    await outcome.enter("collect")
    await note(Moved(to.attempt.id, await Now(), AttemptState.COLLECTING))
    # The slice goes `limits.linger` after its job, unless its switches see that somebody collects.
    await SendHeartbeats(fleet, capabilities.timings.heartbeat_s, everywhere=True)
    try:
        outcome.collected = await collection.bring_home(to.lease, fleet, to.order)
    except Interrupted:
        raise  # the artifacts wait on the VM for a while; another `attach` can still bring them
    except TpujobError as error:
        failure = failure or error
    outcome.detached = False
    if failure is not None:
        raise failure
    collection.check_collected(outcome.collected)


async def _reach(lease: Lease) -> Fleet:
    await Report("attach", f"connecting to {lease.name.node}", passing=True)
    try:
        workers = await retry.until(await Now() + CONNECT_S, Workers(lease.name))
        return await Connect(lease, workers, CONNECT_S)
    except (WrongState, RemoteError):
        await monitor.check_slice(lease)  # its switch may be deleting it: then nothing goes on without us
        raise


async def _write_down(to: Attachment, outcome: Outcome) -> None:
    outcome.spans["release"] = outcome.owed.release_s
    outcome.ended_at = await Now()
    if not outcome.detached:
        rc = outcome.error.rc if isinstance(outcome.error, PayloadFailed) else None
        detail = outcome.error.message if outcome.error else ""
        ended = AttemptEnded(
            to.attempt.id, outcome.ended_at, outcome.state, rc=rc, detail=detail, exit_code=outcome.own_code
        )
        await note(ended)
    await Unlock(to.attempt.id)

"""The end that every run shares: its error is captured, its slice is released, and the ledger records how it ended."""

from contextlib import suppress
from functools import partial

from orchestrator.core.lease.cloud_api import Capabilities
from orchestrator.core.lease.run_and_attempt import AttemptEnded, AttemptState, Leased
from orchestrator.engine.effects.base import Make, Now, Program, Shield, Unlock
from orchestrator.engine.effects.workers import Disconnect
from orchestrator.engine.leases.cancellation import check_attempt
from orchestrator.engine.leases.obligations import release_owed
from orchestrator.engine.leases.release import latest_lease, try_record
from orchestrator.errors import Canceled, PayloadFailed, TpujobError
from orchestrator.run.progress import JobProgress, Outcome


async def capture(progress: JobProgress, work: Program[None], *, shield: bool = True) -> None:
    """Do the work; what ends it early becomes the error and the state of the run. A bug must not leave a slice behind.

    The ledger decides whether the run was canceled: then any other error is a consequence. `shield`: signals wait from then on.
    """
    try:
        try:
            await work
            progress.state = AttemptState.RUNNING if progress.detached else AttemptState.SUCCEEDED
        except TpujobError as error:
            progress.fail(error)
        if shield:
            await Shield()
        await check_canceled(progress)
    except Canceled as error:
        progress.detached = False  # no job goes on
        progress.fail(error)
    except Exception as error:
        progress.fail_with_bug(error)


async def check_canceled(progress: JobProgress) -> None:
    """Raise Canceled if the user has ended the run, or the slice on which it runs.

    An error of the ledger raises nothing: it must not delay the release.
    """
    lease = progress.lease or progress.owed.lease
    for each in (lease,) if lease is not None else tuple(progress.owed.losers):
        if (by := (await latest_lease(each)).canceled_by) is not None:
            raise Canceled(by)
    await _check_attempt(progress)


async def _check_attempt(progress: JobProgress) -> None:
    """Raise Canceled if the ledger says that the user has ended the attempt; an error of it raises nothing."""
    try:
        await check_attempt(progress.attempt.id)
    except Canceled:
        raise
    except TpujobError:
        pass  # the record of the end reports what is wrong with the ledger


async def finish(progress: JobProgress, capabilities: Capabilities) -> Outcome:
    """Release the slices that are owed, record the end, and return the outcome.

    A ledger that cannot be written is reported, and changes neither result nor exit code.
    """
    owed, lease = progress.owed, progress.lease
    if progress.detached:
        owed.lease = None  # the job on the VM has the claim, not this process
    if progress.crew is not None:
        await Disconnect(progress.crew)  # heartbeats end with the claim: if no delete works, the watchdog deletes
    if owed.lease is not None or owed.losers:
        await release_owed(owed, capabilities, "the run ended" if progress.error is None else progress.error.message)
    progress.spans["release"] = owed.release_s
    ended_at = await Now()
    if lease is None and owed.released is not None:
        progress.lease = owed.released.lease  # it never became READY, but it was there
        await try_record(Leased(progress.attempt.id, ended_at, progress.lease.id))
    if progress.detached:
        if lease is not None:
            await Unlock(lease.id)
    else:
        if isinstance(progress.error, PayloadFailed):
            await Make(partial(_explain, progress, progress.error))
        await try_record(_ended(progress, ended_at))
        try:  # the first record of an end counts: the ledger and the exit code must not differ
            await _check_attempt(progress)
        except Canceled as error:
            if not progress.is_bug:  # which must be seen
                progress.fail(error)
    await Unlock(progress.attempt.id)
    return progress.outcome(ended_at)


def _explain(progress: JobProgress, error: PayloadFailed) -> None:
    """Add to the error what the logs of the workers say about the cause."""
    failed = [each.worker for each in error.workers if each.failed]
    with suppress(Exception):  # a hint costs no result
        from orchestrator.run import log_hints  # only after a failure

        error.hint = log_hints.hint(progress.run, failed or [0], error.hint)
    error.__notes__ = [f"hint: {error.hint}"]


def _ended(progress: JobProgress, at: float) -> AttemptEnded:
    error = progress.error
    if not isinstance(error, PayloadFailed):
        return AttemptEnded.by(progress.attempt.id, at, progress.state, error)
    return AttemptEnded.by(progress.attempt.id, at, progress.state, error, rc=error.rc, workers=error.workers)

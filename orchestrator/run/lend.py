"""Lend a slice to this process: create it, claim it while it is used, release it when it is returned.

A lent slice never outlives its process. Its claim is that of an attached run: lock, heartbeats and renewed labels; when the
process dies, the guardian and the watchdog delete the slice. A slice of `up` is held instead (`run.up_and_down`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from orchestrator.errors import DeadlineExceeded, SliceLost, TpujobError
from orchestrator.hosts.fleet.effects import Connect, Disconnect, SendHeartbeats
from orchestrator.hosts.fleet.fleet import Fleet
from orchestrator.promise.effects import retry
from orchestrator.promise.effects.base import Make, MaskSignals, Now, Report
from orchestrator.promise.effects.cloud import Workers
from orchestrator.promise.lease.cloud_api import Capabilities
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.obligations import SliceOutcome, release_owed
from orchestrator.promise.obtain.candidate_search import Search, find
from orchestrator.promise.renewal import LeaseRenewal
from orchestrator.promise.standing import LOOK_S, check_slice

CONNECT_S = 300.0  # sshd of a new VM may take minutes to come up
TICK_S = 1.0
PROBLEM_S = 60.0  # for so long the API may report a problem of the slice before the loan ends


@dataclass(frozen=True, slots=True)
class LendRequest:
    """`lent` is called once, when every worker can be reached. `returned` waits up to so many seconds, and returns whether
    the slice was returned.
    """

    search: Search
    lent: Callable[[Lease, Fleet], None]
    returned: Callable[[float], bool]


@dataclass(slots=True)
class Loan(SliceOutcome):
    """How a loan ended. `error`: why it ended before the slice was returned; `lease`: None if no slice was READY."""

    fleet: Fleet | None = None


async def lend(request: LendRequest, capabilities: Capabilities) -> Loan:
    """Lend a slice until it is returned, and release every slice that this created. Raises no TpujobError."""
    loan = Loan()
    try:
        await _lend(request, capabilities, loan)
    except TpujobError as error:
        loan.error = error
    except Exception as error:  # a bug must not leave a slice behind
        loan.error = TpujobError(f"a bug in tpujob: {type(error).__name__}: {error}", hint="please report it")
        loan.error.__cause__ = error
    await MaskSignals()
    if loan.fleet is not None:
        await Disconnect(loan.fleet)  # heartbeats end with the claim
    reason = "it was returned" if loan.error is None else loan.error.message
    await release_owed(loan.owed, capabilities, reason)
    return loan


async def _lend(request: LendRequest, capabilities: Capabilities, loan: Loan) -> None:
    lease = loan.lease = await find(request.search, capabilities, loan.owed)
    ready_at = await Now()
    await Report("connect", f"waiting for SSH on {lease.name.node}", passing=True)
    patience_s = max(min(CONNECT_S, lease.deadline - ready_at), 1.0)
    workers = await retry.until(ready_at + patience_s, Workers(lease.name))
    loan.fleet = cast("Fleet", await Connect(lease, workers, patience_s))  # of a slice, never of pods
    await SendHeartbeats(loan.fleet, capabilities.timings.heartbeat_s)
    request.lent(lease, loan.fleet)
    await _until_returned(request, LeaseRenewal(lease, len(workers), capabilities, await Now()), lease)


async def _until_returned(request: LendRequest, renewal: LeaseRenewal, lease: Lease) -> None:
    checked_at = await Now()
    problem_since: float | None = None
    while not await Make(partial(request.returned, TICK_S)):
        await renewal.tick()
        now = await Now()
        if now - checked_at < LOOK_S and now < lease.deadline:
            continue
        checked_at = now
        lease, problem = await check_slice(lease)
        if now >= lease.deadline:
            raise DeadlineExceeded(f"{lease.name.node} reached its deadline", hint="ask for a larger max_duration")
        problem_since = None if problem is None else problem_since or now
        if problem is not None and problem_since is not None and now - problem_since > PROBLEM_S:
            raise SliceLost(f"{lease.name.node} is {problem.text}", reason=problem.reason)

"""What every place with leases shares: is the lease still the job's, is the slice still there, and what made the job fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator import errors
from orchestrator.hosts.fleet.effects import StopPhase
from orchestrator.promise import standing
from orchestrator.promise.effects.base import Report, Sleep
from orchestrator.promise.effects.cloud import GetGuestAttributes
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.standing import SliceProblem, record_cancel

if TYPE_CHECKING:
    from orchestrator.hosts.fleet.crew import Crew, FleetStatus
    from orchestrator.hosts.transfer.collect import CollectRequest, CollectResult
    from orchestrator.hosts.transfer.collection import Collection
    from orchestrator.places.desk import Desk
    from orchestrator.places.place import Standing, Watch
    from orchestrator.promise.lease.cloud_api import WorkerAddress
    from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord, SavedState

STOP_GRACE_S = 10.0
NOTICE = "tpujob/notice"  # the watchdog publishes it when its VM is about to be preempted
NOTICE_LOOKS, NOTICE_LOOK_S = 20, 0.75  # a lost write of it is repeated after ten seconds


@dataclass(frozen=True, slots=True)
class LeasedStay:
    """The base of a `Stay` at a place with leases."""

    async def check(self, lease: Lease | None) -> Lease | None:
        assert lease is not None
        return await standing.check_lease(lease)

    async def look(self, lease: Lease | None) -> SliceProblem | None:
        assert lease is not None
        _, problem = await standing.check_slice(lease)
        return problem

    async def classify(self, lease: Lease | None, status: FleetStatus) -> None:
        """Raise SliceLost if the slice made the phase fail: a preemption notice ends a job before its slice goes.

        The watchdog stops the job before it publishes the notice: after a stop that was not asked for here, wait for it.
        """
        assert lease is not None
        lost = status.first_failed.rc is None
        if not (lost or lease.spot or status.any_stopped):
            return
        try:
            for look in range(NOTICE_LOOKS if lease.spot and status.any_stopped else 1):
                if look:
                    await Sleep(NOTICE_LOOK_S)
                if lease.spot and await _is_noticed(lease):
                    text = f"{lease.name.node} is being preempted: its VM got the notice"
                    raise errors.Preempted(text, still_there=True)
                problem = await self.look(lease)
        except errors.SliceLost:
            raise
        except errors.CloudError as error:
            if lost and isinstance(error, errors.Vanished):
                raise
            return  # without an answer the job failed
        if problem is not None and lost:
            text = f"{lease.name.node} is {problem.text}, and the job on it is gone"
            raise errors.SliceLost(text, reason=problem.reason)

    def verdict(self, lease: Lease | None, status: FleetStatus, run: str) -> errors.TpujobError | None:
        return None

    async def follow(self, watch: Watch, standing: Standing, crew: Crew) -> None:
        await watch(standing.end)

    async def stop(self, lease: Lease | None, crew: Crew) -> None:
        assert lease is not None
        try:
            await StopPhase(crew, STOP_GRACE_S)
        except errors.RemoteError as error:
            await Report("warning", f"the job may still be running on {lease.name.node}: {error.message}")

    async def tell_rest(self, lease: Lease, *, watch: bool) -> None:
        """Report nothing: the slice is all that is billed."""

    async def leave(self, error: errors.TpujobError | None, collected: CollectResult | None) -> CollectResult | None:
        return collected

    def starts_again(self, lost: errors.SliceLost, attempt: Attempt) -> bool:
        return False

    async def saved(self) -> SavedState | None:
        return None

    def goes_on(self, error: errors.TpujobError, collected: CollectResult | None) -> bool:
        return not isinstance(error, errors.Vanished | errors.Preempted)


async def _is_noticed(lease: Lease) -> bool:
    try:
        return any(NOTICE in attributes for attributes in await GetGuestAttributes(lease.name))
    except errors.CloudError:
        return False  # what became of the slice is asked next


class LeasedPlace:
    """The base of a `Place` with leases."""

    def end_run(self, desk: Desk, run: RunRecord, attempt: Attempt) -> None:
        desk.run(record_cancel(run.id), run.cloud)

    def tidy(self, desk: Desk, run: RunRecord) -> None:
        """Delete nothing: all of a run is at what its lease names."""

    def rest(self, desk: Desk, project: str, names: Sequence[str]) -> str:
        return ""

    def stored(self, desk: Desk, run: RunRecord, order: CollectRequest) -> Collection | None:
        return None


class NoReach:
    """The way to the workers of a place that has none by a connection, and no keys: a `ReachPort` that is never asked."""

    __slots__ = ()

    def fleet(
        self, lease: Lease, workers: Sequence[WorkerAddress], notice: Callable[[str], None], now: Callable[[], float]
    ) -> Crew:
        raise AssertionError("its workers are not connected to")

    def grant_login(self, lease: Lease, expires_at: float) -> str:
        raise AssertionError("no lease of this place has an SSH key")

    def extend_login(self, lease: Lease, expires_at: float) -> None:
        raise AssertionError("no lease of this place has an SSH key")

    def revoke_login(self, lease: Lease) -> None:
        raise AssertionError("no lease of this place has an SSH key")

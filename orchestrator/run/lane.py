"""A lane: a slice that goes from run to run of one process, so that each of them finds it READY and connected.

Between two runs the slice is claimed as during a run: by the lock and the heartbeats of its process. Nothing holds it: if the
process dies, the guardian deletes it at once, else its watchdog. Each run has it for as long as if the run had created it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.core.lease.cloud_api import Capabilities, SliceState
from orchestrator.core.lease.lease import Lease, LeaseState, Mode, Passed
from orchestrator.core.planning.capacity_request import Provisioning
from orchestrator.engine.effects.base import Make, Now, Report, Shield
from orchestrator.engine.effects.cloud import Get
from orchestrator.engine.effects.workers import Disconnect
from orchestrator.engine.leases.obligations import Obligations, release_owed
from orchestrator.engine.leases.release import latest_lease
from orchestrator.engine.leases.renewal import move_claim
from orchestrator.engine.provision.drafts import Draft
from orchestrator.engine.runtime import retry
from orchestrator.errors import ArtifactError, CloudError, DeadlineExceeded, PayloadFailed, TeardownUnproven

if TYPE_CHECKING:
    from orchestrator.remote.fleet.port import Crew
    from orchestrator.run.job_run import JobRun
    from orchestrator.run.progress import JobProgress

LOOK_S = 60.0  # how long to ask the API whether the slice is there
LEAST_LEFT_S = 30.0  # with less time than this, the slice may reach its deadline before the next run moves that
_SLICE_IS_FINE = (PayloadFailed, DeadlineExceeded, ArtifactError)  # after these errors of a run


@dataclass(slots=True)
class Lane:
    """What one run leaves to the next one. `goes_on`: asked when a job has ended; whether another run takes the slice over."""

    goes_on: Callable[[], bool]
    lease: Lease | None = None
    losers: list[Lease] = field(default_factory=list)  # of the race that it won, not proven gone yet
    crew: Crew | None = None
    collected: str | None = None  # the attempt before, whose files on the workers are not needed any more

    def hand_to(self, progress: JobProgress) -> None:
        """From here on, the run owes the slice, and the losers of its race that are not proven gone yet."""
        progress.owed.lease, progress.owed.losers, progress.crew = self.lease, self.losers, self.crew
        self.lease, self.losers, self.crew = None, [], None


async def take_over(job: JobRun, capabilities: Capabilities, progress: JobProgress) -> Lease | None:
    """Return the slice of the run before, claimed for this one; None if it does not fit any more and is proven gone.

    Raises TeardownUnproven if it is not proven gone.
    """
    lease = progress.owed.lease
    assert lease is not None
    try:
        draft = await _fitting(job, lease)
        life_s = draft.lease.deadline - draft.lease.created_at
        event = Passed(
            lease.id, now := await Now(), job.run.id, draft.lease.handle, now + life_s, draft.lease.budget_usd
        )
        taken = progress.owed.lease = await move_claim(lease, event, capabilities)
        progress.taken_over_at = now
        await Report("ready", f"{lease.name.node}, the slice of the run before")
        return taken
    except CloudError as error:
        why_not = error.message
    await Report("plan", f"{lease.name.node} {why_not}: this run creates another slice")
    if progress.crew is not None:
        await Disconnect(progress.crew)
    progress.crew = None
    await release_owed(progress.owed, capabilities, f"it {why_not}")
    if progress.owed.unproven:
        raise TeardownUnproven(f"{lease.name.node} is not proven gone, so no other slice is created")
    await Shield(raised=False)
    return None


async def _fitting(job: JobRun, lease: Lease) -> Draft:
    """Return the candidate of the job that the slice stands for. Raises CloudError with what is wrong with the slice."""
    draft = next((draft for draft in job.stay.drafts if _same_kind(draft.lease, lease)), None)
    if draft is None:
        raise CloudError("is not what this job asks for")
    now = await Now()
    life_s = draft.lease.deadline - draft.lease.created_at
    if lease.provisioning == Provisioning.FLEX_START and lease.deadline - now < life_s:
        raise CloudError("is ended by the cloud before this job could be done")
    view = await retry.until(now + LOOK_S, Get(lease.name))
    if view is None:
        raise CloudError("does not exist any more")
    if view.state is not SliceState.READY:
        raise CloudError(f"is {view.native_state}")
    return draft


def _same_kind(wanted: Lease, lease: Lease) -> bool:
    return all(
        getattr(wanted, key) == getattr(lease, key)
        for key in ("accelerator_type", "runtime_version", "provisioning", "spot")
    ) and (wanted.name.project, wanted.name.zone) == (lease.name.project, lease.name.zone)


async def pass_on(job: JobRun, progress: JobProgress) -> bool:
    """Leave the slice to the next run, if there is one and the slice is fine; return whether."""
    lane, lease = job.lane, progress.owed.lease
    if lane is None or lease is None or progress.crew is None or progress.lease is None:
        return False
    if progress.is_bug or not (progress.error is None or isinstance(progress.error, _SLICE_IS_FINE)):
        return False
    if progress.collected is not None and progress.collected.uncollected:
        return False  # the slice is held for these results
    lease = await latest_lease(lease)
    left_s = lease.deadline - await Now()
    if lease.state is not LeaseState.READY or lease.mode is not Mode.RUN or left_s < LEAST_LEFT_S:
        return False
    if not await Make(lane.goes_on):
        return False
    lane.lease, lane.losers, lane.crew = lease, progress.owed.losers, progress.crew
    lane.collected = progress.attempt.id
    progress.owed.lease, progress.owed.losers, progress.crew = None, [], None
    progress.passed_on = True
    return True


async def release_lane(lane: Lane, capabilities: Capabilities) -> Obligations:
    """Release the slice that no run takes over; return how that ended."""
    await Shield()
    owed = Obligations(lane.lease, lane.losers)
    if lane.crew is not None:
        await Disconnect(lane.crew)
    lane.lease, lane.losers, lane.crew = None, [], None
    await release_owed(owed, capabilities, "no run follows on it")
    return owed

"""A lane: a slice that goes from run to run of one process, so that each of them finds it READY and connected.

Between two runs the slice is claimed as during a run: by the lock and the heartbeats of its process. Nothing holds it: if the
process dies, the guardian deletes it at once, else its watchdog. Each run has it for as long as if the run had created it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.core.lease.cloud_api import Capabilities
from orchestrator.core.lease.lease import Lease
from orchestrator.engine.effects.base import Shield
from orchestrator.engine.effects.workers import Disconnect
from orchestrator.engine.leases.obligations import Obligations, release_owed

if TYPE_CHECKING:
    from orchestrator.remote.fleet.port import Crew
    from orchestrator.run.progress import JobProgress


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


async def release_lane(lane: Lane, capabilities: Capabilities) -> Obligations:
    """Release the slice that no run takes over; return how that ended."""
    await Shield()
    owed = Obligations(lane.lease, lane.losers)
    if lane.crew is not None:
        await Disconnect(lane.crew)
    lane.lease, lane.losers, lane.crew = None, [], None
    await release_owed(owed, capabilities, "no run follows on it")
    return owed

"""Save the work of a job that may be restarted: its artifacts so far, copied to this machine at intervals.

`engine.jobs.run` decides whether another attempt follows, and counts the time and money of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.engine.effects.base import Now, Report
from orchestrator.engine.effects.workers import SaveWork
from orchestrator.errors import RemoteError

if TYPE_CHECKING:
    from orchestrator.remote.fleet.fleet import Fleet
    from orchestrator.remote.transfer.saved_work import SavedWork

SAVE_S = 120.0  # a checkpoint that takes longer is left for the next interval
LAST_SAVE_S = 20.0  # of the 30 s between a preemption notice and the preemption


@dataclass(slots=True)
class PeriodicSave:
    """A periodic task: save the work every `every_s` while all workers answer."""

    fleet: Fleet
    saved_work: SavedWork
    every_s: float
    _not_before: float | None = None

    async def tick(self, silent_s: float = 0.0) -> None:
        now = await Now()
        if self._not_before is None:
            self._not_before = now + self.every_s
        if now >= self._not_before and silent_s == 0:  # a silent worker would only time out
            await self._save(SAVE_S)
            self._not_before = await Now() + self.every_s

    async def last(self) -> None:
        """Save what can still be saved of a slice that is about to go."""
        await self._save(LAST_SAVE_S)

    async def _save(self, deadline_s: float) -> None:
        try:
            await SaveWork(self.fleet, self.saved_work, deadline_s)
        except RemoteError as error:
            await Report("save", f"the work was not saved this time: {error.message}", passing=True)

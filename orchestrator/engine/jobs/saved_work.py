"""What keeps a run going although its slices are taken away: its work so far at home, and its budget of time and money.

A chore of an attempt that may be followed by another one. Nothing here decides whether it is: that is `engine.jobs.run`.
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

PULL_S = 120.0  # of a checkpoint that large, another interval will bring a newer one
LAST_PULL_S = 20.0  # of the half minute that a notice gives


@dataclass(slots=True)
class PeriodicSave:
    fleet: Fleet
    saved_work: SavedWork
    every_s: float
    _not_before: float | None = None

    async def tick(self, silent_s: float = 0.0) -> None:
        now = await Now()
        if self._not_before is None:
            self._not_before = now + self.every_s
        if now >= self._not_before and silent_s == 0:  # to ask a worker that is silent would only be waiting
            await self._pull(PULL_S)
            self._not_before = await Now() + self.every_s

    async def last(self) -> None:
        """The slice is about to go: what can still be had."""
        await self._pull(LAST_PULL_S)

    async def _pull(self, deadline_s: float) -> None:
        try:
            await SaveWork(self.fleet, self.saved_work, deadline_s)
        except RemoteError as error:
            await Report("carry", f"nothing could be brought home this time: {error.message}", passing=True)

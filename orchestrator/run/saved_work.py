"""Save the work of an attached job: what it has written so far, copied to this machine again and again.

A copy is made in the background, so that a large one delays neither the limits of the job nor the notice of a preemption.
`run.program` decides whether another attempt follows, and counts the time and money of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.engine.effects.base import Now, Report
from orchestrator.engine.effects.workers import KeepSave, StartSave, StopCollection, WaitForCollection
from orchestrator.engine.leases.standing import check_slice
from orchestrator.errors import ArtifactError, CloudError, RemoteError, SliceLost, TpujobError, Vanished

if TYPE_CHECKING:
    from orchestrator.core.lease.lease import Lease
    from orchestrator.remote.fleet.port import Crew
    from orchestrator.remote.transfer.collect import CollectResult
    from orchestrator.remote.transfer.collection import Collection
    from orchestrator.remote.transfer.saved_work import SavedWork
    from orchestrator.run.progress import JobProgress

LAST_SAVE_S = 25.0  # of the 30 s between a preemption notice and the preemption
BEFORE_RELEASE_S = 5.0  # after Ctrl-C: the slice is billed meanwhile
MOST_TOLD = 10
WAIT_S = 1.0
QUICK_S = 0.5  # most copies take less; a longer one is looked at again with the next tick
SHARE = 20  # a copy takes at most one part in so many of the time
OFTENEST = 10  # and is made at most so many times as often as a large one


@dataclass(slots=True)
class PeriodicSave:
    """A periodic task: save the work every `every_s`, or more often if that is quick, while all workers answer."""

    lease: Lease
    crew: Crew
    saved_work: SavedWork
    every_s: float
    progress: JobProgress
    often: bool = True  # for another attempt: more often if that is quick
    _copy: Collection | None = None  # the one that is being made
    _began_at: float = 0.0
    _not_before: float | None = None

    async def tick(self, silent_s: float = 0.0) -> None:
        now = await Now()
        if self._not_before is None:
            self._not_before = now + self.every_s / OFTENEST
        if self._copy is not None:
            await self._look(0.0)
        elif now >= self._not_before and silent_s == 0:  # a silent worker would only time out
            await self._start()
            await self._look(QUICK_S)

    async def last(self, most_s: float = LAST_SAVE_S, *, look: bool = True) -> None:
        """Save what can still be saved of a slice that is about to go. `look`: until it has gone."""
        end = await Now() + most_s
        await self.stop()
        await self._start()
        while self._copy is not None and await Now() < end and not (look and await self._is_gone()):
            await self._look(WAIT_S)
        await self.stop()

    async def tell(self) -> None:
        """Say what the last copy has not of a slice that goes."""
        left = self.progress.unsaved = self.saved_work.left
        for problem in left[:MOST_TOLD]:
            await Report("lost", f"not copied whole: {problem}")
        if len(left) > MOST_TOLD:
            await Report("lost", f"not copied whole: {len(left) - MOST_TOLD:,} more")

    async def stop(self) -> None:
        """End the copy that is being made; what arrived of it stays for the next one."""
        if self._copy is not None:
            await self._keep(await StopCollection(self._copy, "the job or its slice has ended"))

    async def _start(self) -> None:
        self._began_at = await Now()
        self._copy = await StartSave(self.crew, self.saved_work)

    async def _look(self, timeout_s: float) -> None:
        """Wait for the copy; keep it if it is made."""
        assert self._copy is not None
        try:
            copied = (await WaitForCollection(self._copy, timeout_s)).result
        except RemoteError as error:
            await _report_not_saved(error)
            await self._keep(None)
        else:
            if copied is not None:
                await self._keep(copied)

    async def _keep(self, copied: CollectResult | None) -> None:
        """Keep what is complete of the copy, and plan the next one."""
        self._copy = None
        try:
            if copied is not None and 0 in await KeepSave(self.saved_work, copied):
                self.progress.saved_at = self._began_at
        except ArtifactError as error:
            await _report_not_saved(error)
        now = await Now()
        quick_s = max(SHARE * (now - self._began_at), self.every_s / OFTENEST)
        self._not_before = now + (min(quick_s, self.every_s) if self.often else self.every_s)

    async def _is_gone(self) -> bool:
        try:
            await check_slice(self.lease)
        except (SliceLost, Vanished):
            return True
        except CloudError:
            return False
        return False


async def _report_not_saved(error: TpujobError) -> None:
    await Report("save", f"the work was not saved this time: {error.message}", passing=True)

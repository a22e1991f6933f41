"""Report once where a job does not use the TPU, by what its workers publish: `vm.chips` looks there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.core.lease import chip_report
from orchestrator.core.text.durations import format_usd
from orchestrator.engine.effects.base import Now, Report
from orchestrator.engine.effects.cloud import GetGuestAttributes
from orchestrator.errors import CloudError

if TYPE_CHECKING:
    from orchestrator.core.lease.lease import Lease
    from orchestrator.places.place import Standing

# Times `chip_s`: from the start of the job to the first look, between two (a minute: the API limits them), and from the first
# to the last. One that is attached later looks once.
FIRST, EVERY, LAST = 0.1, 0.2, 5.0


@dataclass(slots=True)
class ChipWatch:
    """A task of `monitor` for a job that began at `began` (unix seconds, the ledger's clock). `chip_s`: of the timings."""

    lease: Lease
    at: Standing
    attempt: str
    chip_s: float
    began: float
    _looks: int = 0
    _told: set[str] = field(default_factory=set)

    async def tick(self, silent_s: float = 0.0) -> None:
        """Ask what the workers have published, if that is due, and report what is new."""
        now = await Now()
        passed = (now - self.began) / self.chip_s - FIRST
        if passed < self._looks * EVERY or (self._looks and passed > LAST):
            return
        self._looks = int(passed / EVERY) + 1
        try:
            published = await GetGuestAttributes(self.lease.name)
        except CloudError:
            return  # what became of the slice is asked elsewhere
        found = chip_report.published(published, self.attempt)
        for use in found.keys() - self._told:
            self._told.add(use)
            cost = f"{format_usd(self.at.cost(now))} so far"
            await Report("warning", f"{found[use]}, {cost}; {chip_report.HINTS[use]}")

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
    from orchestrator.engine.jobs.monitor import Bill

# Times `chip_s`: between two looks (a minute: the API limits them), and the last one, from the start of the job on.
EVERY, LAST = 0.2, 4.0


@dataclass(slots=True)
class ChipWatch:
    """A task of `monitor` for a job that began at `began` (unix seconds, the ledger's clock). `chip_s`: of the timings."""

    lease: Lease
    attempt: str
    chip_s: float
    bill: Bill
    began: float
    _looks: int = 0
    _told: set[str] = field(default_factory=set)

    async def tick(self, silent_s: float = 0.0) -> None:
        """Ask what the workers have published, if that is due, and report what is new."""
        now = await Now()
        if not self._looks * EVERY <= (now - self.began) / self.chip_s - 1.1 <= LAST:
            return
        self._looks = int(((now - self.began) / self.chip_s - 1.1) / EVERY) + 1
        try:
            published = await GetGuestAttributes(self.lease.name)
        except CloudError:
            return  # what became of the slice is asked elsewhere
        found = chip_report.published(published, self.attempt)
        for use in found.keys() - self._told:
            self._told.add(use)
            cost = f"{format_usd(self.bill.at(now, self.lease))} so far"
            await Report("warning", f"{found[use]}, {cost}; {chip_report.HINTS[use]}")

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
    from orchestrator.core.lease.timings import Timings
    from orchestrator.engine.jobs.monitor import Bill

FIRST, LAST = 1.1, 4.0  # times `chip_s`, from the start of the job on: the first and the last look


@dataclass(slots=True)
class ChipWatch:
    """A task of `monitor`, for the main phase of an attempt that began at `began` (unix seconds, the ledger's clock)."""

    lease: Lease
    attempt: str
    workers: int
    timings: Timings
    bill: Bill
    began: float
    _looked_at: float = 0.0
    _told: set[str] = field(default_factory=set)

    async def tick(self, silent_s: float = 0.0) -> None:
        """Ask, as often as the API lets one read guest attributes while the VMs write them."""
        now = await Now()
        since_s = (now - self.began) / self.timings.chip_s
        if not FIRST <= since_s <= LAST or now - self._looked_at < self.timings.heartbeat_s:
            return
        self._looked_at = now
        try:
            found = await GetGuestAttributes(self.lease.name)
        except CloudError:
            return  # what became of the slice is asked elsewhere
        for use, line in chip_report.published(found, self.attempt, self.workers).items():
            if use not in self._told:
                self._told.add(use)
                usd = self.bill.at(now, self.lease)
                cost = "" if usd is None else f", {format_usd(usd)} so far"
                await Report("warning", f"{line}{cost}; {chip_report.HINTS[use]}")

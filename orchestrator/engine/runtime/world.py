"""The real world that effects are performed on: a cloud, the ledger, the lock files, the person watching."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.lease.lease import Lease
from orchestrator.core.lease.slices import Cloud, WorkerAddress
from orchestrator.engine.effects.base import LedgerPort, Locks, Report
from orchestrator.engine.guardian.process import GuardianNotStarted
from orchestrator.errors import TpujobError

if TYPE_CHECKING:
    from orchestrator.ledger.clocks import Clocks
    from orchestrator.remote.fleet.fleet import Fleet

LOGIN_USER = "tpujob"


@dataclass(slots=True)
class RealWorld:
    """`open_cloud` is called when the first effect needs the cloud: commands that find nothing to do never connect."""

    kind: str  # of its cloud, as leases name it
    clocks: Clocks
    ledger: LedgerPort
    locks: Locks
    report: Callable[[Report], None]
    lease_directory: Callable[[str], Path]
    start_guardian: Callable[[], object] | None  # None: the person wants none
    open_cloud: Callable[[], Cloud]
    still_there: Callable[[], bool] = lambda: True  # an emulator that was restarted answers at another address
    _cloud: Cloud | None = None
    _armed: bool = False

    @property
    def cloud(self) -> Cloud:
        if self._cloud is None or not self.still_there():
            self._cloud = self.open_cloud()
        return self._cloud

    def now(self, cloud: str | None = None) -> float:
        return self.clocks.now(cloud or self.kind)

    def is_time_certain(self) -> bool:
        return self.clocks.is_certain(self.kind)

    def set_server_time(self, server_now: float, asked_at: float) -> None:
        self.clocks.told(self.kind, server_now, asked_at)

    def arm(self) -> bool:
        if self.start_guardian is None:
            return False
        if not self._armed:
            try:
                self.start_guardian()
            except GuardianNotStarted as error:
                hint = "TPUJOB_GUARDIAN=off goes without: then only a later tpujob command finishes what a killed one leaves"
                raise TpujobError(f"{error}; nothing was created", hint=hint) from error
        self._armed = True
        return True

    def connect(self, lease: Lease, workers: Sequence[WorkerAddress], deadline_s: float) -> Fleet:
        notice = lambda text: self.report(Report("ssh", text))  # noqa: E731
        fleet = open_fleet(self.lease_directory(lease.id), workers, notice, self.now)
        fleet.connect(deadline_s)
        return fleet


def open_fleet(
    directory: Path, workers: Sequence[WorkerAddress], notice: Callable[[str], None], now: Callable[[], float]
) -> Fleet:
    """The workers of a lease, with the key that was made for it. Connects nothing yet."""
    from orchestrator.remote.fleet.fleet import Fleet

    return Fleet(
        workers,
        user=LOGIN_USER,
        key_path=directory / "id_ed25519",
        known_hosts=directory / "known_hosts",
        on_notice=notice,
        now=now,
    )

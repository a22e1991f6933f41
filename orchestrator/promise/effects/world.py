"""The real world that effects are performed on: a cloud, the ledger, the lock files, the user's terminal."""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.errors import TpujobError
from orchestrator.promise.effects.base import Link, Locks, Logins, OwnCreates, Report
from orchestrator.promise.lease.cloud_api import Cloud, WorkerAddress
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.ledger.clocks import Clocks
from orchestrator.promise.ledger.ledger import Ledger

LOOK_S = 1.0  # between two looks at the ledger whether a connected slice is still claimed


class ReachPort(Logins, Protocol):
    """The ways to the workers of this cloud; see `api.reach`."""

    def fleet(
        self, lease: Lease, workers: Sequence[WorkerAddress], notice: Callable[[str], None], now: Callable[[], float]
    ) -> Link:
        """Return the workers of a lease. Connects to nothing yet. `notice` gets sentences for the user."""


class GuardianHandle(Protocol):
    """A guardian that watches this process until `close`; see `promise.guardian_process`."""

    @property
    def waits(self) -> bool:
        """Whether it watches. False after `close`, and in a forked child."""

    def close(self) -> None:
        """Wake the guardian, which then releases what is left and not locked."""


@dataclass(slots=True)
class RealWorld:
    """`open_cloud` is called when the first effect needs the cloud: commands that find nothing to do never connect.

    A forked child connects anew and has no guardian yet; the connections of its parent are not its own.
    """

    kind: str  # of its cloud, as leases name it
    clocks: Clocks
    ledger: Ledger
    locks: Locks
    report: Callable[[Report], None]
    start_guardian: Callable[[], GuardianHandle] | None  # None: the user wants none
    open_cloud: Callable[[], Cloud]
    reach: ReachPort
    channel: str  # how workers are reached, as the stage of messages about that
    still_there: Callable[[], bool] = lambda: True  # an emulator that was restarted answers at another address
    own_creates: OwnCreates = field(default_factory=OwnCreates)
    _cloud: Cloud | None = None
    _cloud_pid: int = 0  # the process that has opened it
    _guardian: GuardianHandle | None = None
    _fleets: list[Link] = field(default_factory=list)
    _pid: int = field(default_factory=os.getpid)
    _closed: bool = False

    @property
    def cloud(self) -> Cloud:
        if self._cloud is None or self._cloud_pid != os.getpid() or not self.still_there():
            self._cloud, self._cloud_pid = self.open_cloud(), os.getpid()
        return self._cloud

    def close(self) -> None:
        """End the heartbeats, and wake the guardian, which releases what is left and not locked. For a process that lives on.

        In a forked child this touches nothing of its parent's.
        """
        self._closed = True
        if self._pid == os.getpid():
            for fleet in self._fleets:
                fleet.cancel()
        if self._guardian is not None:
            self._guardian.close()

    def now(self, cloud: str | None = None) -> float:
        return self.clocks.now(cloud or self.kind)

    def is_time_certain(self) -> bool:
        return self.clocks.is_certain(self.kind)

    def set_server_time(self, server_now: float, asked_at: float) -> None:
        self.clocks.synchronize(self.kind, server_now, asked_at)

    def arm(self) -> bool:
        """Start the guardian of this process, once. False: the user wants none. Raises TpujobError when it does not start."""
        if self.start_guardian is None:
            return False
        if self._guardian is None or not self._guardian.waits:
            self._guardian = self.start_guardian()
            if self._closed:  # this effect was abandoned
                self._guardian.close()
        return True

    def connect(self, lease: Lease, workers: Sequence[WorkerAddress], deadline_s: float) -> Link:
        notice = lambda text: self.report(Report(self.channel, text))  # noqa: E731
        fleet = self.reach.fleet(lease, workers, notice, self.now)
        self._fleets.append(fleet)
        if self._closed:  # this effect was abandoned
            fleet.cancel()
        threading.Thread(target=self._disconnect_after_release, args=(fleet, lease.id), daemon=True).start()
        fleet.connect(deadline_s, lambda text: self.report(Report("connect", text, passing=True)))
        return fleet

    def _disconnect_after_release(self, fleet: Link, lease_id: str) -> None:
        """Cancel the fleet once any process has begun to release its slice: no call may go on until it times out."""
        while not fleet.canceled(LOOK_S):
            try:
                claimed = self.ledger.lease(lease_id).down_at is None
            except TpujobError:
                continue  # a ledger that cannot be read releases nothing
            if not claimed:
                fleet.cancel()

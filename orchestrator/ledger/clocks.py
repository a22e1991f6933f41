"""The ledger's time of each cloud: the boot clock of this machine, anchored in the ledger."""

import time
from collections.abc import Callable
from typing import Protocol

from orchestrator import boot_clock
from orchestrator.core.lease import timekeeping
from orchestrator.core.lease.lease import Lease
from orchestrator.core.lease.timekeeping import Anchor
from orchestrator.ledger.file import LedgerUnavailable


class Anchors(Protocol):
    """Where the anchors are kept: the ledger."""

    def anchor(self, cloud: str, change: Callable[[Anchor | None, list[Lease]], Anchor]) -> Anchor: ...


class HostClock(Protocol):
    """The clocks of a machine."""

    def boot_id(self) -> str: ...

    def boot_s(self) -> float: ...

    def wall(self) -> float: ...


class ThisHostClock:
    """The clocks of this machine."""

    boot_id = staticmethod(boot_clock.boot_id)
    boot_s = staticmethod(boot_clock.boot_s)
    slept_s = staticmethod(boot_clock.slept_s)

    @staticmethod
    def wall() -> float:
        return time.time()


class Clocks:
    """One for each `Ledger`. All times are unix seconds of the ledger's time (`core.lease.timekeeping`)."""

    def __init__(self, anchors: Anchors, host: HostClock | None = None) -> None:
        self._anchors, self._host = anchors, host or ThisHostClock()
        self._known: dict[str, Anchor] = {}

    def now(self, cloud: str) -> float:
        """Return the time. It is never ahead of what has really passed since any time of this cloud in the ledger.

        Raises LedgerUnavailable when no anchor is known yet.
        """
        return self._anchor(cloud).now(self._host.boot_s())

    def is_certain(self, cloud: str) -> bool:
        """Return False after a restart of this machine until `synchronize`: more time may have passed than `now` says."""
        return self._anchor(cloud).sure

    def synchronize(self, cloud: str, server_now: float, asked_at: float) -> None:
        """Take the time from the server's Date in a reply that has just come, to a call made at `asked_at` (`now`)."""
        asked_s = asked_at - self._anchor(cloud).zero
        self._anchor(
            cloud,
            lambda anchor: timekeeping.synchronized(anchor, server_now, asked_s=asked_s, boot_s=self._host.boot_s()),
        )

    def _anchor(self, cloud: str, then: Callable[[Anchor], Anchor] | None = None) -> Anchor:
        known = self._known.get(cloud)
        if known is not None and known.sure and then is None:
            return known  # it does not change before this machine restarts
        boot, boot_s, wall = self._host.boot_id(), self._host.boot_s(), self._host.wall()

        def change(before: Anchor | None, leases: list[Lease]) -> Anchor:
            if known is not None and (before is None or before.boot != boot):
                before = known  # the ledger could not be written
            anchor = timekeeping.anchored(before, leases, boot=boot, boot_s=boot_s, wall=wall)
            return anchor if then is None else then(anchor)

        try:
            self._known[cloud] = self._anchors.anchor(cloud, change)
        except LedgerUnavailable:
            if known is None:
                raise
            self._known[cloud] = known if then is None else then(known)  # a teardown goes on without the ledger
        return self._known[cloud]

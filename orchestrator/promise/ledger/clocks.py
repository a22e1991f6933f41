"""The ledger's time of each cloud: how much time has passed, by the boot clock of this machine, anchored in the ledger.

While the machine runs, the difference of its boot clock is the time that has passed. Across a restart it is the difference
of the server's Date headers, less two seconds. Where neither is known, no time has passed: nothing settles and nothing
expires. So ledger time never runs ahead of the time that has really passed. The wall clock only sets its start, so that
it reads well.

Each cloud has a ledger time of its own: one server's clock says nothing about the leases of another cloud.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.ledger.file import LedgerUnavailable
from orchestrator.system import boot_clock

DATE_ERROR_S = 2.0  # a Date header has whole seconds, and two servers need not agree
QUICK_S = 5.0  # a slower reply is no good measurement of the server's clock
DRIFT_S = 1.0  # a smaller difference is not worth a write


@dataclass(frozen=True, slots=True)
class Anchor:
    """Where one boot of this machine lies on the ledger time."""

    boot: str  # the boot's id
    zero: float  # the ledger time, in unix seconds, at which the boot clock was 0
    sure: bool = True  # False: after a restart, until the cloud says how long it took; `zero` is then a lower bound
    ahead_s: float | None = None  # how far the server's clock is ahead of ledger time, at most; None: never compared

    def now(self, boot_s: float) -> float:
        """Return the ledger time, in unix seconds, at `boot_s` seconds after this boot."""
        return self.zero + boot_s


def anchored(before: Anchor | None, leases: Iterable[Lease], *, boot: str, boot_s: float, wall: float) -> Anchor:
    """Return the anchor of this boot. `leases` are the open ones: their times must continue from where they were."""
    known = [at for lease in leases for at in _past(lease)]
    if before is not None and before.boot == boot and (before.sure or known):
        return before
    if not known:  # nothing has to continue: also after a restart at which the cloud did not answer
        return Anchor(boot, wall - boot_s)
    ahead_s = None if before is None else before.ahead_s
    return Anchor(boot, max(known) - boot_s, sure=False, ahead_s=ahead_s)


def _past(lease: Lease) -> Iterable[float]:
    times = (lease.created_at, lease.sent_at, lease.ready_at, lease.detached_at, lease.down_at)
    return (at for at in times if at is not None)


def synchronized(anchor: Anchor, server_now: float, *, asked_s: float, boot_s: float) -> Anchor:
    """Return the anchor after a reply that carried the server's time.

    `asked_s` and `boot_s` are this machine's boot clock when the request left and when the reply came.
    """
    ahead_s = anchor.ahead_s
    if not anchor.sure:
        zero = anchor.zero if ahead_s is None else max(anchor.zero, server_now - ahead_s - DATE_ERROR_S - boot_s)
        anchor = replace(anchor, zero=zero, sure=True)
    measured_s = server_now - anchor.now(asked_s)
    if ahead_s is None or (boot_s - asked_s < QUICK_S and abs(measured_s - ahead_s) > DRIFT_S):
        anchor = replace(anchor, ahead_s=measured_s)
    return anchor


class Anchors(Protocol):
    """Where the anchors are kept: the ledger."""

    def anchor(self, cloud: str, change: Callable[[Anchor | None, list[Lease]], Anchor]) -> Anchor:
        """Return the anchor of a cloud's time, made by `change` of the last one (None: there is none) and the open leases."""


class HostClock(Protocol):
    """The clocks of a machine."""

    def boot_id(self) -> str:
        """Return which start of the machine this is."""

    def boot_s(self) -> float:
        """Return the seconds since that start."""

    def wall(self) -> float:
        """Return what the machine takes for unix seconds."""


class ThisHostClock:
    """The clocks of this machine."""

    boot_id = staticmethod(boot_clock.boot_id)
    boot_s = staticmethod(boot_clock.boot_s)
    slept_s = staticmethod(boot_clock.slept_s)

    @staticmethod
    def wall() -> float:
        return time.time()


class Clocks:
    """One for each `Ledger`. All times are unix seconds of the ledger's time (`promise.ledger.clocks`)."""

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
        now_s = self._host.boot_s
        self._anchor(cloud, lambda anchor: synchronized(anchor, server_now, asked_s=asked_s, boot_s=now_s()))

    def _anchor(self, cloud: str, then: Callable[[Anchor], Anchor] | None = None) -> Anchor:
        known = self._known.get(cloud)
        if known is not None and known.sure and then is None:
            return known  # it does not change before this machine restarts
        boot, boot_s, wall = self._host.boot_id(), self._host.boot_s(), self._host.wall()

        def change(before: Anchor | None, leases: list[Lease]) -> Anchor:
            if known is not None and (before is None or before.boot != boot):
                before = known  # the ledger could not be written
            anchor = anchored(before, leases, boot=boot, boot_s=boot_s, wall=wall)
            return anchor if then is None else then(anchor)

        try:
            self._known[cloud] = self._anchors.anchor(cloud, change)
        except LedgerUnavailable:
            if known is None:
                raise
            self._known[cloud] = known if then is None else then(known)  # a teardown goes on without the ledger
        return self._known[cloud]

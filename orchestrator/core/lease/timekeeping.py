"""Ledger time: how much time has passed, whatever happens to the wall clock of this machine. Pure.

While the machine runs, the difference of its boot clock is the time that has passed. Across a restart it is the difference
of the server's Date headers, less two seconds. Where neither is known, no time has passed: nothing settles and nothing
expires. So ledger time never runs ahead of the time that has really passed. The wall clock only sets its start, so that
it reads well.

Each cloud has a ledger time of its own: one server's clock says nothing about the leases of another cloud.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from orchestrator.core.lease.lease import Lease

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

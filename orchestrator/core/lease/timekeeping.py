"""The time of the ledger: how much time has passed, whatever happens to the wall clock of this machine. Pure.

While the machine runs, the difference of its boot clock is the time that has passed. Across a restart the difference of the
server's Dates says it, less two seconds. Where neither is known, no time has passed: nothing settles, nothing ends. So
the time of the ledger never runs ahead of the time that has really passed. Wall time only begins it, so that it reads well.

Each cloud has a time of its own: what one server says about the time is nothing to the leases of another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from orchestrator.core.lease.lease import Lease

DOUBT_S = 2.0  # a Date has whole seconds, and two servers need not agree
QUICK_S = 5.0  # an answer that took longer does not say well what time it is
DRIFT_S = 1.0  # less than that is not worth a write


@dataclass(frozen=True, slots=True)
class Anchor:
    """Where one boot of this machine lies on the time of the ledger."""

    boot: str
    zero: float  # the time of the ledger, in unix seconds, at which the boot clock was 0
    sure: bool = True  # False: after a restart, until the cloud says how long it took; `zero` is the least it can be
    ahead_s: float | None = None  # how far the server's clock is ahead of this time, at most. None: never compared

    def now(self, boot_s: float) -> float:
        return self.zero + boot_s


def anchored(before: Anchor | None, leases: Iterable[Lease], *, boot: str, boot_s: float, wall: float) -> Anchor:
    """The anchor of this boot. `leases` are the open ones, whose times need to go on from where they were."""
    known = [at for lease in leases for at in _past(lease)]
    if before is not None and before.boot == boot and (before.sure or known):
        return before
    if not known:  # nothing has to go on: also after a restart at which the cloud did not answer
        return Anchor(boot, wall - boot_s)
    ahead_s = None if before is None else before.ahead_s
    return Anchor(boot, max(known) - boot_s, sure=False, ahead_s=ahead_s)


def _past(lease: Lease) -> Iterable[float]:
    times = (lease.created_at, lease.sent_at, lease.ready_at, lease.detached_at, lease.down_at)
    return (at for at in times if at is not None)


def told(anchor: Anchor, server_now: float, *, asked_s: float, boot_s: float) -> Anchor:
    """The anchor after an answer of the server, which carried its Date. `asked_s` and `boot_s` are of the boot clock."""
    ahead_s = anchor.ahead_s
    if not anchor.sure:
        zero = anchor.zero if ahead_s is None else max(anchor.zero, server_now - ahead_s - DOUBT_S - boot_s)
        anchor = replace(anchor, zero=zero, sure=True)
    measured_s = server_now - anchor.now(asked_s)
    if ahead_s is None or (boot_s - asked_s < QUICK_S and abs(measured_s - ahead_s) > DRIFT_S):
        anchor = replace(anchor, ahead_s=measured_s)
    return anchor

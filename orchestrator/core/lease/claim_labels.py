"""Claims as everybody sees them: the labels on a node that say until when it may live, written and read. Pure.

The CLI writes them (in the create call, then through `SetLabels`), the switch on the VM and every gc run obey them. A gc run
knows nothing else: no ledger, no process, only labels, the name and the server's clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.core.lease.lease import Lease, Mode
from orchestrator.core.lease.slices import SliceView
from orchestrator.core.lease.timings import Timings
from orchestrator.core.text import names

DEFAULT_LIFE_S = 24 * 3600.0  # what a slice of ours with unreadable labels is given, from its creation on
_SECONDS = re.compile(r"[0-9]{9,11}", re.ASCII)  # a time between 1973 and 5138


def claimed_until(lease: Lease, now: float, timings: Timings) -> float:
    """Until when the slice is claimed if nobody says anything more. Never beyond the deadline."""
    if lease.ready_at is None:
        return first_claimed_until(lease, now, timings)
    # What `up` brought belongs to its command until it is held: if that dies before, nobody wants it to its deadline.
    lasting = lease.mode is Mode.DETACHED or lease.hold_until is not None
    return min(lease.ends_at if lasting else now + timings.label_ttl_s, lease.deadline)


def first_claimed_until(lease: Lease, sent_at: float, timings: Timings) -> float:
    """What the create call says: long enough to wait in the queue (if it is queued), to become READY and to boot."""
    return min(max(sent_at, lease.ready_by or 0.0) + timings.provision_s + timings.boot_s, lease.deadline)


def once_ready_until(lease: Lease, timings: Timings) -> float:
    """What is left of the first claim when a queued slice is READY: enough to boot and to be logged in to."""
    return min(
        (lease.ready_at or lease.created_at) + max(timings.label_ttl_s, timings.provision_s + timings.boot_s),
        lease.deadline,
    )


def labels(
    lease: Lease, now: float, timings: Timings, *, skew_s: float = 0.0, deadline: float | None = None
) -> dict[str, str]:
    """Every label of ours, as it should be at `now`.

    Labels are read by the server's clock, a lease is written by this machine's: `skew_s` is how far the server's is ahead.
    `deadline` is what the label already says, by the server's clock; a deadline never moves because a clock did.
    """
    deadline = lease.deadline + skew_s if deadline is None else deadline
    return names.labels(
        lease_id=lease.id,
        owner=lease.owner,
        name=lease.handle,
        claimed_until=min(claimed_until(lease, now, timings) + skew_s, deadline),
        deadline=deadline,
        mode=str(lease.mode),
    )


def deadline_label(said: Mapping[str, str]) -> float | None:
    """By the server's clock; None when there is none that can be read."""
    return _seconds(said.get(names.DEADLINE))


def claimed_until_label(said: Mapping[str, str]) -> float:
    """By the server's clock; 0 when there is none that can be read."""
    return _seconds(said.get(names.CLAIMED_UNTIL)) or 0.0


def watchdog_acts_by(lease: Lease, now: float, timings: Timings) -> float:
    """When the switch on the VM has deleted the slice at the latest, if nobody else does from `now` on, and if it lives."""
    waited = max(now, lease.ready_by or 0.0)
    begin = now if lease.ready_at is not None else waited + timings.provision_s + timings.boot_s
    ends_at = {Mode.RUN: begin + timings.ttl_s, Mode.HOLD: lease.ends_at, Mode.DETACHED: lease.deadline}[lease.mode]
    return max(begin, min(ends_at, lease.deadline)) + timings.grace_s + 3 * timings.poll_s


@dataclass(frozen=True, slots=True)
class LabelClaim:
    """What the labels of a slice say. `odd` holds remarks about those that cannot be read."""

    claimed_until: float
    deadline: float
    odd: tuple[str, ...] = ()


def read(view: SliceView, timings: Timings) -> LabelClaim | None:
    """None when nothing can be said: labels unreadable and the time of creation unknown."""
    lease, deadline = (_seconds(view.labels.get(label)) for label in (names.CLAIMED_UNTIL, names.DEADLINE))
    odd = tuple(
        f"{label}={view.labels.get(label)!r} is not a time"
        for label, value in ((names.CLAIMED_UNTIL, lease), (names.DEADLINE, deadline))
        if value is None
    )
    if (lease is None or deadline is None) and view.created_at is None:
        return None
    born = view.created_at or 0.0
    default = born + timings.provision_s + DEFAULT_LIFE_S
    deadline = default if deadline is None else deadline
    return LabelClaim(min(default, deadline) if lease is None else lease, deadline, odd)


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and _SECONDS.fullmatch(text) else None


def ended(stamp: LabelClaim, server_now: float, timings: Timings) -> str | None:
    """Why nobody has a claim on the slice any more, or None. The margin is for clocks and for renewals on their way."""
    if server_now > stamp.deadline + timings.margin_s:
        return f"its deadline passed {server_now - stamp.deadline:.0f} s ago"
    if server_now > stamp.claimed_until + timings.margin_s:
        return f"its lease ended {server_now - stamp.claimed_until:.0f} s ago and nobody renewed it"
    return None

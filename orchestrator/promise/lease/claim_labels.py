"""A claim as labels on a node: until when the slice may be billed, written and read. Pure.

The client writes the labels in the create call and then through `SetLabels`; the watchdog on the VM and gc obey them.
gc needs nothing else: no ledger and no process, only the labels, the name and the server's clock.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.promise.lease.cloud_api import SliceState, SliceView
from orchestrator.promise.lease.lease import HeldFor, Lease, LeaseState, Mode, Purpose
from orchestrator.promise.lease.periods import Timings
from orchestrator.text import names

LONGEST_S = 7 * 86400.0  # from its creation on, with every extension
DEFAULT_LIFE_S = 24 * 3600.0  # from its creation on, for a slice of ours with unreadable labels
_SECONDS = re.compile(r"[0-9]{9,11}", re.ASCII)  # a time between 1973 and 5138


def claimed_until(lease: Lease, now: float, timings: Timings) -> float:
    """Return until when the slice is claimed unless the claim is renewed; never later than the deadline. Ledger time."""
    if lease.ready_at is None:
        return first_claimed_until(lease, now, timings)
    # A slice of `up` belongs to its command until it is held: if the command dies before, the claim must end soon.
    lasting = lease.mode is Mode.DETACHED or lease.hold_until is not None
    return min(lease.ends_at if lasting else now + timings.label_ttl_s, lease.deadline)


def first_claimed_until(lease: Lease, sent_at: float, timings: Timings) -> float:
    """Return the claim of the create call: long enough to wait in a queue (if queued), to become READY and to boot."""
    return min(max(sent_at, lease.ready_by or 0.0) + timings.provision_s + timings.boot_s, lease.deadline)


def claimed_until_once_ready(lease: Lease, timings: Timings) -> float:
    """Return what is left of the first claim once a queued slice is READY: enough to boot and to connect."""
    ready_at = lease.ready_at or lease.created_at
    return min(ready_at + max(timings.label_ttl_s, timings.provision_s + timings.boot_s), lease.deadline)


def labels(
    lease: Lease, now: float, timings: Timings, *, skew_s: float = 0.0, deadline: float | None = None
) -> dict[str, str]:
    """Return all labels of tpujob as they should be at `now`.

    Labels use the server's clock, a lease uses ledger time: `skew_s` is how far the server's clock is ahead. `deadline` is
    what the label already says, in the server's time: a deadline never moves because a clock did.
    """
    deadline = lease.deadline + skew_s if deadline is None else deadline
    return names.labels(
        lease_id=lease.id,
        owner=lease.owner,
        name=lease.handle,
        claimed_until=min(claimed_until(lease, now, timings) + skew_s, deadline),
        deadline=deadline,
        mode=str(lease.mode),
        run=lease.run,
        held_for=lease.held_for,
    )


def latest_end(lease: Lease) -> float:
    """Return the latest end to which a lease can be extended, whatever labels say: by its age, and by its budget."""
    latest = lease.created_at + LONGEST_S
    if lease.budget_usd is not None and lease.usd_per_hour:
        latest = min(latest, max(lease.created_at + lease.budget_usd / lease.usd_per_hour * 3600, lease.deadline))
    return latest


def read_deadline(node_labels: Mapping[str, str]) -> float | None:
    """Return the deadline label in unix seconds (server clock); None if missing or malformed."""
    return _seconds(node_labels.get(names.DEADLINE))


def read_claimed_until(node_labels: Mapping[str, str]) -> float:
    """Return the claim label in unix seconds (server clock); 0.0 if missing or malformed."""
    return _seconds(node_labels.get(names.CLAIMED_UNTIL)) or 0.0


def watchdog_acts_by(lease: Lease, now: float, timings: Timings) -> float:
    """Return when the watchdog deletes the slice at the latest, if nothing but a live watchdog acts on it from `now` on."""
    waited = max(now, lease.ready_by or 0.0)
    begin = now if lease.ready_at is not None else waited + timings.provision_s + timings.boot_s
    ends_at = {Mode.RUN: begin + timings.ttl_s, Mode.HOLD: lease.ends_at, Mode.DETACHED: lease.deadline}[lease.mode]
    return max(begin, min(ends_at, lease.deadline)) + timings.grace_s + 3 * timings.poll_s


@dataclass(frozen=True, slots=True)
class LabelClaim:
    """The claim in a slice's labels: unix seconds, the server's clock."""

    claimed_until: float
    deadline: float
    remarks: tuple[str, ...] = ()  # about labels that cannot be read


def read_claim(view: SliceView, timings: Timings) -> LabelClaim | None:
    """Return the claim in the labels; None if labels are unreadable and the time of creation is unknown."""
    times = {label: _seconds(view.labels.get(label)) for label in (names.CLAIMED_UNTIL, names.DEADLINE)}
    unreadable = [label for label, value in times.items() if value is None]
    if unreadable and view.created_at is None:
        return None
    remarks = tuple(f"{label}={view.labels.get(label)!r} is not a time" for label in unreadable)
    until, deadline = times.values()
    default = (view.created_at or 0.0) + timings.provision_s + DEFAULT_LIFE_S
    deadline = default if deadline is None else deadline
    return LabelClaim(min(default, deadline) if until is None else until, deadline, remarks)


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and _SECONDS.fullmatch(text) else None


def expiry_reason(claim: LabelClaim, server_now: float, timings: Timings) -> str | None:
    """Return why the claim is over; None while it holds. The margin allows for clocks and for renewals under way."""
    if server_now > claim.deadline + timings.margin_s:
        return f"its deadline passed {server_now - claim.deadline:.0f} s ago"
    if server_now > claim.claimed_until + timings.margin_s:
        return f"its claim ended {server_now - claim.claimed_until:.0f} s ago and was not renewed"
    return None


def found_elsewhere(view: SliceView, lease: Lease, claim: LabelClaim, *, now: float, skew_s: float) -> Lease | None:
    """Return the lease, from `adopted`, of a slice that another machine made, to be used here; None if its labels lack a word.

    Its claim stays with who made it: nothing here ends it because of the time. `skew_s`: how far the server's clock is ahead.
    """
    mode = view.labels.get(names.MODE)
    if mode not in [*Mode]:
        return None
    is_ready = view.state is SliceState.READY
    since = lease.created_at if view.running_s is None else now - view.running_s
    return replace(
        lease,
        purpose=Purpose.ELSEWHERE,
        deadline=claim.deadline - skew_s,
        state=LeaseState.READY if is_ready else LeaseState.CREATING,
        settled=True,
        ready_at=since if is_ready else None,
        hold_until=claim.claimed_until - skew_s if mode == Mode.HOLD else None,
        held_for=held_for(view) if mode == Mode.HOLD else None,
        detached_at=now if mode == Mode.DETACHED else None,
    )


def held_for(view: SliceView) -> HeldFor:
    """Return why the slice is held, as its labels say."""
    why = view.labels.get(names.HELD_FOR)
    return next((each for each in HeldFor if each == why), HeldFor.USER)


def adopted(
    view: SliceView, *, cloud: str, now: float, age_s: float | None, usd_per_hour: float | None
) -> Lease | None:
    """Return a lease, to be released and not used, for a slice of ours that the ledger does not know.

    Its create calls are unknown: they count as one that left when the slice was created (`age_s` seconds ago; None: now)
    and has not settled. None if its lease-id label is not an id: nothing else tells the slice from another of its name,
    and the id names files.
    """
    lease_id = view.labels.get(names.LEASE_ID, "")
    if not names.is_run_id(lease_id):
        return None
    made_at = now - (age_s or 0.0)
    return Lease(
        id=lease_id,
        handle=view.labels.get(names.NAME) or view.name.node,
        purpose=Purpose.HOLD if view.labels.get(names.MODE) == Mode.HOLD else Purpose.RUN,
        cloud=cloud,
        name=view.name,
        accelerator_type=view.accelerator_type,
        runtime_version=view.runtime_version,
        spot=view.spot,
        owner=view.labels.get(names.OWNER, ""),
        deadline=now,
        created_at=made_at,
        usd_per_hour=usd_per_hour,
        state=LeaseState.CREATING,
        sent_at=made_at,
        sends=1,
        run=view.labels.get(names.RUN),
    )

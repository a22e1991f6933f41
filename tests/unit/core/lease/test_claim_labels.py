"""Claims in labels: what is written, what is read, and when a claim is over."""

from dataclasses import replace

import pytest

from orchestrator.core.lease import claim_labels
from orchestrator.core.lease.claim_labels import (
    LabelClaim,
    claimed_until,
    expiry_reason,
    labels,
    read_claim,
    watchdog_acts_by,
)
from orchestrator.core.lease.cloud_api import SliceName, SliceState, SliceView
from orchestrator.core.lease.lease import Detached, Extended, Held, Lease, LeaseState, Mode, Purpose, apply
from orchestrator.core.lease.timings import GOOGLE, emulated
from tests.leases import lease_on

NOW = 1_800_000_000.0


def lease(**changes: object) -> Lease:
    name = SliceName("p", "us-central1-a", "tpujob-owner0-0123456789")
    return lease_on(name, NOW, **{"handle": "mnist", "cloud": "google", **changes})


def view(labels: dict[str, str], created_at: float | None = NOW) -> SliceView:
    name = SliceName("p", "us-central1-a", "tpujob-owner0-0123456789")
    return SliceView(name, SliceState.READY, "READY", "v5litepod-8", "v2", labels, created_at)


def test_the_first_claim_reaches_over_provisioning_and_boot() -> None:
    assert claimed_until(lease(), NOW, GOOGLE) == NOW + GOOGLE.provision_s + GOOGLE.boot_s


def test_the_first_claim_of_a_queued_slice_reaches_over_its_waiting_too() -> None:
    waiting = lease(ready_by=NOW + 6 * 3600)
    assert claimed_until(waiting, NOW, GOOGLE) == NOW + 6 * 3600 + GOOGLE.provision_s + GOOGLE.boot_s
    late = NOW + 7 * 3600  # sent again, when the time in the queue is over
    assert claimed_until(waiting, late, GOOGLE) == late + GOOGLE.provision_s + GOOGLE.boot_s
    short = replace(waiting, deadline=NOW + 6 * 3600 + 60)
    assert claimed_until(short, NOW, GOOGLE) == short.deadline
    ready = replace(waiting, state=LeaseState.READY, ready_at=NOW + 600)
    assert claimed_until(ready, NOW + 600, GOOGLE) == NOW + 600 + GOOGLE.label_ttl_s


def test_the_watchdog_of_a_queued_slice_counts_from_the_end_of_its_wait() -> None:
    plain, waiting = lease(), lease(ready_by=NOW + 6 * 3600)
    assert watchdog_acts_by(waiting, NOW, GOOGLE) - watchdog_acts_by(plain, NOW, GOOGLE) == 6 * 3600


def test_an_attached_run_claims_a_little_ahead_of_now() -> None:
    ready = lease(state=LeaseState.READY, ready_at=NOW)
    assert claimed_until(ready, NOW + 600, GOOGLE) == NOW + 600 + GOOGLE.label_ttl_s


def test_a_slice_of_up_that_is_not_held_yet_claims_no_more_than_a_run() -> None:
    ready = lease(purpose=Purpose.HOLD, state=LeaseState.READY, ready_at=NOW)
    assert claimed_until(ready, NOW + 600, GOOGLE) == NOW + 600 + GOOGLE.label_ttl_s


def test_the_label_of_a_detached_run_reaches_to_its_deadline() -> None:
    """gc does not see the end of the job: without a watchdog it deletes such a slice after the deadline (C7)."""
    detached = lease(state=LeaseState.READY, ready_at=NOW, detached_at=NOW + 60)
    assert claimed_until(detached, NOW + 600, GOOGLE) == detached.deadline


def test_no_claim_reaches_beyond_the_deadline() -> None:
    ready = lease(state=LeaseState.READY, ready_at=NOW, deadline=NOW + 1000)
    assert claimed_until(ready, NOW + 600, GOOGLE) == NOW + 1000


@pytest.mark.parametrize(("event", "until", "mode"), [
    (Held("0123456789", NOW, NOW + 3600), NOW + 3600, Mode.HOLD),
    (Detached("0123456789", NOW), NOW + 86400, Mode.DETACHED),
])  # fmt: skip
def test_a_held_or_detached_slice_claims_to_its_end(event: Held | Detached, until: float, mode: Mode) -> None:
    moved = apply(lease(state=LeaseState.READY, ready_at=NOW), event)
    written = labels(moved, NOW + 60, GOOGLE)
    assert (written["tpujob-claimed-until"], written["tpujob-mode"]) == (str(int(until)), str(mode))


def test_extending_a_hold_moves_its_end_and_the_deadline_only_as_far_as_needed() -> None:
    held = apply(lease(state=LeaseState.READY, ready_at=NOW), Held("0123456789", NOW, NOW + 3600))
    longer = apply(held, Extended("0123456789", NOW, NOW + 7200))
    assert (longer.hold_until, longer.deadline) == (NOW + 7200, NOW + 86400)
    assert apply(held, Extended("0123456789", NOW, NOW + 90000)).deadline == NOW + 90000


def test_labels_that_were_written_are_read_back() -> None:
    claim = read_claim(view(labels(lease(), NOW, GOOGLE)), GOOGLE)
    assert claim == LabelClaim(NOW + GOOGLE.provision_s + GOOGLE.boot_s, NOW + 86400)


@pytest.mark.parametrize("text", [None, "", "soon", "-1", "9e99", "1" * 40, "٣" * 10, "0x10", " 1800000000"])
def test_an_unreadable_claim_counts_from_creation_and_gets_a_remark(text: str | None) -> None:
    written = {**labels(lease(), NOW, GOOGLE), "tpujob-claimed-until": text}
    claim = read_claim(view({key: value for key, value in written.items() if value is not None}), GOOGLE)
    assert claim is not None
    assert claim.claimed_until == min(NOW + GOOGLE.provision_s + claim_labels.DEFAULT_LIFE_S, NOW + 86400)
    assert "tpujob-claimed-until" in claim.remarks[0]


def test_without_labels_and_time_of_creation_there_is_no_claim() -> None:
    assert read_claim(view({"tpujob": "1"}, created_at=None), GOOGLE) is None


def test_a_claim_ends_only_after_the_margin() -> None:
    claim = LabelClaim(NOW, NOW + 1000)
    assert expiry_reason(claim, NOW + GOOGLE.margin_s, GOOGLE) is None
    assert "claim" in str(expiry_reason(claim, NOW + GOOGLE.margin_s + 1, GOOGLE))
    assert "deadline" in str(expiry_reason(claim, NOW + 1000 + GOOGLE.margin_s + 1, GOOGLE))


def test_renewals_leave_room_for_an_outage_and_for_the_next_one() -> None:
    """The relations between the periods on which docs/guarantee.md builds."""
    for timings in (GOOGLE, emulated(), emulated(300)):
        assert timings.label_ttl_s > 2 * timings.renew_s  # one renewal may fail altogether
        assert timings.grace_s == pytest.approx(3 * timings.heartbeat_s)
        assert timings.ttl_s > 2 * timings.grace_s
        assert (
            timings.provision_s + timings.boot_s > timings.label_ttl_s - timings.renew_s
        )  # the create call's claim is not due for renewal at once


@pytest.mark.parametrize(("changes", "begins_after_s"), [
    pytest.param({"ready_at": NOW}, GOOGLE.ttl_s, id="a run: no heartbeat from now on"),
    pytest.param({"purpose": Purpose.HOLD, "hold_until": NOW + 7200, "ready_at": NOW}, 7200, id="held: its time"),
    pytest.param({"ready_at": NOW, "detached_at": NOW}, 86400, id="detached: its deadline"),
    pytest.param({"ready_at": NOW, "deadline": NOW + 60}, 60, id="a run with a minute left"),
    pytest.param({}, GOOGLE.provision_s + GOOGLE.boot_s + GOOGLE.ttl_s,
                 id="still being created: its VM has to boot first"),
])  # fmt: skip
def test_by_when_the_watchdog_has_deleted_it(changes: dict[str, object], begins_after_s: float) -> None:
    by = watchdog_acts_by(lease(**changes), NOW, GOOGLE)
    assert by == NOW + begins_after_s + GOOGLE.grace_s + 3 * GOOGLE.poll_s

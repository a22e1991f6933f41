"""What a slice and a run cost: all of it, once, and the same for every command that says it."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.lease.lease import (
    Created,
    CreateRefused,
    Down,
    Gone,
    Held,
    HeldFor,
    Intent,
    Lease,
    LeaseEvent,
    Passed,
    Purpose,
    Ready,
    Sent,
    Settled,
)
from orchestrator.core.lease.run_and_attempt import (
    Attempt,
    AttemptEnded,
    AttemptState,
    Began,
    Leased,
    ResultsCollected,
    RunRecord,
    Tried,
)
from orchestrator.ledger.ledger import Ledger
from orchestrator.report import costs
from tests.unit.engine.virtual import lease_and_request

AT = 1_000_000.0
HOUR = 3600.0
LEASE, _ = lease_and_request()
GOOGLE = replace(LEASE, cloud="google", sent_at=AT)
QUEUED = replace(GOOGLE, name=replace(GOOGLE.name, queued=True))
RUN = RunRecord("r1", "job", "job.yaml", "google", AT, "runs/r1")
FIRST, SECOND = Attempt("r1-1", RUN.id), Attempt("r1-2", RUN.id)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger.sqlite3")
    made.record(Began(RUN, FIRST))
    return made


def asked(ledger: Ledger, number: int, at: float, *, queued: bool = False, run: str | None = RUN.id) -> Lease:
    """A slice that the run asked for, at 9.60 dollars an hour."""
    lease, _ = lease_and_request(number, now=at)
    lease = replace(lease, cloud="google", run=run, name=replace(lease.name, queued=queued))
    ledger.record(Intent(lease), Sent(lease.id, at), Created(lease.id, at, f"operation-{number}"))
    return lease


def ended(lease: Lease, at: float) -> tuple[LeaseEvent, ...]:
    return Down(lease.id, at, "over"), Gone(lease.id, at, "proof")


@pytest.mark.parametrize(("lease", "usd"), [
    pytest.param(LEASE, 0.0, id="no create left"),
    pytest.param(GOOGLE, 9.6 / 2, id="half an hour, still there"),
    pytest.param(replace(GOOGLE, gone_at=AT + 900), 9.6 / 4, id="gone after a quarter"),
    pytest.param(QUEUED, 0.0, id="waiting in the queue costs nothing"),
    pytest.param(replace(QUEUED, ready_at=AT + 1200), 9.6 / 6, id="what was queued costs from its capacity on"),
    pytest.param(replace(GOOGLE, usd_per_hour=None), None, id="an unknown price is not zero"),
])  # fmt: skip
def test_dollars_run_from_the_create_to_proven_absence(lease: Lease, usd: float | None) -> None:
    assert costs.of_lease(lease, AT + 1800) == (usd if usd is None else pytest.approx(usd))


def test_a_run_costs_all_of_its_attempts(ledger: Ledger) -> None:
    first = asked(ledger, 1, AT)
    ledger.record(Ready(first.id, AT), Leased(FIRST.id, AT, first.id), *ended(first, AT + HOUR))
    lost = AttemptEnded(FIRST.id, AT + HOUR, AttemptState.INTERRUPTED, cause="preempted")
    ledger.record(lost, Began(RUN, SECOND, AT + HOUR))
    second = asked(ledger, 2, AT + HOUR + 1)
    ledger.record(Ready(second.id, AT + HOUR + 1), Leased(SECOND.id, AT + HOUR + 1, second.id))
    ledger.record(*ended(second, AT + 3 * HOUR + 1), AttemptEnded(SECOND.id, AT + 3 * HOUR, AttemptState.SUCCEEDED))
    assert costs.of_attempts(ledger, RUN, AT + 9 * HOUR) == pytest.approx({"r1-1": 9.6, "r1-2": 19.2})
    assert costs.of_run(ledger, RUN, AT + 9 * HOUR) == pytest.approx(28.8)


def test_a_run_that_is_still_on_its_slice_costs_what_that_slice_has_cost_so_far(ledger: Ledger) -> None:
    lease = asked(ledger, 1, AT)
    assert costs.of_run(ledger, RUN, AT + HOUR) == pytest.approx(9.6), "it is being created, and may be billed"
    ledger.record(Ready(lease.id, AT + 60), Leased(FIRST.id, AT + 60, lease.id))
    now = AT + HOUR / 2
    assert costs.of_run(ledger, RUN, now) == costs.of_lease(ledger.lease(lease.id), now) == pytest.approx(4.8)


def test_a_slice_that_is_not_proven_gone_costs_on_after_its_run_has_ended(ledger: Ledger) -> None:
    lease = asked(ledger, 1, AT)
    ledger.record(Ready(lease.id, AT), Leased(FIRST.id, AT, lease.id), Down(lease.id, AT + 60, "over"))
    ledger.record(AttemptEnded(FIRST.id, AT + 60, AttemptState.FAILED, rc=1))
    assert costs.of_run(ledger, RUN, AT + 2 * HOUR) == pytest.approx(19.2)


def test_who_lost_a_race_costs_from_its_capacity_to_its_end(ledger: Ledger) -> None:
    winner, loser, waiting = (asked(ledger, number, AT, queued=True) for number in (1, 2, 3))
    ledger.record(Ready(winner.id, AT + HOUR), Leased(FIRST.id, AT + HOUR, winner.id), Ready(loser.id, AT + HOUR))
    ledger.record(*ended(loser, AT + 1.5 * HOUR), *ended(waiting, AT + 1.5 * HOUR), *ended(winner, AT + 3 * HOUR))
    assert costs.of_run(ledger, RUN, AT + 9 * HOUR) == pytest.approx(9.6 * 2 + 9.6 * 0.5)


@pytest.mark.parametrize("refused", [True, False])
def test_a_zone_without_capacity_costs_nothing(ledger: Ledger, refused: bool) -> None:
    lease = replace(lease_and_request(1, now=AT)[0], run=RUN.id)
    no = (
        CreateRefused(lease.id, AT + 1, "quota") if refused else Settled(lease.id, AT + 1)
    )  # at once, or by its operation
    ledger.record(Intent(lease), Sent(lease.id, AT), no)
    ledger.record(*ended(lease, AT + HOUR), Tried(FIRST.id, AT + HOUR, lease.id, "v5litepod-8 us-east1-b", "full"))
    assert costs.of_run(ledger, RUN, AT + 2 * HOUR) == 0.0


def test_a_slice_that_was_deleted_while_it_was_created_counts(ledger: Ledger) -> None:
    lease = asked(ledger, 1, AT)
    ledger.record(Down(lease.id, AT + HOUR, "Ctrl-C"), Settled(lease.id, AT + HOUR), Gone(lease.id, AT + HOUR, "proof"))
    assert costs.of_run(ledger, RUN, AT + 2 * HOUR) == pytest.approx(9.6)


def test_of_a_slice_that_was_there_before_only_the_time_of_the_run_counts(ledger: Ledger) -> None:
    lease = asked(ledger, 1, AT - 9 * HOUR, run=None)
    ledger.record(Ready(lease.id, AT - 9 * HOUR), Held(lease.id, AT - 9 * HOUR, AT + 9 * HOUR))
    ledger.record(Leased(FIRST.id, AT, lease.id))
    assert costs.of_run(ledger, RUN, AT + HOUR) == pytest.approx(9.6), "so far"
    ledger.record(AttemptEnded(FIRST.id, AT + 2 * HOUR, AttemptState.SUCCEEDED))
    assert costs.of_run(ledger, RUN, AT + 5 * HOUR) == pytest.approx(19.2)


def test_of_a_slice_that_the_run_kept_the_time_after_the_run_does_not_count(ledger: Ledger) -> None:
    lease = asked(ledger, 1, AT)
    ledger.record(Ready(lease.id, AT), Leased(FIRST.id, AT, lease.id), Held(lease.id, AT + HOUR, AT + 9 * HOUR))
    ledger.record(AttemptEnded(FIRST.id, AT + HOUR, AttemptState.SUCCEEDED))
    assert costs.of_run(ledger, RUN, AT + 5 * HOUR) == pytest.approx(9.6)


def test_one_unknown_price_makes_the_sum_unknown_and_not_smaller(ledger: Ledger) -> None:
    asked(ledger, 1, AT)
    dark, _ = lease_and_request(2, now=AT)
    ledger.record(Intent(replace(dark, run=RUN.id, usd_per_hour=None)), Sent(dark.id, AT))
    assert costs.of_run(ledger, RUN, AT + HOUR) is None


def test_a_run_that_the_ledger_does_not_know_has_no_known_cost_rather_than_none(tmp_path: Path) -> None:
    assert costs.of_run(Ledger(tmp_path / "lost.sqlite3"), RUN, AT) is None


def test_a_held_slice_costs_at_most_its_price_until_its_claim_ends() -> None:
    held = replace(GOOGLE, purpose=Purpose.HOLD, hold_until=AT + 2 * HOUR, deadline=AT + 24 * HOUR)
    assert costs.at_most(held) == pytest.approx(19.2)
    assert costs.at_most(replace(held, usd_per_hour=None)) is None


def test_a_slice_that_is_held_for_results_costs_the_run_until_they_came(ledger: Ledger) -> None:
    lease = asked(ledger, 1, AT)
    ledger.record(Ready(lease.id, AT), Leased(FIRST.id, AT, lease.id))
    ledger.record(Held(lease.id, AT + HOUR, AT + 3 * HOUR, HeldFor.RESULTS))
    ledger.record(AttemptEnded(FIRST.id, AT + HOUR, AttemptState.FAILED, exit_code=65))
    assert costs.of_run(ledger, RUN, AT + 2 * HOUR) == pytest.approx(2 * 9.60)
    ledger.record(
        ResultsCollected(FIRST.id, AT + 2 * HOUR, AttemptState.SUCCEEDED, exit_code=0), *ended(lease, AT + 2.5 * HOUR)
    )
    assert costs.of_run(ledger, RUN, AT + 9 * HOUR) == pytest.approx(2.5 * 9.60)


def test_a_slice_that_goes_from_run_to_run_is_paid_by_each_until_the_next_takes_it_over(ledger: Ledger) -> None:
    lease = asked(ledger, 1, AT)
    ledger.record(Leased(FIRST.id, AT, lease.id), Ready(lease.id, AT + 60))
    ledger.record(AttemptEnded(FIRST.id, AT + HOUR - 5, AttemptState.SUCCEEDED))
    runs = [RUN]
    for number, at in ((2, AT + HOUR), (3, AT + 2 * HOUR)):
        run = replace(RUN, id=f"r{number}", created_at=at - 3)
        attempt = Attempt(f"r{number}-1", run.id)
        ledger.record(Began(run, attempt), Passed(lease.id, at, run.id, run.name, at + 24 * HOUR))
        ledger.record(
            Leased(attempt.id, at + 1, lease.id), AttemptEnded(attempt.id, at + HOUR - 5, AttemptState.FAILED)
        )
        runs.append(run)
    ledger.record(Down(lease.id, AT + 3 * HOUR, "the run ended"), Gone(lease.id, AT + 4 * HOUR, "absent"))
    shares = [costs.of_run(ledger, run, AT + 9 * HOUR) for run in runs]
    assert shares == [pytest.approx(9.6), pytest.approx(9.6), pytest.approx(2 * 9.6)]
    whole = costs.of_lease(ledger.lease(lease.id), AT + 9 * HOUR)
    assert whole == pytest.approx(sum(share or 0.0 for share in shares))

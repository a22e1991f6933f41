"""What a slice and a run cost, all of it and once, and where the dollars went: one payer and one use, in one month."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.api.queue import leases
from orchestrator.promise.lease.changes import (
    AttemptEnded,
    Began,
    CreateRefused,
    CreateSent,
    Gone,
    HandedToNextRun,
    HeldUntil,
    Intent,
    Leased,
    LeaseEvent,
    Ready,
    ReleaseBegan,
    ResultsCollected,
    Settled,
    Tried,
)
from orchestrator.promise.lease.lease import HeldFor, Lease, Purpose
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.report.bill_parts import Bill, BilledInterval, BillPart, Period, Use, parts_of
from orchestrator.report.causes import Cause, Wait, Work, spans_of
from orchestrator.report.files.timing import Epoch, Span, Timing
from orchestrator.report.rows import costs
from orchestrator.report.spending import By, CloudCost, CostRow, clouds
from tests.fakes.leases import lease_and_request

T0 = 1_000_000.0
HOUR = 3600.0
LEASE, _ = lease_and_request()
GOOGLE = replace(LEASE, cloud="google", sent_at=T0)
QUEUED = replace(GOOGLE, name=replace(GOOGLE.name, queued=True))
RUN = RunRecord("r1", "job", "job.yaml", "google", T0, "runs/r1")
FIRST, SECOND = Attempt("r1-1", RUN.id), Attempt("r1-2", RUN.id)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger.sqlite3")
    made.record(Began(RUN, FIRST))
    return made


def asked(
    ledger: Ledger, number: int, at: float, *, queued: bool = False, run: str | None = RUN.id, **changes: Any
) -> Lease:
    """A slice that the run asked for, at 9.60 dollars an hour."""
    lease, _ = lease_and_request(number, now=at)
    lease = replace(lease, cloud="google", run=run, name=replace(lease.name, queued=queued), **changes)
    ledger.record(Intent(lease), CreateSent(lease.id, at))
    return lease


def ended(lease: Lease, at: float) -> tuple[LeaseEvent, ...]:
    return ReleaseBegan(lease.id, at, "over"), Gone(lease.id, at, "proof")


@pytest.mark.parametrize(("told", "at"), [
    ({"saved_at": 40.0}, 40.0), ({"saved_at": None}, None),
    ({"saved_s": 45.0}, 55.0), ({"saved_s": None}, None),  # of an older tpujob
])  # fmt: skip
def test_when_the_work_of_a_lost_attempt_was_saved_is_known_of_older_runs_too(
    told: dict[str, Any], at: float | None
) -> None:
    assert costs.saved_at([(101.0, "began", {}), (102.0, "continued", told)], 100.0) == at
    assert costs.saved_at([(101.0, "began", {})], 100.0) is None


def test_an_attempt_that_begins_between_two_reads_costs_nothing_yet(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same slice, as on a cluster."""
    lease = asked(ledger, 1, T0)
    ledger.record(Leased(FIRST.id, T0, lease.id), *ended(lease, T0 + 3600))
    found, read = [], Ledger.attempts_of
    for number in range(4):
        moments = iter(range(9))

        def attempts_of(self: Ledger, run: str, number: int = number, moments: Iterator[int] = moments) -> Any:
            attempts = read(self, run)
            if next(moments) == number:
                following = Attempt(f"r1-{len(attempts) + 1}", RUN.id)
                self.record(Began(RUN, following, T0 + 7200), Leased(following.id, T0 + 7200, lease.id))
            return attempts

        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "attempts_of", attempts_of)
            found.append(costs.of_run(ledger, RUN, T0 + 7200))
    assert found == pytest.approx([9.6] * 4)


@pytest.mark.parametrize(("lease", "usd"), [
    pytest.param(LEASE, 0.0, id="no create left"),
    pytest.param(GOOGLE, 9.6 / 2, id="half an hour, still there"),
    pytest.param(replace(GOOGLE, gone_at=T0 + 900), 9.6 / 4, id="gone after a quarter"),
    pytest.param(QUEUED, 0.0, id="waiting in the queue costs nothing"),
    pytest.param(replace(QUEUED, ready_at=T0 + 1200), 9.6 / 6, id="what was queued costs from its capacity on"),
    pytest.param(replace(GOOGLE, usd_per_hour=None), None, id="an unknown price is not zero"),
    pytest.param(replace(QUEUED, usd_per_hour=None), None, id="nor while it waits"),
])  # fmt: skip
def test_dollars_run_from_the_create_to_proven_absence(lease: Lease, usd: float | None) -> None:
    assert costs.of_lease(lease, T0 + 1800) == (usd if usd is None else pytest.approx(usd))


def test_a_run_costs_all_of_its_attempts(ledger: Ledger) -> None:
    first = asked(ledger, 1, T0)
    ledger.record(Ready(first.id, T0), Leased(FIRST.id, T0, first.id), *ended(first, T0 + HOUR))
    lost = AttemptEnded(FIRST.id, T0 + HOUR, AttemptState.INTERRUPTED, cause="preempted")
    ledger.record(lost, Began(RUN, SECOND, T0 + HOUR))
    second = asked(ledger, 2, T0 + HOUR + 1)
    ledger.record(Ready(second.id, T0 + HOUR + 1), Leased(SECOND.id, T0 + HOUR + 1, second.id))
    ledger.record(*ended(second, T0 + 3 * HOUR + 1), AttemptEnded(SECOND.id, T0 + 3 * HOUR, AttemptState.SUCCEEDED))
    assert costs.of_attempts(ledger, RUN, T0 + 9 * HOUR) == pytest.approx({"r1-1": 9.6, "r1-2": 19.2})
    assert costs.of_run(ledger, RUN, T0 + 9 * HOUR) == pytest.approx(28.8)


def test_a_run_that_is_still_on_its_slice_costs_what_that_slice_has_cost_so_far(ledger: Ledger) -> None:
    lease = asked(ledger, 1, T0)
    assert costs.of_run(ledger, RUN, T0 + HOUR) == pytest.approx(9.6), "it is being created, and may be billed"
    ledger.record(Ready(lease.id, T0 + 60), Leased(FIRST.id, T0 + 60, lease.id))
    now = T0 + HOUR / 2
    assert costs.of_run(ledger, RUN, now) == costs.of_lease(ledger.lease(lease.id), now) == pytest.approx(4.8)


def test_a_slice_that_is_not_proven_gone_costs_on_after_its_run_has_ended(ledger: Ledger) -> None:
    lease = asked(ledger, 1, T0)
    ledger.record(Ready(lease.id, T0), Leased(FIRST.id, T0, lease.id), ReleaseBegan(lease.id, T0 + 60, "over"))
    ledger.record(AttemptEnded(FIRST.id, T0 + 60, AttemptState.FAILED, rc=1))
    assert costs.of_run(ledger, RUN, T0 + 2 * HOUR) == pytest.approx(19.2)


def test_who_lost_a_race_costs_from_its_capacity_to_its_end(ledger: Ledger) -> None:
    winner, loser, waiting = (asked(ledger, number, T0, queued=True) for number in (1, 2, 3))
    ledger.record(Ready(winner.id, T0 + HOUR), Leased(FIRST.id, T0 + HOUR, winner.id), Ready(loser.id, T0 + HOUR))
    ledger.record(*ended(loser, T0 + 1.5 * HOUR), *ended(waiting, T0 + 1.5 * HOUR), *ended(winner, T0 + 3 * HOUR))
    assert costs.of_run(ledger, RUN, T0 + 9 * HOUR) == pytest.approx(9.6 * 2 + 9.6 * 0.5)


@pytest.mark.parametrize("refused", [True, False])
def test_a_zone_without_capacity_costs_nothing(ledger: Ledger, refused: bool) -> None:
    lease = replace(lease_and_request(1, now=T0)[0], run=RUN.id)
    no = (
        CreateRefused(lease.id, T0 + 1, "quota") if refused else Settled(lease.id, T0 + 1)
    )  # at once, or by its operation
    ledger.record(Intent(lease), CreateSent(lease.id, T0), no)
    ledger.record(*ended(lease, T0 + HOUR), Tried(FIRST.id, T0 + HOUR, lease.id, "v5litepod-8 us-east1-b", "full"))
    assert costs.of_run(ledger, RUN, T0 + 2 * HOUR) == 0.0


def test_a_slice_that_was_deleted_while_it_was_created_counts(ledger: Ledger) -> None:
    lease = asked(ledger, 1, T0)
    ledger.record(
        ReleaseBegan(lease.id, T0 + HOUR, "Ctrl-C"), Settled(lease.id, T0 + HOUR), Gone(lease.id, T0 + HOUR, "proof")
    )
    assert costs.of_run(ledger, RUN, T0 + 2 * HOUR) == pytest.approx(9.6)


def test_of_a_slice_that_was_there_before_only_the_time_of_the_run_counts(ledger: Ledger) -> None:
    lease = asked(ledger, 1, T0 - 9 * HOUR, run=None)
    ledger.record(Ready(lease.id, T0 - 9 * HOUR), HeldUntil(lease.id, T0 - 9 * HOUR, T0 + 9 * HOUR))
    ledger.record(Leased(FIRST.id, T0, lease.id))
    assert costs.of_run(ledger, RUN, T0 + HOUR) == pytest.approx(9.6), "so far"
    ledger.record(AttemptEnded(FIRST.id, T0 + 2 * HOUR, AttemptState.SUCCEEDED))
    assert costs.of_run(ledger, RUN, T0 + 5 * HOUR) == pytest.approx(19.2)


def test_of_a_slice_that_the_run_kept_the_time_after_the_run_does_not_count(ledger: Ledger) -> None:
    lease = asked(ledger, 1, T0)
    ledger.record(Ready(lease.id, T0), Leased(FIRST.id, T0, lease.id), HeldUntil(lease.id, T0 + HOUR, T0 + 9 * HOUR))
    ledger.record(AttemptEnded(FIRST.id, T0 + HOUR, AttemptState.SUCCEEDED))
    assert costs.of_run(ledger, RUN, T0 + 5 * HOUR) == pytest.approx(9.6)


@pytest.mark.parametrize("queued", [False, True])
def test_one_unknown_price_makes_the_sum_unknown_and_not_smaller(ledger: Ledger, queued: bool) -> None:
    asked(ledger, 1, T0)
    dark = asked(ledger, 2, T0, queued=queued, usd_per_hour=None)
    assert costs.of_run(ledger, RUN, T0 + HOUR) is None
    ledger.record(Ready(dark.id, T0))
    assert leases.usd(Mock(ledger=ledger), {dark.id}) is None, "of a turn of a queue"


def test_a_run_that_the_ledger_does_not_know_has_no_known_cost_rather_than_none(tmp_path: Path) -> None:
    assert costs.of_run(Ledger(tmp_path / "lost.sqlite3"), RUN, T0) is None


def test_a_held_slice_costs_at_most_its_price_until_its_claim_ends() -> None:
    held = replace(GOOGLE, purpose=Purpose.HOLD, hold_until=T0 + 2 * HOUR, deadline=T0 + 24 * HOUR)
    assert costs.at_most(held) == pytest.approx(19.2)
    assert costs.at_most(replace(held, usd_per_hour=None)) is None


def test_a_slice_that_is_held_for_results_costs_the_run_until_they_came(ledger: Ledger) -> None:
    lease = asked(ledger, 1, T0)
    ledger.record(Ready(lease.id, T0), Leased(FIRST.id, T0, lease.id))
    ledger.record(HeldUntil(lease.id, T0 + HOUR, T0 + 3 * HOUR, HeldFor.RESULTS))
    ledger.record(AttemptEnded(FIRST.id, T0 + HOUR, AttemptState.FAILED, exit_code=65))
    assert costs.of_run(ledger, RUN, T0 + 2 * HOUR) == pytest.approx(2 * 9.60)
    ledger.record(
        ResultsCollected(FIRST.id, T0 + 2 * HOUR, AttemptState.SUCCEEDED, exit_code=0), *ended(lease, T0 + 2.5 * HOUR)
    )
    assert costs.of_run(ledger, RUN, T0 + 9 * HOUR) == pytest.approx(2.5 * 9.60)


def test_a_slice_that_goes_from_run_to_run_is_paid_by_each_until_the_next_takes_it_over(ledger: Ledger) -> None:
    lease = asked(ledger, 1, T0)
    ledger.record(Leased(FIRST.id, T0, lease.id), Ready(lease.id, T0 + 60))
    ledger.record(AttemptEnded(FIRST.id, T0 + HOUR - 5, AttemptState.SUCCEEDED))
    runs = [RUN]
    for number, at in ((2, T0 + HOUR), (3, T0 + 2 * HOUR)):
        run = replace(RUN, id=f"r{number}", created_at=at - 3)
        attempt = Attempt(f"r{number}-1", run.id)
        ledger.record(Began(run, attempt), HandedToNextRun(lease.id, at, run.id, run.name, at + 24 * HOUR))
        ledger.record(
            Leased(attempt.id, at + 1, lease.id), AttemptEnded(attempt.id, at + HOUR - 5, AttemptState.FAILED)
        )
        runs.append(run)
    ledger.record(ReleaseBegan(lease.id, T0 + 3 * HOUR, "the run ended"), Gone(lease.id, T0 + 4 * HOUR, "absent"))
    shares = [costs.of_run(ledger, run, T0 + 9 * HOUR) for run in runs]
    assert shares == [pytest.approx(9.6), pytest.approx(9.6), pytest.approx(2 * 9.6)]
    whole = costs.of_lease(ledger.lease(lease.id), T0 + 9 * HOUR)
    assert whole == pytest.approx(sum(share or 0.0 for share in shares))


def test_a_slice_that_waited_since_a_job_failed_is_paid_by_the_run_that_took_it_over_from_then_on(
    ledger: Ledger,
) -> None:
    lease, again = asked(ledger, 1, T0), replace(RUN, id="r2", created_at=T0 + 2 * HOUR)
    second = Attempt("r2-1", again.id)
    ledger.record(Ready(lease.id, T0), Leased(FIRST.id, T0, lease.id))
    ledger.record(HeldUntil(lease.id, T0 + HOUR, T0 + 9 * HOUR, HeldFor.FAILURE))
    ledger.record(AttemptEnded(FIRST.id, T0 + HOUR, AttemptState.FAILED), Began(again, second))
    ledger.record(HeldUntil(lease.id, T0 + 3 * HOUR, T0 + 9 * HOUR, HeldFor.FAILURE, again.id))
    ledger.record(Leased(second.id, T0 + 3 * HOUR, lease.id))
    ledger.record(AttemptEnded(second.id, T0 + 4 * HOUR, AttemptState.FAILED, exit_code=65))
    dollars = [costs.of_run(ledger, run, T0 + 6 * HOUR) for run in (RUN, again)]
    assert dollars == pytest.approx([9.6, 9.6]), "two hours without a run are of neither"
    ledger.record(HeldUntil(lease.id, T0 + 4 * HOUR, T0 + 9 * HOUR, HeldFor.RESULTS))
    dollars = [costs.of_run(ledger, run, T0 + 6 * HOUR) for run in (RUN, again)]
    assert dollars == pytest.approx([9.6, 3 * 9.6]), "and then for its results"


AT = datetime(2026, 11, 10, tzinfo=UTC).timestamp()
NOW = AT + 100 * HOUR
EVER = Period(0.0)
BILL = Bill(
    id="lease-1", cloud="google", project="acme", zone="us-central1-a", name="trainer", node="tpujob-x-1",
    accelerator_type="v5litepod-8", chips=8, state="gone", since=AT, until=AT + 10 * HOUR, now=NOW,
    usd_per_hour=10.0, ready_at=AT + HOUR, down_at=AT + 9 * HOUR,
)  # fmt: skip


def run(name: str, since_h: float, until_h: float, job: str = "mnist") -> BilledInterval:
    return BilledInterval(name, job, AT + since_h * HOUR, AT + until_h * HOUR)


def work(since_h: float, until_h: float, *, failed: bool = False) -> Work:
    return Work(AT + since_h * HOUR, AT + until_h * HOUR, failed)


def uses(bill: Bill) -> list[tuple[str | None, str, float]]:
    """Payer, use and hours, of whatever cause."""
    groups = groupby(parts_of(bill), lambda each: (each.payer and each.payer.run, each.use.value))
    return [(payer, use, sum(each.hours for each in parts)) for (payer, use), parts in groups]


def went(bill: Bill) -> list[tuple[str, float]]:
    """Cause and hours of each part, in their order."""
    groups = groupby(parts_of(bill), lambda each: each.cause.value)
    return [(cause, sum(each.hours for each in parts)) for cause, parts in groups]


def on(since_h: float, until_h: float, main_h: float, **more: Any) -> Work:
    """An attempt whose job started at `main_h`."""
    times = {key: AT + value * HOUR for key, value in more.items() if key.endswith("_at")}
    return Work(AT + since_h * HOUR, AT + until_h * HOUR, main_at=AT + main_h * HOUR, **{**more, **times})


def only(bills: list[Bill], by: By = "job", period: Period = EVER) -> CloudCost:
    (found,) = clouds(bills, period, by)
    return found


def total(*bills: Bill, period: Period = EVER) -> CostRow:
    return only([*bills], period=period).total


USED = replace(BILL, paid=(run("r1", 0, 10),), work=(work(0, 8),))
HELD = replace(BILL, held_at=AT)


@pytest.mark.parametrize(("bill", "expected"), [
    pytest.param(replace(BILL, paid=(run("r1", 0, 10),)), [("r1", "lost", 10)], id="it lost a race"),
    pytest.param(replace(USED, ready_at=None), [("r1", "lost", 10)], id="it was given up while it was created"),
    pytest.param(replace(HELD, ready_at=None), [(None, "lost", 10)], id="a slice of `up` that was never READY"),
    pytest.param(replace(BILL, state="creating", until=None, now=AT + 2 * HOUR, ready_at=None, down_at=None),
                 [(None, "overhead", 2)], id="it may still win"),
    pytest.param(USED, [("r1", "overhead", 1), ("r1", "job", 7), ("r1", "overhead", 2)], id="created, used and deleted"),
    pytest.param(replace(HELD, paid=(run("r1", 2, 4), run("r2", 5, 6)), work=(work(2, 4), work(5, 6, failed=True))),
                 [(None, "overhead", 1), (None, "idle", 1), ("r1", "job", 2), (None, "idle", 1), ("r2", "failed", 1),
                  (None, "idle", 3), (None, "overhead", 1)], id="held, with two runs on it"),
    pytest.param(replace(USED, held_at=AT + 4 * HOUR, paid=(run("r1", 0, 4),), work=(work(0, 4),)),
                 [("r1", "overhead", 1), ("r1", "job", 3), (None, "idle", 5), (None, "overhead", 1)], id="a run keeps it"),
    pytest.param(replace(USED, held_at=AT + 4 * HOUR, work=(work(0, 4, failed=True),)),
                 [("r1", "overhead", 1), ("r1", "failed", 3), ("r1", "idle", 5), ("r1", "overhead", 1)],
                 id="held for results that are not collected: idle on the account of their run"),
    pytest.param(replace(BILL, lent=True), [(None, "overhead", 1), (None, "job", 8), (None, "overhead", 1)],
                 id="lent by Python"),
    pytest.param(replace(BILL, until=AT), [], id="without a duration"),
    pytest.param(replace(BILL, until=None, now=AT - HOUR, state="ready", down_at=None), [], id="the clock went back"),
])  # fmt: skip
def test_each_hour_of_a_slice_has_one_payer_and_one_use_and_is_lost_where_no_job_reached_it(
    bill: Bill, expected: list[tuple[str | None, str, float]]
) -> None:
    assert uses(bill) == expected


def test_of_two_runs_that_claim_the_same_hour_one_pays() -> None:
    bill = replace(BILL, paid=(run("r1", 0, 6), run("r2", 4, 10)), work=(work(0, 6), work(4, 9)))
    found = only([bill], by="run")
    assert {row.name: row.cost_usd for row in found.rows} == pytest.approx({"r1": 60.0, "r2": 40.0})
    assert found.total.cost_usd == pytest.approx(100.0)


def test_times_outside_of_the_slice_and_times_that_run_backwards_count_nothing() -> None:
    bill = replace(BILL, paid=(run("r1", -5, 20), run("r2", 6, 4)), work=(work(-5, 20), work(7, 7), work(9, 3)))
    found = only([bill], by="run")
    assert [(row.name, row.hours) for row in found.rows] == [("r1", 10.0)]


def test_what_a_wrong_clock_put_into_the_future_is_in_a_period_without_an_end() -> None:
    assert total(replace(USED, now=AT - 50 * HOUR)).cost_usd == pytest.approx(100.0)


def test_a_slice_that_is_billed_over_the_end_of_a_month_is_split_there() -> None:
    december = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    bill = replace(USED, since=december - 3 * HOUR, until=december + HOUR, ready_at=december - 3 * HOUR, down_at=None)
    bill = replace(bill, paid=(BilledInterval("r1", "mnist", bill.since, december + HOUR),), work=())
    november = total(bill, period=Period(AT, december))
    after = total(bill, period=Period(december, december + 31 * 24 * HOUR))
    assert (november.cost_usd, after.cost_usd) == pytest.approx((30.0, 10.0))
    assert (november.runs, after.runs) == (1, 1), "the run is in both"
    assert clouds([bill], Period(december + HOUR, None), "job") == ()


def test_a_slice_that_is_still_billed_counts_until_now_and_is_named() -> None:
    bill = replace(USED, until=None, now=AT + 5 * HOUR, state="down")
    found = only([bill])
    assert found.total.cost_usd == pytest.approx(50.0)
    (still,) = found.open_slices
    assert (still.node, still.state, still.forgotten) == ("tpujob-x-1", "down", False)
    assert (still.cost_usd, still.counted_until, still.usd_per_hour) == (pytest.approx(50.0), AT + 5 * HOUR, 10.0)
    assert only([USED]).open_slices == ()


def test_of_a_past_month_it_is_counted_until_the_end_of_that_month() -> None:
    bill = replace(USED, until=None, now=AT + 50 * HOUR, state="ready", down_at=None)
    (still,) = only([bill], period=Period(AT, AT + 20 * HOUR)).open_slices
    assert (still.counted_until, still.cost_usd) == (AT + 20 * HOUR, pytest.approx(200.0))


DARK = replace(USED, id="lease-2", usd_per_hour=None, paid=(run("r2", 0, 10, "dark"),))


def test_a_price_that_is_not_known_is_unknown_and_never_zero() -> None:
    row = total(DARK)
    assert (row.cost_usd, row.known_usd, row.job_usd, row.overhead_usd) == (None, None, None, None)
    assert (row.unpriced_hours, row.failed_usd) == (10.0, 0.0), "nothing failed, at whatever price"


SPOT = replace(USED, spot=True, on_demand_usd_per_hour=25.0)


@pytest.mark.parametrize(("bill", "saved"), [
    pytest.param(SPOT, 150.0, id="spot"),
    pytest.param(replace(SPOT, spot=False), 0.0, id="on-demand"),
    pytest.param(replace(SPOT, on_demand_usd_per_hour=None), None, id="no on-demand price"),
    pytest.param(replace(SPOT, usd_per_hour=None), None, id="no spot price"),
    pytest.param(replace(SPOT, usd_per_hour=0.0), 0.0, id="granted, so free without spot, too"),
    pytest.param(replace(SPOT, on_demand_usd_per_hour=8.0), -20.0, id="dearer than on-demand"),
])  # fmt: skip
def test_spot_saves_the_difference_to_the_on_demand_price(bill: Bill, saved: float | None) -> None:
    assert total(bill).spot_saved_usd == (saved if saved is None else pytest.approx(saved))


def test_a_granted_slice_costs_nothing_which_is_known() -> None:
    row = total(replace(USED, usd_per_hour=0.0))
    assert (row.cost_usd, row.known_usd, row.unpriced_hours) == (0.0, 0.0, 0.0)


LOCAL = replace(
    USED, id="r9-1", cloud="local", project="this machine", accelerator_type="this machine", chips=None,
    usd_per_hour=None,
)  # fmt: skip


def test_clouds_are_never_added_up_and_google_is_first() -> None:
    found = clouds([LOCAL, replace(USED, cloud="emulated"), USED], EVER, "job")
    assert [each.cloud for each in found] == ["google", "emulated", "local"]
    assert [each.total.cost_usd for each in found] == [pytest.approx(100.0), pytest.approx(100.0), None]


def test_a_run_on_this_machine_has_hours_and_no_price() -> None:
    row = total(LOCAL)
    assert (row.runs, row.slices, row.hours) == (1, 0, 10.0)
    assert {row.cost_usd, row.known_usd, row.job_usd, row.failed_usd, row.spot_saved_usd, row.chip_hours} == {None}
    assert only([replace(LOCAL, until=None)]).open_slices == ()


@pytest.mark.parametrize(("by", "names"), [
    ("run", [("r1", "mnist"), ("r2", "mnist"), ("slice trainer", None)]),
    ("job", [("mnist", None), ("slice trainer", None)]), ("project", [("acme", None), ("other", None)]),
    ("accelerator", [("v5litepod-8", None), ("v6e-4", None)]),
])  # fmt: skip
def test_rows_are_runs_jobs_projects_or_types_and_the_most_expensive_is_first(
    by: By, names: list[tuple[str, str | None]]
) -> None:
    held = replace(
        HELD, id="lease-3", paid=(run("r2", 2, 9),), work=(work(2, 9),), project="other", until=AT + 10 * HOUR
    )
    held = replace(held, accelerator_type="v6e-4", usd_per_hour=9.0)
    found = only([held, USED], by=by)
    assert [(row.name, row.job) for row in found.rows] == names
    assert sum(row.cost_usd or 0.0 for row in found.rows) == pytest.approx(found.total.cost_usd)
    assert sum(row.hours for row in found.rows) == pytest.approx(found.total.hours) == 20.0


def test_chip_hours_of_a_type_that_the_catalog_does_not_know_are_unknown() -> None:
    assert total(USED).chip_hours == pytest.approx(80.0)
    assert total(USED, replace(USED, chips=None)).chip_hours is None


def attempts(worked: list[tuple[int, int]], timed: list[tuple[int, int]]) -> Iterator[Work]:
    """Attempts that were lost, succeeded and failed, with what their jobs timed."""
    spans = tuple(sorted((AT + since * HOUR, AT + until * HOUR, Cause.COMPILE) for since, until in timed))
    for number, span in enumerate(worked):
        more = {"failed": number != 1, "lost": number == 0, "saved_at": span[1] - 1, "done_at": span[1] - 2}
        yield on(*span, span[0] + 1, spans=spans, **more)


@pytest.mark.parametrize(("bill", "expected"), [
    pytest.param(replace(USED, work=(on(0, 10, 2, done_at=8),)),
                 [("waiting", 1), ("setup", 1), ("work", 6), ("teardown", 2)], id="a run"),
    pytest.param(replace(USED, work=(on(0, 10, 2, done_at=4, noticed_at=8),)),
                 [("waiting", 1), ("setup", 1), ("work", 2), ("idle", 4), ("teardown", 2)], id="its end was noticed later"),
    pytest.param(replace(USED, work=(on(0, 9, 2, failed=True, lost=True, saved_at=6),)),
                 [("waiting", 1), ("setup", 1), ("work", 4), ("preemption", 3), ("teardown", 1)], id="lost, 3 h after a copy"),
    pytest.param(replace(USED, work=(on(0, 9, 2, failed=True, lost=True),)),
                 [("waiting", 1), ("setup", 1), ("preemption", 7), ("teardown", 1)], id="lost, and nothing was saved"),
    pytest.param(replace(USED, work=(on(0, 9, 2, failed=True),)),
                 [("waiting", 1), ("failed", 8), ("teardown", 1)], id="failed"),
    pytest.param(replace(USED, held_at=AT + 4 * HOUR, work=(on(0, 4, 2),)),
                 [("waiting", 1), ("setup", 1), ("work", 2), ("idle", 5), ("teardown", 1)], id="kept"),
    pytest.param(BILL, [("waiting", 9), ("teardown", 1)], id="it lost a race"),
    pytest.param(replace(BILL, lent=True), [("waiting", 1), ("work", 8), ("teardown", 1)], id="lent by Python"),
    pytest.param(replace(USED, work=(on(0, 9, 1, spans=tuple(
        (AT + since * HOUR, AT + until * HOUR, cause)
        for since, until, cause in [(1, 2, Cause.INPUT), (2, 4, Cause.COMPILE), (8, 12, Cause.INPUT)])),)),
                 [("waiting", 1), ("input", 1), ("compile", 2), ("work", 4), ("input", 1), ("teardown", 1)],
                 id="what the job timed"),
])  # fmt: skip
def test_each_hour_of_a_slice_went_to_one_cause(bill: Bill, expected: list[tuple[str, float]]) -> None:
    assert went(bill) == expected
    causes = {each.cause: each for each in total(bill).causes}
    of = {cause: sum(hours for name, hours in expected if name == cause) for cause, _ in expected}
    assert {name: (each.hours, each.chip_hours, each.cost_usd) for name, each in causes.items()} == {
        name: pytest.approx((hours, 8 * hours, 10 * hours)) for name, hours in of.items()
    }


def test_what_a_job_timed_lies_where_its_sessions_ran() -> None:
    timing = Timing(began_s=[0.0, 100.0])
    timing.all_spans = [Span("data", 10, 10), Span("compile", 20, 40), Span("compile", 5, 105), Span("eval", 9, 190)]
    timing.epochs = [Epoch(1, 50, 9, 10, 20, wait_s=8, ended_s=90), Epoch(2, 50, 9, 10, 5, wait_s=2, ended_s=181)]
    assert spans_of(timing, [1000.0, 5000.0]) == (
        (1000, 1010, Cause.INPUT), (1020, 1040, Cause.COMPILE), (1082, 1090, Cause.INPUT),
        (5000, 5005, Cause.COMPILE), (5079, 5081, Cause.INPUT),
    )  # fmt: skip


def test_an_epoch_waited_for_its_data_where_it_compiled_nothing() -> None:
    timing = Timing(began_s=[0.0], epochs=[Epoch(1, 60, 9, 10, 30, wait_s=40, ended_s=90)])
    timing.all_spans = [Span("compile", 30, 85)]
    assert spans_of(timing, [0.0]) == ((20, 55, Cause.INPUT), (55, 85, Cause.COMPILE), (85, 90, Cause.INPUT))


def test_an_epoch_waited_no_longer_than_it_took_and_not_before_it_began() -> None:
    epochs = [Epoch(1, 10, 9, 10, 0, wait_s=1e15, ended_s=100), Epoch(2, 90, 9, 10, 0, wait_s=80, ended_s=120)]
    timing = Timing(began_s=[0.0], epochs=epochs)
    assert spans_of(timing, [0.0]) == ((90, 100, Cause.INPUT), (100, 120, Cause.INPUT))


def test_however_many_epochs_say_that_they_waited_the_time_has_no_more_pieces_than_spans_and_epochs() -> None:
    """They are counted, so that a job cannot make them so many that no memory holds them."""
    timing = Timing(began_s=[0.0], all_spans=[Span("eval", 1, 2 * number + 1) for number in range(1000)])
    timing.epochs = [Epoch(number, 1e9, 9, 10, 0, wait_s=1e15, ended_s=3000) for number in range(1000)]
    assert len(spans_of(timing, [0.0])) <= 2000


def test_waiting_without_a_bill_is_hours_and_no_dollars() -> None:
    wait = Wait("google", "r1", "mnist", "alice", "acme", "v5litepod-8", AT - 3 * HOUR, AT)
    (found,) = clouds([USED], EVER, "job", [wait])
    assert (found.total.waited_hours, found.total.hours, found.total.cost_usd) == (3, 10, pytest.approx(100.0))
    (half,) = clouds([], Period(AT - HOUR), "cause", [wait])
    assert [(row.name, row.waited_hours, row.cost_usd) for row in half.rows] == [("waiting", 1, 0.0)]


def test_a_person_has_what_they_ran_by_type_and_what_a_grant_made_free() -> None:
    mine = replace(USED, owner="alice", usd_per_hour=0.0, list_usd_per_hour=12.0)
    added = replace(USED, id="lease-2", owner="runner", paid=(replace(run("r2", 0, 10), owner="bob"),))
    found = only([mine, added], by="owner")
    assert [(row.name, row.cost_usd, row.granted_usd) for row in found.rows] == [
        ("bob", 100.0, 0.0),
        ("alice", 0.0, 120.0),
    ]
    assert [(each.owner, each.accelerator_type, each.cost.chip_hours) for each in found.people] == [
        ("bob", "v5litepod-8", 80.0), ("alice", "v5litepod-8", 80.0),
    ]  # fmt: skip


def test_disks_and_addresses_are_quantities_without_a_price_that_was_made_up() -> None:
    found = only([replace(USED, vms=2, addresses=2)])
    quantities = {each.what: each.quantity for each in found.not_counted}
    assert quantities == {"boot disks": 2000.0, "external addresses": 20.0, "Cloud Storage": None, "egress": None}
    assert only([replace(USED, vms=0)]).not_counted == (), "of a cluster the nodes are its own"


def test_only_what_the_named_runs_pay_for_counts() -> None:
    bill = replace(BILL, paid=(run("r1", 2, 4), run("r2", 5, 6)))
    (found,) = clouds([bill], EVER, "run", runs={"r2"})
    assert [(row.name, row.hours) for row in found.rows] == [("r2", 1.0)]


HOURS = st.one_of(st.none(), st.integers(-4, 14))
SPANS = st.lists(st.tuples(st.integers(-4, 14), st.integers(-4, 14)), max_size=3)


@given(HOURS, HOURS, HOURS, HOURS, SPANS, SPANS, SPANS, st.booleans(), st.integers(-4, 14), st.integers(-4, 14))
def test_whatever_the_ledger_holds_every_second_counts_once_and_the_parts_add_up(
    until: int | None,
    ready: int | None,
    held: int | None,
    down: int | None,
    paid: list[tuple[int, int]],
    worked: list[tuple[int, int]],
    timed: list[tuple[int, int]],
    lent: bool,
    now: int,
    cut: int,
) -> None:
    def at(hour: int | None) -> float | None:
        return None if hour is None else AT + hour * HOUR

    bill = replace(
        BILL, until=at(until), ready_at=at(ready), held_at=at(held), down_at=at(down), lent=lent,
        now=AT + now * HOUR, paid=tuple(run(f"r{number}", *span) for number, span in enumerate(paid)),
        work=tuple(attempts(worked, timed)),
    )  # fmt: skip
    parts = parts_of(bill)
    assert all(before.until == after.since for before, after in pairwise(parts))
    assert sum(part.hours for part in parts) == pytest.approx((bill.end - bill.since) / HOUR)
    assert all(_differ(before, after) for before, after in pairwise(parts))
    whole = sum(each.total.known_usd or 0.0 for each in clouds([bill], EVER, "run"))
    assert whole == pytest.approx(max((until if until is not None else now), 0) * 10.0)
    halves = (Period(0.0, AT + cut * HOUR), Period(AT + cut * HOUR))
    split = [each.total for period in halves for each in clouds([bill], period, "run")]
    assert sum(row.known_usd or 0.0 for row in split) == pytest.approx(whole)
    for row in split:
        amounts = (row.job_usd, row.failed_usd, row.idle_usd, row.lost_usd, row.overhead_usd)
        assert sum(amount or 0.0 for amount in amounts) == pytest.approx(row.cost_usd)
        assert sum(each.cost_usd or 0.0 for each in row.causes) == pytest.approx(row.cost_usd)
        assert sum(each.hours for each in row.causes) == pytest.approx(row.hours)
        assert sum(each.chip_hours or 0.0 for each in row.causes) == pytest.approx(row.chip_hours)
    assert {part.use for part in parts} <= set(Use)


def _differ(before: BillPart, after: BillPart) -> bool:
    return (before.payer, before.use, before.cause) != (after.payer, after.use, after.cause)

"""The ledger as bills: `tpujob cost` has every slice that existed, and for each run the dollars of `tpujob show`."""

from dataclasses import replace

import pytest

from orchestrator import catalog
from orchestrator.client.results.costs import bills
from orchestrator.core.lease.lease import (
    CreateRefused,
    Down,
    Forgotten,
    Gone,
    Held,
    Intent,
    Lease,
    Purpose,
    Ready,
    Sent,
    Settled,
)
from orchestrator.core.lease.run_and_attempt import Attempt, AttemptEnded, AttemptState, Began, Leased, RunRecord
from orchestrator.core.lease.run_spec import RunSpec
from orchestrator.ledger.ledger import Ledger
from orchestrator.report import costs
from orchestrator.report.money import spending
from orchestrator.report.money.spending import By, CloudCost
from orchestrator.report.money.stretches import Period
from tests.unit.engine.virtual import lease_and_request

AT = 1_700_000_000.0
HOUR = 3600.0
NOW = AT + 20 * HOUR
RUN = RunRecord("r1", "job", "job.yaml", "google", AT, "runs/r1")


def asked(ledger: Ledger, number: int, at: float, run: str | None = RUN.id, **changes: object) -> Lease:
    made, _ = lease_and_request(number, now=at)
    lease = replace(made, cloud="google", run=run, **changes)  # type: ignore[arg-type]
    ledger.record(Intent(lease), Sent(lease.id, at))
    return lease


def began(ledger: Ledger, run: RunRecord = RUN, number: int = 1, at: float | None = None) -> Attempt:
    attempt = Attempt(f"{run.id}-{number}", run.id)
    ledger.record(Began(run, attempt, at))
    return attempt


def gone(ledger: Ledger, lease: Lease, at: float) -> None:
    ledger.record(Down(lease.id, at, "over"), Gone(lease.id, at, "proof"))


def found(ledger: Ledger, by: By = "job", period: Period | None = None) -> CloudCost:
    (only,) = spending.clouds(bills(ledger, lambda cloud: NOW), period or Period(0.0), by)
    return only


def a_month(ledger: Ledger) -> list[RunRecord]:
    """Two attempts, a lost race, a refused zone; then a run on a slice of `up`, and a job that goes on."""
    first = began(ledger)
    refused = asked(ledger, 1, AT)
    ledger.record(CreateRefused(refused.id, AT + 1, "quota"))
    gone(ledger, refused, AT + 2)
    empty = asked(ledger, 2, AT)
    ledger.record(Settled(empty.id, AT + 1))
    gone(ledger, empty, AT + 2)
    loser, lost = asked(ledger, 3, AT), asked(ledger, 4, AT)
    ledger.record(Ready(loser.id, AT + HOUR), Ready(lost.id, AT + HOUR), Leased(first.id, AT + HOUR, lost.id))
    gone(ledger, loser, AT + 2 * HOUR)
    ledger.record(AttemptEnded(first.id, AT + 3 * HOUR, AttemptState.INTERRUPTED, cause="preempted"))
    gone(ledger, lost, AT + 3 * HOUR)
    second = began(ledger, number=2, at=AT + 3 * HOUR)
    last = asked(ledger, 5, AT + 3 * HOUR)
    ledger.record(Ready(last.id, AT + 4 * HOUR), Leased(second.id, AT + 4 * HOUR, last.id))
    ledger.record(AttemptEnded(second.id, AT + 6 * HOUR, AttemptState.SUCCEEDED))
    gone(ledger, last, AT + 6 * HOUR)
    held = asked(ledger, 6, AT + 6 * HOUR, run=None, handle="trainer", purpose=Purpose.HOLD)
    ledger.record(Ready(held.id, AT + 7 * HOUR), Held(held.id, AT + 7 * HOUR, AT + 30 * HOUR))
    other = replace(RUN, id="r2", name="other", created_at=AT + 9 * HOUR)
    on_held = began(ledger, other)
    ledger.record(Leased(on_held.id, AT + 9 * HOUR, held.id))
    ledger.record(AttemptEnded(on_held.id, AT + 10 * HOUR, AttemptState.SUCCEEDED))
    gone(ledger, held, AT + 12 * HOUR)
    running = replace(RUN, id="r3", name="running", created_at=AT + 18 * HOUR)
    goes_on = began(ledger, running)
    used = asked(ledger, 7, AT + 18 * HOUR, run="r3")
    ledger.record(Ready(used.id, AT + 19 * HOUR), Leased(goes_on.id, AT + 19 * HOUR, used.id))
    return [RUN, other, running]


def test_a_run_has_the_dollars_that_show_tells(ledger: Ledger) -> None:
    runs = a_month(ledger)
    rows = {row.name: row.cost_usd for row in found(ledger, "run").rows}
    assert {run.id: pytest.approx(rows[run.id]) for run in runs} == {
        run.id: costs.of_run(ledger, run, NOW) for run in runs
    }


def test_every_slice_that_existed_is_in_the_total(ledger: Ledger) -> None:
    a_month(ledger)
    slices = [lease for lease in ledger.leases() if not costs.came_to_nothing(ledger, lease)]
    cost = found(ledger)
    assert cost.total.slices == len(slices) == 5
    assert cost.total.cost_usd == pytest.approx(sum(costs.of_lease(lease, NOW) or 0.0 for lease in slices))


def test_what_idled_was_lost_or_failed_has_its_own_dollars(ledger: Ledger) -> None:
    a_month(ledger)
    rows = {row.name: row for row in found(ledger).rows}
    job = rows["job"]
    assert (job.lost_usd, job.failed_usd, job.job_usd) == pytest.approx((2 * 9.6, 2 * 9.6, 2 * 9.6))
    assert (rows["slice trainer"].idle_usd, rows["other"].job_usd) == pytest.approx((4 * 9.6, 9.6))
    assert (rows["running"].job_usd, rows["running"].overhead_usd) == pytest.approx((9.6, 9.6))


def test_a_sweep_is_one_job(ledger: Ledger) -> None:
    for number in (1, 2):
        spec = {"sweep": {"name": "lr-sweep", "number": number}}
        run = replace(RUN, id=f"s{number}", name=f"lr-sweep-{number}", spec=RunSpec.of(spec))
        began(ledger, run)
        gone(ledger, asked(ledger, number, AT, run=run.id), AT + HOUR)
    (row,) = found(ledger).rows
    assert (row.name, row.runs, row.cost_usd) == ("lr-sweep", 2, pytest.approx(2 * 9.6))


def test_a_slice_that_the_user_forgot_counts_until_then_and_is_named(ledger: Ledger) -> None:
    began(ledger)
    lease = asked(ledger, 1, AT)
    ledger.record(Down(lease.id, AT + HOUR, "over"), Forgotten(lease.id, AT + 2 * HOUR, "the project is gone"))
    cost = found(ledger)
    assert cost.total.cost_usd == pytest.approx(2 * 9.6) == costs.of_run(ledger, RUN, NOW)
    assert [each.forgotten for each in cost.open_slices] == [True]


def test_spot_is_compared_with_the_on_demand_price_of_its_type_and_zone(ledger: Ledger) -> None:
    began(ledger)
    lease = asked(ledger, 1, AT, spot=True, usd_per_hour=5.0)
    gone(ledger, lease, AT + 2 * HOUR)
    on_demand = catalog.usd_per_hour(lease.accelerator_type, lease.name.zone, spot=False)
    assert on_demand is not None
    assert found(ledger).total.spot_saved_usd == pytest.approx(2 * (on_demand - 5.0))


def test_a_slice_that_python_lends_is_not_idle(ledger: Ledger) -> None:
    lease = asked(ledger, 1, AT, run=None)
    ledger.record(Ready(lease.id, AT + HOUR))
    gone(ledger, lease, AT + 3 * HOUR)
    total = found(ledger).total
    assert (total.job_usd, total.idle_usd, total.runs) == (pytest.approx(2 * 9.6), 0.0, 0)


def test_a_queued_request_that_waits_is_billed_from_its_capacity_on(ledger: Ledger) -> None:
    made, _ = lease_and_request(1, now=AT)
    began(ledger)
    lease = asked(ledger, 1, AT, name=replace(made.name, queued=True))
    assert spending.clouds(bills(ledger, lambda cloud: NOW), Period(0.0), "job") == ()
    ledger.record(Ready(lease.id, NOW - HOUR))
    assert found(ledger).total.cost_usd == pytest.approx(9.6)


def test_attempts_on_this_machine_are_hours_without_a_price(ledger: Ledger) -> None:
    run = replace(RUN, cloud="local")
    ledger.record(AttemptEnded(began(ledger, run).id, AT + 2 * HOUR, AttemptState.FAILED))
    cost = found(ledger, "accelerator")
    assert (cost.cloud, cost.total.hours, cost.total.cost_usd) == ("local", 2.0, None)
    assert [row.name for row in cost.rows] == ["this machine"]

"""A run that continues after its slices are preempted: when it may, what it restores, and when it stops."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.hosts.fleet.crew import StartRequest
from orchestrator.promise.lease.cloud_api import SliceState, SliceView
from orchestrator.promise.lease.lease import SliceName
from orchestrator.promise.lease.run_and_attempt import SavedState
from orchestrator.promise.obtain.acquire import acquire
from orchestrator.promise.obtain.drafts import Draft
from orchestrator.promise.standing import check_slice
from orchestrator.report.messages import outcome_lines
from orchestrator.report.rows import costs
from orchestrator.report.rows import whole_run as attempt_reports
from orchestrator.run.job_run import JobRun
from orchestrator.run.restart import with_saved_work
from orchestrator.text.units import format_duration
from tests.fakes.leases import ZONE, lease_and_request
from tests.simulation.model.bench import CAN, Bench, asking, job
from tests.simulation.model.cloud_client import CloudClient
from tests.simulation.model.fleet import SimSavedWork


@pytest.fixture
def world() -> Bench:
    world = Bench()
    world.lasts_s = 1000
    return world


def test_a_queued_slice_whose_request_is_suspending_was_preempted(
    world: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node is gone first; for a moment it looks as if another client had deleted it."""
    lease, request = lease_and_request(now=world.time)
    ready = world.drive(acquire(lease, request, CAN))
    get = CloudClient.get

    def suspending(client: CloudClient, name: SliceName) -> SliceView | None:
        view = get(client, name)
        return None if view is None else replace(view, state=SliceState.DELETING, native_state="SUSPENDING")

    monkeypatch.setattr(CloudClient, "get", suspending)
    with pytest.raises(errors.Preempted, match="SUSPENDING"):
        world.drive(check_slice(ready))


def restartable(world: Bench, times: int = 3) -> JobRun:
    plain = job(world)
    spot = tuple(Draft(replace(lease, spot=True), request) for lease, request in plain.stay.drafts)
    made = asking(plain, *spot, drafter=SpotDrafter(world, plain.run.id))
    return replace(made, max_restarts=times, saved_work=SimSavedWork())  # type: ignore[arg-type]


@dataclass
class SpotDrafter:
    """One candidate, each time under a new name; `asked` has the seconds and dollars that were used by then."""

    world: Bench
    run: str
    asked: list[tuple[float, float]] = field(default_factory=list)

    def make(self, used_s: float = 0.0, spent_usd: float = 0.0) -> tuple[Draft, ...]:
        self.asked.append((used_s, spent_usd))
        if used_s > 86400:
            raise errors.DeadlineExceeded("too little is left")
        lease, request = lease_and_request(len(self.asked), zone=ZONE, now=self.world.time)
        return (Draft(replace(lease, spot=True, run=self.run), replace(request, spot=True)),)


def asked(prepared: JobRun) -> list[tuple[float, float]]:
    drafter = getattr(prepared.stay, "drafter", None)
    assert isinstance(drafter, SpotDrafter)
    return drafter.asked


def lose_each(how: Callable[[Bench], Any], times: int) -> Callable[[Bench], None]:
    """The first `times` slices, each when its job has run for 700 s."""
    hit: list[Any] = []

    def between(world: Bench) -> None:
        job = world.job
        if job is not None and world.ran_s() > 700 and len(hit) < times and not any(job is each for each in hit):
            hit.append(job)
            how(world)

    return between


def attempts(world: Bench) -> list[tuple[str, str]]:
    [(run_, _)] = world.ledger.runs()
    rows = world.ledger._db.execute("select id, state from attempt where run_id = ? order by rowid", (run_.id,))
    return [(str(identity), str(state)) for identity, state in rows]


def test_a_slice_that_is_preempted_before_its_job_began_is_replaced_too(world: Bench) -> None:
    """All that this machine sees is a worker that does not answer."""

    def lose_the_first(world: Bench) -> None:
        if world.last == "Workers" and len(world.ledger.leases()) == 1:
            world.preempt()

    outcome = world.ran(restartable(world), lose_the_first)
    assert outcome.exit_code == 0 and [loss.reason for loss in outcome.losses] == ["preempted"]


def test_a_worker_that_cannot_be_reached_though_its_slice_is_there_is_no_reason_to_pay_for_another(
    world: Bench,
) -> None:
    world.cut_off("laptop-vm")
    outcome = world.ran(restartable(world))
    assert isinstance(outcome.error, errors.Unreachable) and outcome.losses == () and world.nodes == {}


def test_the_ledger_says_why_each_attempt_ended(world: Bench) -> None:
    world.ran(restartable(world), lose_each(Bench.preempt, 1))
    ended = [data for _, kind, data in world.ledger.events("0123456789-1") if kind == "attempt_ended"]
    assert [event["cause"] for event in ended] == ["preempted"]


def test_the_report_has_attempts_zones_time_lost_and_dollars(world: Bench) -> None:
    prepared = restartable(world)
    lease, request = lease_and_request(50, zone="us-east5-a", now=world.time)
    first = Draft(replace(lease, run=prepared.run.id), request)
    world.full("us-east5-a")
    outcome = world.ran(asking(prepared, first, *prepared.stay.drafts), lose_each(Bench.preempt, 1))
    [(run_, _)] = world.ledger.runs()
    rows = attempt_reports.attempt_reports(world.ledger, run_, world.time)
    assert [row.cause for row in rows] == ["preempted", None]
    assert [tried.where for tried in rows[0].tried] == ["v5litepod-8 us-east5-a"] and rows[1].tried == ()
    assert 60 <= (rows[0].lost_s or 0) <= 150, "deleting, proving and creating anew"
    assert rows[0].usd == pytest.approx(9.6 * 0.25, rel=0.2)
    total = costs.of_run(world.ledger, run_, world.time)
    first_usd, last_usd = (row.usd or 0.0 for row in rows)
    assert total == pytest.approx(first_usd + last_usd) and last_usd > 9.6 * 300 / 3600
    lines = outcome_lines(outcome, result="", inside={}, usd=total)
    assert f"cost     ${total:,.2f} emulated (" in lines[2]
    told = attempt_reports.attempt_lines(rows, "emulated")
    assert told[0].startswith("attempt  1 · us-central1-a on-demand · ran 11 m") and "preempted" in told[0]
    assert told[1].endswith("v5litepod-8 us-east5-a: no capacity") and told[2].startswith("attempt  2")


def test_what_was_saved_goes_along_from_attempt_to_attempt(world: Bench) -> None:
    began = world.time
    world.ran(restartable(world), lose_each(Bench.preempt, 1))
    assert world.names.count("RestoreWork") == 1 and world.time - began < 1000 + 400


def test_a_copy_that_cannot_be_kept_does_not_end_the_job(world: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> tuple[int, ...]:
        raise errors.ArtifactError("runs/x/saved: No space left on device")

    monkeypatch.setattr(SimSavedWork, "keep", full)
    outcome = world.ran(restartable(world))
    assert outcome.exit_code == 0
    assert "save the work was not saved this time: runs/x/saved: No space left on device" in world.told


@pytest.mark.parametrize(
    ("copy_s", "times", "least_s", "most_s"),
    [(0.0, 3, 30, 35), (5.0, 3, 100, 140), (60.0, 3, 300, 305), (0.0, 0, 300, 305)],
)
def test_work_that_is_saved_quickly_is_saved_more_often_where_another_attempt_may_need_it(
    world: Bench, copy_s: float, times: int, least_s: float, most_s: float
) -> None:
    world.lasts_s = 2000
    world.save_s, started_at = copy_s, []

    def note(world: Bench) -> None:
        if world.last == "StartSave":
            started_at.append(world.time)

    world.ran(restartable(world, times), note)
    pauses = [later - sooner - copy_s for sooner, later in itertools.pairwise(started_at)]
    assert pauses and all(least_s <= pause <= most_s for pause in pauses)


def test_a_copy_that_takes_long_delays_nothing_else(world: Bench) -> None:
    """Its slice is preempted meanwhile, and that is noticed as soon as ever."""
    lost_at: list[float] = []

    def lose(world: Bench) -> None:
        world.preempt()
        lost_at.append(world.time)

    world.save_s = 900
    outcome = world.ran(restartable(world), lose_each(lose, 1))
    assert outcome.exit_code == 0 and outcome.losses[0].at - lost_at[0] < 20


def test_a_restart_says_from_which_step_and_how_old_that_is(world: Bench) -> None:
    world.save_s = 5
    world.ran(restartable(world), lose_each(Bench.preempt, 1))
    [told] = [text for text in world.told if text.startswith("restart ")]
    [(_, _, data)] = [event for event in world.ledger.events("0123456789-2") if event[1] == "continued"]
    saved_s = world.ledger.attempt("0123456789-1").ended_at - data["saved_at"]
    assert data["step"] == pytest.approx(700 - saved_s, abs=20) and 0 < saved_s <= 140
    assert told == f"restart attempt 2 {data['text']} · at most 4 attempts"
    assert data["text"] == f"goes on at step {data['step']}, saved {format_duration(saved_s)} before the loss"
    [(run_, _)] = world.ledger.runs()
    rows = attempt_reports.attempt_reports(world.ledger, run_, world.time)
    assert [row.continued for row in rows] == [None, data["text"]]
    assert data["text"] in attempt_reports.attempt_lines(rows, "emulated")[1]


def test_a_restart_without_saved_work_says_that_it_begins_anew(world: Bench) -> None:
    world.save_s = 1e6
    world.ran(restartable(world), lose_each(Bench.preempt, 1))
    assert "restart attempt 2 begins at step 0: nothing was saved · at most 4 attempts" in world.told


def test_a_copy_that_held_no_work_counts_as_none(world: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the time before it would be none that the loss cost."""
    monkeypatch.setattr(SimSavedWork, "state", lambda _: SavedState())
    world.ran(restartable(world), lose_each(Bench.preempt, 1))
    [(_, _, data)] = [event for event in world.ledger.events("0123456789-2") if event[1] == "continued"]
    assert data["text"] == "begins at step 0: nothing was saved" and data["saved_at"] is None


def test_notice_of_a_preemption_saves_the_last_moment(world: Bench) -> None:
    """The watchdog stops the job before the VM goes: that is no failure of the job, and its checkpoint can still be had."""
    noticed: list[float] = []
    kept_at: list[float] = []

    def give_notice(world: Bench) -> None:
        world.preempt(notice_s=30.0)
        for vm in world.cloud.vms.values():
            vm.workers[0].stop_job()
        noticed.append(world.time)

    def between(world: Bench) -> None:
        lose(world)
        if world.last == "KeepSave":
            kept_at.append(world.time)

    lose = lose_each(give_notice, 1)
    outcome = world.ran(restartable(world), between)
    assert outcome.exit_code == 0 and [loss.reason for loss in outcome.losses] == ["preempted"]
    assert any(0 <= at - noticed[0] <= 30 for at in kept_at)


def test_a_job_that_fails_by_itself_is_not_tried_again(world: Bench) -> None:
    world.rc = 3
    outcome = world.ran(restartable(world))
    assert isinstance(outcome.error, errors.PayloadFailed) and outcome.exit_code == 3 and outcome.losses == ()


def test_after_the_last_restart_that_is_allowed_the_run_ends_with_what_took_it_away(world: Bench) -> None:
    world.lasts_s = 3000
    outcome = world.ran(restartable(world, times=1), lose_each(Bench.preempt, 9))
    assert isinstance(outcome.error, errors.Preempted) and outcome.exit_code == 71
    assert len(attempts(world)) == 2 and world.nodes == {}


def test_what_is_left_of_a_lost_slice_and_cannot_be_proven_gone_ends_the_run_with_75(world: Bench) -> None:

    def stuck(world: Bench) -> None:
        world.preempt()
        world.settings.delete_s = 1e9

    outcome = world.ran(restartable(world), lose_each(stuck, 1))
    assert outcome.exit_code == 75 and isinstance(outcome.error, errors.TeardownUnproven)
    assert len(attempts(world)) == 1, "nothing is asked for beside something that may still be billed"


def test_limits_hold_over_all_attempts_together(world: Bench) -> None:
    world.lasts_s = 1e6
    prepared = restartable(world, times=9)
    outcome = world.ran(replace(prepared, max_duration_s=3600), lose_each(Bench.preempt, 3))
    assert isinstance(outcome.error, errors.DeadlineExceeded)
    seen = [used_s for used_s, _ in asked(prepared)]
    assert [usd for _, usd in asked(prepared)] == [pytest.approx(9.6 * used_s / 3600, rel=0.5) for used_s in seen]
    assert seen == sorted(seen) and 2000 <= seen[-1] <= 2400


def test_a_job_that_prints_nothing_for_too_long_hangs_and_is_tried_elsewhere(world: Bench) -> None:
    outcome = world.ran(replace(restartable(world, times=1), stall_s=300))
    assert [loss.reason for loss in outcome.losses] == ["hung"]
    assert isinstance(outcome.error, errors.SliceLost) and outcome.error.reason == "hung"


def test_workers_that_are_silent_though_the_api_says_ready_are_given_up_after_ten_minutes(world: Bench) -> None:
    world.lasts_s = 3000

    outcome = world.ran(restartable(world), lose_each(lambda world: world.cut_off("laptop-vm", for_s=800), 1))
    assert outcome.exit_code == 0 and [loss.reason for loss in outcome.losses] == ["unreachable"]


@pytest.mark.parametrize(("shipped", "in_bucket", "resumed", "expected"), [
    ((None,), False, None, None),
    (("a", None), False, None, "client"),
    (("a", None), True, SavedState(1, 1), "client"),
    ((), True, None, "bucket"),
    ((), False, SavedState(1, 1), "bucket"),
    ((), False, SavedState(), None),
])  # fmt: skip
def test_the_workers_are_told_where_the_saved_work_is(
    shipped: tuple[str | None, ...], in_bucket: bool, resumed: SavedState | None, expected: str | None
) -> None:
    """Where nothing is known to be saved, a bucket that cannot be read is no reason to end."""
    job: Any = SimpleNamespace(resumed=resumed, saved_work=SimSavedWork(is_in_bucket=in_bucket))
    request = with_saved_work(StartRequest("r-1", "setup", "", [{"A": "1"}, {}]), job, shipped)
    assert [env.get("TPUJOB_SAVED_WORK") for env in request.env_by_worker] == [expected, expected]
    assert request.saved_by_worker == shipped and request.env_by_worker[0]["A"] == "1"

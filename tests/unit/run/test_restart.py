"""A run that continues after its slices are preempted: when it may, what it restores, and when it stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.core.lease.cloud_api import SliceName, SliceState, SliceView
from orchestrator.core.lease.lease import CANCEL, Down, Extended, Lease, LeaseState
from orchestrator.core.lease.run_and_attempt import AttemptState
from orchestrator.core.lease.saved_state import SavedState
from orchestrator.core.text.durations import format_duration
from orchestrator.engine.leases.standing import check_slice
from orchestrator.engine.provision.acquire import acquire
from orchestrator.engine.provision.drafts import Draft
from orchestrator.remote.transfer.collect import THE_REST, CollectionProgress, CollectResult, Problem
from orchestrator.report import attempts as attempt_reports
from orchestrator.report import costs
from orchestrator.report.messages import outcome_lines
from orchestrator.run.job_run import JobRun
from orchestrator.run.program import run_job
from orchestrator.run.progress import Outcome
from tests.unit.engine.virtual import CAN, ZONE, Node, VirtualWorld, asking, job, lease_and_request


@dataclass(frozen=True)
class Saved:
    id: str


def test_a_queued_slice_whose_request_is_suspending_was_preempted(world: VirtualWorld) -> None:
    """Its node is gone first; for a moment it looks as if another client had deleted it."""
    lease, request = lease_and_request(now=world.time)
    ready = world.drive(acquire(lease, request, CAN))
    get = world.cloud.get

    def suspending(name: SliceName) -> SliceView | None:
        view = get(name)
        return None if view is None else replace(view, state=SliceState.DELETING, native_state="SUSPENDING")

    world.cloud.get = suspending  # type: ignore[method-assign]
    with pytest.raises(errors.Preempted, match="SUSPENDING"):
        world.drive(check_slice(ready))


@dataclass
class Bag:
    """Saved work that records when it was saved and restored. Each copy takes `copy_s`."""

    world: VirtualWorld
    directory: Path = Path("saved")
    copy_s: float = 0.0
    started_at: list[float] = field(default_factory=list)
    kept_at: list[float] = field(default_factory=list)
    unpacked: int = 0
    left: tuple[Problem, ...] = ()
    step: int | None = None

    def start(self, fleet: object) -> Copy:
        self.started_at.append(self.world.time)
        return Copy(self.world, self.world.time + self.copy_s)

    def keep(self, copied: CollectResult) -> tuple[int, ...]:
        if copied.waiting:
            return ()
        self.kept_at.append(self.world.time)
        return (0,)

    def at_hand(self) -> dict[int, object]:
        return {}

    def state(self) -> SavedState:
        return SavedState(3, 1_200_000, step=self.step) if self.kept_at else SavedState()

    def shipments(self, workers: int, progress: object) -> tuple[Saved | None, ...]:
        self.unpacked += 1
        return (Saved("a" * 64) if self.kept_at else None, None)


@dataclass(frozen=True)
class Copy:
    world: VirtualWorld
    done_at: float

    def wait(self, timeout_s: float) -> CollectionProgress:
        self.world.time = min(self.world.time + timeout_s, max(self.done_at, self.world.time))
        return CollectionProgress(CollectResult() if self.world.time >= self.done_at else None)

    def stop(self, why: str) -> CollectResult:
        return CollectResult(waiting=(Problem(0, THE_REST, why),))


def restartable(world: VirtualWorld, bag: Bag, times: int = 3) -> JobRun:
    plain = job(world)
    spot = tuple(Draft(replace(lease, spot=True), request) for lease, request in plain.stay.drafts)
    drafter = SpotDrafter(world, plain.run.id)
    return replace(asking(plain, *spot, drafter=drafter), max_restarts=times, saved_work=bag)  # type: ignore[arg-type]


@dataclass
class SpotDrafter:
    """One candidate, each time under a new name; `asked` has the seconds and dollars that were used by then."""

    world: VirtualWorld
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


def run(prepared: JobRun, world: VirtualWorld, between: Callable[[VirtualWorld], None] | None = None) -> Outcome:
    return world.drive(run_job(prepared, CAN), between=between)


def lose_each(how: Callable[[VirtualWorld, Node], None], times: int) -> Callable[[VirtualWorld], None]:
    """The first `times` slices, each 700 s after it was READY."""
    hit: set[str] = set()

    def between(world: VirtualWorld) -> None:
        for name, node in world.cloud.nodes.items():
            if name not in hit and len(hit) < times and world.fleet.ends_at and world.time > node.ready_at + 700:
                hit.add(name)
                how(world, node)

    return between


def preempt(world: VirtualWorld, node: Node) -> None:
    node.preempted = True


def attempts(world: VirtualWorld) -> list[tuple[str, str]]:
    [(run_, _)] = world.ledger.runs()
    rows = world.ledger._db.execute("select id, state from attempt where run_id = ? order by rowid", (run_.id,))
    return [(str(identity), str(state)) for identity, state in rows]


def test_a_slice_that_is_preempted_before_its_job_began_is_replaced_too(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that this machine sees is a worker that does not answer."""
    reached: list[Lease] = []

    def connect(lease: Lease, workers: object, deadline_s: float) -> Any:
        reached.append(lease)
        if len(reached) == 1:
            world.cloud.nodes[lease.name.node].preempted = True
            raise errors.Unreachable("no route to host")
        return world.fleet

    monkeypatch.setattr(world, "connect", connect)
    outcome = run(restartable(world, Bag(world)), world)
    assert outcome.exit_code == 0 and [loss.reason for loss in outcome.losses] == ["preempted"]


def test_a_worker_that_cannot_be_reached_though_its_slice_is_there_is_no_reason_to_pay_for_another(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(lease: Lease, workers: object, deadline_s: float) -> Any:
        raise errors.Unreachable("no route to host")

    monkeypatch.setattr(world, "connect", connect)
    outcome = run(restartable(world, Bag(world)), world)
    assert isinstance(outcome.error, errors.Unreachable) and outcome.losses == () and world.cloud.nodes == {}


def test_the_ledger_says_why_each_attempt_ended(world: VirtualWorld) -> None:
    world.fleet.phase_s = 1000
    run(restartable(world, Bag(world)), world, lose_each(preempt, 1))
    ended = [data for _, kind, data in world.ledger.events("0123456789-1") if kind == "attempt_ended"]
    assert [event["cause"] for event in ended] == ["preempted"]


def test_the_report_has_attempts_zones_time_lost_and_dollars(world: VirtualWorld) -> None:
    world.fleet.phase_s = 1000
    prepared = restartable(world, Bag(world))
    lease, request = lease_and_request(50, zone="us-east1-c", now=world.time)
    first = Draft(replace(lease, run=prepared.run.id), request)
    world.cloud.full_zones = {"us-east1-c"}
    outcome = run(asking(prepared, first, *prepared.stay.drafts), world, lose_each(preempt, 1))
    [(run_, _)] = world.ledger.runs()
    rows = attempt_reports.attempts(world.ledger, run_, world.time)
    assert [row.cause for row in rows] == ["preempted", None]
    assert [tried.where for tried in rows[0].tried] == ["v5litepod-8 us-east1-c"] and rows[1].tried == ()
    assert 60 <= (rows[0].lost_s or 0) <= 150, "deleting, proving and creating anew"
    assert rows[0].usd == pytest.approx(9.6 * 0.25, rel=0.2)
    total = costs.of_run(world.ledger, run_, world.time)
    first_usd, last_usd = (row.usd or 0.0 for row in rows)
    assert total == pytest.approx(first_usd + last_usd) and last_usd > 9.6 * 0.25
    lines = outcome_lines(outcome, result="", inside={}, usd=total)
    assert f"cost     ${total:,.2f} emulated (" in lines[2]
    told = attempt_reports.lines(rows, "emulated")
    assert told[0].startswith("attempt  1 · us-central1-a on-demand · ran 11 m") and "preempted" in told[0]
    assert told[1].endswith("v5litepod-8 us-east1-c: no capacity") and told[2].startswith("attempt  2")


def test_what_was_saved_goes_along_from_attempt_to_attempt(world: VirtualWorld) -> None:
    world.fleet.phase_s = 1000
    bag = Bag(world)
    run(restartable(world, bag), world, lose_each(preempt, 1))
    assert bag.unpacked == 1 and bag.kept_at


def test_a_copy_that_cannot_be_kept_does_not_end_the_job(world: VirtualWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Bag, copied: CollectResult) -> tuple[int, ...]:
        raise errors.ArtifactError("runs/x/saved: No space left on device")

    monkeypatch.setattr(Bag, "keep", full)
    world.fleet.phase_s = 1000
    outcome = run(restartable(world, Bag(world)), world)
    assert outcome.exit_code == 0
    assert "save the work was not saved this time: runs/x/saved: No space left on device" in world.told


@pytest.mark.parametrize(
    ("copy_s", "times", "least_s", "most_s"),
    [(0.0, 3, 30, 35), (5.0, 3, 100, 140), (60.0, 3, 300, 305), (0.0, 0, 300, 305)],
)
def test_work_that_is_saved_quickly_is_saved_more_often_where_another_attempt_may_need_it(
    world: VirtualWorld, copy_s: float, times: int, least_s: float, most_s: float
) -> None:
    world.fleet.phase_s = 2000
    bag = Bag(world, copy_s=copy_s)
    run(restartable(world, bag, times), world)
    pauses = [later - sooner - copy_s for sooner, later in zip(bag.started_at, bag.started_at[1:], strict=False)]
    assert pauses and all(least_s <= pause <= most_s for pause in pauses)


def test_a_copy_that_takes_long_delays_nothing_else(world: VirtualWorld) -> None:
    """Its slice is preempted meanwhile, and that is noticed as soon as ever."""
    world.fleet.phase_s = 1000
    lost_at: list[float] = []

    def lose(world: VirtualWorld, node: Node) -> None:
        node.preempted = True
        lost_at.append(world.time)

    outcome = run(restartable(world, Bag(world, copy_s=900)), world, lose_each(lose, 1))
    assert outcome.exit_code == 0 and outcome.losses[0].at - lost_at[0] < 20


def test_a_restart_says_from_which_step_and_how_old_that_is(world: VirtualWorld) -> None:
    world.fleet.phase_s = 1000
    bag = Bag(world, copy_s=5, step=80)
    run(restartable(world, bag), world, lose_each(preempt, 1))
    [told] = [text for text in world.told if text.startswith("restart ")]
    [(_, _, data)] = [event for event in world.ledger.events("0123456789-2") if event[1] == "continued"]
    assert data["step"] == 80 and 0 < data["saved_s"] <= 140
    assert told == f"restart attempt 2 {data['text']} · at most 4 attempts"
    assert data["text"] == f"goes on at step 80, saved {format_duration(data['saved_s'])} before the loss"
    [(run_, _)] = world.ledger.runs()
    rows = attempt_reports.attempts(world.ledger, run_, world.time)
    assert [row.continued for row in rows] == [None, data["text"]]
    assert data["text"] in attempt_reports.lines(rows, "emulated")[1]


def test_a_restart_without_saved_work_says_that_it_begins_anew(world: VirtualWorld) -> None:
    world.fleet.phase_s = 1000
    run(restartable(world, Bag(world, copy_s=1e6)), world, lose_each(preempt, 1))
    assert "restart attempt 2 begins at step 0: nothing was saved · at most 4 attempts" in world.told


def test_notice_of_a_preemption_saves_the_last_moment(world: VirtualWorld) -> None:
    """The watchdog stops the job before the VM goes: that is no failure of the job, and its checkpoint can still be had."""
    world.fleet.phase_s = 1000
    bag = Bag(world)

    def give_notice(world: VirtualWorld, node: Node) -> None:
        world.cloud.notices.add(node.request.name.node)
        world.fleet.rc, world.fleet.ends_at = 143, world.time
        noticed.append(world.time)

    def between(world: VirtualWorld) -> None:
        lose(world)
        if noticed and world.fleet.ends_at > noticed[0]:
            world.fleet.rc = 0  # the next attempt

    noticed: list[float] = []
    lose = lose_each(give_notice, 1)
    outcome = run(restartable(world, bag), world, between)
    assert outcome.exit_code == 0 and [loss.reason for loss in outcome.losses] == ["preempted"]
    assert any(0 <= at - noticed[0] <= 30 for at in bag.kept_at)


def test_a_job_that_fails_by_itself_is_not_tried_again(world: VirtualWorld) -> None:
    world.fleet.rc = 3
    outcome = run(restartable(world, Bag(world)), world)
    assert isinstance(outcome.error, errors.PayloadFailed) and outcome.exit_code == 3 and outcome.losses == ()


def test_after_the_last_restart_that_is_allowed_the_run_ends_with_what_took_it_away(world: VirtualWorld) -> None:
    world.fleet.phase_s = 1000
    outcome = run(restartable(world, Bag(world), times=1), world, lose_each(preempt, 9))
    assert isinstance(outcome.error, errors.Preempted) and outcome.exit_code == 71
    assert len(attempts(world)) == 2 and world.cloud.nodes == {}


def test_without_on_preemption_restart_nothing_is_made_again(world: VirtualWorld) -> None:
    world.fleet.phase_s = 1000
    outcome = run(restartable(world, Bag(world), times=0), world, lose_each(preempt, 1))
    assert isinstance(outcome.error, errors.Preempted) and len(attempts(world)) == 1


def test_what_is_left_of_a_lost_slice_and_cannot_be_proven_gone_ends_the_run_with_75(world: VirtualWorld) -> None:
    world.fleet.phase_s = 1000

    def stuck(world: VirtualWorld, node: Node) -> None:
        node.preempted = True
        world.cloud.delete_s = 1e9

    outcome = run(restartable(world, Bag(world)), world, lose_each(stuck, 1))
    assert outcome.exit_code == 75 and isinstance(outcome.error, errors.TeardownUnproven)
    assert len(attempts(world)) == 1, "nothing is asked for beside something that may still be billed"


def test_limits_hold_over_all_attempts_together(world: VirtualWorld) -> None:
    world.fleet.phase_s = 1e6
    prepared = restartable(world, Bag(world), times=9)
    outcome = run(replace(prepared, max_duration_s=3600), world, lose_each(preempt, 3))
    assert isinstance(outcome.error, errors.DeadlineExceeded)
    seen = [used_s for used_s, _ in asked(prepared)]
    assert [usd for _, usd in asked(prepared)] == [pytest.approx(9.6 * used_s / 3600, rel=0.5) for used_s in seen]
    assert seen == sorted(seen) and 2000 <= seen[-1] <= 2400


def test_an_extension_is_the_runs_and_not_lost_with_the_slice_it_was_typed_for(world: VirtualWorld) -> None:
    world.fleet.phase_s = 2000
    prepared = restartable(world, Bag(world))
    lose = lose_each(preempt, 1)

    def between(world: VirtualWorld) -> None:
        for lease in world.ledger.open_leases():
            if lease.state is LeaseState.READY and not extended and world.fleet.ends_at:
                until = lease.deadline + 3600
                world.ledger.record(Extended(lease.id, world.time, until))
                extended.append(until)
        lose(world)

    extended: list[float] = []
    outcome = run(replace(prepared, max_duration_s=2400), world, between)
    assert [used_s for used_s, _ in asked(prepared)] == [pytest.approx(700 - 3600, abs=60)]
    assert outcome.exit_code == 0, "2700 s of 2400 s and the hour of the extension"


def test_a_job_that_prints_nothing_for_too_long_hangs_and_is_tried_elsewhere(world: VirtualWorld) -> None:
    world.fleet.phase_s = 1000
    world.fleet.prints = 0
    outcome = run(replace(restartable(world, Bag(world), times=1), stall_s=300), world)
    assert [loss.reason for loss in outcome.losses] == ["hung"]
    assert isinstance(outcome.error, errors.SliceLost) and outcome.error.reason == "hung"


def test_workers_that_are_silent_though_the_api_says_ready_are_given_up_after_ten_minutes(world: VirtualWorld) -> None:
    world.fleet.phase_s = 3000

    def silence(world: VirtualWorld, node: Node) -> None:
        world.fleet.silent_since = world.time

    def between(world: VirtualWorld) -> None:
        lose(world)
        if len(world.cloud.calls) and world.fleet.ends_at > world.time + 2900:
            world.fleet.silent_since = None  # the workers of another slice

    lose = lose_each(silence, 1)
    outcome = run(restartable(world, Bag(world)), world, between)
    assert outcome.exit_code == 0 and [loss.reason for loss in outcome.losses] == ["unreachable"]


def test_a_run_that_is_canceled_while_its_lost_slice_is_released_begins_no_other_attempt(world: VirtualWorld) -> None:
    world.fleet.phase_s = 1000
    lose = lose_each(preempt, 1)

    def between(world: VirtualWorld) -> None:
        lose(world)
        for lease in world.ledger.open_leases():
            if lease.state is LeaseState.DOWN and lease.reason != CANCEL:
                world.ledger.record(Down(lease.id, world.time, CANCEL))

    outcome = run(restartable(world, Bag(world)), world, between)
    assert (outcome.state, outcome.exit_code) == (AttemptState.CANCELED, 71)
    assert attempts(world) == [("0123456789-1", "canceled")] and world.cloud.nodes == {}

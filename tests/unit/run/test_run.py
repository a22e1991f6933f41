"""What ends a run besides its own success, and what each worker of it says until then; and that its slice ends with it.

A cancel at every effect: tests/simulation/test_crash_sweep.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.errors import AuthError, DeadlineExceeded, PayloadFailed, Unreachable, Vanished
from orchestrator.hosts.fleet.crew import FleetStatus
from orchestrator.hosts.fleet.follow import WorkerState, WorkerStatus
from orchestrator.places.place import End, Standing
from orchestrator.places.tpu.traits import TRAITS as OF_TPU
from orchestrator.places.vms.stay import VmStay
from orchestrator.promise.effects.base import MoneyNear, Report, StoodStill
from orchestrator.promise.lease.changes import Began, Intent, NotAllowed, ReleaseBegan
from orchestrator.promise.lease.lease import LeaseState
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord, WorkerEnd
from orchestrator.promise.ledger.file import LedgerUnavailable
from orchestrator.promise.standing import record_cancel
from orchestrator.run import finish
from orchestrator.run.monitor import SETTLE_S, Silence, monitor
from tests.fakes.leases import ZONE, lease_and_request, queued
from tests.simulation.model.bench import CAN, Bench, asking, created, held, job
from tests.simulation.model.cloud_client import CloudClient
from tests.simulation.model.fleet import SimCollection, SimFleet
from tests.simulation.model.process import Process


def while_running(act: Callable[[Bench], Any]) -> Callable[[Bench], None]:
    """Do something once, twenty seconds into the job."""
    done: list[object] = []

    def between(world: Bench) -> None:
        if not done and world.ran_s() >= 20:
            done.append(True)
            act(world)

    return between


def test_a_job_that_fails_passes_its_code_and_stops_the_other_workers(
    world: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "hint", Mock(side_effect=ZeroDivisionError))  # which costs no result
    world.workers = 2
    outcome = world.ran(between=while_running(lambda world: world.fail(1, 7)))
    assert isinstance(outcome.error, PayloadFailed) and outcome.exit_code == 7
    assert world.names.count("StopPhase") == 1 and world.nodes == {}


def test_a_job_that_its_budget_will_end_says_so_once_when_a_fifth_of_its_time_is_left(world: Bench) -> None:
    world.lasts_s = 1e6
    prepared = job(world)
    (draft,) = prepared.stay.drafts
    lease = replace(draft.lease, deadline=world.time + 3600, budget_usd=9.6)
    outcome = world.ran(asking(prepared, draft._replace(lease=lease)))
    assert isinstance(outcome.error, DeadlineExceeded) and "limits.max_cost" in outcome.error.message
    (told,) = [each for each in world.effects if isinstance(each, Report) and isinstance(each.about, MoneyNear)]
    assert isinstance(told.about, MoneyNear) and told.about.run == prepared.run.id
    assert 600 < told.about.left_s <= 720 and told.about.usd_so_far == pytest.approx(9.6 * 0.8, rel=0.05)
    assert told.stage == "limit" and told.text.endswith("until limits.max_cost ends the job")


def test_a_job_that_its_duration_will_end_says_nothing_of_money(world: Bench) -> None:
    world.lasts_s = 1e6
    world.ran(replace(job(world), max_duration_s=3600))
    assert not any(isinstance(each, Report) and isinstance(each.about, MoneyNear) for each in world.effects)


def test_the_wait_in_googles_queue_is_not_part_of_the_duration(world: Bench) -> None:
    """Also without `wait:`, where a request may stand in the queue for an hour."""
    world.full(ZONE, for_s=3000)
    assert (
        world.ran(replace(asking(job(world), *map(queued, job(world).stay.drafts)), max_duration_s=1800)).exit_code == 0
    )


def test_a_job_that_might_wait_for_capacity_has_its_whole_duration_on_a_slice_that_was_held_before(
    world: Bench,
) -> None:
    lease = held(world, 9)
    world.time += 7200
    assert world.ran(replace(asking(job(world, held=lease), wait_s=21600), max_duration_s=3600)).exit_code == 0


TOO_SHORT_S = CAN.timings.ttl_s - CAN.timings.heartbeat_s - 1


@pytest.mark.parametrize("stood", [None, (TOO_SHORT_S, "this machine slept"), (2220.0, "this machine slept")])
def test_a_slice_that_is_gone_ends_the_run_and_a_sleep_of_this_machine_is_named(
    world: Bench, monkeypatch: pytest.MonkeyPatch, stood: tuple[float, str] | None
) -> None:
    monkeypatch.setattr(StoodStill, "perform", lambda *_: stood)
    outcome = world.ran(between=while_running(lambda world: world.vanish()))
    lapsed = "is gone: this machine slept; the claim ended at the last heartbeat, and the watchdog deleted the slice"
    why = lapsed if stood is not None and stood[0] > TOO_SHORT_S else "was deleted by another client"
    assert isinstance(outcome.error, Vanished) and outcome.exit_code == 71 and why in outcome.error.message
    assert outcome.released is not None and outcome.released.gone


def test_an_interrupted_job_on_a_held_slice_is_stopped_there(world: Bench) -> None:
    outcome = world.ran(job(world, held=held(world, 9)), signalled_at="WaitForWorkers")
    assert outcome.exit_code == 130 and world.names.count("StopPhase") == 1
    assert len(world.nodes) == 1


def test_a_bug_of_ours_releases_the_slice_too(world: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(SimFleet, "facts", broken)
    outcome = world.ran()
    assert outcome.exit_code == 70 and outcome.error is not None and "a bug in tpujob" in outcome.error.message
    assert world.nodes == {}


def test_a_down_between_intent_and_create_is_no_bug_of_ours(world: Bench) -> None:
    def say_down(world: Bench) -> None:
        if world.names[-1] == "StartGuardian":
            (lease,) = world.ledger.open_leases()
            world.ledger.record(ReleaseBegan(lease.id, world.time, "tpujob down"))

    outcome = world.ran(between=say_down)
    assert isinstance(outcome.error, Vanished) and world.nodes == {}


def test_a_held_slice_that_was_released_meanwhile_is_not_said_to_be_kept(world: Bench) -> None:
    lease = held(world, 9)

    def say_down(world: Bench) -> None:
        world.ledger.record(ReleaseBegan(lease.id, world.time, "tpujob down"))

    outcome = world.ran(job(world, held=lease), between=while_running(say_down))
    assert outcome.exit_code == 71 and outcome.kept_until is None
    assert world.names.count("StopPhase") == 0, "nothing is left to stop"


def test_a_failing_ledger_at_the_end_changes_neither_result_nor_code(
    world: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = world.ledger.record

    def broken(*events: object) -> None:
        if type(events[0]).__name__ == "Ended":
            raise LedgerUnavailable("disk full")
        record(*events)  # type: ignore[arg-type]

    monkeypatch.setattr(world.ledger, "record", broken)
    outcome = world.ran()
    assert outcome.exit_code == 0 and outcome.state is AttemptState.SUCCEEDED


def test_an_interrupted_run_says_where_its_time_went(world: Bench) -> None:
    outcome = world.ran(job(world), signalled_at="WaitForWorkers")
    assert outcome.spans["wait"] >= 60 and "main" in outcome.spans
    assert sum(outcome.spans.values()) == pytest.approx(outcome.ended_at - outcome.started_at, abs=1)


def test_a_worker_that_cannot_be_told_to_stop_does_not_hide_the_jobs_own_code(
    world: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise Unreachable("worker1: the connection was cut")

    monkeypatch.setattr(SimFleet, "stop", unreachable)
    world.workers = 2
    outcome = world.ran(between=while_running(lambda world: world.fail(1, 7)))
    assert outcome.exit_code == 7 and world.nodes == {}
    assert any("may still be running" in line for line in world.told)


def test_a_second_look_that_fails_hides_no_worker_that_is_not_reached(
    world: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expired(*_: object) -> None:
        raise AuthError("the credentials have expired")

    def connecting(world: Bench) -> None:
        if world.names[-1] == "Connect":
            monkeypatch.setattr(CloudClient, "get", expired)

    world.cut_off("laptop-vm")
    assert isinstance(world.ran(between=connecting).error, Unreachable)


def test_results_that_do_not_come_hide_no_failure_of_the_job_and_are_named(
    world: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: SimCollection, process: Process, token: int, deadline: float) -> None:
        process.answered(token, None, AuthError("the credentials have expired"))

    monkeypatch.setattr(SimCollection, "advance", broken)
    world.rc = 7
    assert world.ran().exit_code == 7 and world.nodes == {}
    assert "warning the results were not collected: the credentials have expired" in world.told


def test_the_end_of_a_long_job_is_announced_twice_and_that_of_a_short_one_never(world: Bench) -> None:
    world.lasts_s = 1e6
    world.ran(replace(job(world), max_duration_s=3 * 3600))
    assert sum(line.startswith("limit ") for line in world.told) == 2
    other = Bench()
    other.lasts_s = 1e6
    other.ran(replace(job(other), max_duration_s=900))
    assert not any(line.startswith("limit ") for line in other.told)


def test_a_canceled_run_gets_no_lease_and_no_attempt(world: Bench) -> None:
    prepared = job(world, zones=("us-central1-a", "us-east5-a"))
    first, second = (draft.lease for draft in prepared.stay.drafts)
    world.ledger.record(Began(prepared.run, prepared.attempt), Intent(first))
    world.drive(record_cancel(prepared.run.id))
    assert world.names.index("StartGuardian") < world.names.index("Record"), "it goes on if this process is killed"
    assert world.ledger.lease(first.id).state is LeaseState.DOWN
    with pytest.raises(NotAllowed, match="was canceled"):
        world.ledger.record(Intent(second))
    with pytest.raises(NotAllowed, match="was canceled"):
        world.ledger.record(Began(prepared.run, Attempt("0123456789-2", prepared.run.id)))


def workers(*heard_at: float, state: WorkerState = WorkerState.RUNNING) -> list[WorkerStatus]:
    return [WorkerStatus(index, state, 0.0, 0, heard_at=at) for index, at in enumerate(heard_at)]


def test_a_silent_worker_is_named_within_ten_seconds_and_again_at_30_60_and_300() -> None:
    silence = Silence()
    told = {at: text for at in range(0, 600, 2) for text in silence.news(workers(at, 0.0, at), at)}
    assert list(told) == [8, 30, 60, 300]
    assert told[8] == "waiting for worker1 (1 of 3): nothing came for 8 s; the job may go on there"


def test_workers_that_become_silent_together_are_named_together() -> None:
    assert Silence().news(workers(0.0, 1.5, 60.0), 8.0) == [
        "waiting for worker0 and worker1 (2 of 3): nothing came for 8 s; the job may go on there"
    ]


def test_a_worker_that_becomes_silent_later_is_named_with_those_before_it() -> None:
    silence = Silence()
    silence.news(workers(0.0, 20.0), 20.0)
    assert silence.news(workers(0.0, 20.0), 24.0) == []
    assert silence.news(workers(0.0, 20.0), 28.0) == [
        "waiting for worker0 and worker1 (2 of 2): nothing came for 28 s; the job may go on there"
    ]


def test_a_worker_that_is_back_is_told_and_is_named_anew_when_it_is_silent_again() -> None:
    silence = Silence()
    silence.news(workers(0.0), 8.0)
    assert silence.news(workers(9.0), 10.0) == ["worker0 answers again"]
    assert silence.news(workers(9.0), 12.0) == []
    assert silence.news(workers(9.0), 17.0) == [
        "waiting for worker0 (1 of 1): nothing came for 8 s; the job may go on there"
    ]


def test_a_worker_that_has_ended_is_not_silent() -> None:
    assert Silence().news(workers(0.0, state=WorkerState.EXITED), 100.0) == []


@dataclass
class Ends:
    """Workers whose phase ends so many seconds after the start with a code; None: it ends only when it is stopped."""

    world: Bench
    plan: dict[int, tuple[float, int] | None]
    stopped_at: float | None = None
    disk_full: tuple[int, ...] = ()  # the workers on which it is
    wakes_at: float = 0.0  # seconds after the start; nothing is told before
    began: float = 0.0

    def wait(self, timeout_s: float) -> FleetStatus:
        times = [self.began + max(end[0], self.wakes_at) for end in self.plan.values() if end is not None]
        coming = [at for at in times if at > self.world.time]
        self.world.time = min([self.world.time + timeout_s, *coming])
        return FleetStatus(tuple(self._status(index, end) for index, end in self.plan.items()))

    def _status(self, index: int, end: tuple[float, int] | None) -> WorkerStatus:
        if end is not None and self.began + end[0] <= min(self.world.time, self.stopped_at or self.world.time):
            at, rc = self.began + end[0], end[1]
            return WorkerStatus(index, WorkerState.EXITED, at, 0, rc, disk_full=index in self.disk_full)
        if self.stopped_at is not None:
            return WorkerStatus(index, WorkerState.EXITED, self.stopped_at, 0, 143, stopped=True)
        return WorkerStatus(index, WorkerState.RUNNING, self.began, 0)

    def stop(self, grace_s: float) -> None:
        self.stopped_at = self.world.time


def follow(world: Bench, fleet: Any, between: Callable[[Bench], None] | None = None) -> None:
    lease = created(world, lease_and_request(now=world.time), ready=True)
    fleet.began = world.time
    run = RunRecord("7q2mabcdef", "mnist", "job.yaml", "emulated", world.time, "runs/x")
    at = Standing(lease, world.time, End(world.time + 3600), world.time)
    world.drive(monitor(VmStay(OF_TPU), at, fleet, "main", run), between=between)


def told(world: Bench) -> list[WorkerEnd]:
    return [each.about for each in world.effects if isinstance(each, Report) and isinstance(each.about, WorkerEnd)]


def test_workers_that_fail_one_after_the_other_are_all_heard(world: Bench) -> None:
    fleet = Ends(world, {index: (10 + index / 64, 1) for index in range(64)})
    with pytest.raises(PayloadFailed) as raised:
        follow(world, fleet)
    assert raised.value.message == "the job failed on 64 workers, first on worker0 with code 1"
    assert raised.value.hint == "`tpujob logs 7q2mabcdef --worker 0` prints what worker0 wrote"
    assert raised.value.workers == tuple(told(world)) == tuple(WorkerEnd(index, 1) for index in range(64))
    assert fleet.stopped_at is None


def test_the_first_worker_that_failed_is_the_same_in_the_error_the_hint_and_the_reports(world: Bench) -> None:
    ends = {index: (10 + index / 64, 1) for index in range(16)} | {3: (9.5, 1), 4: (9.0, 1), 7: (9.0, 1), 0: (8.0, 0)}
    fleet = Ends(world, dict(ends), disk_full=(3, 4), wakes_at=30.0)  # all are heard of together
    with pytest.raises(PayloadFailed) as raised:
        follow(world, fleet)
    assert raised.value.message == "the job failed on 15 workers, first on worker4 with code 1"
    logs = "`tpujob logs 7q2mabcdef --worker 4` prints what worker4 wrote"
    assert raised.value.hint == f"the disk of worker4 is full; {logs}"
    assert [end.worker for end in told(world) if end.failed][:3] == [4, 7, 3], "by time, then by index"


@pytest.mark.parametrize(("code", "hint"), [
    (127, "127 says that there is no such command: look at its name, and at what is installed; "),
    (137, "137 says that it was killed (SIGKILL), usually because the host ran out of memory; "),
    (139, "139 says that it crashed (SIGSEGV), mostly in compiled code of a package; "), (2, ""),
])  # fmt: skip
def test_the_hint_says_what_a_code_means_that_is_not_the_jobs_own(world: Bench, code: int, hint: str) -> None:
    with pytest.raises(PayloadFailed, match=f"with code {code}") as raised:
        follow(world, Ends(world, {0: (10, code)}))
    assert raised.value.hint == f"{hint}`tpujob logs 7q2mabcdef --worker 0` prints what worker0 wrote"


def test_a_worker_that_hangs_is_stopped_soon_after_the_first_failure(world: Bench) -> None:
    fleet = Ends(world, {0: None, 1: (10, 3), 2: (11, 0)})
    with pytest.raises(PayloadFailed, match="the job failed on worker1 with code 3") as raised:
        follow(world, fleet)
    assert fleet.stopped_at == pytest.approx(fleet.began + 10 + SETTLE_S)
    assert raised.value.workers == (WorkerEnd(0, 143, stopped=True), WorkerEnd(1, 3), WorkerEnd(2, 0))
    assert [end.worker for end in told(world)] == [1, 2, 0], "each as soon as it is known"


def test_an_end_is_reported_once_while_the_others_go_on(world: Bench) -> None:
    follow(world, Ends(world, {0: (1, 0), 1: (200, 0)}))
    assert told(world) == [WorkerEnd(0, 0), WorkerEnd(1, 0)]


def test_a_worker_from_which_nothing_comes_is_named_within_ten_seconds(world: Bench) -> None:
    told: list[tuple[float, str]] = []

    class Silent(Ends):
        def wait(self, timeout_s: float) -> FleetStatus:
            first, second = super().wait(timeout_s).workers
            return FleetStatus((first, replace(second, heard_at=self.began)))

    def note(world: Bench) -> None:
        if isinstance(line := world.effects[-1], Report) and line.stage == "ssh":
            told.append((world.time - fleet.began, line.text))

    fleet = Silent(world, {0: (40, 0), 1: (40, 0)})
    follow(world, fleet, note)
    (first_s, first), (_, again) = told
    assert 8 <= first_s <= 10
    assert first == "waiting for worker1 (1 of 2): nothing came for 8 s; the job may go on there"
    assert again.startswith("waiting for worker1 (1 of 2): nothing came for 30 s")

"""Results that take long, and results that stay behind: the claim on their slice, and what `tpujob collect` makes of it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.lease.lease import Down, Lease, LeaseState, Mode, Purpose
from orchestrator.core.lease.run_and_attempt import AttemptState, has_uncollected_results
from orchestrator.core.lease.timings import emulated
from orchestrator.engine.provision.drafts import Draft
from orchestrator.engine.slices.up_and_down import UpRequest, up
from orchestrator.errors import CloudUnavailable, Preempted, Unreachable, Vanished
from orchestrator.remote.transfer.collect import CollectionProgress, Problem
from orchestrator.run.collection import UncollectedRun, collect_again, progress_text
from orchestrator.run.job_run import JobRun
from orchestrator.run.program import run_job
from orchestrator.run.progress import Outcome
from tests.unit.engine.virtual import CAN, VirtualWorld, asking, job, lease_and_request
from tests.unit.run.test_attach import detached

QUICK = replace(CAN, timings=emulated())
LINGER_S, TTL_S = emulated().linger_s, emulated().ttl_s
NO_ROOM = (Problem(0, "artifacts/model", "no room for 80.0 GB"),)


def run(world: VirtualWorld, prepared: JobRun | None = None, **how: Any) -> Outcome:
    return world.drive(run_job(prepared or job(world), QUICK), **how)


def left(world: VirtualWorld, *, borrowed: bool = False) -> UncollectedRun:
    ((found, attempt),) = world.ledger.runs()
    assert attempt.lease_id is not None
    order = job(world).collect_request(attempt)
    return UncollectedRun(found, attempt, world.ledger.lease(attempt.lease_id), order, borrowed)


def collect(world: VirtualWorld, **how: Any) -> Outcome:
    return world.drive(collect_again(left(world), QUICK), **how)


def lease_of(world: VirtualWorld) -> Lease:
    (lease,) = world.ledger.leases()
    return lease


def while_collecting(act: Callable[[VirtualWorld], Any]) -> Callable[[VirtualWorld], None]:
    done: list[bool] = []

    def between(world: VirtualWorld) -> None:
        if world.fleet.collections and not done:
            done.append(True)
            act(world)

    return between


# -- results that take long --


def test_results_that_take_hours_are_waited_for_and_the_label_is_renewed_meanwhile(world: VirtualWorld) -> None:
    world.fleet.collect_s = 900.0
    outcome = run(world)
    assert outcome.exit_code == 0 and outcome.spans["collect"] >= 900
    assert len([call for call, _ in world.cloud.calls if call == "set_labels"]) >= 900 / (2 * QUICK.timings.renew_s)
    assert world.cloud.nodes == {}


def test_the_deadline_ends_the_collecting_and_the_slice(world: VirtualWorld) -> None:
    world.fleet.collect_s = 1e6
    (draft,) = job(world).stay.drafts
    short = replace(draft[0], deadline=world.time + 600)
    outcome = run(world, asking(job(world), Draft(short, draft.request)))
    assert outcome.exit_code == 65 and "the end of the slice's time" in str(outcome.error)
    assert world.fleet.collections[0].given_up and world.cloud.nodes == {}
    assert world.time <= short.deadline + 60


def test_an_extension_gives_the_collecting_more_time(world: VirtualWorld) -> None:
    from orchestrator.engine.slices.up_and_down import extend

    world.fleet.collect_s = 1000.0
    (draft,) = job(world).stay.drafts
    short = replace(draft[0], deadline=world.time + 600)

    def longer(world: VirtualWorld) -> None:
        world.drive(extend(lease_of(world), 3600, QUICK))

    outcome = run(world, asking(job(world), Draft(short, draft.request)), between=while_collecting(longer))
    assert outcome.exit_code == 0


def test_a_down_in_another_terminal_ends_the_collecting(world: VirtualWorld) -> None:
    world.fleet.collect_s = 1e6
    down = while_collecting(lambda w: w.ledger.record(Down(lease_of(w).id, w.time, "tpujob down")))
    outcome = run(world, between=down)
    assert isinstance(outcome.error, Vanished) and world.cloud.nodes == {}


def test_a_slice_that_is_preempted_meanwhile_is_lost_and_not_held(world: VirtualWorld) -> None:
    world.fleet.collect_s = 1e6

    def preempt(world: VirtualWorld) -> None:
        next(iter(world.cloud.nodes.values())).preempted = True

    outcome = run(world, between=while_collecting(preempt))
    assert isinstance(outcome.error, Preempted) and world.cloud.nodes == {}


def test_progress_is_said_in_passing(world: VirtualWorld) -> None:
    assert progress_text(CollectionProgress(hashed_bytes=3_000_000_000), 5.0) == "reading the results: 3.0 GB so far"
    words = progress_text(CollectionProgress(None, 1203, 12000, 3_200_000_000, 41_000_000_000), 40.0)
    assert words == "1,203 of 12,000 files, 3.2 GB of 41.0 GB, 80.0 MB/s"


# -- results that stay behind --


def test_a_slice_with_results_on_it_is_held_as_long_as_they_may_wait(world: VirtualWorld) -> None:
    world.fleet.stays = NO_ROOM
    outcome = run(world)
    assert (outcome.exit_code, outcome.state) == (65, AttemptState.FAILED)
    lease = lease_of(world)
    assert (lease.state, lease.mode, lease.purpose) == (LeaseState.READY, Mode.HOLD, Purpose.HOLD)
    assert lease.hold_until == outcome.kept_until == pytest.approx(world.time + LINGER_S, abs=5)
    (node,) = world.cloud.nodes.values()
    assert node.request.labels["tpujob-mode"] == "hold"
    assert node.request.labels["tpujob-claimed-until"] == str(int(lease.hold_until or 0))
    assert has_uncollected_results(left(world).attempt, lease) and not world.locks.is_locked(lease.id)


def test_the_hold_is_as_long_as_the_job_says_and_never_past_the_deadline(world: VirtualWorld) -> None:
    world.fleet.stays = NO_ROOM
    run(world, replace(job(world), linger_s=7200.0))
    assert lease_of(world).hold_until == pytest.approx(world.time + 7200, abs=5)
    (world.ledger.path.parent / "other").mkdir()
    other = VirtualWorld(world.ledger.path.parent / "other")
    other.fleet.stays = NO_ROOM
    (draft,) = job(other).stay.drafts
    short = replace(draft[0], deadline=other.time + 1000)
    run(other, replace(asking(job(other), Draft(short, draft.request)), linger_s=7200.0))
    assert lease_of(other).hold_until == short.deadline


def test_a_failed_jobs_results_are_kept_too_under_its_own_code(world: VirtualWorld) -> None:
    world.fleet.stays, world.fleet.rc = NO_ROOM, 7
    outcome = run(world)
    assert outcome.exit_code == 7 and lease_of(world).mode is Mode.HOLD
    world.fleet.stays = ()
    again = collect(world)
    assert (again.exit_code, again.state, left(world).attempt.exit_code) == (7, AttemptState.FAILED, 7)
    assert world.cloud.nodes == {}


def test_where_it_cannot_be_held_it_goes_and_that_is_said(world: VirtualWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> Any:
        raise CloudUnavailable("503")

    world.fleet.stays = NO_ROOM
    monkeypatch.setattr(world.cloud, "set_labels", away)
    outcome = run(world)
    assert outcome.exit_code == 65 and world.cloud.nodes == {}
    assert any("cannot be held" in line for line in world.told)


def test_what_was_refused_for_good_holds_nothing(world: VirtualWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.remote.transfer.collect import CollectResult

    refused = CollectionProgress(CollectResult(refused=(Problem(0, "artifacts/etc", "a symbolic link"),)))
    monkeypatch.setattr("tests.unit.engine.virtual.VirtualCollection.wait", lambda self, timeout_s: refused)
    outcome = run(world)
    assert outcome.exit_code == 65 and world.cloud.nodes == {}


def test_what_attach_cannot_collect_is_held_like_the_results_of_a_run(world: VirtualWorld) -> None:
    to = detached(world)
    world.fleet.stays = NO_ROOM
    outcome = world.drive(run_job(to, QUICK))
    assert (outcome.exit_code, outcome.detached) == (65, False)
    lease = lease_of(world)
    assert (lease.mode, lease.detached_at) == (Mode.HOLD, None)
    assert world.fleet.beating_everywhere, "while it collects, the watchdogs on all workers get heartbeats"
    world.fleet.stays = ()
    assert collect(world).exit_code == 0 and world.cloud.nodes == {}


# -- tpujob collect --


def left_behind(world: VirtualWorld) -> Lease:
    world.fleet.stays = NO_ROOM
    run(world)
    world.fleet.stays = ()
    return lease_of(world)


def test_what_was_left_is_collected_and_the_slice_is_released_proven(world: VirtualWorld) -> None:
    left_behind(world)
    outcome = collect(world)
    assert (outcome.exit_code, outcome.state) == (0, AttemptState.SUCCEEDED)
    assert outcome.released is not None and outcome.released.gone and world.cloud.nodes == {}
    attempt = left(world).attempt
    assert (attempt.state, attempt.exit_code, attempt.detail) == (AttemptState.SUCCEEDED, 0, "")


def test_in_vain_changes_nothing_and_makes_no_hold_longer(world: VirtualWorld) -> None:
    held = left_behind(world)
    world.fleet.stays = NO_ROOM
    outcome = collect(world)
    assert outcome.exit_code == 65 and outcome.kept_until == held.hold_until
    assert lease_of(world) == held and not world.locks.is_locked(held.id)
    assert len(world.cloud.nodes) == 1


def test_a_worker_that_cannot_be_reached_changes_nothing_either(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = left_behind(world)

    def unreachable(*_: Any) -> Any:
        raise Unreachable("worker0 could not be reached")

    monkeypatch.setattr(world, "connect", unreachable)
    outcome = collect(world)
    assert outcome.exit_code == 65 and "worker0 could not be reached" in str(outcome.error)
    assert lease_of(world) == held


def test_a_signal_changes_nothing_either(world: VirtualWorld) -> None:
    held = left_behind(world)
    world.fleet.collect_s = 100.0
    before = len(world.effects)
    outcome = collect(world, interrupt_at=11)
    assert outcome.exit_code == 130 and "Delete" not in world.effects[before:]
    assert lease_of(world) == held


def test_while_results_come_the_hold_lasts_and_the_deadline_is_its_end(world: VirtualWorld) -> None:
    left_behind(world)
    world.fleet.collect_s = 5 * LINGER_S
    outcome = collect(world)
    assert outcome.exit_code == 0 and outcome.took_s is not None and outcome.took_s >= sum(outcome.spans.values())
    lease = lease_of(world)
    assert lease.hold_until is not None and lease.down_at is not None
    assert lease.down_at < lease.hold_until <= lease.down_at + TTL_S


def test_no_hold_is_made_longer_for_what_comes_no_more(world: VirtualWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    held = left_behind(world)

    def stalled(collection: Any, timeout_s: float) -> CollectionProgress:
        world.time += timeout_s
        return CollectionProgress(total_files=1)

    monkeypatch.setattr("tests.unit.engine.virtual.VirtualCollection.wait", stalled)
    outcome = collect(world)
    assert outcome.exit_code == 65 and world.cloud.nodes == {}
    assert lease_of(world).hold_until == held.hold_until
    assert "the time for its results is over" in lease_of(world).reason


def test_a_slice_that_is_gone_is_said_to_be_and_its_absence_proven(world: VirtualWorld) -> None:
    left_behind(world)
    world.cloud.nodes.clear()
    world.cloud.workers = _vanished  # type: ignore[method-assign]
    outcome = collect(world)
    assert outcome.exit_code == 65 and "are lost" in str(outcome.error)
    assert not lease_of(world).open


def _vanished(name: Any) -> Any:
    raise Vanished(f"{name.node} does not exist")


def test_the_slice_of_up_stays(world: VirtualWorld) -> None:
    held = world.drive(
        up(UpRequest("alice", (lease_and_request(9, now=world.time, purpose=Purpose.HOLD),), None, 36000), QUICK)
    ).lease
    world.fleet.stays = NO_ROOM
    outcome = run(world, job(world, held=held))
    assert outcome.exit_code == 65 and len(world.cloud.nodes) == 1
    world.fleet.stays = ()
    again = world.drive(collect_again(left(world, borrowed=True), QUICK))
    assert (again.exit_code, len(world.cloud.nodes)) == (0, 1)
    assert left(world).attempt.state is AttemptState.SUCCEEDED

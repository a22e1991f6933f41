"""Kill the process at every single effect, then let any tpujob command recover: nothing may be left, in cloud or ledger.

And the same with a signal at every effect: the run itself must release.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.lease.lease import Held, LeaseState, Purpose
from orchestrator.core.lease.run_and_attempt import AttemptState
from orchestrator.engine.effects.base import Program
from orchestrator.engine.jobs.run import run_job
from orchestrator.engine.leases.recover import close_attempts, recover
from orchestrator.engine.slices.up_and_down import UpRequest, up
from tests.unit.engine.virtual import CAN, ZONE, Crash, VirtualWorld, job, lease_and_request

Build = Callable[[VirtualWorld], Program[Any]]


def quick(directory: Path) -> VirtualWorld:
    """A cloud that takes seconds, so that a life has few steps and every one of them can be killed."""
    world = VirtualWorld(directory)
    world.cloud.provision_s, world.cloud.delete_s, world.fleet.phase_s = 4.0, 2.0, 4.0
    return world


def plain(world: VirtualWorld) -> Program[Any]:
    return run_job(job(world), CAN)


def stockout_first(world: VirtualWorld) -> Program[Any]:
    world.cloud.full_zones = {ZONE}
    return run_job(job(world, zones=(ZONE, "us-central1-b")), CAN)


def lost_reply(world: VirtualWorld) -> Program[Any]:
    world.cloud.lose_create_reply = 1
    return run_job(job(world), CAN)


def late_create(world: VirtualWorld) -> Program[Any]:
    world.cloud.land_create_late_s = 90
    return run_job(job(world), CAN)


def dropped_delete(world: VirtualWorld) -> Program[Any]:
    world.cloud.drop_delete_while_creating = True
    return run_job(job(world), CAN)


def failing_job(world: VirtualWorld) -> Program[Any]:
    world.fleet.rc = 7
    return run_job(job(world), CAN)


SCENARIOS = [
    plain,
    dropped_delete,
    *(
        pytest.param(build, marks=pytest.mark.exhaustive)
        for build in (stockout_first, lost_reply, late_create, failing_job)
    ),
]


def steps_of(build: Build, directory: Path) -> int:
    world = quick(directory)
    world.drive(build(world))
    return len(world.effects)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("build", SCENARIOS, ids=lambda build: build.__name__)
def test_killed_at_any_effect_the_next_command_leaves_nothing(build: Build, after: bool, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    for step in range(steps_of(build, tmp_path / "whole")):
        directory = tmp_path / str(step)
        directory.mkdir()
        world = quick(directory)
        with pytest.raises(Crash):
            world.drive(build(world), crash_at=step, after=after)
        world.locks.held.clear()
        world.time += 30
        world.drive(close_attempts())
        results = world.drive(recover("emulated", CAN, budget_s=7200))
        assert all(released.gone for released in results)
        world.time += 3600  # long enough for anything late to land
        world.cloud._settle()
        assert world.cloud.nodes == {}, f"killed at effect {step} ({world.effects[step]})"
        assert world.ledger.open_leases() == []
        assert all(attempt.state.ended for _, attempt in world.ledger.runs())


@pytest.mark.parametrize("build", SCENARIOS, ids=lambda build: build.__name__)
def test_a_signal_at_any_effect_ends_in_a_proven_release(build: Build, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    for step in range(3, steps_of(build, tmp_path / "whole")):  # before that, nothing can exist
        directory = tmp_path / str(step)
        directory.mkdir()
        world = quick(directory)
        outcome = world.drive(build(world), interrupt_at=step)
        assert not outcome.unproven, world.effects[step]
        assert outcome.exit_code in (0, 7, 69, 130)
        world.time += 3600
        world.cloud._settle()
        assert world.cloud.nodes == {}, f"interrupted at effect {step} ({world.effects[step]})"
        assert world.ledger.open_leases() == []


def test_up_killed_at_any_effect_leaves_a_held_slice_or_nothing(tmp_path: Path) -> None:
    def build(world: VirtualWorld) -> Program[Any]:
        return up(UpRequest("alice", (lease_and_request(purpose=Purpose.HOLD),), None, 3600), CAN)

    (tmp_path / "whole").mkdir()
    for step in range(steps_of(build, tmp_path / "whole")):
        directory = tmp_path / str(step)
        directory.mkdir()
        world = quick(directory)
        with pytest.raises(Crash):
            world.drive(build(world), crash_at=step)
        world.locks.held.clear()
        world.drive(recover("emulated", CAN, budget_s=7200))
        for lease in world.ledger.open_leases():
            assert lease.state is LeaseState.READY and lease.hold_until is not None
            assert set(world.cloud.nodes) == {lease.name.node}
        if not world.ledger.open_leases():
            assert world.cloud.nodes == {}


def test_recovery_skips_leases_of_a_live_process(tmp_path: Path) -> None:
    world = quick(tmp_path)
    with pytest.raises(Crash):
        world.drive(plain(world), crash_at=24)
    world.drive(close_attempts())
    assert world.drive(recover("emulated", CAN, budget_s=60)) == []
    assert [attempt.state for _, attempt in world.ledger.runs()] != [AttemptState.INTERRUPTED]


def test_recovery_skips_leases_that_were_held_since_they_were_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = quick(tmp_path)
    world.drive(up(UpRequest("alice", (lease_and_request(purpose=Purpose.HOLD),), None, 60.0), CAN))
    (lease,) = world.ledger.open_leases()
    world.time += 61.0
    lock = world.locks.lock

    def held_meanwhile(lease_id: str) -> bool:
        world.ledger.record(Held(lease.id, world.time, world.time + 3600.0))
        return lock(lease_id)

    monkeypatch.setattr(world.locks, "lock", held_meanwhile)
    assert world.drive(recover("emulated", CAN, budget_s=60)) == []
    assert len(world.cloud.nodes) == 1


def test_recovery_never_touches_a_lease_of_another_cloud(tmp_path: Path) -> None:
    world = quick(tmp_path)
    with pytest.raises(Crash):
        world.drive(plain(world), crash_at=24)
    world.locks.held.clear()
    assert world.drive(recover("google", CAN, budget_s=60)) == []
    assert len(world.cloud.nodes) == 1

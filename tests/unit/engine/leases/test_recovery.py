"""What a recovery leaves alone. A death and a signal at every effect: tests/simulation/test_crash_sweep.py."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.lease.lease import Held, Purpose
from orchestrator.engine.effects.base import Program
from orchestrator.engine.leases.recover import close_attempts, recover
from orchestrator.engine.slices.up_and_down import UpRequest, up
from orchestrator.run.program import run_job
from tests.unit.engine.virtual import CAN, Crash, VirtualWorld, job, lease_and_request


def quick(directory: Path) -> VirtualWorld:
    """A cloud that takes seconds, so that a life has few steps and every one of them can be killed."""
    world = VirtualWorld(directory)
    world.cloud.provision_s, world.cloud.delete_s, world.fleet.phase_s = 4.0, 2.0, 4.0
    return world


def plain(world: VirtualWorld) -> Program[Any]:
    return run_job(job(world), CAN)


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


@pytest.mark.parametrize(("cloud", "purpose"), [("google", "run"), ("emulated", "lent")])
def test_recovery_never_touches_a_lease_of_another_cloud_or_with_a_word_of_a_newer_tpujob(
    tmp_path: Path, cloud: str, purpose: str
) -> None:
    world = quick(tmp_path)
    with pytest.raises(Crash):
        world.drive(plain(world), crash_at=114)
    world.locks.held.clear()
    world.ledger._db.execute("update lease set purpose = ?", (purpose,))
    world.drive(close_attempts())
    assert bool(world.ledger.attempts_open()) is (purpose == "lent"), "that one says how its attempt ends, too"
    assert world.drive(recover(cloud, CAN, budget_s=60)) == []
    assert len(world.cloud.nodes) == 1

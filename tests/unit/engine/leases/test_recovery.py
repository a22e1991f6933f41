"""What a recovery leaves alone. A death and a signal at every effect: tests/simulation/test_crash_sweep.py."""

import pytest

from orchestrator.core.lease.lease import Held
from orchestrator.engine.leases.recover import close_attempts, recover
from tests.simulation.model.bench import CAN, Bench, Crash, held
from tests.simulation.model.process import ProcessLocks


def test_recovery_skips_leases_that_were_held_since_they_were_judged(
    world: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = held(world, for_s=60.0)
    world.time += 61.0
    lock = ProcessLocks.lock

    def held_meanwhile(locks: ProcessLocks, lease_id: str) -> bool:
        world.ledger.record(Held(lease.id, world.time, world.time + 3600.0))
        return lock(locks, lease_id)

    monkeypatch.setattr(ProcessLocks, "lock", held_meanwhile)
    assert world.drive(recover("emulated", CAN, budget_s=60)) == []
    assert len(world.nodes) == 1


@pytest.mark.parametrize(("cloud", "purpose"), [("google", "run"), ("emulated", "lent")])
def test_recovery_never_touches_a_lease_of_another_cloud_or_with_a_word_of_a_newer_tpujob(
    world: Bench, cloud: str, purpose: str
) -> None:
    with pytest.raises(Crash):
        world.ran(killed_at=344)
    world.ledger._db.execute("update lease set purpose = ?", (purpose,))
    world.drive(close_attempts())
    assert bool(world.ledger.attempts_open()) is (purpose == "lent"), "that one says how its attempt ends, too"
    assert world.drive(recover(cloud, CAN, budget_s=60)) == []
    assert len(world.nodes) == 1

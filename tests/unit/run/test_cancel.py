"""A run that is canceled gets nothing more. A cancel at every effect: tests/simulation/test_crash_sweep.py."""

import pytest

from orchestrator.core.lease.lease import Intent, LeaseState, NotAllowed
from orchestrator.core.lease.run_and_attempt import Attempt, Began
from orchestrator.engine.leases.standing import record_cancel
from tests.simulation.model.bench import Bench, job


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

"""The ledger of the simulation behaves like the production one: the same events, the same rows, the same refusals."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import UnknownLease
from orchestrator.promise.lease import changes
from orchestrator.promise.lease.changes import (
    AttemptEnded,
    Began,
    Intent,
    Leased,
    Moved,
    ResultsCollected,
    RunCanceled,
    Tried,
)
from orchestrator.promise.lease.lease import CANCEL
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from tests.fakes.leases import LedgerInMemory, lease_and_request
from tests.simulation.model.machine import InMemoryLedger

LEASE, _ = lease_and_request()
RUN = RunRecord("0123456789", "mnist", "job.yaml", "emulated", 0.0, "runs/x")
ATTEMPT, SECOND = Attempt("0123456789-1", RUN.id), Attempt("0123456789-2", RUN.id)
OF_RUN = replace(lease_and_request(1)[0], run=RUN.id)
EVENTS: list[Any] = [
    Intent(LEASE),
    changes.CreateSent(LEASE.id, 1.0),
    changes.LoginGranted(LEASE.id, 0.5, "ada"),
    changes.LoginRefused(LEASE.id, 0.5, "no"),
    changes.CreateRefused(LEASE.id, 1.0, "no"),
    changes.Created(LEASE.id, 2.0, "operation-1"),
    changes.Settled(LEASE.id, 2.5),
    changes.Ready(LEASE.id, 3.0),
    changes.HeldUntil(LEASE.id, 4.0, LEASE.created_at + 60.0),
    changes.Detached(LEASE.id, 4.0),
    changes.Extended(LEASE.id, 4.5, LEASE.deadline + 60.0),
    changes.HandedToNextRun(LEASE.id, 4.6, "another", "sweep-2", LEASE.deadline + 30.0),
    changes.ReleaseBegan(LEASE.id, 5.0, "because"),
    changes.Gone(LEASE.id, 6.0, "proof"),
    Began(RUN, ATTEMPT),
    Began(RUN, SECOND, 4.0),
    AttemptEnded(SECOND.id, 6.0, AttemptState.INTERRUPTED, cause="preempted"),
    Tried(ATTEMPT.id, 2.8, LEASE.id, "v5litepod-8 us-central1-a", "no capacity"),
    Leased(ATTEMPT.id, 3.0, LEASE.id),
    Moved(ATTEMPT.id, 4.0, AttemptState.RUNNING),
    AttemptEnded(ATTEMPT.id, 5.0, AttemptState.FAILED, rc=7),
    RunCanceled(RUN.id, 5.0, CANCEL),
    Intent(OF_RUN),
    changes.ReleaseBegan(OF_RUN.id, 5.0, "because"),
    ResultsCollected(ATTEMPT.id, 6.0, AttemptState.SUCCEEDED, exit_code=0),
]


def outcome(port: Any, events: tuple[Any, ...]) -> str:
    try:
        port.record(*events)
    except Exception as error:
        return type(error).__name__
    return "recorded"


@settings(max_examples=60, deadline=None)
@given(story=st.lists(st.lists(st.sampled_from(EVENTS), min_size=1, max_size=3), max_size=12))
def test_both_ledgers_behave_alike(story: list[list[Any]]) -> None:
    real, ledger = LedgerInMemory(), InMemoryLedger()
    for events in story:
        assert outcome(ledger, tuple(events)) == outcome(real, tuple(events)), events
        assert ledger.open_leases() == real.open_leases()
        assert ledger.attempts_open() == real.attempts_open()
    real.close()


def test_a_full_disk_refuses_writes_and_loses_nothing() -> None:
    ledger = InMemoryLedger()
    ledger.record(Intent(LEASE))
    ledger.full = True
    assert outcome(ledger, (changes.CreateSent(LEASE.id, 1.0),)) == "LedgerUnavailable"
    assert ledger.lease(LEASE.id) == LEASE
    with pytest.raises(UnknownLease):
        ledger.lease("other")

"""Is a detached run followed by a process that collects its results? `tpujob status` shows it."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.commands.slices.status import cells
from orchestrator.client import lookup
from orchestrator.client.session import Session
from orchestrator.client.slices.status import SliceRow
from orchestrator.core.lease.lease import Intent
from orchestrator.core.lease.run_and_attempt import Attempt, Began, Leased, RunRecord
from orchestrator.engine.runtime.locks import FileLocks
from orchestrator.settings import Target
from tests.unit.engine.virtual import lease_and_request


def test_a_run_is_followed_while_a_process_has_the_lock_of_its_attempt(tmp_path: Path) -> None:
    session = Session(Target("emulated", "emulated"), tmp_path)
    lease, _ = lease_and_request()
    run, attempt = RunRecord("r1", "job", "job.yaml", "emulated", 1.0, str(tmp_path)), Attempt("r1-1", "r1")
    session.ledger.record(Intent(lease), Began(run, attempt), Leased(attempt.id, 2.0, lease.id))
    other = FileLocks(session.locks.directory)
    assert not lookup.is_followed(session, lease)
    assert other.lock(attempt.id)
    assert lookup.is_followed(session, lease)
    assert not lookup.is_followed(session, replace(lease, id="another"))
    other.unlock(attempt.id)
    assert not lookup.is_followed(session, lease)


@pytest.mark.parametrize(("followed", "shown"), [(True, "detached, followed"), (False, "detached")])
def test_status_shows_it_for_a_detached_run(followed: bool, shown: str) -> None:
    row = SliceRow(
        name="job",
        node="tpujob-k3f9ab-7q2m",
        project="emulated",
        zone="us-central1-a",
        accelerator_type="v5litepod-8",
        spot=False,
        purpose="run",
        lease="ready",
        lease_id="7q2m",
        state="READY",
        created_at=0.0,
        deadline=2.0,
        ends_at=2.0,
        hold_until=None,
        down_at=None,
        in_use=False,
        followed=followed,
        usd_per_hour=9.6,
        usd_so_far=0.0,
        usd_at_most=1.0,
        budget_usd=None,
        mode="detached",
        emulated=True,
        run="r1",
        owner="k3f9ab",
        yours=True,
        remark=None,
        now=1.0,
    )
    assert cells(row)[4] == f"{shown}, until 00:00:02Z"

"""Does anybody bring the artifacts of a detached run home? `tpujob status` says so, for people and for scripts."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.commands.slices.status import _claim
from orchestrator.client.session import Session
from orchestrator.core.lease.attempt import Attempt, Began, Leased, RunRecord
from orchestrator.core.lease.lease import Intent
from orchestrator.engine.runtime.locks import FileLocks
from orchestrator.settings import Target
from tests.unit.engine.virtual import lease_and_request


def test_a_run_is_followed_while_a_process_has_the_claim_on_its_attempt(tmp_path: Path) -> None:
    session = Session(Target("emulated", "emulated"), tmp_path)
    lease, _ = lease_and_request()
    run, attempt = RunRecord("r1", "job", "job.yaml", "emulated", 1.0, str(tmp_path)), Attempt("r1-1", "r1")
    session.ledger.record(Intent(lease), Began(run, attempt), Leased(attempt.id, 2.0, lease.id))
    other = FileLocks(session.locks.directory)
    assert not session.is_followed(lease)
    assert other.lock(attempt.id)
    assert session.is_followed(lease)
    assert not session.is_followed(replace(lease, id="another"))
    other.unlock(attempt.id)
    assert not session.is_followed(lease)


@pytest.mark.parametrize(("followed", "said"), [(True, "detached, followed"), (False, "detached")])
def test_status_says_so_of_a_detached_run(followed: bool, said: str) -> None:
    row = {"mode": "detached", "followed": followed, "in_use": False, "down_at": None, "ends_at": 2.0, "remark": None}
    assert _claim(row) == f"{said}, until 1970-01-01 00:00:02Z"

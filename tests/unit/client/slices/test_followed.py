"""Is a detached run followed by a process that collects its results? `tpujob status` shows it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.commands.slices.status import cells
from orchestrator.client import lookup
from orchestrator.client.events import Reporter
from orchestrator.client.jobs.attach import attach
from orchestrator.client.results import logs
from orchestrator.client.session import Session
from orchestrator.core.lease.lease import Created, Detached, Down, Gone, Intent, Ready, Sent
from orchestrator.core.lease.run_and_attempt import Attempt, AttemptEnded, AttemptState, Began, Leased, RunRecord
from orchestrator.core.lease.run_spec import RunSpec
from orchestrator.engine.leases.recover import close_attempts
from orchestrator.engine.runtime.locks import FileLocks
from orchestrator.errors import Interrupted
from orchestrator.settings import GKE, Target
from tests.unit.cli.test_status import row
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


@pytest.mark.parametrize(
    ("cloud", "seen"), [(GKE, Created("0000000000", 3.0, "its pods wait")), ("emulated", Ready("0000000000", 3.0))]
)
def test_no_other_command_ends_the_attempt_that_an_attach_is_finishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cloud: str, seen: Created | Ready
) -> None:
    mine, other = (Session(Target("emulated", "emulated"), tmp_path) for _ in range(2))
    spec = RunSpec.of({"cluster": {"phases": ["main"]}, "limits": {"max_duration": 60}})
    lease = replace(lease_and_request()[0], cloud=cloud, run="r1")
    run, attempt = RunRecord("r1", "job", "job.yaml", cloud, 1.0, str(tmp_path), spec), Attempt("r1-1", "r1")
    mine.ledger.record(Intent(lease), Sent(lease.id, 2.0), Began(run, attempt), Leased(attempt.id, 2.0, lease.id))
    mine.ledger.record(seen, Detached(lease.id, 4.0))

    def collected_and_released(build: object, cloud: str) -> None:
        mine.ledger.record(Down(lease.id, 5.0, "the run ended"), Gone(lease.id, 6.0, "absent"))
        other.run(close_attempts())
        mine.ledger.record(AttemptEnded.by(attempt.id, 7.0, AttemptState.SUCCEEDED, None))
        raise Interrupted(2)

    monkeypatch.setattr(Session, "recover", lambda session, look: None)
    monkeypatch.setattr(mine, "on_cloud", collected_and_released)
    with pytest.raises(Interrupted):
        attach(mine, "r1")
    assert mine.ledger.attempt(attempt.id).state is AttemptState.SUCCEEDED


def test_who_follows_the_log_waits_for_the_end_of_the_job_where_no_process_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Any] = []
    session = Session(Target("emulated", "emulated"), tmp_path, reporter=Reporter(events.append))
    other, log = FileLocks(session.locks.directory), tmp_path / "logs" / "worker0.log"
    lease = replace(lease_and_request()[0], run="r1", deadline=session.now("emulated") + 3600)
    run = RunRecord("r1", "job", "job.yaml", "emulated", 1.0, str(tmp_path))
    first, last = Attempt("r1-1", "r1"), Attempt("r1-2", "r1")

    def turns() -> Iterator[None]:
        end = AttemptEnded.by(first.id, 2.0, AttemptState.INTERRUPTED, None)
        assert other.lock(last.id)
        session.ledger.record(end, Began(run, last, 3.0), Leased(last.id, 4.0, lease.id))
        other.unlock(first.id)
        yield
        session.ledger.record(Sent(lease.id, 4.0), Ready(lease.id, 5.0), Detached(lease.id, 6.0))
        other.unlock(last.id)  # `submit` ends, and the collector is not there yet
        yield from (None, None, None)
        log.write_text("begun\nended\n")
        session.ledger.record(AttemptEnded.by(last.id, 9.0, AttemptState.SUCCEEDED, None))
        yield

    asked, turn = session.locks.is_locked, turns()
    session.ledger.record(Intent(lease), Began(run, first))
    assert other.lock(first.id)
    log.parent.mkdir()
    log.write_text("begun\n")
    monkeypatch.setattr(session.locks, "is_locked", lambda name: (next(turn), asked(name))[1])
    monkeypatch.setattr(Session, "recover", lambda session: None)
    monkeypatch.setattr(logs, "POLL_S", 0.0)
    monkeypatch.setattr(logs, "ALONE_POLLS", 2)
    assert [each.lines for each in logs.read_logs(session, "r1", follow=True)] == [("begun",), ("ended",)]
    assert [each.text for each in events] == ["no process here fetches the log; `tpujob attach r1` does"]


@pytest.mark.parametrize(("followed", "shown"), [(True, "detached, followed"), (False, "detached")])
def test_status_shows_it_for_a_detached_run(followed: bool, shown: str) -> None:
    job = row("job", mode="detached", followed=followed, now=1.0, deadline=2.0, ends_at=2.0)
    assert cells(job)[4] == f"{shown}, until 00:00:02Z"

"""The ledger: durable, private, honest about what it cannot do."""

import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.lease.lease import Created, Down, Gone, Intent, LeaseState, NotAllowed, Ready, Sent
from orchestrator.core.lease.run_and_attempt import Attempt, AttemptEnded, AttemptState, Began, Leased, Moved, RunRecord
from orchestrator.core.lease.run_spec import RunSpec
from orchestrator.errors import SliceLost, UnknownLease
from orchestrator.ledger import file
from orchestrator.ledger.file import LedgerUnavailable
from orchestrator.ledger.ledger import KEPT_GC_RUNS, Ledger
from orchestrator.ledger.rows import GcRun
from tests.leases import lease_and_request


def began(ledger: Ledger, identity: str, name: str = "mnist", at: float = 1.0) -> tuple[RunRecord, Attempt]:
    run = RunRecord(identity, name, "jobs/mnist.yaml", "emulated", at, f"runs/{identity}", RunSpec.of({"train": {}}))
    attempt = Attempt(f"{identity}-1", identity)
    ledger.record(Began(run, attempt))
    return run, attempt


def test_what_was_recorded_is_there_for_the_next_process(ledger: Ledger) -> None:
    lease, _ = lease_and_request()
    ledger.record(Intent(lease))
    ledger.record(Sent(lease.id, 5.0), Created(lease.id, 6.0, "operation-1"))
    ledger.close()
    again = Ledger(ledger.path).lease(lease.id)
    assert (again.state, again.sent_at, again.operation, again.name) == (
        LeaseState.CREATING, 5.0, "operation-1", lease.name,
    )  # fmt: skip


def test_a_lease_that_is_gone_is_not_open(ledger: Ledger) -> None:
    lease, _ = lease_and_request()
    ledger.record(Intent(lease), Down(lease.id, 2.0, "test"), Gone(lease.id, 3.0, "proof"))
    assert ledger.open_leases() == [] and len(ledger.leases()) == 1


def test_an_event_that_does_not_fit_changes_nothing_not_even_those_before_it(ledger: Ledger) -> None:
    lease, _ = lease_and_request()
    with pytest.raises(NotAllowed):
        ledger.record(Intent(lease), Gone(lease.id, 3.0, "proof"))
    with pytest.raises(UnknownLease):
        ledger.lease(lease.id)


def test_a_name_is_never_used_twice(ledger: Ledger) -> None:
    lease, _ = lease_and_request()
    ledger.record(Intent(lease), Down(lease.id, 2.0, "test"), Gone(lease.id, 3.0, "proof"))
    other, _ = lease_and_request(1)
    twin = replace(other, name=lease.name)
    with pytest.raises(LedgerUnavailable, match="UNIQUE"):
        ledger.record(Intent(twin))


def test_every_change_of_state_has_its_event(ledger: Ledger) -> None:
    lease, _ = lease_and_request()
    ledger.record(Intent(lease), Sent(lease.id, 1.0), Created(lease.id, 2.0, "o"), Ready(lease.id, 3.0))
    assert [kind for _, kind, _ in ledger.events(lease.id)] == ["intent", "sent", "created", "ready"]


def test_the_file_is_private(ledger: Ledger) -> None:
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600


def test_commits_survive_a_power_cut_by_their_settings(ledger: Ledger) -> None:
    settings = [ledger._db.execute(f"pragma {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert settings == ["wal", 2]


def test_a_first_command_waits_for_another_one_that_makes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = sqlite3.connect(tmp_path / "ledger.sqlite3", isolation_level=None)
    other.execute("begin immediate")  # SQLite refuses the journal mode at once then, whatever the timeout
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        if not waited:
            other.execute("rollback")
        waited.append(seconds)

    monkeypatch.setattr(file.time, "sleep", sleep)
    assert Ledger(tmp_path / "ledger.sqlite3").leases() == [] and waited


def test_a_damaged_file_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite3").write_bytes(b"not a database, not at all" * 100)
    with pytest.raises(LedgerUnavailable, match="cannot be used"):
        Ledger(tmp_path / "ledger.sqlite3")


def test_a_ledger_that_another_process_keeps_locked_is_reported_not_waited_for_forever(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger._db.execute("pragma busy_timeout = 10")
    other = sqlite3.connect(ledger.path, isolation_level=None)
    other.execute("begin exclusive")
    lease, _ = lease_and_request()
    with pytest.raises(LedgerUnavailable, match="locked"):
        ledger.record(Intent(lease))


def test_the_newest_run_of_a_name_is_the_one_that_began_last_whatever_the_clock_said(ledger: Ledger) -> None:
    began(ledger, "aaaaaaaaaa", at=2.0)
    began(ledger, "bbbbbbbbbb", at=1.0)
    assert [run for run, _ in ledger.run_names()] == ["bbbbbbbbbb", "aaaaaaaaaa"]


def test_an_attempt_that_ended_stays_ended(ledger: Ledger) -> None:
    lease, _ = lease_and_request()
    ledger.record(Intent(lease))
    _, attempt = began(ledger, "aaaaaaaaaa")
    ledger.record(Leased(attempt.id, 2.0, lease.id), Moved(attempt.id, 3.0, AttemptState.RUNNING))
    ledger.record(AttemptEnded(attempt.id, 4.0, AttemptState.FAILED, rc=7, detail="it failed"))
    ledger.record(AttemptEnded(attempt.id, 5.0, AttemptState.INTERRUPTED, detail="late"))
    _, found = ledger.run("aaaaaaaaaa")
    assert (found.state, found.rc, found.ended_at, found.lease_id) == (AttemptState.FAILED, 7, 4.0, lease.id)
    assert ledger.attempts_open() == []


def test_an_end_that_the_ledger_could_not_take_is_recorded_later_and_before_any_other(ledger: Ledger) -> None:
    _, attempt = began(ledger, "aaaaaaaaaa")
    _, killed = began(ledger, "bbbbbbbbbb")
    room = {path.name: path.stat().st_blocks for path in ledger.path.with_suffix(".ends").iterdir()}
    assert room.keys() == {attempt.id, killed.id} and all(room.values()), "room that a full disk cannot take away"
    ledger._db.execute("pragma query_only=on")
    for state, error in ((AttemptState.SUCCEEDED, None), (AttemptState.INTERRUPTED, SliceLost("it was killed"))):
        with pytest.raises(LedgerUnavailable):  # at last by the recovery of another command
            ledger.record(AttemptEnded.by(attempt.id, 2.0, state, error))
        assert [each.id for each in ledger.attempts_open()] == [attempt.id, killed.id]
    files = [*ledger.path.with_suffix(".ends").iterdir()]
    assert {path.name: path.stat().st_blocks for path in files} == room and len(files) == 2
    ledger._db.execute("pragma query_only=off")
    assert [each.id for each in Ledger(ledger.path).attempts_open()] == [killed.id]
    ended = ledger.attempt(attempt.id)
    assert (ended.state, ended.exit_code, ended.ended_at, ended.detail) == (AttemptState.SUCCEEDED, 0, 2.0, "")
    ledger.record(AttemptEnded(killed.id, 4.0, AttemptState.INTERRUPTED))
    assert [*ledger.path.with_suffix(".ends").iterdir()] == []


def test_gc_runs_are_remembered_newest_first_and_not_for_ever(ledger: Ledger) -> None:
    for at in range(KEPT_GC_RUNS + 20):
        ledger.record_gc(GcRun(float(at), "google", "acme", "local", True, 0, 0))
    ledger.record_gc(GcRun(5.0, "google", "acme", "all", False, 3, 1))
    ledger.record_gc(GcRun(6.0, "google", "other", "all", True, 0, 0))
    ledger.record_gc(GcRun(7.0, "emulated", "acme", "all", True, 0, 0))
    ran = ledger.gc_runs("google", "acme")
    assert len(ran) == KEPT_GC_RUNS + 1
    assert ran[0].at == KEPT_GC_RUNS + 19 and ran[-1] == GcRun(5.0, "google", "acme", "all", False, 3, 1)
    assert {each.project for each in ledger.gc_runs("google")} == {"acme", "other"}


def test_a_queued_slice_is_found_again_with_how_it_was_asked_for(ledger: Ledger) -> None:
    lease, _ = lease_and_request()
    queued = replace(lease, name=replace(lease.name, queued=True), provisioning="flex-start", ready_by=77.5)
    ledger.record(Intent(queued))
    assert Ledger(ledger.path).lease(lease.id) == queued


def test_a_sweep_that_was_canceled_begins_no_run(ledger: Ledger) -> None:
    def begin(run: str, sweep: str) -> None:
        record = RunRecord(run, "s-1", "s.yaml", "emulated", 1.0, "runs/x", RunSpec.of({"sweep": {"id": sweep}}))
        ledger.record(Began(record, Attempt(f"{run}-1", run)))

    begin("aaaaaaaaaa", "one")
    ledger.cancel_sweep("one", 2.0)
    assert (ledger.is_canceled("one"), ledger.is_canceled("two")) == (True, False)
    with pytest.raises(NotAllowed, match="sweep one was canceled"):
        begin("bbbbbbbbbb", "one")
    begin("cccccccccc", "two")
    assert [run.id for run, _ in ledger.runs()] == ["cccccccccc", "aaaaaaaaaa"]

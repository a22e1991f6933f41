"""The ledger: durable, private, honest about what it cannot do; and its time, whatever the wall clock says."""

import sqlite3
import stat
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.errors import SliceLost, UnknownLease, UnknownRun
from orchestrator.promise.lease.changes import (
    AttemptEnded,
    Began,
    Created,
    CreateSent,
    Gone,
    Intent,
    Leased,
    Moved,
    NotAllowed,
    Ready,
    ReleaseBegan,
    RunCanceled,
)
from orchestrator.promise.lease.lease import LeaseState
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.promise.lease.run_spec import RunSpec
from orchestrator.promise.ledger import file
from orchestrator.promise.ledger.clocks import DATE_ERROR_S, DRIFT_S, QUICK_S, Anchor, Clocks, anchored, synchronized
from orchestrator.promise.ledger.file import LedgerUnavailable
from orchestrator.promise.ledger.ledger import KEPT_GC_RUNS, ROOM_BYTES, KeptEnds, Ledger
from orchestrator.promise.ledger.rows import GcRun
from tests.fakes.leases import lease_and_request


def began(ledger: Ledger, identity: str, name: str = "mnist", at: float = 1.0) -> tuple[RunRecord, Attempt]:
    run = RunRecord(identity, name, "jobs/mnist.yaml", "emulated", at, f"runs/{identity}", RunSpec.of({"train": {}}))
    attempt = Attempt(f"{identity}-1", identity)
    ledger.record(Began(run, attempt))
    return run, attempt


def test_what_was_recorded_is_there_for_the_next_process(ledger: Ledger) -> None:
    lease, _ = lease_and_request()
    ledger.record(Intent(lease))
    ledger.record(CreateSent(lease.id, 5.0), Created(lease.id, 6.0, "operation-1"))
    ledger.close()
    again = Ledger(ledger.path).lease(lease.id)
    assert (again.state, again.sent_at, again.operation, again.name) == (
        LeaseState.CREATING, 5.0, "operation-1", lease.name,
    )  # fmt: skip


def test_events_are_read_in_their_order_from_one_of_them_on(ledger: Ledger) -> None:
    assert ledger.last_event() == 0
    _, attempt = began(ledger, "r1")
    ledger.record(Moved(attempt.id, 2.0, AttemptState.RUNNING), AttemptEnded(attempt.id, 3.0, AttemptState.SUCCEEDED))
    found = ledger.events_after(0, ("moved", "attempt_ended"), 10)
    assert [(each.seq, each.at, each.subject, each.kind) for each in found] == [
        (2, 2.0, attempt.id, "moved"), (3, 3.0, attempt.id, "attempt_ended"),
    ]  # fmt: skip
    assert found[0].data["state"] == "running" and ledger.last_event() == 3
    assert ledger.events_after(0, ("began", "moved"), 1)[0].kind == "began"
    assert ledger.events_after(2, ("began", "moved"), 10) == []


def test_an_event_that_does_not_fit_changes_nothing_not_even_those_before_it(ledger: Ledger) -> None:
    lease, _ = lease_and_request()
    with pytest.raises(NotAllowed):
        ledger.record(Intent(lease), Gone(lease.id, 3.0, "proof"))
    with pytest.raises(UnknownLease):
        ledger.lease(lease.id)


def test_a_name_is_never_used_twice(ledger: Ledger) -> None:
    lease, _ = lease_and_request()
    ledger.record(Intent(lease), ReleaseBegan(lease.id, 2.0, "test"), Gone(lease.id, 3.0, "proof"))
    other, _ = lease_and_request(1)
    twin = replace(other, name=lease.name)
    with pytest.raises(LedgerUnavailable, match="UNIQUE"):
        ledger.record(Intent(twin))


def test_every_change_of_state_has_its_event(ledger: Ledger) -> None:
    lease, _ = lease_and_request()
    ledger.record(Intent(lease), CreateSent(lease.id, 1.0), Created(lease.id, 2.0, "o"), Ready(lease.id, 3.0))
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
    with pytest.raises(LedgerUnavailable, match="cannot be used") as said:
        Ledger(tmp_path / "ledger.sqlite3")
    assert said.value.exit_code == 70


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


def test_what_is_not_there_is_said_to_be_unknown(ledger: Ledger) -> None:
    for ask in (ledger.newest_run, lambda: ledger.run("x"), lambda: ledger.attempt("x"),
                lambda: ledger.record(RunCanceled("x", 1.0, "tpujob cancel"))):  # fmt: skip
        with pytest.raises(UnknownRun, match="there is no"):
            ask()
    run, attempt = began(ledger, "aaaaaaaaaa")
    assert ledger.newest_run() == (run, attempt)


def test_an_event_keeps_what_it_says_and_a_beginning_is_in_its_row(ledger: Ledger) -> None:
    lease, _ = lease_and_request()
    ledger.record(Intent(lease), CreateSent(lease.id, 5.0))
    assert ledger.events(lease.id) == [
        (lease.created_at, "intent", {}), (5.0, "sent", {"lease_id": lease.id, "at": 5.0}),
    ]  # fmt: skip


def test_a_column_with_a_text_that_is_no_json_reads_as_nothing(ledger: Ledger) -> None:
    run, _ = began(ledger, "aaaaaaaaaa")
    ledger._db.execute("update run set spec = 'none'")
    assert ledger.run(run.id)[0].spec == RunSpec.of({})


def test_ends_are_kept_for_this_user_only_as_far_as_there_is_room_and_whatever_the_disk_says(ledger: Ledger) -> None:
    kept = KeptEnds(ledger.path.parent / "ends")
    began_now = Began(RunRecord("r", "n", "j", "emulated", 1.0, "d"), Attempt("r-1", "r"))
    end = AttemptEnded.by("r-1", 2.0, AttemptState.FAILED, SliceLost("x" * 1000))
    kept.keep(end)  # the directory is not there
    kept.follow(began_now)
    path = ledger.path.parent / "ends" / "r-1"
    assert (stat.S_IMODE(path.parent.stat().st_mode), stat.S_IMODE(path.stat().st_mode)) == (0o700, 0o600)
    files = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(40):
        kept.keep(end)
    assert path.stat().st_size == ROOM_BYTES and len([*Path("/proc/self/fd").iterdir()]) == files
    ((name, ends),) = kept.every()
    assert name == "r-1" and {*ends} == {end} and 10 < len(ends) < 40
    path.unlink()
    kept.keep(end)
    assert [[*each] for _, each in kept.every()] == [[end]], "its file was taken away"


def test_ends_that_are_kept_of_another_ledger_are_dropped(ledger: Ledger) -> None:
    ledger._ends.follow(Began(RunRecord("r", "n", "j", "emulated", 1.0, "d"), Attempt("r-1", "r")))
    ledger._ends.keep(AttemptEnded.by("r-1", 2.0, AttemptState.SUCCEEDED, None))
    assert ledger.attempts_open() == [] and [*ledger._ends.every()] == []


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


CLOUD, OTHER = "emulated", "google"
START = 1_800_000_000.0
SERVER_AHEAD_S = 40.0


@dataclass
class Machine:
    """Its clocks; `passes` lets time pass for all of them and for the cloud's."""

    boot: str = "first"
    up_s: float = 5000.0
    wall_s: float = START
    server: float = START + SERVER_AHEAD_S

    def boot_id(self) -> str:
        return self.boot

    def boot_s(self) -> float:
        return self.up_s

    def wall(self) -> float:
        return self.wall_s

    def passes(self, seconds: float) -> None:
        self.up_s, self.wall_s, self.server = self.up_s + seconds, self.wall_s + seconds, self.server + seconds

    def restarts(self, off_s: float) -> None:
        self.passes(off_s)
        self.boot, self.up_s = f"after {self.boot}", 10.0


@pytest.fixture
def machine() -> Machine:
    return Machine()


def create(ledger: Ledger, clocks: Clocks, machine: Machine) -> None:
    """As `begin` does it: ask the cloud what time it is, write the intent down, send."""
    clocks.synchronize(CLOUD, machine.server, clocks.now(CLOUD))
    lease, _ = lease_and_request(now=clocks.now(CLOUD))
    ledger.record(Intent(lease), CreateSent(lease.id, clocks.now(CLOUD)))


def restarted(ledger: Ledger, machine: Machine) -> Clocks:
    """Those of a machine that was off for an hour, while a slice was there."""
    create(ledger, Clocks(ledger, machine), machine)
    machine.restarts(off_s=3600.0)
    return Clocks(ledger, machine)


def test_it_begins_with_the_wall_clock(ledger: Ledger, machine: Machine) -> None:
    assert Clocks(ledger, machine).now(CLOUD) == START


@pytest.mark.parametrize("step_s", [7200.0, -7200.0, 366 * 86400.0])
def test_a_step_of_the_wall_clock_is_no_time_that_passed(ledger: Ledger, machine: Machine, step_s: float) -> None:
    clocks = Clocks(ledger, machine)
    clocks.now(CLOUD)
    machine.wall_s += step_s
    machine.passes(3.0)
    assert clocks.now(CLOUD) == START + 3.0
    assert Clocks(ledger, machine).now(CLOUD) == START + 3.0, "another process of this boot, begun after the step"


def test_time_asleep_has_passed(ledger: Ledger, machine: Machine) -> None:
    clocks = Clocks(ledger, machine)
    clocks.now(CLOUD)
    machine.up_s += 600.0  # the boot clock counts it; no process ran
    assert clocks.now(CLOUD) == START + 600.0


def test_after_a_restart_no_time_has_passed_until_the_cloud_says_so(ledger: Ledger, machine: Machine) -> None:
    clocks = restarted(ledger, machine)
    machine.wall_s += 86400.0
    assert not clocks.is_certain(CLOUD)
    assert clocks.now(CLOUD) == START
    machine.passes(7.0)
    assert clocks.now(CLOUD) == START + 7.0, "what passes from then on has passed"
    clocks.synchronize(CLOUD, machine.server, asked_at=clocks.now(CLOUD))
    assert clocks.is_certain(CLOUD)
    assert clocks.now(CLOUD) == START + 3607.0 - DATE_ERROR_S
    assert Clocks(ledger, machine).now(CLOUD) == START + 3607.0 - DATE_ERROR_S


def test_a_restart_of_a_machine_that_owes_nothing_begins_anew(ledger: Ledger, machine: Machine) -> None:
    Clocks(ledger, machine).now(CLOUD)
    machine.restarts(off_s=60.0)
    clocks = Clocks(ledger, machine)
    assert clocks.is_certain(CLOUD)
    assert clocks.now(CLOUD) == machine.wall()


def test_restart_after_restart_never_more_than_has_passed(ledger: Ledger, machine: Machine) -> None:
    create(ledger, Clocks(ledger, machine), machine)
    passed = 0.0
    for off_s in (100.0, 2000.0, 30.0):
        machine.restarts(off_s)
        passed += off_s
        clocks = Clocks(ledger, machine)
        clocks.synchronize(CLOUD, float(int(machine.server)), asked_at=clocks.now(CLOUD))
        late_s = START + passed - clocks.now(CLOUD)
        assert 0.0 <= late_s <= 3 * (DATE_ERROR_S + 1.0)


def test_once_nothing_is_open_any_more_an_answer_that_never_came_is_not_waited_for(
    ledger: Ledger, machine: Machine
) -> None:
    clocks = restarted(ledger, machine)
    assert not clocks.is_certain(CLOUD)
    (lease,) = ledger.open_leases()
    ledger.record(
        ReleaseBegan(lease.id, clocks.now(CLOUD), "the power failed"), Gone(lease.id, clocks.now(CLOUD), "proven")
    )
    assert clocks.is_certain(CLOUD), "this command may claim something new"
    assert Clocks(ledger, machine).is_certain(CLOUD), "and so may the next one"
    assert clocks.now(CLOUD) == Clocks(ledger, machine).now(CLOUD) == machine.wall()


def test_a_slow_answer_makes_no_time_pass(ledger: Ledger, machine: Machine) -> None:
    clocks = Clocks(ledger, machine)
    asked_at, said = clocks.now(CLOUD), machine.server
    machine.passes(50.0)  # the answer is on its way, or the machine sleeps
    clocks.synchronize(CLOUD, said, asked_at)
    lease, _ = lease_and_request(now=clocks.now(CLOUD))
    ledger.record(Intent(lease))
    machine.restarts(off_s=10.0)
    again = Clocks(ledger, machine)
    again.synchronize(CLOUD, machine.server, asked_at=again.now(CLOUD))
    assert again.now(CLOUD) <= START + 60.0


def test_what_one_cloud_says_is_nothing_to_the_leases_of_another(ledger: Ledger, machine: Machine) -> None:
    clocks = restarted(ledger, machine)
    clocks.synchronize(OTHER, machine.server + 86400.0, asked_at=clocks.now(OTHER))
    assert clocks.is_certain(OTHER)
    assert not clocks.is_certain(CLOUD)
    assert clocks.now(CLOUD) == START


def test_leases_of_a_cloud_that_was_never_heard_are_as_old_as_this_boot(ledger: Ledger, machine: Machine) -> None:
    clocks = Clocks(ledger, machine)
    lease, _ = lease_and_request(now=clocks.now(CLOUD))
    ledger.record(Intent(lease))
    machine.restarts(off_s=3600.0)
    again = Clocks(ledger, machine)
    machine.passes(5.0)
    again.now(CLOUD)
    again.synchronize(CLOUD, machine.server, asked_at=again.now(CLOUD))
    assert again.now(CLOUD) == START


def test_a_ledger_that_cannot_be_read_any_more_stops_no_teardown_whose_time_is_not_sure_yet(
    ledger: Ledger, machine: Machine
) -> None:
    clocks = restarted(ledger, machine)
    clocks.now(CLOUD)
    ledger.close()
    machine.passes(4.0)
    assert clocks.now(CLOUD) == START + 4.0
    clocks.synchronize(CLOUD, machine.server, asked_at=clocks.now(CLOUD))
    assert clocks.is_certain(CLOUD) and clocks.now(CLOUD) == START + 3604.0 - DATE_ERROR_S


def test_of_a_ledger_that_cannot_be_read_no_time_is_invented(ledger: Ledger, machine: Machine) -> None:
    ledger.close()
    clocks = Clocks(ledger, machine)
    for ask in (clocks.now, clocks.is_certain, lambda cloud: clocks.synchronize(cloud, machine.server, START)):
        with pytest.raises(LedgerUnavailable):
            ask(CLOUD)


@pytest.mark.parametrize("anchored", [True, False])
def test_a_full_disk_keeps_no_process_from_knowing_the_time(ledger: Ledger, machine: Machine, anchored: bool) -> None:
    restarted(ledger, machine)
    if not anchored:
        ledger._db.execute("delete from anchor")
    ledger._db.execute("pragma query_only = on")
    clocks = Clocks(ledger, machine)
    assert clocks.now(CLOUD) == START
    for room in ("on", "off"):
        ledger._db.execute(f"pragma query_only = {room}")
        machine.passes(4.0)
        assert clocks.now(CLOUD) == START + (4.0 if room == "on" else 8.0), "the time goes on once there is room again"
    assert Clocks(ledger, machine).now(CLOUD) == START + 8.0
    ledger._db.execute("pragma query_only = on")
    clocks.synchronize(CLOUD, machine.server, asked_at=clocks.now(CLOUD))
    assert clocks.now(CLOUD) == START + (3608.0 - DATE_ERROR_S if anchored else 8.0)


ANCHOR = Anchor("first", START, ahead_s=40.0)


@pytest.mark.parametrize(("anchor", "said", "slow_s", "after"), [
    pytest.param(Anchor("first", START), 40.0, 0.0, ANCHOR, id="the first reply says how far the server is ahead"),
    pytest.param(ANCHOR, 40.0 + DRIFT_S, 0.0, ANCHOR, id="a small drift is not worth a write"),
    pytest.param(ANCHOR, 3600.0, 0.0, replace(ANCHOR, ahead_s=3600.0), id="the server's clock is set: no time passed"),
    pytest.param(ANCHOR, 3600.0, QUICK_S, ANCHOR, id="a slow reply is no measurement"),
])  # fmt: skip
def test_a_reply_moves_how_far_the_server_is_ahead_and_never_a_sure_time(
    anchor: Anchor, said: float, slow_s: float, after: Anchor
) -> None:
    assert synchronized(anchor, START + 10.0 + said, asked_s=10.0, boot_s=10.0 + slow_s) == after


def test_an_open_lease_without_an_anchor_continues_from_its_last_time() -> None:
    lease = replace(lease_and_request(now=START)[0], sent_at=START + 5.0)
    assert anchored(None, [lease], boot="b", boot_s=10.0, wall=0.0) == Anchor("b", START - 5.0, sure=False)

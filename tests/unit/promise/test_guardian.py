"""The guardian: what it decides once its process is gone, how it starts, in which surroundings, and what kills it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from orchestrator.api.session.connections import Connections
from orchestrator.promise import guardian as loop
from orchestrator.promise import guardian_process as guardian
from orchestrator.promise.effects.base import Effect, Now, OpenLeases, Report, Sleep
from orchestrator.promise.effects.locks import FileLocks
from orchestrator.promise.guardian import GuardianWorld, TakeGuardianLock, guardian_loop
from orchestrator.promise.lease.changes import Intent
from orchestrator.promise.lease.lease import Lease, LeaseState, Purpose, SliceName
from orchestrator.promise.ledger.file import LedgerUnavailable
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.system import open_files
from orchestrator.text.redaction import Redactor
from tests import ROOT
from tests.cli_fixture import kill_all
from tests.disk import files_in_use
from tests.fakes.leases import lease_on
from tests.forked import Child
from tests.simulation.model.bench import driven
from tests.waiting import HANG_S, until

START = 1_000_000.0
DAY = 86400.0


def lease(node: str = "a", **changes: Any) -> Lease:
    name = SliceName("p", "us-central1-a", f"tpujob-owner0-{node}")
    return lease_on(name, START, **{"handle": node, "state": LeaseState.READY, **changes})


@dataclass
class Machine:
    """One guardian's view: leases, what is locked, how well recovery goes, which guardian has the lock."""

    leases: list[Lease]
    alive: set[str] = field(default_factory=set)
    recoveries_that_fail: int = 0
    lock_is_taken: bool = False
    time: float = START
    recovered_at: list[float] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    unreadable: int = 0
    lock_asked: int = 0
    at: dict[float, Callable[[Machine], None]] = field(default_factory=dict)

    @property
    def ledger(self) -> Machine:
        return self

    @property
    def locks(self) -> Any:
        return type("Locks", (), {"is_locked": lambda _, lease_id: lease_id in self.alive})()

    def open_leases(self) -> list[Lease]:
        if self.unreadable:
            self.unreadable -= 1
            raise LedgerUnavailable("the ledger cannot be used: disk full")
        return list(self.leases)

    def now(self, cloud: str | None = None) -> float:
        return self.time

    def report(self, told: Report) -> None:
        self.told.append(told.text)

    def recover(self) -> None:
        self.recovered_at.append(self.time)
        if self.recoveries_that_fail:
            self.recoveries_that_fail -= 1
            return
        self.leases = [each for each in self.leases if self._claimed(each)]

    def _claimed(self, each: Lease) -> bool:
        if each.state is LeaseState.READY and (each.detached_at or each.hold_until or each.id in self.alive):
            return self.time < each.ends_at
        return False

    def take_lock(self) -> bool:
        self.lock_asked += 1
        return not self.lock_is_taken

    def watch(self) -> None:
        driven(guardian_loop(), self._answer)

    def _answer(self, effect: Effect[Any]) -> Any:
        if isinstance(effect, Sleep):
            assert effect.seconds > 0
            self.slept.append(effect.seconds)
            self.time += effect.seconds
            for moment in [moment for moment in self.at if moment <= self.time]:
                self.at.pop(moment)(self)
            return None
        return effect.perform(self)  # type: ignore[arg-type]


def test_with_nothing_owed_it_ends_at_once() -> None:
    machine = Machine([])
    machine.watch()
    assert (machine.recovered_at, machine.slept, machine.lock_asked) == ([], [], 0)


@pytest.mark.parametrize("other_guardian", [False, True])
def test_a_lock_that_the_killed_process_held_for_a_moment_longer_delays_the_recovery_as_little(
    other_guardian: bool,
) -> None:
    """Its pipe may end before its locks."""
    machine = Machine([lease()], alive={"a"}, lock_is_taken=other_guardian)
    machine.at[START + 0.5] = lambda m: m.alive.clear()
    machine.watch()
    assert machine.leases == [] and machine.recovered_at[0] <= START + 1


def test_a_recovery_that_proves_nothing_is_repeated_for_ever_with_growing_pauses() -> None:
    machine = Machine([lease()], recoveries_that_fail=12)
    machine.watch()
    assert len(machine.recovered_at) == 13
    assert machine.slept == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60, 60]


def test_a_held_slice_is_waited_for_by_one_guardian_and_released_at_its_end() -> None:
    held = lease(purpose=Purpose.HOLD, hold_until=START + 100)
    machine = Machine([held])
    machine.watch()
    [at] = machine.recovered_at
    assert START + 100 <= at <= START + 100 + 1
    assert max(machine.slept) == loop.POLL_S, "it looks now and then, because the end may have been moved"
    assert machine.lock_asked == 1
    another = Machine([held], lock_is_taken=True)
    another.watch()
    assert another.recovered_at == [] and another.time < START + 5


def test_nothing_is_recovered_a_moment_before_it_is_due() -> None:
    deadline = START + sum(loop.QUICK_LOOKS_S) + 0.5
    machine = Machine([lease(deadline=deadline)], alive={"a"})
    machine.watch()
    assert machine.recovered_at and machine.recovered_at[0] >= deadline


def test_the_slice_of_a_living_process_is_not_touched_and_taken_over_when_that_dies_without_its_guardian() -> None:
    machine = Machine([lease()], alive={"a"}, at={START + 1000: lambda machine: machine.alive.clear()})
    machine.watch()
    [at] = machine.recovered_at
    assert START + 1000 <= at <= START + 1000 + loop.POLL_S


def test_the_pauses_begin_anew_after_a_time_in_which_nothing_was_overdue() -> None:
    machine = Machine([lease("a"), lease("b", hold_until=START + 200, purpose=Purpose.HOLD)], recoveries_that_fail=2)

    def fail_again(machine: Machine) -> None:
        machine.recoveries_that_fail = 1

    machine.at = {START + 150: fail_again}
    machine.watch()
    assert machine.slept[:2] == [1, 2]
    assert machine.slept[-1] == 1


def test_a_ledger_that_cannot_be_read_is_asked_again() -> None:
    machine = Machine([lease()], unreadable=6)
    machine.watch()
    assert machine.recovered_at == [START + sum(loop.QUICK_LOOKS_S) + 2 * loop.POLL_S]
    assert machine.told == ["the ledger cannot be used: disk full; asking again"] * 6


WAITS = {"detached_at": START, "state": LeaseState.CREATING, "ready_by": START + 50}


@pytest.mark.parametrize(("leases", "alive", "at", "in_s"), [
    ([lease("a", hold_until=START + 300), lease("b", hold_until=START + 100)], "", 0.0, 100.0),
    ([lease("a")], "a", DAY - 0.2, 1.0),
    ([lease("a", **WAITS)], "", 0.0, 50.0), ([lease("a", **WAITS)], "a", 60.0, 1.0),
    ([lease("a", **WAITS)], "", 60.0, 0.0),  # the cloud is asked whether it waits still
    ([lease("a", **WAITS, hold_until=START + 20)], "", 0.0, 20.0),
    ([lease("a", **{**WAITS, "ready_by": None})], "", 0.0, DAY),
    ([lease("a", **{**WAITS, "state": LeaseState.READY})], "", 60.0, DAY - 60.0),
    ([lease("a", **{**WAITS, "detached_at": None})], "a", 0.0, DAY),
])  # fmt: skip
def test_it_looks_again_when_the_first_lease_is_due(leases: list[Lease], alive: str, at: float, in_s: float) -> None:
    machine = Machine(leases, alive=set(alive), time=START + at)
    assert driven(loop.due(), machine._answer) == pytest.approx(in_s)


# -- its own world: what it asks the machine ---------------------------------------------------------------------------


def test_an_effect_that_fails_is_the_programs_to_handle_and_an_error_of_the_program_comes_out(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    monkeypatch.setattr(loop.time, "sleep", found.append)

    async def asks() -> None:
        found.append(await OpenLeases())
        try:
            await Now("emulated")
        except LedgerUnavailable as error:
            found.append(str(error))
        await Sleep(7.0)
        found.append(await TakeGuardianLock())

    loop.drive(asks(), GuardianWorld(state, lambda name: None))
    assert found == [[], f"the ledger {state / 'ledger.sqlite3'} was moved away", 7.0, True]

    async def fails() -> None:
        await Now("emulated")

    with pytest.raises(LedgerUnavailable):
        loop.drive(fails(), GuardianWorld(state, lambda name: None))


def test_it_reads_the_leases_and_the_time_of_the_ledger(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger(state / "ledger.sqlite3")
    ledger.record(Intent(lease(state=LeaseState.INTENT)))
    ledger.close()
    world = GuardianWorld(state, lambda name: None)
    assert [each.id for each in world.open_leases()] == ["a"]
    assert START <= world.now("emulated") < START + HANG_S, "time goes on from the last event"
    assert world.now("google") == pytest.approx(time.time(), abs=HANG_S), "of a cloud without leases it begins now"
    world.report(Report("guardian", "asked with ya29.secret-token-of-google"))
    assert capfd.readouterr().err == f"guardian {Redactor().hide('asked with ya29.secret-token-of-google')}\n"


def test_a_recovery_is_a_process_of_which_only_the_first_is_killed_by_a_test(
    state: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    started: list[tuple[list[str], str | None, bool]] = []

    def run(argv: list[str], *, env: dict[str, str], check: bool) -> None:
        assert loop.CHILD_CRASH_AT not in env and env["PATH"] and not check
        started.append((argv[1:], env.get("TPUJOB_CRASH_AT"), check))
        if len(started) == 2:
            raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(loop.subprocess, "run", run)
    monkeypatch.setenv(loop.CHILD_CRASH_AT, "Delete:1")
    points: list[str] = []
    world = GuardianWorld(state, points.append)
    for _ in range(2):
        world.recover()
    argv = ["-m", "orchestrator.api.guarantee.recovery", str(state)]
    assert started == [(argv, "Delete:1", False), (argv, None, False)]
    assert points == ["before_recovery", "after_recovery"] * 2
    assert capfd.readouterr().err == "the recovery cannot be started: Cannot allocate memory\n"


def test_a_lock_that_cannot_be_opened_lets_it_wait_beside_another_one(
    state: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def lock(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    points: list[str] = []
    first, second = GuardianWorld(state, points.append), GuardianWorld(state, points.append)
    assert first.take_lock() and points == ["locked"] and not second.take_lock() and points == ["locked"]
    monkeypatch.setattr(FileLocks, "lock", lock)
    assert second.take_lock() and points == ["locked"]
    assert "the guardians' lock cannot be opened: No space left on device" in capfd.readouterr().err


SCOPE_THAT_WORKS = """#!/bin/sh
echo "$@" >> "$FAKE_LOG"
while [ "$1" != "--" ]; do shift; done; shift
exec "$@"
"""
SCOPE_THAT_FAILS = '#!/bin/sh\necho "Failed to connect to bus" >&2\nexit 1\n'
SCOPE_THAT_HANGS = "#!/bin/sh\nexec /bin/sleep 60\n"


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_RUNTIME_DIR", "RUNNER_TRACKING_ID", "CI", "TPUJOB_GUARDIAN", guardian.CRASH_AT):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "state"
    directory.mkdir()
    yield directory
    kill_all(guardians(directory))


@pytest.fixture
def user_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user manager to be seen, and a directory in which a test puts its systemd-run."""
    runtime, programs = tmp_path / "run", tmp_path / "bin"
    (runtime / "systemd").mkdir(parents=True)
    (runtime / "systemd" / "private").touch()
    programs.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "asked"))
    return programs


def program(directory: Path, text: str) -> None:
    path = directory / "systemd-run"
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def guardians(directory: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "orchestrator.promise.guardian_process" in words and str(directory) in words:
            found.append(process)
    return found


def armed(directory: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A process that arms a guardian, tells its pid and ends."""
    code = "import sys; from pathlib import Path; from orchestrator.promise import guardian_process as guardian; "
    code += f"guardian.SCOPE_TIMEOUT_S = {HANG_S}; "  # a busy machine is no reason to do without a scope here
    code += "print(guardian.start_guardian(Path(sys.argv[1]), lambda text: print(text, file=sys.stderr)).pid)"
    return subprocess.run(
        [sys.executable, "-c", code, str(directory)], cwd=ROOT, env={**os.environ, **env}, capture_output=True,
        text=True, timeout=HANG_S, check=False,
    )  # fmt: skip


def until_gone(directory: Path) -> None:
    until(lambda: not guardians(directory), "the end of the guardian")


def test_it_ends_by_itself_when_its_process_ended_and_owes_nothing(state: Path) -> None:
    done = armed(state)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 0
    until_gone(state)


def test_it_wakes_when_its_process_is_killed_while_forked_children_of_that_live(state: Path) -> None:
    def start() -> int:
        return guardian.start_guardian(state).pid

    with Child(start, then=lambda: Child(lambda: "alive").keep()) as parent:
        assert parent.grandchild and int(parent.said) in [each.pid for each in guardians(state)]
        parent.kill()
        until_gone(state)
        os.kill(parent.grandchild, 0)


def test_it_is_not_the_guardian_of_a_forked_child_which_cannot_wake_it(state: Path) -> None:
    started = guardian.start_guardian(state)

    def in_child() -> bool:
        waits = started.waits
        started.close()
        return waits

    with Child(in_child) as child:
        assert child.said == "False"
    assert started.waits and psutil.Process(started.pid).is_running()
    started.close()
    until_gone(state)


def test_a_process_that_lives_on_can_wake_it(state: Path) -> None:
    first, second = guardian.start_guardian(state), guardian.start_guardian(state)
    assert first.waits
    first.close()
    first.close()
    until(lambda: [each.pid for each in guardians(state)] == [second.pid], "the end of the first one")
    assert not first.waits and second.waits
    second.close()
    until_gone(state)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[Any]]:
    """Those that are started: nothing else asks for their exit codes."""
    found: list[subprocess.Popen[Any]] = []

    class Kept(subprocess.Popen):
        def __init__(self, *words: Any, **more: Any) -> None:
            super().__init__(*words, **more)
            found.append(self)

    monkeypatch.setattr(subprocess, "Popen", Kept)
    return found


def test_it_watches_as_long_as_its_process_lives(state: Path, processes: list[subprocess.Popen[Any]]) -> None:
    files = files_in_use()
    started = guardian.start_guardian(state)
    assert open_files.in_use() == files + 1, "its process has the end of one pipe, and nothing else of it"
    pid = started.pid
    assert [each.pid for each in guardians(state)] == [pid]
    assert os.getsid(pid) == pid, "a terminal that closes does not take it along"
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)  # nor do signals to all processes of a terminal
    started.close()
    assert processes[0].wait(HANG_S) == 0


def test_it_tells_once_that_it_is_ready_and_begins_anew_after_a_bug(
    state: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []
    driven_in: list[Path] = []

    def drive(program: Any, world: GuardianWorld) -> None:
        program.close()
        driven_in.append(world.directory)
        if len(driven_in) == 1:
            raise ZeroDivisionError("a bug")

    monkeypatch.setattr(loop, "drive", drive)
    monkeypatch.setattr(guardian.time, "sleep", slept.append)
    monkeypatch.setattr(guardian.signal, "signal", lambda number, handler: None)
    (watched, end), (told, ready) = os.pipe(), os.pipe()
    monkeypatch.setattr(sys, "argv", ["guardian", str(state), str(watched), str(ready)])
    os.close(end)
    os.set_blocking(told, False)
    guardian.main()
    assert driven_in == [state, state]
    assert slept == [loop.POLL_S], "it is no loop that keeps the machine busy"
    assert "ZeroDivisionError: a bug" in capfd.readouterr().err
    assert (os.read(told, 9), os.read(told, 9)) == (b"!", b"")
    os.close(watched)
    os.close(told)


def test_what_waits_has_imported_neither_the_ledger_nor_what_it_stands_on(state: Path) -> None:
    code = "import sys, orchestrator.promise.guardian_process; print(sorted(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "'subprocess'" in said
    for heavy in ("sqlite3", "dataclasses", "json", "orchestrator.promise.lease", "orchestrator.promise.ledger"):
        assert f"'{heavy}'" not in said


def test_under_a_user_manager_it_starts_in_a_scope_of_its_own(state: Path, user_manager: Path) -> None:
    program(user_manager, SCOPE_THAT_WORKS)
    done = armed(state)
    assert done.returncode == 0
    asked = (user_manager.parent / "asked").read_text()
    assert asked.startswith("--user --scope --quiet --collect ")
    until_gone(state)  # the pipe reached it through systemd-run
    assert (state / "guardian.log").read_text() == ""


def test_in_a_scope_it_is_the_only_one(
    state: Path, user_manager: Path, monkeypatch: pytest.MonkeyPatch, processes: list[subprocess.Popen[Any]]
) -> None:
    program(user_manager, SCOPE_THAT_WORKS)
    monkeypatch.setattr(guardian, "SCOPE_TIMEOUT_S", HANG_S)
    started = guardian.start_guardian(state)
    assert [each.pid for each in guardians(state)] == [started.pid]
    started.close()
    assert processes[0].wait(HANG_S) == 0


@pytest.mark.parametrize("text", [SCOPE_THAT_FAILS, SCOPE_THAT_HANGS, "not a program"])
def test_without_a_scope_it_starts_all_the_same_and_its_log_says_so(
    state: Path, user_manager: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(user_manager, text)
    monkeypatch.setattr(guardian, "SCOPE_TIMEOUT_S", 0.3)
    connections = Connections(Mock(), state, Mock())
    start = connections.guardian()
    assert start is not None and connections.guardian_words is None
    pid = start().pid
    assert [each.pid for each in guardians(state)] == [pid]
    assert "no scope of its own" in (state / "guardian.log").read_text()
    assert connections.guardian_words == f"guardian {pid}, once this command has ended (log: {state / 'guardian.log'})"
    os.kill(pid, signal.SIGKILL)
    until(lambda: f"nothing now, guardian {pid} has ended" in str(connections.guardian_words), "its end to be seen")


def test_without_a_user_manager_systemd_is_not_asked(state: Path, user_manager: Path) -> None:
    program(user_manager, SCOPE_THAT_WORKS)
    (user_manager.parent / "run" / "systemd" / "private").unlink()
    assert armed(state).returncode == 0
    assert not (user_manager.parent / "asked").exists()


def test_a_directory_that_cannot_be_written_means_that_it_is_not_armed(state: Path) -> None:
    (state / "guardian.log").mkdir()
    with pytest.raises(guardian.GuardianNotStarted, match="cannot be started"):
        guardian.start_guardian(state)
    assert guardians(state) == []


@pytest.mark.parametrize(("executable", "why"), [("/bin/false", "did not start"), ("/none", "cannot be started")])
def test_a_guardian_that_dies_before_it_watches_is_not_armed_and_leaves_nothing(
    state: Path, monkeypatch: pytest.MonkeyPatch, processes: list[subprocess.Popen[Any]], executable: str, why: str
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    files = files_in_use()
    with pytest.raises(guardian.GuardianNotStarted, match=why):
        guardian.start_guardian(state)
    assert open_files.in_use() == files
    assert all(each.returncode is not None for each in processes), "none that has ended is left as a zombie"


# -- CI ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("environ", "says"), [
    ({}, False), ({"CI": "true"}, True), ({"RUNNER_TRACKING_ID": "github_1"}, True),
    ({"CI": "true", "TPUJOB_GUARDIAN": "ci-detach"}, False), ({"TPUJOB_GUARDIAN": "ci-detach"}, False),
])  # fmt: skip
def test_in_a_ci_job_it_is_said_that_the_guardian_dies_with_it(environ: dict[str, str], says: bool) -> None:
    text = guardian.ci_notice(environ)
    assert (text is not None) is says
    if text is not None:
        assert "TPUJOB_GUARDIAN=ci-detach" in text and "dies with it" in text


def test_the_notice_reaches_the_person(state: Path) -> None:
    assert "this is a CI job" in armed(state, CI="true").stderr
    assert armed(state).stderr == ""


@pytest.mark.parametrize(("mode", "kept"), [("on", True), ("ci-detach", False)])
def test_only_who_asks_for_it_escapes_the_runners_clean_up(state: Path, mode: str, kept: bool) -> None:
    done = armed(state, RUNNER_TRACKING_ID="github_1", TPUJOB_GUARDIAN=mode, **{guardian.CRASH_AT: ""})
    assert done.returncode == 0
    environment = guardian._environment({"RUNNER_TRACKING_ID": "github_1", "TPUJOB_GUARDIAN": mode})
    assert ("RUNNER_TRACKING_ID" in environment) is kept


def test_it_finds_the_files_that_variables_name_from_its_own_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = {"KUBECONFIG": "team.yaml:~/mine::/etc/kube", "TPUJOB_TOKEN_FILE": "one:file", "HOME": "here"}
    there = f"{tmp_path}/team.yaml:~/mine::/etc/kube", f"{tmp_path}/one:file", "here"
    assert guardian._environment(said) == dict(zip(said, there, strict=True))


def test_from_a_directory_that_is_deleted_it_gets_the_variables_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert guardian._environment({"KUBECONFIG": "team.yaml"}) == {"KUBECONFIG": "team.yaml"}


# -- crash points ------------------------------------------------------------------------------------------------------

STAGES = ["armed", "woke", "armed", "woke"]


@pytest.mark.parametrize("crash_at", ["armed:1", "woke:1", "before_recovery:1"])
@pytest.mark.parametrize("owes", [False, True])
def test_what_it_comes_past_depends_on_what_its_process_has_left(
    state: Path, monkeypatch: pytest.MonkeyPatch, processes: list[subprocess.Popen[Any]], crash_at: str, owes: bool
) -> None:
    """A crash point says that it came there."""
    if owes:
        ledger = Ledger(state / "ledger.sqlite3")
        ledger.record(Intent(lease(state=LeaseState.INTENT)))
        ledger.close()
    monkeypatch.setenv(guardian.CRASH_AT, crash_at)
    guardian.start_guardian(state).close()
    assert processes[0].wait(HANG_S) == (0 if crash_at == "before_recovery:1" and not owes else -signal.SIGKILL)


@pytest.mark.parametrize(("crash_at", "reached"), [
    ("armed:1", []), ("woke:1", ["armed"]), ("woke", ["armed"]), ("armed:2", ["armed", "woke"]), ("locked:1", STAGES),
    ("woke:3", STAGES), ("", STAGES),
])  # fmt: skip
def test_it_is_killed_at_the_point_that_a_test_names(tmp_path: Path, crash_at: str, reached: list[str]) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            crash_point = guardian.CrashPoint(crash_at)
            for name in STAGES:
                crash_point(name)
                with (tmp_path / "reached").open("a") as file:
                    file.write(f"{name}\n")
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    (tmp_path / "reached").touch()
    assert (tmp_path / "reached").read_text().split() == reached
    assert code == (0 if reached == STAGES else -signal.SIGKILL)


def test_every_crash_point_that_is_registered_is_in_the_source_and_no_other_one() -> None:
    source = "".join(path.read_text() for path in Path(guardian.__file__).parent.glob("guardian*.py"))
    called = [line.split('crash_point("')[1].split('"')[0] for line in source.splitlines() if 'crash_point("' in line]
    assert sorted(called) == sorted(guardian.CRASH_POINTS)


def test_the_one_that_waits_keeps_its_lock_after_a_bug_and_excludes_others(state: Path) -> None:
    first, second = (GuardianWorld(state, lambda name: None) for _ in range(2))
    assert first.take_lock() and not second.take_lock()
    assert first.take_lock(), "the loop begins anew after a bug"

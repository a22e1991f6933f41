"""The supervisor as real processes, the files of a phase, and the bound of its log."""

import ast
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from orchestrator.vm.agent import local, stream
from orchestrator.vm.agent.stream import BLOCK_BYTES, BoundedLog
from orchestrator.vm.files.phases import PhaseFiles
from tests import ROOT
from tests.unit.vm.conftest import Worker, parsed
from tests.waiting import HANG_S, until

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_a_phase_runs_detached_and_its_exit_code_and_log_size_are_kept(worker: Worker) -> None:
    assert worker.start("echo hello; echo oops >&2; exit 17") == {"started": True}
    ended = worker.ended()
    assert (ended["rc"], ended["signal"], ended["stopped"]) == (17, None, False)
    assert worker.log() == "hello\noops\n"
    assert ended["log_size"] == len(worker.log())
    assert worker.status()["state"] == "exited"


def test_a_second_start_changes_nothing(worker: Worker) -> None:
    assert worker.start("echo once; until [ -e ../go ]; do sleep 0.02; done")["started"]
    assert worker.start("echo twice") == {"started": False}
    worker.path("go").touch()
    worker.ended()
    assert worker.start("echo thrice") == {"started": False}
    assert worker.log() == "once\n"


def test_the_files_of_an_earlier_attempt_make_room_before_the_code_is_unpacked(worker: Worker) -> None:
    worker.start("echo result > $TPUJOB_ARTIFACTS/large")
    worker.ended()
    script = f"ls {worker.home}/tpujob/runs"
    assert worker.start(script, attempt="a2", delete="a1") == {"started": True}
    log = worker.home / "tpujob" / "runs" / "a2" / "main" / "log"
    assert until(lambda: log.exists() and log.read_text()) == "a2\n"


def test_what_is_deleted_is_an_attempt_and_nothing_else(worker: Worker) -> None:
    assert "bad name" in worker.start("true", delete="../store")["error"]
    assert worker.home.exists() and worker.start("true", delete=None) == {"started": True}
    worker.ended()


SMALL_DISK = """
mount -t tmpfs -o size=1m tmpfs "$HOME" || exit 99
TPUJOB_WATCHDOG_DIR=$HOME; export TPUJOB_WATCHDOG_DIR
agent() { "$PYTHON" -m orchestrator.vm "$@"; }
echo first | agent heartbeat
printf %s "$REQUEST" | agent start >"$FRAMES" &
until [ -e "$HOME"/tpujob/runs/a1/full ]; do sleep 0.02; done
echo second | agent heartbeat; cat "$HOME/heartbeat"; echo
agent stop a1 main 0.2
wait
"""


@linux
@pytest.mark.parametrize(
    ("then", "rc", "stopped"), [("sleep 600", 143, True), ("exit 3", 3, False), ("sleep 60 & exit 4", 4, False)]
)
def test_a_disk_that_the_job_filled_hides_neither_its_end_nor_the_stop_of_it(
    worker: Worker, tmp_path: Path, then: str, rc: int, stopped: bool
) -> None:
    alone = ["unshare", "--mount", *(["--user", "--map-root-user"] if os.getuid() else [])]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine lets no process have a disk of its own (unshare)")
    request = worker.request(f"head -c 2M /dev/zero >fill; : >../full; {then}").decode()
    env = {"HOME": str(worker.home), "PYTHON": worker.python, "REQUEST": request, "FRAMES": str(tmp_path / "frames")}
    done = subprocess.run(
        [*alone, "bash", "-c", SMALL_DISK], env=os.environ | env, check=True, capture_output=True, timeout=HANG_S
    )
    heartbeat, status = done.stdout.splitlines()[-2:]
    assert heartbeat == b"second"
    found = parsed(status)
    assert (found["state"], found["rc"], found["stopped"], found["disk_full"]) == ("exited", rc, stopped, True)


def test_many_starts_at_the_same_moment_start_it_once(worker: Worker) -> None:
    launchers = [worker.popen("start") for _ in range(8)]
    answers = [launcher.communicate(worker.request("echo once"), timeout=HANG_S)[0] for launcher in launchers]
    assert sum(b'"started": true' in answer for answer in answers) == 1
    assert all(b"L 5\nonce\n" in answer and b'"state": "exited"' in answer for answer in answers)
    assert worker.log() == "once\n"


def test_looks_at_a_phase_never_make_its_start_fail(worker: Worker) -> None:
    looks = [worker.popen("status", "a1", "main") for _ in range(6)]
    assert worker.start("true") == {"started": True}
    for look in looks:
        look.communicate(timeout=HANG_S)


@pytest.mark.parametrize(
    "after_s", [0.06, 0.12, *(pytest.param(s, marks=pytest.mark.exhaustive) for s in (0.03, 0.09, 0.2))]
)
def test_a_launcher_killed_at_any_moment_and_asked_again_starts_it_once(worker: Worker, after_s: float) -> None:
    launcher = worker.popen("start")
    launcher.stdin.write(worker.request("echo once"))
    launcher.stdin.close()
    time.sleep(after_s)
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    worker.start("echo once")
    assert worker.ended()["rc"] == 0
    assert worker.log() == "once\n"


def test_the_job_sees_its_environment_and_its_directories(worker: Worker) -> None:
    worker.start('echo "$GREETING|$TPUJOB_ATTEMPT|$TPUJOB_ARTIFACTS|$PWD"', env={"GREETING": "a b"})
    worker.ended()
    assert worker.log() == f"a b|a1|{worker.path('artifacts')}|{worker.path('work')}\n"


def test_what_others_may_not_read_is_private(worker: Worker) -> None:
    worker.start("true")
    worker.ended()
    assert not [path for path in worker.path("main").iterdir() if path.stat().st_mode & 0o077]


def test_a_request_without_what_it_unpacks_reports_that_and_can_be_repeated(worker: Worker) -> None:
    answer = worker.start("true", manifest="0" * 64)
    assert "is not in its store" in answer["error"]
    assert worker.status()["state"] == "none"
    assert worker.start("true") == {"started": True}


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden", "x\n"])
def test_names_that_could_leave_the_directory_are_refused(worker: Worker, name: str) -> None:
    assert "bad name" in worker.start("true", attempt=name)["error"]
    assert not (worker.home / "tpujob").exists()


def test_a_process_left_behind_ends_with_its_phase_and_is_named(worker: Worker) -> None:
    """But for tpujob's own, which is known by its verb, and for words that may be secret."""
    begun = "for p in $(jobs -p); do while grep -qs bash /proc/$p/cmdline; do :; done; done; printf started"
    worker.start(f"tail -f /dev/null chips &>/dev/null & /bin/sleep 60 & setsid sleep 61 1 & sleep 60 & {begun}")
    assert worker.ended()["rc"] == 0 and worker.processes() == []
    assert worker.log()[7:] == "\ntpujob: ended what was left running: sleep 60, sleep 61\n" * (sys.platform == "linux")


@linux
def test_stop_ends_processes_that_ignore_term_have_their_own_session_or_cleared_their_environment(
    worker: Worker,
) -> None:
    script = """
        trap '' TERM
        setsid sleep 60 &
        setsid bash -c "trap '' TERM; while :; do sleep 1; done" &
        (env -i setsid /bin/sleep 62 &)
        echo ready
        while :; do sleep 1; done
    """
    worker.start(script)
    until(lambda: "ready" in worker.log() and len(worker.processes()) >= 4)
    supervisor = worker.supervisors()[0]
    tree = until(lambda: found if len(found := supervisor.children(recursive=True)) >= 4 else None)
    answer = worker.ask("stop", "a1", "main", "0.3")
    assert (answer["state"], answer["rc"], answer["stopped"]) == ("exited", 137, True)
    assert worker.processes() == []
    assert not [process for process in tree if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert answer["log_size"] == len(worker.log())


def test_stop_leaves_the_whole_grace_to_a_process_that_saves_its_work(worker: Worker) -> None:
    """The main shell ends on TERM at once; its child, which got TERM too, must still have time to finish."""
    after_it = "while kill -0 $PPID 2>/dev/null; do sleep 0.05; done"
    saver = f"trap '{after_it}; echo saved; exit' TERM; echo ready; while :; do sleep 0.05; done"
    worker.start('bash -c "$SAVER" & wait', env={"SAVER": saver})
    until(lambda: "ready" in worker.log())
    answer = worker.ask("stop", "a1", "main", "60")
    assert answer["signal"] == signal.SIGTERM
    assert worker.log().endswith("saved\n")
    assert answer["log_size"] == len(worker.log())


@linux
def test_a_killed_supervisor_is_noticed_and_what_it_left_is_ended_by_stop(worker: Worker) -> None:
    worker.start("setsid sleep 60 & sleep 61")
    until(lambda: len(worker.processes()) >= 3)
    worker.supervisors()[0].kill()
    until(lambda: worker.status()["state"] == "lost")
    assert len(worker.processes()) >= 3
    answer = worker.ask("stop", "a1", "main", "1")
    assert (answer["state"], answer["ended"]) == ("lost", True)
    assert worker.processes() == []


def test_stopping_what_never_started_or_has_ended_is_harmless(worker: Worker) -> None:
    assert worker.ask("stop", "a1", "main", "1")["state"] == "none"
    worker.start("exit 4")
    worker.ended()
    assert worker.ask("stop", "a1", "main", "1")["rc"] == 4


@linux
def test_stop_of_one_workers_phase_spares_the_same_phase_of_another_on_the_same_machine(worker: Worker) -> None:
    """The emulated workers of a slice share a machine and an attempt."""
    other = Worker(worker.home.with_name("other"))
    other.home.mkdir()
    try:
        other.start("sleep 60")
        worker.start("exit 0")
        worker.ended()
        worker.ask("stop", "a1", "main", "0")
        assert other.processes()
        assert other.status()["state"] == "running"
    finally:
        other.ask("stop", "a1", "main", "0")


def test_setup_and_main_share_the_work_directory(worker: Worker) -> None:
    worker.start("echo made > file", phase="setup")
    until(worker.path("setup", "exit.json").exists)
    worker.start("cat file")
    worker.ended()
    assert worker.log() == "made\n"


def test_the_machine_going_down_ends_the_job_in_order(worker: Worker) -> None:
    worker.start("echo ready; exec sleep 60")  # one process: a shell whose child died first ends with a code of its own
    until(lambda: "ready" in worker.log())
    worker.supervisors()[0].terminate()
    assert (worker.ended()["stopped"], worker.ended()["signal"]) == (True, signal.SIGTERM)


def test_follow_sends_the_log_from_any_byte_and_ends_with_the_final_status(worker: Worker) -> None:
    worker.start("echo one; sleep 0.2; echo two; exit 3")
    whole = worker.output("follow", "a1", "main", "0")
    assert b"one\n" in whole
    assert b'"rc": 3' in whole.splitlines()[-1]
    assert worker.output("follow", "a1", "main", "4").splitlines()[1:3] == [b"L 4", b"two"]


def test_follow_reports_a_log_shorter_than_what_was_received(worker: Worker) -> None:
    worker.start("echo one")
    worker.ended()
    assert b"before byte 900" in worker.output("follow", "a1", "main", "900")


def test_follow_ends_when_the_client_disconnects(worker: Worker) -> None:
    worker.start("while :; do echo line; sleep 0.01; done")
    follower = worker.popen("follow", "a1", "main", "0")
    assert follower.stdout.readline()
    follower.stdout.close()
    assert follower.wait(timeout=HANG_S) == 1
    worker.ask("stop", "a1", "main", "0")


def test_hello_names_a_port_that_is_free(worker: Worker) -> None:
    answer = worker.ask("hello")
    assert answer["home"] == str(worker.home)
    assert 1024 <= answer["port"] < 65536


def test_the_files_are_python_3_8_and_import_only_the_standard_library_and_siblings() -> None:
    with resources.as_file(resources.files("orchestrator.vm")) as root:
        files = list(root.rglob("*.py"))
    assert len(files) > 20
    for file in files:
        text = file.read_text()
        assert "from __future__ import annotations" in text or file.name == "__init__.py"
        for node in ast.walk(ast.parse(text, feature_version=(3, 8))):
            if isinstance(node, ast.Import):
                assert all(alias.name.partition(".")[0] in sys.stdlib_module_names for alias in node.names), file.name
            elif isinstance(node, ast.ImportFrom):
                assert node.level or str(node.module).partition(".")[0] in sys.stdlib_module_names, file.name


def test_a_failed_setup_says_which_index_it_cannot_reach_and_a_failed_job_does_not(worker: Worker) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        index = f"127.0.0.1:{holder.getsockname()[1]}"
        env = {"PIP_INDEX_URL": f"http://{index}/simple", "PIP_CONFIG_FILE": "/dev/null"}
        for phase, expected in (("setup", [f"{index} (connection refused)"]), ("main", [])):
            worker.start("echo 'connection broken by nothing'; exit 7", phase=phase, env=env)
            exit_json = worker.path(phase, "exit.json")
            until(exit_json.exists, "the end of the phase")
            ended = json.loads(exit_json.read_text())
            assert (ended["rc"], ended["unreachable"]) == (7, expected)


WRITE = """
import sys
from orchestrator.vm.files.phases import PhaseFiles
PhaseFiles("a1", "main", sys.argv[1]).write("stop.json", {"grace_s": 2})
"""


def test_two_processes_that_ask_a_phase_to_stop_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase = PhaseFiles("a1", "main", str(tmp_path))
    Path(phase.dir).mkdir(parents=True)
    fsync, others = os.fsync, iter([[sys.executable, "-c", WRITE, str(tmp_path)]])

    def and_another_one(fd: int) -> None:
        fsync(fd)
        for argv in others:
            subprocess.run(argv, cwd=ROOT, check=True)

    monkeypatch.setattr("orchestrator.vm.files.phases.os.fsync", and_another_one)
    phase.write("stop.json", {"grace_s": 1})
    assert phase.read("stop.json") == {"grace_s": 1}
    assert [path.name for path in Path(phase.dir).iterdir()] == ["stop.json"]


def test_a_look_at_a_phase_does_not_keep_its_supervisor_from_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase = PhaseFiles("a1", "main", str(tmp_path))
    Path(phase.dir).mkdir(parents=True)
    look = phase.lock(fcntl.LOCK_SH)
    assert look is not None
    ends = iter([None, None, lambda: os.close(look)])
    clock = SimpleNamespace(sleep=lambda seconds: (next(ends) or (lambda: None))())
    monkeypatch.setattr(local, "time", clock)
    local._lock(phase)
    assert phase.alive()


PART = 2 * BLOCK_BYTES


def printed(start: int, end: int) -> bytes:
    """What the job prints between two bytes: each eight of them say where they are."""
    return b"".join(b"%07d\n" % number for number in range(start // 8, end // 8 + 1))[start % 8 :][: end - start]


@pytest.mark.parametrize(("seed", "holes"), [(1, True), (2, True), (3, True), (4, False)])
def test_a_reader_gets_what_was_printed_or_how_much_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, holes: bool
) -> None:
    """Not `holes`: the file system has none."""
    chance, path, fstat = random.Random(seed), str(tmp_path / "log"), os.fstat
    job, supervisor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), BoundedLog(path, 2 * PART)
    if not holes:
        monkeypatch.setattr(stream, "sys", SimpleNamespace(platform="darwin"))

    def slow_fstat(file: int) -> os.stat_result:
        """The job prints before a reader that has asked for the size does what follows."""
        found, size = fstat(file), fstat(job).st_size
        if file != job and size < 40 * PART:
            os.write(job, printed(size, size + chance.choice((0, 0, 900, 30_000, 3 * PART))))
            supervisor.punch(job)
        return found

    def read(offset: int, limit: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield where each piece begins and ends, once it is proven."""
        for left_out, piece in BoundedLog(path, 2 * PART).pieces(offset, limit):
            start, offset = offset + left_out, offset + left_out + len(piece)
            assert piece == printed(start, offset)
            yield start, offset

    monkeypatch.setattr(os, "fstat", slow_fstat)
    at = 0
    while (size := fstat(job).st_size) < 40 * PART:
        for _, end in read(at):
            at = end
            if chance.random() < 0.1:
                break  # the connection is cut
    for start in (0, PART - 7, PART, 2 * PART, size - PART, size):
        read_bytes = sum(end - begin for begin, end in read(start, size))
        assert size - start - read_bytes == max(size - PART - max(start, PART), 0)
    assert (fstat(job).st_blocks * 512 <= 2 * PART + BLOCK_BYTES) is holes
    monkeypatch.setattr(stream, "DRAIN_S", -1.0)
    monkeypatch.setattr(stream, "LAST_BYTES", PART // 2)
    assert next(read(7, size))[0] == size - PART // 2, "more of a log that has a gap is not waited for"
    assert next(read(7, 2 * PART))[0] == 7, "one without a gap comes as a whole"
    monkeypatch.undo()
    os.close(job)


def test_a_job_that_prints_without_end_fills_no_disk_and_its_end_is_that_of_its_script(worker: Worker) -> None:
    worker.start("yes & until [ -e ../stop ]; do sleep 0.02; done; kill %1; wait; echo last; exit 7", max_log=2 * PART)
    log = worker.path("main", "log")
    until(lambda: log.stat().st_size > 500_000_000 and log.stat().st_blocks * 512 < 250_000_000, "holes in the log")
    worker.path("stop").touch()
    size = worker.ended()["log_size"]
    assert worker.ended()["rc"] == 7 and log.stat().st_size == size
    assert log.stat().st_blocks * 512 <= 2 * PART + BLOCK_BYTES
    for offset in (PART, PART + 5_000_000):
        frames = worker.output("follow", "a1", "main", str(offset)).split(b"\n", 1)[1]
        gap = b"%d" % (size - PART - offset)
        assert frames.startswith(b"G %d\n%sL 65536\n" % (len(gap), gap)) and b"\nlast\nS " in frames


FILES = {b"M": "metrics.jsonl", b"C": "tpu-metrics.jsonl", b"H": "host.jsonl"}


def frames_in(stream: bytes) -> list[tuple[bytes, bytes]]:
    """The frames of a stream, without its greeting."""
    found, rest = [], stream.split(b"\n", 1)[1]
    while rest:
        head, rest = rest.split(b"\n", 1)
        kind, size = head.split()
        found.append((kind, rest[: int(size)]))
        rest = rest[int(size) :]
    return found


def test_follow_sends_the_files_beside_the_metrics_each_in_frames_of_its_own(worker: Worker) -> None:
    write = "".join(f"echo {kind.decode()} >../artifacts/{name};" for kind, name in FILES.items())
    worker.start(f"mkdir -p ../artifacts; {write}")
    worker.ended()
    found = [each for each in frames_in(worker.output("follow", "a1", "main", "0", "0", "0", "0")) if each[0] in FILES]
    assert found == [each for kind in FILES for each in ((kind, b""), (kind, kind + b"\n"))]


def test_follow_goes_on_in_each_file_where_another_connection_ended(worker: Worker) -> None:
    write = "".join(f"printf '1\\n22\\n333\\n' >../artifacts/{name};" for name in FILES.values())
    worker.start(f"mkdir -p ../artifacts; {write}")
    worker.ended()
    found = dict(frames_in(worker.output("follow", "a1", "main", "0", "2", "5", "9")))
    assert {kind: found.get(kind) for kind in FILES} == {b"M": b"22\n333\n", b"C": b"333\n", b"H": None}


def test_follow_sends_no_file_to_whom_asks_for_none(worker: Worker) -> None:
    worker.start("mkdir -p ../artifacts; echo 1 >../artifacts/metrics.jsonl; echo 1 >../artifacts/host.jsonl")
    worker.ended()
    assert {kind for kind, _ in frames_in(worker.output("follow", "a1", "main", "0"))} == {b"S"}

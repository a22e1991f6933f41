"""The fleet against real SSH servers: the emulated workers."""

import concurrent.futures
import contextlib
import hashlib
import os
import shutil
import socket
import subprocess
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from orchestrator.errors import CommandFailed, HostKeyMismatch, RemoteError, Unreachable
from orchestrator.hosts.fleet.fleet import Fleet, StartRequest, WorkerState
from orchestrator.hosts.fleet.saved_work import SavedWork
from orchestrator.hosts.shipping.shipment import Shipment, make_shipment
from orchestrator.hosts.shipping.tree import Source, survey
from orchestrator.hosts.ssh import agent
from orchestrator.hosts.ssh.fan_out import FanOutAbandoned, Patience
from orchestrator.hosts.ssh.openssh import ssh_argv
from orchestrator.hosts.transfer.collect import Beside, CollectRequest
from tests.cli_fixture import kill_all
from tests.contract.hosts.fixture import MakeRoad, Road, Slice, four, one, road, until_ended
from tests.waiting import HANG_S, held_port, until

__all__ = ["four", "one", "road"]

OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ5YjX8ByL6pcD4cVRe0vPZ9rI8mQ1zJ1mXwKb1G2bXa"


class Log:
    """A sink, and what it heard."""

    def __init__(self) -> None:
        self.of: dict[int, bytes] = {}

    def __call__(self, worker: int, piece: bytes) -> None:
        self.of[worker] = self.of.get(worker, b"") + piece


def started(fleet: Fleet, order: StartRequest) -> Log:
    """Start a phase and follow it; return what its workers print."""
    fleet.start(order)
    log = Log()
    fleet.follow(log)
    return log


def request(attempt: str, script: str, workers: int = 1, **env: str) -> StartRequest:
    return StartRequest(attempt, "main", script, [{**env, "TPUJOB_WORKER": str(index)} for index in range(workers)])


def shipment(directory: Path, files: Mapping[str, bytes]) -> Shipment:
    return make_shipment(survey({name: Source(content) for name, content in files.items()}), directory / "store")


def test_a_job_on_four_workers_from_its_code_to_its_artifacts(four: Slice, tmp_path: Path) -> None:
    fleet = four.fleet()
    fleet.connect(HANG_S)
    facts = [fleet.facts(worker.index) for worker in fleet.workers]
    assert [fact.index for fact in facts] == [0, 1, 2, 3]
    code = shipment(tmp_path, {"code/hello.txt": b"from the shipment\n"})
    assert [(result.files, result.size_bytes) for result in fleet.push(code)] == [(1, 18)] * 4
    assert [(result.files, result.size_bytes) for result in fleet.push(code)] == [(0, 0)] * 4
    script = """
        cat code/hello.txt; echo "I am $TPUJOB_WORKER"
        echo $TPUJOB_WORKER > $TPUJOB_ARTIFACTS/who; mkdir out; echo x > out/a.png
    """
    start = replace(request("whole", script, 4), manifest=code.id)
    fleet.start(start)
    log = started(fleet, start)
    status = until_ended(fleet)
    assert status.all_succeeded
    assert not status.failed
    assert log.of == {index: f"from the shipment\nI am {index}\n".encode() for index in range(4)}
    collected = fleet.collect(CollectRequest("", tmp_path / "run", ("out/*.png",))).within(HANG_S)
    assert collected.problems == ()
    assert len(collected.files) == 8
    for index in range(4):
        assert (tmp_path / "run" / f"worker{index}" / "artifacts" / "who").read_text() == f"{index}\n"
        assert (tmp_path / "run" / f"worker{index}" / "work" / "out" / "a.png").exists()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [f"worker{index}" for index in range(4)]
    assert four.notices == []


@pytest.mark.ci
def test_a_log_and_metrics_cut_at_random_moments_arrive_whole(one: Slice, road: MakeRoad) -> None:
    """400 lines of each, the connection cut every few of them: the local copy is byte for byte the remote file."""
    way = road(one.workers[0])
    fleet = one.fleet([way.worker], "cut_hosts")
    line = 'echo line $i; echo "{\\"step\\": $i}" >> $TPUJOB_ARTIFACTS/metrics.jsonl'
    fleet.start(request("cut", f"for i in $(seq 400); do {line}; sleep 0.005; done; exit 5"))
    log, metrics = Log(), Log()
    cuts = {"log": 0, "metrics": 0}

    def cutting(name: str, heard: Log, every: int) -> Callable[[int, bytes], None]:
        def sink(worker: int, piece: bytes) -> None:
            heard(worker, piece)
            if len(heard.of[worker]) > every * cuts[name]:
                cuts[name] += 1
                threading.Thread(target=way.cut, daemon=True).start()

        return sink

    fleet.follow(cutting("log", log, 400), cutting("metrics", metrics, 600))
    status = until_ended(fleet)
    assert cuts["log"] >= 5 and cuts["metrics"] >= 2
    assert way.connections > 5
    assert (status.first_failed.index, status.first_failed.rc) == (0, 5)
    remote = (one.home() / "tpujob/runs/cut/main/log").read_bytes()
    assert remote.count(b"\n") == 400
    assert log.of[0] == remote
    assert status.workers[0].log_bytes == len(remote)
    assert metrics.of[0] == "".join(f'{{"step": {step}}}\n' for step in range(1, 401)).encode()


def test_the_metrics_of_worker_0_arrive_while_the_job_runs(four: Slice) -> None:
    fleet = four.fleet()
    fleet.start(
        request(
            "measured",
            """m=$TPUJOB_ARTIFACTS/metrics.jsonl; echo '{"step": 1}' > $m
            until [ -e ../go ]; do sleep 0.02; done
            echo '{"step": 2}' >> $m; printf '{"step": 3' >> $m""",
            4,
        )
    )
    log, metrics = Log(), Log()
    fleet.follow(log, metrics)
    until(lambda: metrics.of == {0: b'{"step": 1}\n'}, "the first line")
    for worker in range(4):
        (four.home(worker) / "tpujob/runs/measured/go").touch()
    assert until_ended(fleet).all_succeeded
    assert metrics.of == {0: b'{"step": 1}\n{"step": 2}\n'} and log.of == {}, "an incomplete line never comes"


def test_the_end_of_the_connection_is_not_the_end_of_the_job(one: Slice, road: MakeRoad) -> None:
    way = road(one.workers[0])
    fleet = one.fleet([way.worker], "gone_hosts")
    started(fleet, request("gone", "sleep 3600"))
    until(lambda: fleet.wait(1).workers[0].state is WorkerState.RUNNING)
    way.close()
    while (status := fleet.wait(5)).workers[0].state is not WorkerState.UNREACHABLE:
        assert not status.ended
    now = time.time()
    assert status.silent_s(now) >= 0
    assert status.silent_s(now + 100) > 99
    assert not status.failed
    direct = one.fleet()
    direct.attach("gone", "main")
    direct.stop(0)


def test_a_supervisor_that_was_killed_is_a_lost_worker(one: Slice) -> None:
    fleet = one.fleet()
    started(fleet, request("lost", "sleep 3600.0625"))
    kill_holder = "for p in /proc/[0-9]*; do ls -l $p/fd 2>&1 | grep -q $PWD/$0 && kill -9 ${p#/proc/}; done; true"
    assert fleet.run(0, ["bash", "-c", kill_holder, "tpujob/runs/lost/main/lock"]).rc == 0
    status = until_ended(fleet)
    assert status.workers[0].state is WorkerState.LOST
    assert (status.first_failed.index, status.first_failed.rc) == (0, None)
    fleet.stop(0.2)
    assert fleet.run(0, ["pgrep", "-f", "^sleep 3600.0625$"]).stdout == b""


def test_a_sink_that_fails_is_not_silent(one: Slice) -> None:
    def full_disk(worker: int, piece: bytes) -> None:
        raise OSError(28, "No space left on device")

    fleet = one.fleet()
    fleet.start(request("sink", "echo x"))
    fleet.follow(full_disk)
    with pytest.raises(OSError, match="No space left"):
        until_ended(fleet)


def test_a_host_key_other_than_the_published_one_stops_everything_at_once(one: Slice) -> None:
    impostor = replace(one.workers[0], host_key=OTHER_KEY)
    with pytest.raises(HostKeyMismatch, match="worker0"):
        one.fleet([impostor], "impostor_hosts").connect(3600)


@pytest.mark.ci
def test_workers_that_never_come_up_are_named(four: Slice) -> None:
    named = r"worker2 and worker3 of 4 could not be reached within 8 s by their external addresses: .*refused"
    with held_port() as port, pytest.raises(Unreachable, match=named):
        workers = [*four.workers[:2], replace(four.workers[2], port=port), replace(four.workers[3], port=port)]
        four.fleet(workers).connect(8)  # in which the two others are


def test_a_worker_that_holds_up_a_step_is_named_while_it_does(four: Slice) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        workers = [four.workers[0], replace(four.workers[3], port=silent.getsockname()[1])]
        fleet = four.fleet(workers, patience=Patience(slow_s=(0.1,), quiet_s=0.0))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            connecting = pool.submit(fleet.connect, HANG_S)
            until(lambda: four.notices)
            fleet.cancel()
            with pytest.raises(FanOutAbandoned):
                connecting.result(HANG_S)
    assert four.notices == ["waiting for worker3 (1 of 2)"]
    four.notices.clear()


def test_sshd_that_comes_up_late_is_waited_for(one: Slice) -> None:
    with held_port() as port:
        fleet = one.fleet([replace(one.workers[0], port=port)], "late_hosts")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(fleet.connect, HANG_S)
            time.sleep(0.3)
            assert not waiting.done()
            way = Road(one.workers[0], port)
            waiting.result(HANG_S)
        way.close()


@pytest.mark.parametrize("silence", ["running", "black hole"])
def test_cancel_ends_every_wait(one: Slice, road: MakeRoad, silence: str) -> None:
    way = road(one.workers[0])
    fleet = one.fleet([way.worker], f"cancel_{silence}")
    fleet.connect(HANG_S)
    if silence == "black hole":
        way.blocked.set()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        call = pool.submit(fleet.run, 0, ["sleep", "3600"], timeout_s=3600)
        time.sleep(0.3)
        fleet.cancel()
        with pytest.raises(FanOutAbandoned):
            call.result(HANG_S)
    with pytest.raises(FanOutAbandoned):
        fleet.connect(5)


def test_cancel_ends_a_wait_for_the_job(one: Slice) -> None:
    fleet = one.fleet()
    started(fleet, request("wait", "sleep 3600"))
    until(lambda: fleet.wait(1).workers[0].state is WorkerState.RUNNING)
    threading.Timer(0.2, fleet.cancel).start()
    with pytest.raises(FanOutAbandoned):
        while True:
            fleet.wait(3600)
    other = one.fleet()
    other.attach("wait", "main")
    other.stop(0)


def test_wait_returns_early_when_something_changes_and_in_time_when_nothing_does(one: Slice) -> None:
    fleet = one.fleet()
    started(fleet, request("early", "until test -e ../go; do sleep 0.02; done"))
    until(lambda: fleet.wait(1).workers[0].state is WorkerState.RUNNING)
    assert not fleet.wait(0.1).ended
    assert fleet.run(0, ["touch", "tpujob/runs/early/go"]).rc == 0
    while not fleet.wait(3600).ended:
        pass


def test_a_cut_connection_goes_on_with_the_byte_after_the_last_one_that_arrived(
    one: Slice, road: MakeRoad, tmp_path: Path
) -> None:
    way = road(one.workers[0])
    fleet = one.fleet([way.worker], "push_hosts")
    fleet.connect(HANG_S)
    content = os.urandom(24 << 20)
    code = shipment(tmp_path, {"a": b"small", "noise": content})
    drafts, name = one.home() / "tpujob" / "store" / "drafts", hashlib.sha256(content).hexdigest()
    sent: list[int] = []

    def progress(done: int, total: int) -> None:
        if not sent and done:
            until(lambda: (drafts / name).exists() and (drafts / name).stat().st_size, "the first bytes on the worker")
            way.cut()
        sent.append(done)

    (result,) = fleet.push(code, progress)
    assert (result.files, result.size_bytes) == (2, len(content) + 5), "over both connections"
    assert sent[-1] < 2 * len(content), "what had arrived was not sent again"
    stored = one.home() / "tpujob" / "store" / "objects" / name[:2] / name
    assert stored.read_bytes() == content and not list(drafts.iterdir())


def test_a_full_disk_of_a_worker_is_one_line_with_its_numbers(one: Slice, tmp_path: Path) -> None:
    fleet = one.fleet()
    fleet.facts()  # the agent is there
    (archive,) = one.home().glob(f"tpujob/bin/{agent.versioned_name()}.zip")
    fleet.cancel()
    fleet = one.fleet()
    original = archive.read_bytes()
    source = zipfile.ZipFile(archive).read("vm/files/receive.py").decode()
    limit = "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"  # as if no more fitted
    with zipfile.ZipFile(archive, "a") as changed, warnings.catch_warnings(action="ignore"):  # the last one counts
        changed.writestr("vm/files/receive.py", source.replace("import fcntl\n", f"{limit}import fcntl\n"))
    try:
        with pytest.raises(
            RemoteError, match=r"worker0: no room on its disk for what is shipped \(62\.9 MB, .* is free"
        ):
            fleet.push(shipment(tmp_path, {"large": os.urandom(60 << 20)}))
    finally:
        archive.write_bytes(original)


def test_a_content_that_this_machine_holds_damaged_is_removed_so_that_the_next_run_reads_it_anew(
    one: Slice, tmp_path: Path
) -> None:
    fleet, tree = one.fleet(), tmp_path / "tree"
    tree.mkdir()
    (tree / "a").write_bytes(content := os.urandom(10_000))

    def ship() -> Shipment:
        return make_shipment(survey({".": Source(tree)}), tmp_path / "store")

    code = ship()
    (stored,) = code.contents.values()
    stored.write_bytes(bytes(10_000))  # what a power failure can leave
    with pytest.raises(RemoteError, match=r"a arrived with another content than announced: the copy in .* is removed"):
        fleet.push(code)
    assert [result.size_bytes for result in fleet.push(ship())] == [10_000]
    assert stored.read_bytes() == content


def test_hostile_artifacts_are_refused_and_the_others_come(one: Slice, tmp_path: Path) -> None:
    script = r"""
        cd $TPUJOB_ARTIFACTS
        echo fine > fine; ln -s /proc/self/environ leak; mkfifo pipe; echo a > Same; echo b > same; echo x > $'ev\033]0;il'
        ln -s fine/ nothing; ln -s deep latest; (cd ..; ln -s "$PWD/artifacts/fine" work/linked)
        mkdir deep; echo y > 'deep/back\slash'
        row() { printf '{"path": "%s", "size_bytes": %s, "sha256": "%s"}' $1 $2 $3; }
        true=$(sha256sum fine | cut -d" " -f1)
        rows="$(row fine 5 $true), $(row missing 1 00), $(row Same 2 00), $(row nothing 1 00)"
        echo "{\"schema\": 1, \"files\": [$rows]}" > manifest.json
    """
    fleet = one.fleet()
    started(fleet, request("hostile", script))
    until_ended(fleet)
    collected = fleet.collect(CollectRequest("", tmp_path / "run", ("linked",))).within(HANG_S)
    artifacts = tmp_path / "run" / "worker0" / "artifacts"
    (odd,) = [file.place for file in collected.files if file.path == "artifacts/ev\033]0;il"]
    assert odd.startswith("artifacts/ev__0_il~") and (artifacts.parent / odd).read_text() == "x\n"
    there = ["Same", "deep/back\\slash", "fine", "manifest.json", "same"]
    assert {file.path for file in collected.files if not file.place} == {
        "work/linked",
        *(f"artifacts/{n}" for n in there),
    }
    assert {each.path for each in collected.notes} == {f"artifacts/{n}" for n in ("latest", "leak", "nothing", "pipe")}
    assert collected.waiting == collected.refused == ()
    assert [(problem.path, problem.why) for problem in collected.broken] == [
        ("artifacts/missing", "the manifest promises it, but it did not come"),
        ("artifacts/Same", "its content is not what the manifest says"),
        ("artifacts/nothing", "the manifest promises it, but it did not come"),
    ]
    assert str(collected.broken[0]) == "worker0: artifacts/missing: the manifest promises it, but it did not come"


def test_what_tpujob_wrote_after_a_manifest_of_an_older_payload_is_no_damage(one: Slice, tmp_path: Path) -> None:
    script = r"""
        cd $TPUJOB_ARTIFACTS
        echo '{"schema": 1, "files": [{"path": "host.jsonl", "size_bytes": 1, "sha256": "00"}]}' > manifest.json
        echo more > host.jsonl
    """
    fleet = one.fleet()
    started(fleet, request("older", script))
    until_ended(fleet)
    collected = fleet.collect(CollectRequest("", tmp_path / "run", ())).within(HANG_S)
    assert collected.problems == () and len(collected.files) == 2


def test_artifacts_of_a_worker_that_is_gone_do_not_cost_those_of_the_others(
    four: Slice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = four.fleet()
    started(whole, request("partly", "echo $TPUJOB_WORKER > $TPUJOB_ARTIFACTS/who", 4))
    until_ended(whole)
    monkeypatch.setattr("orchestrator.hosts.transfer.collection.STALL_S", 1.0)
    with held_port() as port:
        partly = four.fleet([*four.workers[:3], replace(four.workers[3], port=port)])
        partly.attach("partly", "main")
        collected = partly.collect(CollectRequest("", tmp_path / "run", ())).within(HANG_S)
    assert [file.worker for file in collected.files] == [0, 1, 2]
    assert [(problem.worker, problem.path) for problem in collected.problems] == [(3, "(everything)")]
    assert collected.waiting == collected.problems, "another try may bring it"


def made(fleet: Fleet, attempt: str, script: str) -> None:
    """The job of this attempt has run, and ended."""
    started(fleet, request(attempt, script))
    assert until_ended(fleet).all_succeeded


def test_what_is_at_home_is_not_sent_again_and_what_changed_there_is(one: Slice, tmp_path: Path) -> None:
    fleet = one.fleet()
    made(fleet, "again", "cd $TPUJOB_ARTIFACTS; mkdir d; echo one > d/same; echo two > other; echo three > third")
    home = tmp_path / "run" / "worker0" / "artifacts"
    first = fleet.collect(CollectRequest("again", tmp_path / "run", ())).within(HANG_S)
    assert first.problems == () and len(first.files) == 3
    kept = (home / "d" / "same").stat().st_ino
    (home / "other").write_text("changed here\n")
    (home / "third").unlink()
    (home / "mine").write_text("a note")
    again = fleet.collect(CollectRequest("again", tmp_path / "run", ())).within(HANG_S)
    assert again == first
    assert (home / "d" / "same").stat().st_ino == kept, "it lay there, and did not travel"
    assert {path.name: path.read_text() for path in home.iterdir() if path.is_file()} == {
        "other": "two\n",
        "third": "three\n",
        "mine": "a note",
    }


BESIDE = """
    echo same >same; echo $TPUJOB_WORKER >own; mkdir -p deep; head -c 3000 /dev/zero | tr '\\0' $TPUJOB_WORKER >deep/large
    echo a >"$TPUJOB_ARTIFACTS/a"; echo b >~/of-home
"""


def test_what_lies_beside_the_artifacts_comes_once_within_its_bounds_and_the_rest_is_named(
    four: Slice, tmp_path: Path
) -> None:
    fleet, run = four.fleet(), tmp_path / "run"
    started(fleet, request("beside", BESIDE, 4))
    assert until_ended(fleet).all_succeeded
    order = CollectRequest("beside", run, ("nothing", "own"), beside=Beside(most_bytes=7000))
    first = fleet.collect(order).within(HANG_S)
    assert first.problems == () and first.unmatched == ("nothing",)
    places = {(file.worker, file.path) for file in first.files if file.beside}
    large = {(worker, path) for worker, path in places if path == "work/deep/large"}
    assert places - large == {(0, "work/same"), (0, "home/of-home")} and len(large) == 2
    assert all((run / f"worker{worker}" / path).is_file() for worker, path in places)
    left = {(each.worker, each.path): each.size_bytes for each in first.left}
    assert left.keys() == {(w, "work/deep/large") for w in range(4)} - large
    assert set(left.values()) == {3000} and "7 KB of a run come by themselves" in first.left[0].why
    wide = CollectRequest("beside", tmp_path / "disk", None, beside=Beside(None, None, only="deep"))
    came = fleet.collect(wide).within(HANG_S)
    assert {(file.worker, file.path) for file in came.files} == {(w, "work/deep/large") for w in range(4)}
    here = frozenset((file.worker, file.path) for file in came.files)
    again = fleet.collect(replace(order, elsewhere=here)).within(HANG_S)
    assert again.uncollected == () and {file.path for file in again.files if file.beside} == {
        "work/same",
        "home/of-home",
    }
    one = replace(
        order, destination=tmp_path / "one", beside=Beside(), elsewhere=frozenset((w, "work/same") for w in range(4))
    )
    rest = fleet.collect(one).within(HANG_S)
    assert rest.uncollected == () and len([file for file in rest.files if file.beside]) == 5, (
        "its rows keep their numbers"
    )
    late = fleet.collect(replace(order, destination=tmp_path / "late", beside=Beside(most_s=0.0))).within(HANG_S)
    assert {file.path for file in late.files} == {"artifacts/a", "work/own"} and len(late.left) == 6, "no more time"


def test_a_cut_in_the_middle_costs_one_file_at_most(one: Slice, road: MakeRoad, tmp_path: Path) -> None:
    made(one.fleet(), "severed", "cd $TPUJOB_ARTIFACTS; for i in $(seq 40); do head -c 500000 /dev/urandom > f$i; done")
    way = road(one.workers[0])
    fleet = one.fleet([way.worker], "cut_hosts")
    collection = fleet.collect(CollectRequest("severed", tmp_path / "run", ()))
    home = tmp_path / "run" / "worker0" / "artifacts"
    first = until(lambda: list(home.glob("f*")), "the first file")[0].stat()
    way.cut()
    collected = collection.within(HANG_S)
    assert (collected.problems, len(collected.files)) == ((), 40)
    assert sum(path.stat().st_ino == first.st_ino for path in home.iterdir()) == 1
    assert way.connections >= 2


def test_a_worker_of_which_nothing_comes_is_given_up_and_what_came_is_there(
    one: Slice, road: MakeRoad, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.hosts.transfer.collection.STALL_S", 2.0)
    monkeypatch.setattr("orchestrator.hosts.ssh.connection.HANDSHAKE_S", 1.0)
    made(one.fleet(), "stalled", "cd $TPUJOB_ARTIFACTS; for i in $(seq 40); do head -c 500000 /dev/urandom > f$i; done")
    way = road(one.workers[0])
    fleet = one.fleet([way.worker], "stall_hosts")
    collection = fleet.collect(CollectRequest("stalled", tmp_path / "run", ()))
    until(lambda: list(tmp_path.glob("run/worker0/artifacts/f*")), "the first file")
    way.blocked.set()
    collected = collection.within(HANG_S)
    (waiting,) = collected.problems
    assert (waiting.path, collected.waiting) == ("(the rest)", (waiting,))
    assert {file.path for file in collected.files} == {
        f"artifacts/{path.name}" for path in tmp_path.glob("run/worker0/artifacts/*")
    }


@pytest.mark.exhaustive
def test_there_is_no_cap_on_the_number_of_files(one: Slice, tmp_path: Path) -> None:
    fleet = one.fleet()
    made(fleet, "many", "cd $TPUJOB_ARTIFACTS; seq 12000 | split -l 1 -a 4 - f")
    collected = fleet.collect(CollectRequest("many", tmp_path / "run", ())).within(HANG_S)
    assert (collected.problems, len(collected.files)) == ((), 12_000)


def test_a_worker_without_python_says_so_and_is_not_asked_again(one: Slice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.hosts.ssh.agent.PYTHON", ("python-that-is-not-there", "-IS", "-c"))
    with pytest.raises(CommandFailed, match=r"python-that-is-not-there.*not found"):
        one.fleet().facts(0)


def test_short_commands_keep_output_errors_and_code_apart(one: Slice) -> None:
    fleet = one.fleet()
    completed = fleet.run(0, ["bash", "-c", "cat; echo out; echo oops >&2; exit 3"])
    assert (completed.rc, completed.stdout, completed.stderr) == (3, b"out\n", b"oops\n")
    assert fleet.run(0, ["echo", "a  b", "$HOME", "'"]).stdout == b"a  b $HOME '\n"


def test_the_output_of_a_short_command_is_capped_and_its_time_is_too(one: Slice) -> None:
    fleet = one.fleet()
    assert len(fleet.run(0, ["head", "-c", "5000000", "/dev/zero"]).stdout) == 1 << 20
    with pytest.raises(Unreachable, match="no answer in time"):
        fleet.run(0, ["sleep", "3600"], timeout_s=0.5)
    assert fleet.run(0, ["true"]).rc == 0


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs OpenSSH")
def test_the_configuration_for_a_persons_own_ssh_works_and_is_as_strict(one: Slice) -> None:
    file = one.fleet().write_openssh_config(one.directory, "mine", "own")
    argv = ssh_argv(file, "own-0", [], ["echo", "a b", "$HOME"])
    assert subprocess.run(argv, capture_output=True, check=True, timeout=HANG_S).stdout == b"a b $HOME\n"
    impostor = one.fleet([replace(one.workers[0], host_key=OTHER_KEY)], "ssh_hosts")
    impostor.write_openssh_config(one.directory, "mine", "own")
    refused = subprocess.run(argv, capture_output=True, timeout=HANG_S, check=False)
    assert refused.returncode == 255
    assert b"REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.stderr or b"verification failed" in refused.stderr


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs OpenSSH")
def test_a_worker_without_a_published_key_is_pinned_by_ssh_as_by_a_fleet(one: Slice) -> None:
    unpublished = [replace(one.workers[0], host_key=None)]
    file = one.fleet(unpublished, "new_hosts").write_openssh_config(one.directory, "mine", "own")
    before = len(one.notices)
    first = subprocess.run(ssh_argv(file, "own-0", [], ["true"]), capture_output=True, timeout=HANG_S, check=True)
    assert b"Permanently added 'worker0'" in first.stderr
    assert one.fleet(unpublished, "new_hosts").run(0, ["true"]).rc == 0
    assert len(one.notices) == before


def test_the_log_of_a_started_phase_comes_over_the_call_that_started_it(one: Slice, road: MakeRoad) -> None:
    """A call costs a login shell: starting and following is one. A cut of it changes nothing."""
    way = road(one.workers[0])
    fleet = one.fleet([way.worker], "start_hosts")
    fleet.start(request("both", "echo one; sleep 0.3; echo two"))
    way.cut()
    log = Log()
    fleet.follow(log)
    assert until_ended(fleet).all_succeeded
    assert log.of[0] == b"one\ntwo\n"
    assert way.connections == 2


def test_a_connection_is_fast_and_strict(one: Slice) -> None:
    fleet = one.fleet()
    fleet.connect(HANG_S)
    connection = fleet._connections[0]._connection
    assert connection.transport.remote_cipher == "aes128-gcm@openssh.com"
    assert connection.transport.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert connection.forward_agent is False
    assert connection.ssh_config == {"hostname": "127.0.0.1"}


def test_a_person_who_has_an_ssh_config_and_an_agent_is_not_asked(
    one: Slice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host *\n  Port 1\n  ProxyCommand false\n  User nobody\n")
    (tmp_path / ".fabric.yaml").write_text("port: 1\nuser: nobody\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "no-agent"))
    assert one.fleet().facts(0).index == 0


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_closed_fleets_leave_no_open_socket(one: Slice) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    for _ in range(5):
        fleet = one.fleet()
        started(fleet, request("files", "true"))
        until_ended(fleet)
        fleet.cancel()
    until(open_files, f"as few open files as before, {before}", wanted=lambda number: number <= before)


@pytest.mark.ci
def test_a_road_that_swallows_everything_is_noticed_and_left_for_a_new_one(
    one: Slice, road: MakeRoad, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reset, no end: as when a laptop changes its network. The worker's heartbeat is what is missing."""
    monkeypatch.setattr("orchestrator.hosts.fleet.follow.SILENCE_S", 2.5)
    monkeypatch.setattr("orchestrator.hosts.ssh.connection.HANDSHAKE_S", 5.0)
    way = road(one.workers[0])
    fleet = one.fleet([way.worker], "dead_hosts")
    script = "echo line 1; until [ -e ~/go ]; do sleep 0.1; done; for i in $(seq 2 40); do echo line $i; done"
    log = started(fleet, request("dead", script))
    until(lambda: log.of)
    way.blocked.set()
    (one.home() / "go").touch()
    while fleet.wait(10).workers[0].state is not WorkerState.UNREACHABLE:
        pass
    way.blocked.clear()
    assert until_ended(fleet).all_succeeded
    assert log.of[0] == b"".join(b"line %d\n" % number for number in range(1, 41))


# -- signs of life --


@pytest.fixture
def alone(one: Slice) -> Iterator[Slice]:
    """No fleet of an earlier test beats here, and none of this one later."""
    for fleet in one.fleets:
        fleet.cancel()
    yield one
    for fleet in one.fleets:
        fleet.cancel()


def beat_of(worker: Slice) -> str:
    path = worker.home().parent / "watchdog/heartbeat"
    return path.read_text() if path.exists() else ""


def until_new_beat(worker: Slice) -> str:
    before = beat_of(worker)
    return until(lambda: beat_of(worker), "a new beat", wanted=lambda now: now not in (before, ""))


def writers(worker: Slice) -> set[psutil.Process]:
    """The agents on it, and their verbs, of which one writes beats."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if agent.digest() in process.cmdline() and process.environ().get("HOME") == str(worker.home()):
                found.add(process)
    return found


def test_beats_reach_the_first_worker_or_all_until_the_fleet_is_let_go(four: Slice) -> None:
    others = writers(four)  # agents of other tests' fleets
    fleet = four.fleet()
    fleet.connect(HANG_S)
    fleet.send_heartbeats(0.05)
    fleet.send_heartbeats(0.05)
    assert len({until_new_beat(four) for _ in range(5)}) == 5
    assert not any((four.home(index).parent / "watchdog/heartbeat").exists() for index in (1, 2, 3))
    fleet.send_heartbeats(0.05, everywhere=True)
    for index in (1, 2, 3):
        until((four.home(index).parent / "watchdog/heartbeat").exists, f"a heartbeat on worker{index}")
    assert writers(four) - others
    fleet.cancel()
    until(lambda: not writers(four) - others, "the end of the agents that write beats")


def test_two_fleets_never_beat_the_same(alone: Slice) -> None:
    said = set()
    for _ in range(2):
        fleet = alone.fleet()
        fleet.send_heartbeats(60)
        said.add(until_new_beat(alone))
        fleet.cancel()
    assert len(said) == 2


def test_beats_and_other_calls_do_not_disturb_each_other(alone: Slice) -> None:
    fleet = alone.fleet()
    fleet.send_heartbeats(0.02)
    log = started(fleet, request("beaten", "for i in $(seq 200); do echo line $i; sleep 0.005; done"))
    assert until_ended(fleet).all_succeeded
    assert log.of[0].count(b"\n") == 200
    assert fleet.run(0, ["echo", "fine"]).stdout == b"fine\n"
    until_new_beat(alone)


def test_beats_go_on_over_a_new_connection(alone: Slice, road: MakeRoad) -> None:
    way = road(alone.workers[0])
    fleet = alone.fleet([way.worker], "beat_hosts")
    fleet.send_heartbeats(0.05)
    until_new_beat(alone)
    for connections in (2, 3):
        way.cut()
        until_new_beat(alone)
        assert way.connections >= connections


def test_the_end_of_the_agent_alone_does_not_cost_the_connection(alone: Slice, road: MakeRoad) -> None:
    way = road(alone.workers[0])
    fleet = alone.fleet([way.worker], "agent_hosts")
    fleet.send_heartbeats(0.05)
    until_new_beat(alone)
    agents = writers(alone)
    assert agents
    kill_all(agents)
    until_new_beat(alone)
    assert way.connections == 1


def test_letting_go_ends_a_beat_that_waits_for_its_turn_at_once(alone: Slice) -> None:
    fleet = alone.fleet()
    fleet.send_heartbeats(3600)
    until_new_beat(alone)
    threads = [thread for thread in threading.enumerate() if thread.name == "heartbeat-worker0"]
    fleet.cancel()
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive()


def test_what_one_attempt_made_so_far_is_there_when_the_next_one_begins(four: Slice, tmp_path: Path) -> None:
    fleet = four.fleet()
    fleet.connect(HANG_S)
    script = 'echo "step $TPUJOB_WORKER" > $TPUJOB_ARTIFACTS/checkpoint; mkdir out; echo x > out/a.png; echo y > b; sleep 3600'
    started(fleet, request("first", script, 4))
    saved_work = SavedWork(tmp_path / "saved", ("out/**",))

    def save() -> int:
        copied = saved_work.start(fleet).within(HANG_S)
        assert saved_work.keep(copied) == (0, 1, 2, 3)
        return len(copied.files)

    until(lambda: save() == 12, "what the job writes")
    fleet.stop(1)
    saved = saved_work.shipments(4, lambda done, total: None)
    assert [result.files for result in fleet.push_each(saved)] == [3] * 4
    code = shipment(tmp_path, {"out/a.png": b"of the code", "run.sh": b""})
    fleet.push(code)
    carried = [each.id if each else None for each in saved]
    show = 'cat "$TPUJOB_ARTIFACTS/checkpoint" out/a.png; ls'
    log = started(fleet, replace(request("second", show, 4), manifest=code.id, saved_by_worker=carried))
    assert until_ended(fleet).all_succeeded
    assert log.of == {worker: f"step {worker}\nx\nb\nout\nrun.sh\n".encode() for worker in range(4)}

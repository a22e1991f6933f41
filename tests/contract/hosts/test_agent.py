"""The agent of a connection, over real SSH: one program on each worker, or one command on all at once."""

import contextlib
import os
import queue
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from orchestrator.api.slices import shell
from orchestrator.errors import HostKeyMismatch, RemoteError
from orchestrator.hosts.fleet.fleet import Fleet
from orchestrator.hosts.fleet.on_workers import Ended
from orchestrator.hosts.ssh import agent
from orchestrator.hosts.ssh.call import WorkerCall
from orchestrator.hosts.transfer.collect import CollectRequest
from orchestrator.text.redaction import Redactor
from tests.contract.hosts.fixture import MakeRoad, Slice, four, one, road, until_ended
from tests.contract.hosts.test_remote import OTHER_KEY, request
from tests.waiting import HANG_S, until

__all__ = ["four", "one", "road"]

SERVE = agent.serve_command


def agents(slice_: Slice) -> set[psutil.Process]:
    """The agents on worker 0, without their verbs and supervisors: sshd makes each the leader of a session."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = agent.digest() in process.cmdline() and process.environ()["HOME"] == str(slice_.home())
            if ours and os.getsid(process.pid) == process.pid:
                found.add(process)
    return found


def commands(slice_: Slice) -> int:
    """How many commands its workers have started for clients."""
    count: int = slice_.emulator.request("GET", "/_emulator/status")["ssh_sessions"]["commands"]
    return count


def test_all_steps_of_a_run_start_one_program_on_each_worker(four: Slice, tmp_path: object) -> None:
    before = commands(four)
    fleet = four.fleet()
    fleet.connect(HANG_S)
    fleet.send_heartbeats(0.05, everywhere=True)
    assert [fleet.facts(index).index for index in range(4)] == [0, 1, 2, 3]
    for phase in ("setup", "main"):
        fleet.start(replace(request("counted", "echo hello > $TPUJOB_ARTIFACTS/said", 4), phase=phase))
        fleet.follow(lambda worker, piece: None)
        assert until_ended(fleet).all_succeeded
    assert len(fleet.collect(CollectRequest("", tmp_path, ())).within(HANG_S).files) == 4  # type: ignore[arg-type]
    fleet.stop(0)
    assert commands(four) - before == 4


@pytest.mark.ci
def test_a_log_is_byte_exact_when_its_agent_is_killed_again_and_again(one: Slice) -> None:
    others = agents(one)
    fleet = one.fleet()
    fleet.start(request("killed", "for i in $(seq 400); do echo line $i; sleep 0.005; done; exit 5"))
    log, kills = b"", 0

    def sink(worker: int, piece: bytes) -> None:
        nonlocal log, kills
        log += piece
        if len(log) > 800 * kills:
            kills += 1
            for process in agents(one) - others:
                process.kill()

    fleet.follow(sink)
    status = until_ended(fleet)
    assert kills >= 3
    assert (status.first_failed.index, status.first_failed.rc) == (0, 5), "the supervisor lives on"
    assert log == b"".join(b"line %d\n" % number for number in range(1, 401))


def test_two_processes_on_one_worker_have_an_agent_each(one: Slice) -> None:
    before = agents(one)
    first, second = one.fleet(), one.fleet()
    assert first.facts(0) and second.facts(0)
    assert len(agents(one) - before) == 2
    first.cancel()
    until(lambda: len(agents(one) - before) == 1, "the end of one agent")
    assert second.facts(0)


def test_a_closed_call_leaves_the_connection_and_its_other_calls(one: Slice, road: MakeRoad) -> None:
    way = road(one.workers[0])
    fleet = one.fleet([way.worker], "closed_call_hosts")
    fleet.start(request("closed", "echo begun; until [ -e ../go ]; do sleep 0.02; done"))
    log: list[bytes] = []
    fleet.follow(lambda worker, piece: log.append(piece))
    until(lambda: log, "the first line")
    with WorkerCall(fleet._connections[0], "follow", "closed", "main", "0", silence_s=HANG_S) as call:
        call.answer()
    assert fleet.run(0, ["touch", "tpujob/runs/closed/go"]).rc == 0
    assert until_ended(fleet).all_succeeded
    assert way.connections == 1


def test_what_a_program_of_the_login_shell_prints_later_is_an_error_and_not_a_wait(
    one: Slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = "{ until [ -e go-on ]; do sleep 0.02; done; echo noise of a background job; } & "
    monkeypatch.setattr("orchestrator.hosts.ssh.agent.serve_command", lambda: noise + SERVE())
    fleet = one.fleet()
    fleet.start(request("noise", "sleep 3600"))
    (one.home() / "go-on").touch()
    fleet.follow(lambda worker, piece: None)
    with pytest.raises(RemoteError, match="worker0: a damaged frame: b'noise"):
        until_ended(fleet)
    monkeypatch.undo()
    other = one.fleet()
    other.attach("noise", "main")
    other.stop(0)


def test_calls_of_several_threads_share_one_agent(one: Slice) -> None:
    before = commands(one)
    fleet: Fleet = one.fleet()
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: fleet.facts(0).free_port, range(8)))
    assert commands(one) - before == 1


@dataclass
class Heard:
    """What the workers wrote, by worker and by stream."""

    pieces: dict[tuple[int, bool], bytes] = field(default_factory=dict)
    news: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)

    def __call__(self, worker: int, is_error: bool, piece: bytes) -> None:
        self.pieces[worker, is_error] = self.pieces.get((worker, is_error), b"") + piece
        if piece:
            self.news.put(worker)


def test_output_comes_while_the_command_runs_from_all_workers_each_stream_by_itself(four: Slice) -> None:
    heard, fleet = Heard(), four.fleet()
    running = fleet.side_by_side(heard)
    line = 'echo out; echo err >&2; until [ -e go ]; do sleep 0.05; done; rm go; exit "$(cat code)"'
    for worker in range(4):
        assert fleet.run(worker, ["bash", "-c", f"echo {worker * worker} > code"]).rc == 0
    thread = threading.Thread(target=running.run, args=(line,), daemon=True)
    thread.start()
    until(lambda: len([piece for piece in heard.pieces.values() if piece]) == 8, "a line of each stream")
    assert not running.ended
    for worker in (2, 0, 1, 3):
        assert fleet.run(worker, ["touch", "go"]).rc == 0
        until(lambda: any(each.worker == worker for each in running.ended), "the end of this one")  # noqa: B023
    thread.join(HANG_S)
    assert running.ended == [Ended(2, 4), Ended(0, 0), Ended(1, 1), Ended(3, 9)]
    assert heard.pieces == {(w, is_error): b"err\n" if is_error else b"out\n" for w in range(4) for is_error in (0, 1)}


def test_a_command_gets_no_input_and_nothing_of_much_output_is_lost(one: Slice) -> None:
    heard = Heard()
    assert one.fleet().side_by_side(heard).run("cat; seq 1 200000; seq 1 100000 >&2") == [Ended(0, 0)]
    assert heard.pieces[0, False] == b"".join(b"%d\n" % number for number in range(1, 200_001))
    assert heard.pieces[0, True] == b"".join(b"%d\n" % number for number in range(1, 100_001))


def test_a_worker_that_cannot_be_reached_counts_as_255_and_holds_up_no_other(four: Slice) -> None:
    nowhere = replace(four.workers[1], port=1)
    ended = four.fleet([four.workers[0], nowhere, *four.workers[2:]]).side_by_side(Heard()).run("true")
    codes = {each.worker: each.code for each in ended}
    assert codes == {0: 0, 1: 255, 2: 0, 3: 0}
    assert next(each.why for each in ended if each.worker == 1).startswith("worker1")


def test_another_host_key_ends_it_everywhere(four: Slice) -> None:
    workers = [*four.workers[:3], replace(four.workers[3], host_key=OTHER_KEY)]
    with pytest.raises(HostKeyMismatch, match="worker3"):
        four.fleet(workers, "other_hosts").side_by_side(Heard()).run("true")


def test_a_cut_is_255_and_the_command_is_not_repeated(one: Slice, road: MakeRoad) -> None:
    way, heard = road(one.workers[0]), Heard()
    running = one.fleet([way.worker], "cut_hosts").side_by_side(heard)
    done: queue.SimpleQueue[list[Ended]] = queue.SimpleQueue()
    line = "echo x >> times; echo $$ > pid; echo begun; exec sleep 1000"
    threading.Thread(target=lambda: done.put(running.run(line)), daemon=True).start()
    heard.news.get(timeout=HANG_S)
    way.cut()
    assert done.get(timeout=HANG_S) == [Ended(0, 255, "worker0: the connection was cut")]
    assert (one.home() / "times").read_text() == "x\n"
    os.kill(int((one.home() / "pid").read_text()), signal.SIGKILL)  # nothing ends what a cut left on the worker


def test_a_signal_ends_the_command_on_the_workers_too_and_starts_it_on_no_other(four: Slice) -> None:
    heard, fleet = Heard(), four.fleet()
    running = fleet.side_by_side(heard)
    done: queue.SimpleQueue[list[Ended]] = queue.SimpleQueue()
    line = "trap 'kill $!; echo ended > trapped; exit 7' INT; rm -f trapped; echo begun; sleep 1000 & wait"
    threading.Thread(target=lambda: done.put(running.run(line)), daemon=True).start()
    assert {heard.news.get(timeout=HANG_S) for _ in range(4)} == {0, 1, 2, 3}
    assert not running.idle.is_set()
    running.signal("INT")
    assert {each.code for each in done.get(timeout=HANG_S)} == {7}
    assert running.idle.is_set()
    assert all((four.home(worker) / "trapped").read_text() == "ended\n" for worker in range(4))
    assert {each.why for each in running.run("touch later") if each.code != 7} == {
        f"worker{index}: not started" for index in range(4)
    }
    assert not any((four.home(worker) / "later").exists() for worker in range(4))


def test_the_command_ends_everywhere_once_nothing_reads_its_output(
    four: Slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `ssh … | head` does. A worker that prints nothing more would notice nothing."""
    fleet, shown = four.fleet(), list[list[str]]()
    monkeypatch.setattr(shell, "open_shell", lambda *_: SimpleNamespace(fleet=fleet))
    session: Any = SimpleNamespace(reporter=SimpleNamespace(secrets=Redactor(), notice=lambda *_: pytest.fail("said")))

    def show(_worker: int, _is_error: bool, lines: list[str]) -> None:
        shown.append(lines)
        raise BrokenPipeError

    line = "echo $$ > pid; echo begun; exec sleep 1000"
    assert shell.run_on_all(session, None, [line], show) == 0
    assert shown == [["begun"]]
    again = four.fleet()
    for worker in range(4):
        there = ["bash", "-c", "test ! -e pid || ! kill -0 $(cat pid); code=$?; rm -f pid; exit $code"]
        assert again.run(worker, there).rc == 0

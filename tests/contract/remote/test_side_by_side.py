"""One command on every worker at once: output as it comes, every exit code, and an end that reaches the workers."""

import os
import queue
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.client.slices import on_all_workers
from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.core.text.redaction import Redactor
from orchestrator.errors import HostKeyMismatch
from orchestrator.remote.fleet.side_by_side import Ended
from tests.contract.remote.fixture import Road, Slice, four, one, road
from tests.contract.remote.test_remote import OTHER_KEY
from tests.waiting import HANG_S, until

__all__ = ["four", "one", "road"]


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


def test_a_cut_is_255_and_the_command_is_not_repeated(one: Slice, road: Callable[[WorkerAddress], Road]) -> None:
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
    monkeypatch.setattr(on_all_workers, "open_shell", lambda _session, _name: SimpleNamespace(fleet=fleet))
    session: Any = SimpleNamespace(reporter=SimpleNamespace(secrets=Redactor(), notice=lambda *_: pytest.fail("said")))

    def show(_worker: int, _is_error: bool, lines: list[str]) -> None:
        shown.append(lines)
        raise BrokenPipeError

    line = "echo $$ > pid; echo begun; exec sleep 1000"
    assert on_all_workers.run_on_all(session, None, [line], show) == 0
    assert shown == [["begun"]]
    again = four.fleet()
    for worker in range(4):
        there = ["bash", "-c", "test ! -e pid || ! kill -0 $(cat pid); code=$?; rm -f pid; exit $code"]
        assert again.run(worker, there).rc == 0

"""The agent of one connection as a process: several verbs over one stdin and one stdout."""

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.unit.vm.conftest import HEADER, Worker, frame, parsed
from tests.waiting import HANG_S, until

NAME = "agent-of-this-test"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


class Agent:
    """The agent, and what it has sent so far, by stream."""

    def __init__(self, worker: Worker) -> None:
        self.process = worker.popen("serve", NAME)
        self.stdin, self.stdout = self.process.stdin.fileno(), self.process.stdout.fileno()
        self.said: dict[int, bytes] = {}
        self.granted: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.buffer = b""
        greeting = b"\ntpujob:%s\n" % NAME.encode()
        until(lambda: self.read() or len(self.buffer) >= len(greeting), "its name")
        assert self.buffer[: len(greeting)] == greeting
        self.buffer = self.buffer[len(greeting) :]

    def send(self, *frames: bytes) -> None:
        for data in frames:
            left = memoryview(data)
            while left:
                left = left[os.write(self.stdin, left) :]

    def request(self, stream: int, *words: str) -> None:
        self.send(frame(b"R", stream, "\0".join(words).encode()))

    def read(self) -> None:
        if select.select([self.stdout], [], [], 0.02)[0]:
            data = os.read(self.stdout, 1 << 20)
            assert data, "the agent ended"
            self.buffer += data

    def turn(self) -> None:
        """Take in what came."""
        self.read()
        while len(self.buffer) >= HEADER.size:
            kind, stream, size = HEADER.unpack_from(self.buffer)
            end = HEADER.size + (size if kind == b"D" else 0)
            if len(self.buffer) < end:
                return
            if kind == b"D":
                self.said[stream] = self.said.get(stream, b"") + self.buffer[HEADER.size : end]
            elif kind == b"C":
                self.granted[stream] = self.granted.get(stream, 0) + size
            else:
                self.ended[stream] = size
            self.buffer = self.buffer[end:]

    def until(self, question: Callable[[], Any], what: str) -> Any:
        return until(lambda: self.turn() or question(), what)

    def answer(self, stream: int) -> dict[str, Any]:
        """The last answer of a verb that ends."""
        self.until(lambda: stream in self.ended, f"the end of stream {stream}")
        return parsed(self.said[stream].splitlines()[-1])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def agent(worker: Worker) -> Iterator[Agent]:
    made = Agent(worker)
    yield made
    made.close()


def test_verbs_run_side_by_side_and_each_says_how_it_ended(agent: Agent) -> None:
    agent.request(1, "status", "a1", "main")
    agent.request(2, "dance")
    agent.request(3, "hello")
    assert agent.answer(1)["state"] == "none"
    assert agent.answer(2) == {"error": "KeyError: 'dance'"}
    assert agent.answer(3)["port"]
    assert agent.ended == {1: 0, 2: 1, 3: 0}


def test_frames_may_come_in_any_pieces(worker: Worker, agent: Agent) -> None:
    request = worker.request("echo hello")
    for byte in frame(b"R", 1, b"start") + frame(b"D", 1, request) + frame(b"F", 1):
        agent.send(bytes([byte]))
    agent.until(lambda: 1 in agent.ended, "the end of the job")
    assert agent.said[1].startswith(b'tpujob:{"started": true}\n') and b"L 6\nhello\n" in agent.said[1]


def test_what_is_read_by_no_one_stops_and_holds_up_no_other(worker: Worker, agent: Agent) -> None:
    worker.start("head -c 9000000 /dev/zero")
    worker.ended()
    agent.request(1, "follow", "a1", "main", "0")
    agent.until(lambda: len(agent.said.get(1, b"")) >= 4 << 20, "as much as the window holds")
    agent.request(2, "hello")
    assert agent.answer(2)["port"]
    assert len(agent.said[1]) == 4 << 20
    agent.send(frame(b"C", 1, size=1000))
    agent.until(lambda: len(agent.said[1]) == (4 << 20) + 1000, "as much more as it was granted")
    agent.send(frame(b"C", 1, size=9_000_000))
    agent.until(lambda: 1 in agent.ended, "the rest")
    assert agent.said[1].count(b"\0") == 9_000_000


def test_a_verb_that_reads_no_input_holds_up_no_other_and_is_granted_no_more(worker: Worker, agent: Agent) -> None:
    worker.start("sleep 60")
    agent.request(1, "follow", "a1", "main", "0")  # goes on, and reads nothing
    agent.request(2, "heartbeat")  # reads lines, and none ends here
    agent.send(frame(b"D", 1, bytes(1 << 20)), frame(b"D", 2, bytes(1 << 20)))
    agent.request(3, "hello")
    assert agent.answer(3)["port"]
    agent.until(lambda: agent.granted.get(2, 0) > 1 << 19, "credit for what is read")
    assert agent.granted.get(1, 0) < 1 << 18, "no more than a pipe holds"
    assert 1 not in agent.ended
    worker.ask("stop", "a1", "main", "0")


def test_a_closed_stream_ends_its_verb_and_no_other(worker: Worker, agent: Agent) -> None:
    worker.start("sleep 60")
    for stream in (1, 2):
        agent.request(stream, "follow", "a1", "main", "0")
    agent.until(lambda: len(agent.said) == 2, "both logs")
    verbs = psutil.Process(agent.process.pid).children()
    agent.send(frame(b"X", 1))
    agent.until(lambda: agent.ended == {1: 0}, "the end of the one")
    until(lambda: [verb for verb in verbs if verb.is_running() and verb.status() != psutil.STATUS_ZOMBIE][1:] == [])
    agent.said.clear()
    agent.until(lambda: list(agent.said) == [2], "a sign of life of the other")
    worker.ask("stop", "a1", "main", "0")


def test_the_end_of_the_connection_ends_agent_and_verbs_but_not_the_job(worker: Worker, agent: Agent) -> None:
    agent.request(1, "start")
    agent.send(frame(b"D", 1, worker.request("sleep 60")), frame(b"F", 1))
    agent.request(2, "heartbeat")
    agent.until(lambda: b"started" in agent.said.get(1, b""), "the start")
    verbs = psutil.Process(agent.process.pid).children()
    assert len(verbs) == 2
    agent.process.stdin.close()
    assert agent.process.wait(HANG_S) == 0
    agent.process.stdout.close()
    psutil.wait_procs(verbs, HANG_S)
    assert not any(verb.is_running() for verb in verbs)
    assert worker.status()["state"] == "running"
    worker.ask("stop", "a1", "main", "0")


def test_a_killed_verb_says_which_signal(worker: Worker, agent: Agent) -> None:
    agent.request(1, "heartbeat")
    (verb,) = until(lambda: psutil.Process(agent.process.pid).children(), "the verb")
    verb.kill()
    agent.until(lambda: agent.ended == {1: 256 + signal.SIGKILL}, "its end")


def test_the_pipe_of_a_verb_that_starts_while_another_is_closed_holds_up_nothing(agent: Agent) -> None:
    """The new pipe may have the number of the closed one, which had something to read when this look began."""
    agent.request(1, "heartbeat")
    (verb,) = until(lambda: psutil.Process(agent.process.pid).children(), "the verb")
    agent.process.send_signal(signal.SIGSTOP)
    verb.kill()  # its output can be read: the end of it
    until(lambda: verb.status() == psutil.STATUS_ZOMBIE, "its end")
    agent.send(frame(b"X", 1))
    agent.request(2, "heartbeat")  # says nothing before it has read a line
    agent.request(3, "hello")
    agent.process.send_signal(signal.SIGCONT)
    assert agent.answer(3)["port"]


@pytest.mark.parametrize("nonsense", [b"GET / HTTP/1.1\r\n\r\n", frame(b"R", 1, size=1 << 30)])
def test_what_is_no_frame_ends_the_agent(worker: Worker, nonsense: bytes) -> None:
    process = worker.popen("serve", NAME)
    out, _ = process.communicate(nonsense, timeout=HANG_S)
    assert process.returncode == 1 and b"Damaged" in out


SEEN = """
umask; pwd; ls -l /proc/self/fd | sed 's/.* \\([0-9]* ->\\)/\\1/; s/[0-9]*\\]/N]/; /proc.*fd/d'
grep -E '^(Sig(Blk|Ign|Cgt)|NoNewPrivs|Threads)' /proc/$$/status; ulimit -a; nice
[ $(ps -o sid= -p $$) = $$ ] && [ $(ps -o pgid= -p $$) = $$ ] && echo a session of its own
ps -o tty= -p $$; env | grep -v '^_=' | sort
"""


@linux
def test_a_job_finds_what_it_would_find_without_the_agent(worker: Worker) -> None:
    """Started from a Python of its own, and from the agent, while other verbs run there: nothing of them is in the job."""
    worker.start(SEEN)
    worker.ended()
    alone = worker.log()
    assert "a session of its own" in alone and "0022" in alone
    worker.path().rename(worker.home / "alone")
    agent = Agent(worker)
    agent.request(1, "heartbeat")
    agent.request(2, "start")
    agent.send(frame(b"D", 2, worker.request(SEEN)), frame(b"F", 2))
    worker.ended()
    assert worker.log() == alone
    agent.close()


def open_files(process: psutil.Process) -> set[str]:
    return {str(entry.readlink()) for entry in Path(f"/proc/{process.pid}/fd").iterdir()}


@linux
def test_a_supervisor_keeps_nothing_of_the_agent(worker: Worker, agent: Agent) -> None:
    agent.request(1, "heartbeat")
    agent.request(2, "start")
    agent.send(frame(b"D", 2, worker.request("sleep 60")), frame(b"F", 2))
    agent.until(lambda: b"started" in agent.said.get(2, b""), "the start")
    (supervisor,) = worker.supervisors()
    pipes = {name for name in open_files(supervisor) if name.startswith(("pipe:", "socket:"))}
    for other in (psutil.Process(agent.process.pid), *psutil.Process(agent.process.pid).children()):
        assert not pipes & open_files(other)
    assert os.getsid(supervisor.pid) != os.getsid(agent.process.pid)
    agent.close()
    assert worker.status()["state"] == "running"
    worker.ask("stop", "a1", "main", "0")

"""The agent of a worker: its archive and command lines, and both ends of the stream of frames."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import select
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import RemoteError
from orchestrator.hosts.ssh import agent, agent_link
from orchestrator.hosts.ssh.agent_link import AgentLink
from tests.waiting import HANG_S, ran, until

SMALL = 3000  # of a window, so that credit runs out all the time
SERVE = """
import os, select
from orchestrator.vm.agent import serve
from orchestrator.vm.files import frames

def echo():
    while data := os.read(0, 700):
        frames.write(data)

def send(count):
    frames.write(bytes(range(256)) * (int(count) // 256))

def idle():
    poll = select.poll()
    poll.register(0, 0)  # the end of the agent is told
    poll.poll()

def call(verb, arguments):
    globals()[verb](*arguments)
    return 7

left = {archive_bytes}
while left:
    left -= len(os.read(0, left))
serve.WINDOW_BYTES, serve.GRANT_BYTES = {window}, {window} // 4
serve.Stream.__init__.__globals__.update(WINDOW_BYTES={window})
frames.write({before!r})
frames.write({greeting!r})
serve.Agent(call, lambda verb: None).run()
"""


class PipeChannel:
    """As much of paramiko's Channel as a link uses, over the pipes of a local process."""

    out_max_packet_size = 32768

    def __init__(self, script: str) -> None:
        self._script, self._timeout_s, self.closed = script, 0.0, False
        self.status_event = threading.Event()
        self.exit_status = -1

    def get_transport(self) -> PipeChannel:
        return self

    def settimeout(self, seconds: float) -> None:
        self._timeout_s = seconds

    def exec_command(self, command: str) -> None:
        assert command == agent.serve_command()
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", self._script], stdin=pipe, stdout=pipe, stderr=pipe)
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()

    def send(self, data: bytes) -> int:
        return os.write(self._in, data[: self.out_max_packet_size - 64])

    def recv(self, size: int) -> bytes:
        if not select.select([self._out], [], [], self._timeout_s)[0]:
            raise TimeoutError
        data = os.read(self._out, size)
        if not data:
            rc = self.process.wait(HANG_S)
            self.exit_status = rc if rc >= 0 else -1
            self.status_event.set()
        return data

    def recv_stderr(self, size: int) -> bytes:
        return os.read(self.process.stderr.fileno(), size)  # type: ignore[union-attr]

    def exit_status_ready(self) -> bool:
        return self.status_event.is_set()

    def close(self) -> None:
        self.closed = True


@contextlib.contextmanager
def linked(window: int = SMALL, before: bytes = b"", greeting: bytes | None = None) -> Iterator[AgentLink]:
    said = b"\ntpujob:%s\n" % agent.versioned_name().encode() if greeting is None else greeting
    script = SERVE.format(archive_bytes=len(agent.archive()), window=window, before=before, greeting=said)
    channel: Any = PipeChannel(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_link, "WINDOW_BYTES", window)
        patch.setattr(agent_link, "GRANT_BYTES", window // 4)
        made = AgentLink(channel, "worker0", HANG_S)
        try:
            yield made
        finally:
            verbs: list[psutil.Process] = []
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself
                verbs = psutil.Process(channel.process.pid).children()
            with channel.process:
                channel.process.kill()
            assert psutil.wait_procs(verbs, HANG_S)[1] == [], "verbs outlive their agent"


def soon() -> float:
    return time.monotonic() + HANG_S


def all_of(stream: agent_link.AgentStream) -> bytes:
    data = bytearray()
    while piece := stream.receive(soon()):
        data += piece
    return bytes(data)


Sizes = st.lists(st.integers(0, 9000), max_size=6)


@settings(max_examples=12, deadline=None)
@given(st.lists(Sizes, min_size=1, max_size=5))
def test_streams_side_by_side_carry_their_bytes_exactly_whatever_the_pieces(every: list[list[int]]) -> None:
    with linked() as link:
        streams = [link.open("echo", deadline=soon()) for _ in every]
        sent = [[bytes([number]) * size for size in sizes] for number, sizes in enumerate(every)]

        def write(number: int) -> None:
            for piece in sent[number]:
                assert streams[number].send(piece, soon())
            streams[number].end_input(soon())

        with ThreadPoolExecutor(2 * len(every)) as pool:
            written = pool.map(write, range(len(every)))
            assert list(pool.map(all_of, streams)) == [b"".join(pieces) for pieces in sent]
            assert len(list(written)) == len(every)
        assert [stream.exit_code for stream in streams] == [7] * len(every)


def test_a_stream_that_is_not_read_holds_up_no_other() -> None:
    with linked() as link:
        unread = link.open("send", str(20 * SMALL), deadline=soon())
        other = link.open("send", str(10 * SMALL), deadline=soon())
        assert len(all_of(other)) == 10 * SMALL // 256 * 256
        assert len(unread.arrived) <= SMALL
        assert len(all_of(unread)) == 20 * SMALL // 256 * 256


def test_a_sender_that_waits_for_credit_holds_up_no_other_stream() -> None:
    with linked() as link:
        deaf, other = link.open("idle", deadline=soon()), link.open("echo", deadline=soon())
        with pytest.raises(TimeoutError):
            deaf.send(bytes(100 * SMALL), time.monotonic() + 0.2)
        filling = threading.Thread(target=deaf.send, args=(bytes(100 * SMALL), soon()))
        filling.start()
        until(lambda: link._reading, "the wait for credit")
        for _ in range(5):
            assert other.send(b"hello", soon()) and other.receive(soon()) == b"hello"
        assert filling.is_alive()
        deaf.close()
        filling.join(HANG_S)
        assert not filling.is_alive()


def test_a_verb_that_has_ended_takes_no_more_and_says_its_code() -> None:
    with linked() as link:
        stream = link.open("send", "0", deadline=soon())
        assert all_of(stream) == b"" and stream.exit_code == 7
        assert stream.send(b"more", soon()) is False
        stream.end_input(soon())


def test_closing_one_stream_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with linked() as link:
        closed, other = link.open("send", str(1 << 20), deadline=soon()), link.open("echo", deadline=soon())
        assert closed.receive(soon())
        closed.close()
        closed.close()
        assert closed.receive(soon()) == b"" and link.alive
        assert other.send(b"still here", soon())
        assert other.receive(soon()) == b"still here"


def test_a_stream_that_another_thread_closes_ends_a_wait_for_it() -> None:
    with linked() as link:
        stream = link.open("idle", deadline=soon())
        threading.Timer(0.1, stream.close).start()
        assert stream.receive(soon()) == b""


def test_a_killed_agent_ends_every_stream_with_what_had_arrived() -> None:
    with linked(window=1 << 20) as link:
        streams = [link.open("send", "2560", deadline=soon()), link.open("idle", deadline=soon())]
        link.wait(lambda: streams[0].exit_code == 7, soon())
        link.channel.process.kill()
        assert len(all_of(streams[0])) == 2560
        assert all_of(streams[1]) == b""
        assert link.end == agent_link.AgentEnd(None, "", spoke=True) and not link.alive


def test_what_an_agent_says_at_its_end_is_kept() -> None:
    with linked() as link:
        stream = link.open("idle", deadline=soon())
        link.channel.send(b"nonsense " * 10)
        assert all_of(stream) == b""
        assert link.end is not None and link.end.rc == 1 and "Damaged: a frame of kind b'n'" in link.end.why


def test_a_worker_that_never_stops_complaining_holds_up_the_end_for_seconds_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steady, asked = itertools.count(time.monotonic()), list[int]()  # a second passes with each look
    with linked() as link:
        stream = link.open("idle", deadline=soon())
        link.channel.send(b"nonsense " * 10)
        monkeypatch.setattr(link.channel, "recv_stderr", lambda size: asked.append(size) or b".")
        monkeypatch.setattr(agent_link.time, "monotonic", lambda: next(steady))
        link.wait(lambda: link.end is not None, math.inf)
        assert stream.ended and len(asked) < 10


def test_what_a_login_shell_prints_before_is_skipped() -> None:
    with linked(before=b"Welcome!\ntpujob:agent-of-old\n\0no line end") as link:
        stream = link.open("echo", deadline=soon())
        assert stream.send(b"hello", soon()) and stream.receive(soon()) == b"hello"


def test_a_login_shell_that_never_stops_printing_is_an_error() -> None:
    with linked(before=b" " * 70_000, greeting=b"") as link:
        stream = link.open("echo", deadline=soon())
        with pytest.raises(RemoteError, match="worker0: the login shell prints without end before our command answers"):
            stream.receive(soon())


def test_an_agent_of_another_version_is_never_taken_for_ours() -> None:
    with linked(greeting=b"\ntpujob:agent-%s\n" % (b"0" * 64)) as link:
        stream = link.open("send", "2560", deadline=soon())
        with pytest.raises(TimeoutError):
            stream.receive(time.monotonic() + 1.0)
        assert not stream.arrived


@pytest.mark.parametrize(
    "noise",
    [b"a background job of .bashrc prints this\n", b"D\0\0\0\x09\0\0\0\x01x", b"D\0\0\0\x01\xff\0\0\0", b"E" * 9],
)
def test_a_damaged_frame_is_an_error_for_every_stream_and_not_a_wait(noise: bytes) -> None:
    greeting = b"\ntpujob:%s\n" % agent.versioned_name().encode()
    with linked(greeting=greeting + noise) as link:
        for stream in [link.open("idle", deadline=soon()), link.open("idle", deadline=soon())]:
            with pytest.raises(RemoteError, match="worker0: a damaged frame"):
                stream.receive(soon())
        assert not link.alive and link.channel.closed


def test_an_agent_that_sends_more_than_its_credit_fills_no_memory() -> None:
    greeting = b"\ntpujob:%s\n" % agent.versioned_name().encode()
    filling = agent_link.HEADER.pack(b"D", 1, SMALL) + bytes(SMALL)
    with linked(greeting=greeting + filling + agent_link.HEADER.pack(b"D", 1, 1) + b"x") as link:
        read, other = link.open("idle", deadline=soon()), link.open("idle", deadline=soon())
        with pytest.raises(RemoteError, match="worker0: a damaged frame"):
            other.receive(soon())
        assert len(read.arrived) == SMALL


def test_the_archive_holds_the_agents_files_and_is_the_same_every_time() -> None:
    files = zipfile.ZipFile(io.BytesIO(agent.archive())).namelist()
    assert {"__main__.py", "vm/__main__.py", "vm/agent/serve.py", "vm/agent/supervisor.py", "vm/files/pack.py"} <= set(
        files
    )
    code = "from orchestrator.hosts.ssh import agent; print(agent.digest())"
    said = ran([sys.executable, "-c", code], check=True)
    assert said.stdout.strip() == agent.digest()


def test_a_worker_and_a_pod_get_what_they_run_and_no_more() -> None:
    of_worker, of_pod = (
        set(zipfile.ZipFile(io.BytesIO(packed)).namelist()) for packed in (agent.archive(), agent.pod_archive())
    )
    assert not {name for name in of_worker if name.startswith("vm/pod")}
    assert {
        "vm/pod/pod.py",
        "vm/pod/output.py",
        "vm/agent/local.py",
        "vm/agent/supervisor.py",
        "vm/files/pack.py",
    } <= of_pod
    assert not {"vm/agent/serve.py", "vm/files/receive.py", "vm/files/store.py"} & of_pod
    assert len(agent.pod_archive()) < 96 << 10  # it shares the 1 MiB of a ConfigMap with the code


def run(home: Path, command: str, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    return subprocess.run(
        ["bash", "-c", command], check=False, input=stdin, capture_output=True, env={"HOME": str(home), "PATH": path}
    )


def test_the_archive_is_installed_once_and_says_its_name(tmp_path: Path) -> None:
    first = run(tmp_path, agent.serve_command(), agent.archive())
    assert (first.returncode, first.stdout) == (0, b"\ntpujob:%s\n" % agent.versioned_name().encode())
    again = run(tmp_path, agent.serve_command(), agent.archive())
    assert again.stdout == first.stdout
    assert [path.name for path in (tmp_path / "tpujob" / "bin").iterdir()] == [f"{agent.versioned_name()}.zip"]


def test_the_script_of_a_job_calls_single_verbs(tmp_path: Path) -> None:
    run(tmp_path, agent.serve_command(), agent.archive())
    assert b'"state": "none"' in run(tmp_path, agent.command("status", "a1", "main"), b"").stdout
    assert b"bad name 'a b'" in run(tmp_path, agent.command("status", "a b", "main"), b"").stdout


def test_an_archive_that_arrives_cut_or_changed_is_never_installed(tmp_path: Path) -> None:
    assert b"was cut" in run(tmp_path, agent.serve_command(), agent.archive()[:-1]).stderr
    assert b"another content" in run(tmp_path, agent.serve_command(), bytes(len(agent.archive()))).stderr
    assert list(tmp_path.iterdir()) == []


def test_an_archive_that_a_crash_of_the_worker_left_empty_is_installed_again(tmp_path: Path) -> None:
    run(tmp_path, agent.serve_command(), agent.archive())
    (installed,) = (tmp_path / "tpujob" / "bin").iterdir()
    installed.write_bytes(b"")
    assert run(tmp_path, agent.serve_command(), agent.archive()).returncode == 0
    assert installed.read_bytes() == agent.archive()


def test_importing_the_fleet_imports_no_ssh_library() -> None:
    code = "import sys, orchestrator.hosts.fleet.fleet\n"
    code += "print({'paramiko', 'fabric', 'invoke', 'cryptography'} & set(sys.modules))"
    said = ran([sys.executable, "-c", code], check=True)
    assert said.stdout.strip() == "set()"

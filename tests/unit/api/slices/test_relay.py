"""The ProxyCommand through IAP: what it carries, when it ends, and how light it is."""

import os
import random
import select
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from orchestrator.api.slices import relay
from orchestrator.api.slices.relay import carry
from orchestrator.places.desk import Emulator
from orchestrator.places.vms.reach import RELAY, relay_argv
from tests.unit.test_imports import is_within
from tests.unit.test_shipped_python import heavy, imported
from tests.waiting import HANG_S

MEGABYTE = random.Random(3).randbytes(1 << 20)
TOKEN = "secret-of-the-emulator"


@dataclass
class Carried:
    """A running `carry`: the ends that OpenSSH and the tunnel have of it."""

    to_stdin: int
    from_stdout: int
    tunnel: socket.socket
    thread: threading.Thread
    error: BaseException | None = None

    def ended(self) -> bool:
        self.thread.join(HANG_S)
        return not self.thread.is_alive()

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (piece := os.read(self.from_stdout, size - len(data))):
            data += piece
        return data


@pytest.fixture
def carried() -> Iterator[Carried]:
    stdin, to_stdin = os.pipe()
    from_stdout, stdout = os.pipe()
    ours, theirs = socket.socketpair()

    def run() -> None:
        try:
            with ours:
                carry(ours, stdin, stdout)
        except BaseException as error:
            made.error = error
        os.close(stdout)

    made = Carried(to_stdin, from_stdout, theirs, threading.Thread(target=run, daemon=True))
    made.thread.start()
    yield made
    theirs.close()
    assert made.ended()
    os.close(stdin)
    for number in {made.to_stdin, made.from_stdout}:
        if number >= 0:
            os.close(number)


def test_bytes_go_both_ways_at_once_however_slowly_either_end_reads(carried: Carried) -> None:
    def write() -> None:
        with os.fdopen(os.dup(carried.to_stdin), "wb") as file:
            file.write(MEGABYTE)

    def send() -> None:
        carried.tunnel.sendall(MEGABYTE[::-1])

    for work in (write, send):
        threading.Thread(target=work, daemon=True).start()
    received = b""
    while len(received) < len(MEGABYTE):
        received += carried.tunnel.recv(1 << 16)
    assert received == MEGABYTE
    assert carried.read(len(MEGABYTE)) == MEGABYTE[::-1]


def test_what_the_tunnel_sent_last_arrives_before_the_end(carried: Carried) -> None:
    carried.tunnel.sendall(MEGABYTE[:100_000])
    carried.tunnel.close()
    assert carried.read(200_000) == MEGABYTE[:100_000]
    assert carried.ended() and carried.error is None


def test_a_tunnel_that_ends_with_bytes_unsent_ends_it_without_an_error(carried: Carried) -> None:
    os.write(carried.to_stdin, b"never read")
    carried.tunnel.sendall(MEGABYTE[:1000])
    select.select([carried.tunnel], [], [], HANG_S)
    carried.tunnel.close()
    assert carried.read(2000) == MEGABYTE[:1000]
    assert carried.ended() and carried.error is None


def test_the_end_of_stdin_ends_the_tunnel_after_what_was_written(
    carried: Carried, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "DRAIN_S", 10 * HANG_S)  # it does not wait for that
    carried.tunnel.settimeout(HANG_S)
    os.write(carried.to_stdin, b"last words")
    os.close(carried.to_stdin)
    carried.to_stdin = -1
    assert carried.tunnel.recv(100) == b"last words"
    assert carried.tunnel.recv(100) == b""
    carried.tunnel.close()
    assert carried.ended() and carried.error is None


def test_a_tunnel_that_hangs_does_not_outlive_stdin(carried: Carried) -> None:
    os.close(carried.to_stdin)
    carried.to_stdin = -1
    assert carried.ended()  # nothing ever came from the tunnel


def test_a_reader_that_is_gone_is_an_error(carried: Carried) -> None:
    os.close(carried.from_stdout)
    carried.from_stdout = -1
    carried.tunnel.sendall(b"x")
    assert carried.ended() and isinstance(carried.error, BrokenPipeError)


def test_it_ends_with_openssh_also_while_it_opens_a_tunnel_and_shows_the_token_only_to_the_relay(
    tmp_path: Path,
) -> None:
    """A relay that takes the request and never answers, and an OpenSSH that is killed."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = started(silent.getsockname()[1], tmp_path)
        assert process.stdin and process.stdout and process.stderr
        with process, silent.accept()[0] as request:
            assert f"Bearer {TOKEN}".encode() in request.recv(4096)
            seen = psutil.Process(process.pid)
            assert TOKEN not in " ".join((*seen.cmdline(), *seen.environ().values()))
            process.stdout.close()
            assert process.wait(HANG_S) == 1
            assert process.stderr.read() == b""
    assert written(tmp_path) == {}


def test_what_it_says_of_a_relay_that_refuses_is_without_the_token(tmp_path: Path) -> None:
    """A relay that sends back what it was asked, and logs that tell everything."""
    with socket.create_server(("127.0.0.1", 0)) as refusing:
        process = started(refusing.getsockname()[1], tmp_path, PYTHONASYNCIODEBUG="1", PYTHONWARNINGS="always")
        with process, refusing.accept()[0] as request:
            asked = request.recv(4096)
            assert TOKEN.encode() in asked
            request.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n%s" % (len(asked), asked))
            said = process.communicate(timeout=HANG_S)[1].decode()
        assert process.returncode == 77
    assert "i: the relay of IAP refuses" in said and TOKEN not in said
    assert written(tmp_path) == {}


def test_a_relay_that_cannot_be_reached_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    with started(1, tmp_path) as process:
        said = process.communicate(timeout=HANG_S)[1].decode()
    assert process.returncode == 71
    assert said.startswith("i: 127.0.0.1:1, the relay of IAP, cannot be reached") and said.count("\n") == 1


def started(port: int, directory: Path, **variables: str) -> subprocess.Popen[bytes]:
    """Start the program, as OpenSSH does, with the relay of an emulator on this port. Its home and state are below `home`."""
    token, home = directory / "token", directory / "home"
    token.write_text(TOKEN)
    home.mkdir()
    own = {"HOME": str(home), "TPUJOB_STATE_DIR": str(home / "state")}
    argument = [*relay_argv("p", "z", Emulator(f"http://127.0.0.1:{port}", token)), "i"]
    pipe, env = subprocess.PIPE, {**os.environ, **own, **variables}
    return subprocess.Popen(argument, stdin=pipe, stdout=pipe, stderr=pipe, env=env)


def written(directory: Path) -> dict[str, str]:
    """Return the files that the program wrote, such as logs, with what is in them."""
    return {str(path): path.read_text() for path in (directory / "home").rglob("*") if path.is_file()}


def test_it_imports_neither_engine_nor_ledger_nor_the_command_line() -> None:
    modules = imported(f"import {RELAY}")
    assert not [
        name
        for name in modules
        if is_within(
            name,
            {f"orchestrator.{part}" for part in ("promise.effects", "promise.ledger", "promise.release", "run", "cli")},
        )
    ]
    assert heavy(modules) == []

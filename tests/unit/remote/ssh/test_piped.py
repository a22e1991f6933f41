"""The way to a worker: turns at a bastion, keys and pinned hosts."""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.errors import ConfigError, HostKeyMismatch
from orchestrator.remote.ssh import piped
from orchestrator.remote.ssh.dial import GivenUp
from orchestrator.remote.ssh.keys import KnownHosts, create_key, ssh_keys_metadata
from orchestrator.remote.ssh.piped import LOGIN_GRACE_S, UNKNOWN_S, Piped, Turns, _PipedSocket, turns
from tests.waiting import HANG_S, until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Its time is what the test says; who waits for it looks again at once."""
    made = SimpleNamespace(now=0.0, monotonic=lambda: made.now)
    monkeypatch.setattr(piped, "time", made)
    return made


class Login(_PipedSocket):
    """One that has a turn, in a thread of its own; it ends by the test, or when it is given up.

    `dials`: False: it fails before it has a socket.
    """

    def __init__(self, turns: Turns, held: ExitStack, tries: int = 0, *, dials: bool = True) -> None:
        socket.socket.__init__(self)
        self.dials = dials
        self.has, self.over, self.stays = threading.Event(), threading.Event(), threading.Event()
        self.calls: list[Callable[[], None]] = []
        self.error: Exception | None = None
        # A daemon, and joined for a while only: where a turn never comes, the test fails, and the process can end.
        self.thread = threading.Thread(target=self.run, args=(turns, tries), daemon=True)
        self.thread.start()
        held.callback(self.close)
        held.callback(self.thread.join, HANG_S)
        held.callback(self.over.set)

    def run(self, turns: Turns, tries: int) -> None:
        try:
            with turns.turn(tries) as took:
                if not self.dials:
                    raise EOFError
                took(self)
                self.has.set()
                self.over.wait(HANG_S)
                if self.stays.is_set():
                    raise EOFError
        except (EOFError, GivenUp) as error:
            self.error = error

    def close(self) -> None:
        socket.socket.close(self)

    def give_up(self) -> None:
        self.stays.set()
        self.over.set()

    def on_end(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def end(self) -> None:
        """Its command has ended."""
        until(lambda: self.calls, "the end of its turn")
        self.calls.pop()()


def taken(turns: Turns, held: ExitStack) -> threading.Event:
    return Login(turns, held).has


def test_a_login_waits_until_one_before_it_ends() -> None:
    one = Turns(1)
    with ExitStack() as second:
        with ExitStack() as first:
            assert taken(one, first).wait(HANG_S)
            waiting = taken(one, second)
            assert not waiting.wait(0.05)
        assert waiting.wait(HANG_S)


def test_the_place_of_a_login_that_hangs_is_free_once_its_command_has_ended_and_not_before(
    clock: SimpleNamespace,
) -> None:
    one = Turns(1)
    with ExitStack() as quick:
        assert taken(one, quick).wait(HANG_S)
        clock.now = 2.0
    with ExitStack() as held:
        first = Login(one, held)
        assert first.has.wait(HANG_S)
        second = Login(one, held)
        until(lambda: one._waiting)
        assert not first.stays.is_set()
        clock.now = 10.1
        look_again(one)
        assert first.stays.wait(HANG_S)
        first.thread.join(HANG_S)
        assert isinstance(first.error, GivenUp)
        assert not second.has.wait(0.05), "its connection may be open still"
        first.end()
        assert second.has.wait(HANG_S)


def test_a_command_that_does_not_end_counts_for_as_long_as_sshd_counts_it(clock: SimpleNamespace) -> None:
    one = Turns(1)
    with ExitStack() as held:
        first = Login(one, held)
        assert first.has.wait(HANG_S)
        first.give_up()
        first.thread.join(HANG_S)
        second = Login(one, held)
        until(lambda: one._waiting)
        clock.now = LOGIN_GRACE_S - 0.1
        look_again(one)
        assert not second.has.wait(0.05)
        clock.now = LOGIN_GRACE_S
        look_again(one)
        assert second.has.wait(HANG_S)


def test_a_login_is_ended_for_no_one_and_with_twice_the_patience_after_each_time(clock: SimpleNamespace) -> None:
    one = Turns(1)
    with ExitStack() as held:
        first = Login(one, held, tries=2)
        assert first.has.wait(HANG_S)
        clock.now = 4 * UNKNOWN_S - 0.1
        second = Login(one, held)
        until(lambda: one._waiting)
        look_again(one)
        assert not first.stays.wait(0.05)
        clock.now = 4 * UNKNOWN_S
        look_again(one)
        assert first.stays.wait(HANG_S)
        first.thread.join(HANG_S)
        first.end()
        assert second.has.wait(HANG_S)
        clock.now = 1000.0
        assert not second.stays.is_set()


def test_as_many_are_ended_as_wait_and_fresh_logins_go_before_those_that_were(clock: SimpleNamespace) -> None:
    three = Turns(3)
    with ExitStack() as held:
        hang = [Login(three, held) for _ in range(3)]
        assert all(login.has.wait(HANG_S) for login in hang)
        again = Login(three, held, tries=1)
        fresh = Login(three, held)
        until(lambda: len(three._waiting) == 2)
        clock.now = UNKNOWN_S
        look_again(three)
        until(lambda: sum(login.stays.is_set() for login in hang) == 2)
        next(login for login in hang if login.stays.is_set()).end()
        assert fresh.has.wait(HANG_S)
        assert not again.has.is_set()
        assert sum(login.stays.is_set() for login in hang) == 2


def test_a_login_that_fails_says_nothing_of_how_long_one_takes(clock: SimpleNamespace) -> None:
    one = Turns(1)
    with ExitStack() as held:
        failed = Login(one, held, dials=False)
        failed.thread.join(HANG_S)
        assert isinstance(failed.error, EOFError)
        assert one._slowest_s is None
        assert taken(one, held).wait(HANG_S)


def test_all_slices_of_a_process_share_the_turns_of_a_command() -> None:
    assert turns(1, "ssh -W %h:%p bastion") is turns(1, "ssh -W %h:%p bastion")
    assert turns(1, "ssh -W %h:%p bastion") is not turns(2, "ssh -W %h:%p bastion")
    assert turns(1, "ssh -W %h:%p bastion") is not turns(1, "ssh -W %h:%p another")


def test_a_command_ends_with_its_socket_also_under_nohup(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    command = f"sh -c 'echo $$ > {shlex.quote(str(told))}; exec sleep 1000'"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which programs that are started inherit
    try:
        way = Piped(command, "user").dial(WorkerAddress(0, "127.0.0.1"))
    finally:
        signal.signal(signal.SIGHUP, before)
    pid = until(lambda: told.exists() and int(told.read_text() or 0), "the command")
    try:
        way.close()
        until(lambda: not psutil.pid_exists(pid), "the end of the command")
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def look_again(turns: Turns) -> None:
    with turns._changed:
        turns._changed.notify_all()


WORKER = WorkerAddress(3, "10.0.0.7", 2222, "ssh-ed25519 AAAAkey root@vm")


def test_a_key_is_private_and_its_public_line_is_what_openssh_reads(tmp_path: Path) -> None:
    pair = create_key(tmp_path / "run")
    assert pair.private_path.stat().st_mode & 0o777 == 0o600
    if shutil.which("ssh-keygen"):
        said = subprocess.run(["ssh-keygen", "-y", "-f", pair.private_path], capture_output=True, text=True, check=True)
        assert said.stdout.split()[:2] == pair.public_line.split()[:2]


def test_a_second_call_for_the_same_run_finds_the_same_key(tmp_path: Path) -> None:
    assert create_key(tmp_path) == create_key(tmp_path)
    assert create_key(tmp_path).public_line != create_key(tmp_path / "other").public_line


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    create_key(tmp_path).private_path.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        create_key(tmp_path)


def test_the_metadata_names_the_user(tmp_path: Path) -> None:
    assert ssh_keys_metadata("ada", "ssh-ed25519 AAAA tpujob") == "ada:ssh-ed25519 AAAA tpujob"


@pytest.mark.parametrize("user", ["", "Ada", "-oProxyCommand=x", "a:b", "a\nb", "x" * 33])
def test_login_names_that_could_mean_something_else_are_refused(user: str) -> None:
    with pytest.raises(ConfigError, match="not a usable login name"):
        ssh_keys_metadata(user, "ssh-ed25519 AAAA")


def test_published_keys_are_written_where_openssh_looks(tmp_path: Path) -> None:
    path = tmp_path / "run" / "known_hosts"
    KnownHosts(path, [WORKER], print)
    assert path.read_text() == "worker3 ssh-ed25519 AAAAkey\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_shown_key_must_be_the_published_one(tmp_path: Path) -> None:
    known = KnownHosts(tmp_path / "known_hosts", [WORKER], print)
    known.check(3, "ssh-ed25519 AAAAkey")
    with pytest.raises(HostKeyMismatch, match="worker3 shows another host key"):
        known.check(3, "ssh-ed25519 AAAAother")


def test_an_unpublished_key_is_accepted_once_aloud_and_then_pinned(tmp_path: Path) -> None:
    notices: list[str] = []
    unpublished = WorkerAddress(0, "10.0.0.4")
    known = KnownHosts(tmp_path / "known_hosts", [unpublished], notices.append)
    known.check(0, "ssh-ed25519 AAAAfirst")
    known.check(0, "ssh-ed25519 AAAAfirst")
    assert len(notices) == 1
    assert "published no host key" in notices[0]
    again = KnownHosts(tmp_path / "known_hosts", [unpublished], notices.append)
    with pytest.raises(HostKeyMismatch):
        again.check(0, "ssh-ed25519 AAAAsecond")


def test_a_node_that_now_publishes_another_key_is_refused(tmp_path: Path) -> None:
    KnownHosts(tmp_path / "known_hosts", [WORKER], print)
    with pytest.raises(HostKeyMismatch):
        KnownHosts(tmp_path / "known_hosts", [WorkerAddress(3, "10.0.0.7", 2222, "ssh-ed25519 AAAAnew")], print)

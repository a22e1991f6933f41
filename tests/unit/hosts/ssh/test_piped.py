"""The way to a worker: turns at a bastion, keys and pinned hosts; and as the real `ssh -G` reads it."""

import os
import shlex
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from orchestrator.errors import ConfigError, HostKeyMismatch
from orchestrator.hosts.iap.dialer import Relay
from orchestrator.hosts.ssh import proxy_command
from orchestrator.hosts.ssh.connection import Credentials
from orchestrator.hosts.ssh.dial import Dialer, Direct, GivenUp, Relayed
from orchestrator.hosts.ssh.known_hosts import KnownHosts
from orchestrator.hosts.ssh.openssh import ssh_argv, write_config
from orchestrator.hosts.ssh.proxy_command import LOGIN_GRACE_S, UNKNOWN_S, Piped, Turns, _PipedSocket, turns
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.promise.obtain.login_key import create_key, ssh_keys_metadata
from tests.fakes.clock import Clock
from tests.waiting import HANG_S, ran, until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Its time is what the test says; who waits for it looks again at once."""
    made = Clock(0.0)
    monkeypatch.setattr(proxy_command, "time", made)
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
    clock: Clock,
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


def test_a_command_that_does_not_end_counts_for_as_long_as_sshd_counts_it(clock: Clock) -> None:
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


def test_a_login_is_ended_for_no_one_and_with_twice_the_patience_after_each_time(clock: Clock) -> None:
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


def test_as_many_are_ended_as_wait_and_fresh_logins_go_before_those_that_were(clock: Clock) -> None:
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


def test_a_login_that_fails_says_nothing_of_how_long_one_takes(clock: Clock) -> None:
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
        said = ran(["ssh-keygen", "-y", "-f", pair.private_path], check=True)
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


needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH is not installed")
WORKERS = (
    WorkerAddress(0, "203.0.113.7", 22, "ssh-ed25519 AAAAzero", "10.0.0.7", "t1v-n-abc-w-0"),
    WorkerAddress(1, "203.0.113.8", 2222, None, "10.0.0.8", ""),
)


class NoToken:
    renewable = False

    def token(self) -> str:
        raise AssertionError("a configuration needs no token")

    def renew(self) -> None: ...


def written(directory: Path, dialer: Dialer | None = None, node: str = "tpujob-own-id", handle: str = "mine") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    credentials = Credentials("ada", directory / "id", KnownHosts(directory / "known_hosts", WORKERS, print))
    return write_config(directory, handle, node, WORKERS, credentials, dialer or Direct())


def seen(file: Path, host: str) -> dict[str, str]:
    """What OpenSSH makes of the configuration for this host."""
    done = ran(["ssh", "-G", "-F", str(file), host], check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


@needs_ssh
def test_both_names_of_a_worker_lead_to_it_as_strictly_as_tpujob_itself(tmp_path: Path) -> None:
    file = written(tmp_path / "a b%h" / "id")
    for name in ("tpu-mine-0", "tpujob-own-id-0"):
        found = seen(file, name)
        assert found["hostname"] == "203.0.113.7" and found["port"] == "22" and found["user"] == "ada"
        assert found["hostkeyalias"] == "worker0" and found["stricthostkeychecking"] == "true"
        assert found["userknownhostsfile"] == str(tmp_path / "a b%h" / "id" / "known_hosts")
        assert found["identitiesonly"] == "yes" and found["identityagent"] == "none" and found["forwardagent"] == "no"
        assert "proxycommand" not in found
    assert file.stat().st_mode & 0o777 == 0o600


@needs_ssh
def test_a_worker_that_publishes_no_host_key_is_pinned_by_ssh_itself_and_aloud(tmp_path: Path) -> None:
    found = seen(written(tmp_path / "lease"), "tpu-mine-1")
    assert found["stricthostkeychecking"] == "accept-new" and found["loglevel"] == "INFO"
    assert found["hashknownhosts"] == "no", "tpujob reads the file, too"


@needs_ssh
def test_a_name_belongs_to_the_slice_that_had_it_first(tmp_path: Path) -> None:
    first, second = written(tmp_path / "1"), written(tmp_path / "2", node="tpujob-own-id2")
    assert seen(first, "tpu-mine-0")["user"] == "ada"
    assert seen(second, "tpu-mine-0")["hostname"] == "tpu-mine-0", "it is not this slice's"
    assert seen(second, "tpujob-own-id2-0")["hostname"] == "203.0.113.7"
    assert "Host tpu-mine-0 " in written(tmp_path / "1").read_text(), "its own file takes no name from it"
    first.unlink()
    assert "Host tpu-mine-0 " in written(tmp_path / "2", node="tpujob-own-id2").read_text()


@needs_ssh
def test_a_slice_whose_name_begins_like_another_one_is_another_one(tmp_path: Path) -> None:
    written(tmp_path / "1")
    assert "Host tpu-mine-b-0 " in written(tmp_path / "2", handle="mine-b").read_text()
    assert "Host tpu-min-0 " in written(tmp_path / "3", handle="min").read_text()


@needs_ssh
def test_a_proxy_command_gets_the_internal_address_whatever_the_host_is_called(tmp_path: Path) -> None:
    file = written(tmp_path / "lease", Piped("corkscrew 100%% %n %h %p %r", "ada"))
    found = seen(file, "tpu-mine-0")
    assert found["hostname"] == "10.0.0.7" and found["proxycommand"] == "corkscrew 100%% %h %h %p %r"


@needs_ssh
def test_through_iap_a_program_gets_the_instance_and_no_token_and_ssh_waits_for_its_tunnel(tmp_path: Path) -> None:
    relay = Relay(NoToken(), "ws://127.0.0.1:1/v4", emulated=True)
    file = written(tmp_path / "lease", Relayed(relay, "p", "z", program=["/py %d", "-m", "relay", "p", "z"]))
    found = seen(file, "tpu-mine-0")
    assert found["proxycommand"] == "'/py %%d' -m relay p z t1v-n-abc-w-0"
    assert int(found["serveralivecountmax"]) * int(found["serveraliveinterval"]) == 15 * 60


@needs_ssh
def test_a_worker_that_cannot_be_reached_yet_is_a_comment_that_says_why(tmp_path: Path) -> None:
    relay = Relay(NoToken(), "ws://127.0.0.1:1/v4", emulated=True)
    text = written(tmp_path / "lease", Relayed(relay, "p", "z")).read_text()
    assert "\n# tpujob-own-id-1: it has not published the name of its instance" in text
    assert "Host tpu-mine-0 " in text and "Host tpu-mine-1 " not in text


@needs_ssh
def test_the_command_line_reads_this_configuration_and_nothing_of_the_user(tmp_path: Path) -> None:
    argv = ssh_argv(tmp_path / "f", "tpu-mine-0", ["-L", "1:h:2"], ["echo", "a b", "$HOME"])
    assert argv == ["ssh", "-F", str(tmp_path / "f"), "-L", "1:h:2", "--", "tpu-mine-0", "echo 'a b' '$HOME'"]
    assert ssh_argv(tmp_path / "f", "tpu-mine-0", [], None)[-2:] == ["--", "tpu-mine-0"]

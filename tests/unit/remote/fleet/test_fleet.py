"""What a fleet says while it connects, which workers it tries meanwhile, its heartbeats, and what it takes from a follower."""

import itertools
import resource
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import open_files
from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.errors import ConfigError, HostKeyMismatch, RemoteError, TunnelRefused, Unreachable
from orchestrator.remote.fleet import heartbeats
from orchestrator.remote.fleet.connecting import Connecting
from orchestrator.remote.fleet.fleet import Fleet
from orchestrator.remote.fleet.follow import Follower, WorkerState
from orchestrator.remote.fleet.heartbeats import Heartbeats
from orchestrator.remote.ssh.connection import Connection, Credentials
from orchestrator.remote.ssh.dial import Direct
from orchestrator.remote.ssh.fan_out import FanOutAbandoned, Wakeup
from orchestrator.remote.ssh.known_hosts import KnownHosts
from orchestrator.remote.ssh.piped import Piped
from orchestrator.remote.ssh.waves import LIMIT, Patience
from tests.waiting import HANG_S


@pytest.mark.parametrize(("kind", "limit", "why"), [
    (resource.RLIMIT_NOFILE, 300, "256 workers needs 842 open files here, and this process may open 300"),
    (resource.RLIMIT_AS, 4 << 30, "256 workers needs 4608 MiB of memory here, and this process may use 4096"),
], ids=["open files", "memory"])  # fmt: skip
def test_too_low_a_limit_is_said_before_a_connection_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int, limit: int, why: str
) -> None:
    monkeypatch.setattr(open_files, "in_use", lambda: 10)
    monkeypatch.setattr(
        open_files, "allow", lambda wanted, asked=resource.RLIMIT_NOFILE: limit if asked == kind else wanted
    )
    workers = [WorkerAddress(index, "192.0.2.1", 22) for index in range(256)]
    fleet = Fleet(
        workers,
        user="ada",
        key_path=tmp_path / "key",
        known_hosts=tmp_path / "known_hosts",
        on_notice=print,
        dialer=Piped("ssh -W %h:%p bastion", "ada"),
    )
    with pytest.raises(ConfigError, match=why):
        fleet.connect(0.0)


class HalfDead(Direct):
    """The first workers answer nothing before all others were tried; those answer what ends a try for good."""

    def __init__(self, dead: int, alive: int) -> None:
        super().__init__()
        self.dead, self.missing, self.tried = dead, alive, threading.Event()
        self.lock = threading.Lock()

    def dial(self, worker: WorkerAddress) -> socket.socket:
        if worker.index < self.dead:
            assert self.tried.wait(HANG_S), f"the dead hold up {self.missing} others"
            raise Unreachable("no answer in time")
        with self.lock:
            self.missing -= 1
        if not self.missing:
            self.tried.set()
        raise RemoteError("alive")


def test_dead_workers_as_many_as_are_tried_at_once_hold_up_no_other(tmp_path: Path) -> None:
    fleet = Fleet(
        [WorkerAddress(index, "192.0.2.1", 22) for index in range(2 * LIMIT)],
        user="ada",
        key_path=tmp_path / "key",
        known_hosts=tmp_path / "known_hosts",
        on_notice=print,
        dialer=HalfDead(dead=LIMIT, alive=LIMIT),
        patience=Patience(idle_s=0.01),
    )
    with pytest.raises(RemoteError, match="alive"):
        fleet.connect(0.0)


UNTIL = 1_700_000_000.0  # 22:13 UTC


def test_the_last_failure_is_said_after_ten_seconds_and_again_when_it_changes() -> None:
    now, said = [0.0], []
    connecting = Connecting("by address", UNTIL, lambda text: said.append((now[0], text)), 10.0, lambda: now[0])
    for second in range(40):
        now[0] = float(second)
        why = "Connection refused" if second < 15 else "it does not accept our key (yet)"
        connecting.failed(0, Unreachable(f"worker0 (192.0.2.1:22): {why}"))
    assert said == [
        (10.0, "worker0 by address: Connection refused, trying until 22:13Z"),
        (20.0, "worker0 by address: it does not accept our key (yet), trying until 22:13Z"),
    ]


def test_workers_that_are_waited_for_are_one_line() -> None:
    said: list[str] = []
    connecting = Connecting("by address", UNTIL, said.append, 0.0, lambda: 0.0)
    for worker in (2, 0, 1):
        connecting.failed(worker, Unreachable(f"worker{worker}: the way to it failed: no bastion"))
    assert said[-1] == "worker0 to worker2 by address: no bastion, trying until 22:13Z"


def connection(directory: Path, wakeup: Wakeup, say: Callable[[str], None]) -> Connection:
    hosts = KnownHosts(directory / "known_hosts", (), say)
    return Connection(WorkerAddress(0, "127.0.0.1"), Credentials("user", directory / "key", hosts), wakeup)


class Beating:
    """Heartbeats whose calls fail as the test says."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, *failures: Exception) -> None:
        self.left = iter(failures)
        self.said: list[str] = []
        wakeup = Wakeup()
        monkeypatch.setattr(wakeup, "sleep", lambda _seconds: None)
        monkeypatch.setattr(heartbeats, "WorkerCall", self.fail)
        steady = itertools.count(0.0, 10.0)
        monkeypatch.setattr(heartbeats.time, "monotonic", lambda: next(steady))
        self.beats = Heartbeats(connection(directory, wakeup, self.said.append), 15.0, wakeup, self.said.append)

    def fail(self, *_: Any, **__: Any) -> None:
        raise next(self.left)


@pytest.mark.parametrize("failure", [RemoteError("worker0: a damaged frame"), TunnelRefused("no role")])
def test_they_go_on_after_a_failure_of_any_kind_and_it_is_said_once_when_it_lasts(
    failure: RemoteError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beating = Beating(tmp_path, monkeypatch, *[failure] * 9, FanOutAbandoned())
    beating.beats._run()
    assert beating.said == [f"worker0 accepts no heartbeat, and may delete the slice: {failure.message}"]


def test_a_wrong_host_key_ends_them_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beating = Beating(tmp_path, monkeypatch, HostKeyMismatch("another key"))
    beating.beats._run()
    assert beating.said == []


def follower(directory: Path) -> Follower:
    wakeup = Wakeup()
    way = connection(directory, wakeup, lambda _text: None)
    return Follower(way, "a1", "setup", opened=None, deliver=lambda _worker, _piece: None, wakeup=wakeup, now=time.time)


def test_servers_that_a_setup_does_not_reach_are_few_short_and_printable(tmp_path: Path) -> None:
    found = follower(tmp_path)
    found._take({"state": "exited", "rc": 1, "unreachable": ["index\x1b[2J", "x" * 10_000, *map(str, range(10_000))]})
    assert found.status.state is WorkerState.EXITED
    first, second, *others = found.status.unreachable
    assert first.isprintable() and len(second) == 200 and len(others) == 6
    other = follower(tmp_path)
    other._take({"state": "exited", "rc": 1, "unreachable": "index"})
    assert other.status.unreachable == (), "in another shape they are none"

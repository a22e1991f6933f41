"""Heartbeats, and what may go wrong with them."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.errors import HostKeyMismatch, RemoteError, TunnelRefused
from orchestrator.remote.fleet import heartbeats
from orchestrator.remote.fleet.heartbeats import Heartbeats
from orchestrator.remote.ssh.connection import Connection, Credentials
from orchestrator.remote.ssh.fan_out import FanOutAbandoned, Wakeup
from orchestrator.remote.ssh.known_hosts import KnownHosts


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
        hosts = KnownHosts(directory / "known_hosts", (), self.said.append)
        connection = Connection(WorkerAddress(0, "127.0.0.1"), Credentials("user", directory / "key", hosts), wakeup)
        self.beats = Heartbeats(connection, 15.0, wakeup, self.said.append)

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

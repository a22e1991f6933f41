"""What a fleet says before it connects to anything, and which workers it tries while others do not answer."""

import resource
import socket
import threading
from pathlib import Path

import pytest

from orchestrator import open_files
from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.errors import ConfigError, RemoteError, Unreachable
from orchestrator.remote.fleet.fleet import Fleet
from orchestrator.remote.ssh.dial import Direct
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

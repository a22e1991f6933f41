"""What is taken of a status that a worker sends: it may be hostile."""

import time
from pathlib import Path

from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.remote.fleet.follow import Follower, WorkerState
from orchestrator.remote.ssh.connection import Connection, Credentials
from orchestrator.remote.ssh.fan_out import Wakeup
from orchestrator.remote.ssh.known_hosts import KnownHosts


def follower(directory: Path) -> Follower:
    hosts, wakeup = KnownHosts(directory / "known_hosts", (), lambda _text: None), Wakeup()
    connection = Connection(WorkerAddress(0, "127.0.0.1"), Credentials("user", directory / "key", hosts), wakeup)
    return Follower(
        connection, "a1", "setup", opened=None, deliver=lambda _worker, _piece: None, wakeup=wakeup, now=time.time
    )


def test_servers_that_a_setup_does_not_reach_are_few_short_and_printable(tmp_path: Path) -> None:
    found = follower(tmp_path)
    found._take({"state": "exited", "rc": 1, "unreachable": ["index\x1b[2J", "x" * 10_000, *map(str, range(10_000))]})
    assert found.status.state is WorkerState.EXITED
    first, second, *others = found.status.unreachable
    assert first.isprintable() and len(second) == 200 and len(others) == 6
    other = follower(tmp_path)
    other._take({"state": "exited", "rc": 1, "unreachable": "index"})
    assert other.status.unreachable == (), "in another shape they are none"

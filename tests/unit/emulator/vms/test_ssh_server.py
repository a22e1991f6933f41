"""The host key of a worker, after a daemon was killed while it created it."""

from itertools import count
from pathlib import Path

from orchestrator.emulator.vms import ssh_server
from orchestrator.emulator.vms.ssh_server import SshServer
from tests.death import dies_at


def server(home: Path) -> SshServer:
    return SshServer(home / "host_key", home, lambda user: set(), lambda user: {})


def test_after_a_kill_at_any_line_the_next_daemon_can_create_the_host_key(tmp_path: Path) -> None:
    for line in count():
        home = tmp_path / str(line)
        home.mkdir()
        killed = dies_at(line, ssh_server, server(home)._host_key)
        key = server(home)._host_key()
        assert key == server(home)._host_key(), "and the key stays the same"
        assert (home / "host_key").stat().st_mode & 0o077 == 0
        if not killed:
            break
    assert line > 3

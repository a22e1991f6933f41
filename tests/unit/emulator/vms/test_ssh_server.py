"""The SSH door of a worker: what a daemon that dies while it opens it leaves to the next one."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from orchestrator.emulator.vms import ssh_server
from orchestrator.emulator.vms.ssh_server import SshServer
from tests.death import dies_at


def door(home: Path) -> SshServer:
    return SshServer(home / "host_key", home, dict, lambda user: {})


def test_a_death_at_any_line_of_making_a_host_key_leaves_the_next_daemon_free_to_make_it(tmp_path: Path) -> None:
    for line in count():
        home = tmp_path / str(line)
        home.mkdir()
        died = dies_at(line, ssh_server, door(home)._host_key)
        key = door(home)._host_key()
        assert key == door(home)._host_key(), "and it stays the same"
        assert (home / "host_key").stat().st_mode & 0o077 == 0
        if not died:
            break
    assert line > 3

"""The SSH door of a worker: what a daemon that dies while it opens it leaves to the next one."""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.emulator.ssh_server import SshServer


def door(home: Path) -> SshServer:
    return SshServer(home / "host_key", home, dict, lambda user: {})


def dies_at(line: int, home: Path) -> bool:
    """Make a host key in a process that is killed at the so-many-th line of it; was it?"""
    child = os.fork()
    if child == 0:
        left = line

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal left
            if not frame.f_code.co_filename.endswith("ssh_server.py"):
                return None
            left -= event == "line"
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        try:
            sys.settrace(trace)
            door(home)._host_key()
            os._exit(0)
        finally:
            os._exit(1)  # never back into pytest
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code == -signal.SIGKILL


def test_a_death_at_any_line_of_making_a_host_key_leaves_the_next_daemon_free_to_make_it(tmp_path: Path) -> None:
    for line in count():
        home = tmp_path / str(line)
        home.mkdir()
        died = dies_at(line, home)
        key = door(home)._host_key()
        assert key == door(home)._host_key(), "and it stays the same"
        assert (home / "host_key").stat().st_mode & 0o077 == 0
        if not died:
            break
    assert line > 3

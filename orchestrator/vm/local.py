"""A phase of a job on the machine of its person (`on: local`): supervised as on a worker, but not for longer than its caller.

`remote.fleet.local` starts it. The request is the first line of stdin; what comes next there ends the phase: a line that says
with how much grace, or the end of stdin, because the caller is dead. So nothing goes on here that nobody sees any more.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
from pathlib import Path

from .phase import PhaseFiles
from .supervisor import SHUTDOWN_GRACE_S, Supervisor, inherit_orphans, unpack

REQUEST_BYTES = 64 << 20


def local() -> None:
    """Returns when the phase has ended, nothing of it is left, and exit.json is written."""
    request = json.loads(sys.stdin.buffer.readline(REQUEST_BYTES))
    phase = PhaseFiles(request["attempt"], request["phase"], request["runs"])
    phase.dir.mkdir(parents=True)
    phase.lock(fcntl.LOCK_EX)  # as long as this process lives
    inherit_orphans()
    unpack(phase, None if request["bundle"] is None else Path(request["bundle"]))
    supervisor = Supervisor(phase, request)
    threading.Thread(target=_read_stop_request, args=(phase,), daemon=True).start()
    code = 1
    try:
        supervisor.watch()
        code = 0
    finally:
        os._exit(code)  # the thread may still be reading, and Python would wait for it


def _read_stop_request(phase: PhaseFiles) -> None:
    """Any word asks for the end; the supervisor looks for stop.json."""
    word = sys.stdin.buffer.readline(4096)
    phase.write("stop.json", {"grace_s": json.loads(word)["grace_s"] if word else SHUTDOWN_GRACE_S})

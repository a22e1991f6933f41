"""A phase of a job on the user's machine (`on: local`): supervised as on a worker, but not for longer than its caller.

`remote.fleet.local` starts it. The first line of stdin is the request. The second line (a grace period) or the end of stdin
(the caller died) ends the phase, so that no phase outlives its caller.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading

from .phase import PhaseFiles
from .supervisor import SHUTDOWN_GRACE_S, Supervisor, inherit_orphans, unpack

REQUEST_BYTES = 64 << 20


def local() -> None:
    """Run the phase; return when it has ended, none of its processes is left, and exit.json is written."""
    request = json.loads(sys.stdin.buffer.readline(REQUEST_BYTES))
    phase = PhaseFiles(request["attempt"], request["phase"], request["runs"])
    os.makedirs(phase.dir)  # noqa: PTH103 - as in `phase`
    phase.lock(fcntl.LOCK_EX)  # as long as this process lives
    inherit_orphans()
    unpack(phase, request["manifest"], place=request["store"])
    supervisor = Supervisor(phase, request, remote=False)
    threading.Thread(target=_read_stop_request, args=(phase,), daemon=True).start()
    code = 1
    try:
        supervisor.watch()
        code = 0
    finally:
        os._exit(code)  # the thread may still be reading, and Python would wait for it


def _read_stop_request(phase: PhaseFiles) -> None:
    """Turn the next line, or the end of stdin, into stop.json, which the supervisor watches."""
    word = sys.stdin.buffer.readline(4096)
    phase.write("stop.json", {"grace_s": json.loads(word)["grace_s"] if word else SHUTDOWN_GRACE_S})

"""A phase of a job on the user's machine (`on: local`) or in a pod: supervised as on a worker, not for longer than its caller.

`hosts.fleet.local` and `pod` start it. The first line of stdin is the request. The second line (a grace period) or the end of
stdin (the caller died) ends the phase, so that no phase outlives its caller.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time

from ..files.frames import reply
from ..files.phases import PhaseFiles
from .supervisor import SHUTDOWN_GRACE_S, Supervisor, inherit_orphans, unpack

REQUEST_BYTES = 64 << 20
LOOK_S = 0.001


def local() -> None:
    """Run the phase; return when it has ended, none of its processes is left, and exit.json is written."""
    request = json.loads(sys.stdin.buffer.readline(REQUEST_BYTES))
    phase = PhaseFiles(request["attempt"], request["phase"], request["runs"])
    os.makedirs(phase.dir)  # noqa: PTH103 - as in `phases`
    _lock(phase)  # as long as this process lives
    inherit_orphans()
    unpack(phase, request["manifest"], place=request["store"])
    supervisor = Supervisor(phase, request, remote=request.get("remote", False))
    threading.Thread(target=_read_stop_request, args=(supervisor,), daemon=True).start()
    code = 1
    try:
        supervisor.watch()
        code = 0
    except Exception as error:  # such as a full disk, where exit.json cannot tell
        reply({"error": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(code)  # the thread may still be reading, and Python would wait for it


def _lock(phase: PhaseFiles) -> None:
    """Take the lock of the phase, which a process that looks at it holds for a moment."""
    while phase.lock(fcntl.LOCK_EX) is None:
        time.sleep(LOOK_S)


def _read_stop_request(supervisor: Supervisor) -> None:
    """Pass the next line, or the end of stdin, on to the supervisor: not by a file, for the disk may be full."""
    word = sys.stdin.buffer.readline(4096)
    supervisor.stop_request = {"grace_s": json.loads(word)["grace_s"] if word else SHUTDOWN_GRACE_S}

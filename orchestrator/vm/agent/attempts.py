"""What a machine that did not start a job asks worker 0: which attempts there are, and whether another machine follows one.

`attempts` answers with the record of each attempt that a client left in the request of its phase `main`, and with the status
of that phase; `log_size` with the size of a log. `hold` keeps a kernel lock for its caller until that closes the call, or its
connection ends: of two machines that would collect the results and delete the slice, one does.
"""

# ruff: noqa: PTH103, PTH110, PTH202, PTH208
from __future__ import annotations

import fcntl
import os
import sys

from ..files.frames import reply
from ..files.phases import PhaseFiles, root

NAME_CHARS = 200


def attempts() -> None:
    """Answer with every attempt that has a record, in no order."""
    found = []
    runs = f"{root()}/runs"
    for name in os.listdir(runs) if os.path.exists(runs) else ():
        try:
            phase = PhaseFiles(name, "main")
            request = phase.read("request.json")
        except (ValueError, OSError):
            continue  # not a directory of ours, or a file that is damaged
        if request is not None and isinstance(request.get("record"), dict):
            found.append({"record": request["record"], "attempt": name, "status": phase.status()})
    reply({"attempts": found})


def hold(attempt: str, name: str) -> None:
    """Lock the attempt for the machine `name`, until the end of stdin; answer with who has the lock, which may be another."""
    phase = PhaseFiles(attempt, "main")
    os.makedirs(phase.dir, exist_ok=True)
    fd = os.open(phase.path("follower"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        reply({"holder": os.read(fd, NAME_CHARS).decode("utf-8", "replace") or "another machine"})
        return
    os.truncate(fd, 0)
    os.write(fd, name.encode()[:NAME_CHARS])
    reply({"holder": name, "held": True})
    sys.stdin.buffer.read()  # until the caller closes it


def log_size(attempt: str) -> None:
    """Answer with the bytes that the logs of the phases of an attempt have by now."""
    logs = [PhaseFiles(attempt, name).path("log") for name in ("setup", "main")]
    reply({"bytes": sum(os.path.getsize(log) for log in logs if os.path.exists(log))})

"""What a machine that did not start a job asks worker 0: which attempts there are, and whether another machine follows one.

`attempts` answers with the record of each attempt of a run that a client left in the request of its phase `main`, and with the
status of that phase; `log_size` with the size of a log. `hold` keeps a kernel lock for its caller as long as that sends a byte
now and then, and answers each with who else has asked: of two machines that would collect the results and delete the slice, one
does, and both know. A machine that sleeps, or whose network is gone, loses it.
"""

# ruff: noqa: PTH103, PTH108, PTH110, PTH202, PTH208
from __future__ import annotations

import fcntl
import os
import select
from contextlib import suppress

from ..files.frames import reply
from ..files.phases import PhaseFiles, root

NAME_CHARS = 200
MOST = 50  # attempts of one run
SILENT_S = 60.0  # after so long without a byte, the caller of `hold` is gone


def attempts(run: str) -> None:
    """Answer with the attempts of a run that have a record, the newest of them, in no order."""
    runs, found = f"{root()}/runs", []
    names = [name for name in os.listdir(runs) if name.startswith(f"{run}-")] if os.path.exists(runs) else []
    for name in sorted(names, key=lambda each: (len(each), each))[-MOST:]:
        try:
            phase = PhaseFiles(name, "main")
            request = phase.read("request.json")
            record = request.get("record") if isinstance(request, dict) else None
            if isinstance(record, dict):
                found.append({"record": record, "attempt": name, "status": phase.status()})
        except (ValueError, OSError):
            continue  # not a directory of ours, or a file that is damaged
    reply({"attempts": found})


def hold(attempt: str, name: str) -> None:
    """Lock the attempt for the process `name`; answer with who has the lock, which may be another one."""
    phase = PhaseFiles(attempt, "main")
    os.makedirs(phase.dir, exist_ok=True)
    fd = os.open(phase.path("follower"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(OSError):  # on a full disk, only the caller is told
            phase.write("asked.json", {"by": name[:NAME_CHARS]})  # before the answer, after which this may be ended
        reply({"holder": os.read(fd, NAME_CHARS).decode("utf-8", "replace") or "another machine"})
        return
    with suppress(FileNotFoundError):
        os.unlink(phase.path("asked.json"))  # the holder before was asked, not this one
    os.truncate(fd, 0)
    os.write(fd, name.encode()[:NAME_CHARS])
    reply({"holder": name, "held": True})
    while select.select([0], [], [], SILENT_S)[0] and os.read(0, 1 << 10):
        reply({"asked": (phase.read("asked.json") or {}).get("by")})


def log_size(attempt: str) -> None:
    """Answer with the bytes that the logs of the phases of an attempt have by now."""
    logs = [PhaseFiles(attempt, name).path("log") for name in ("setup", "main")]
    reply({"bytes": sum(os.path.getsize(log) for log in logs if os.path.exists(log))})

"""The replies of the agent on a worker: lines `tpujob:{json}`, and frames for streams.

The prefix tells replies from what a login shell prints before them. Everything goes to stdout unbuffered, so that the next
write notices a cut connection.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any

PREFIX = b"tpujob:"
PIPE_BYTES = 1 << 20
F_SETPIPE_SZ = 1031  # of Linux; Python has the name from 3.10 on


def reply(value: dict[str, Any]) -> None:
    write(PREFIX + json.dumps(value).encode() + b"\n")


def frame(kind: bytes, content: bytes) -> None:
    write(b"%s %d\n%s" % (kind, len(content), content))


def write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


def widen(fd: int) -> None:
    """Let a pipe hold a MiB: each 64 KB cost two changes of process. No effect on a socket, or where the user has too many."""
    try:
        fcntl.fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        pass

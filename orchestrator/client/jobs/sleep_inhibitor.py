"""Inhibit suspend while a run is attached: a suspended machine sends no heartbeat."""

import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator import fork

ANSWER_S = 5.0
GRANTED = (
    "sh",
    "-c",
    "echo; exec cat",
)  # runs once suspend is inhibited; `cat` ends with the pipe, so with this process


@contextmanager
def inhibit_sleep(why: str) -> Iterator[bool]:
    """Inhibit suspend within the block; yield whether the system promised it. Closing a laptop may suspend it all the same.

    A program of the system does it: `systemd-inhibit` or `caffeinate`. It ends with the block, or with this process.
    """
    started = _start(why)
    try:
        yield started is not None
    finally:
        if started is not None:
            _end(*started)


def _start(why: str) -> tuple[subprocess.Popen[bytes], fork.Descriptor] | None:
    if sys.platform == "darwin":
        argv = ["caffeinate", "-i", *GRANTED]
    else:
        options = ["--what=sleep:idle", "--who=tpujob", f"--why={why}", "--mode=block"]
        argv = ["systemd-inhibit", *options, *GRANTED]
    if shutil.which(argv[0]) is None:
        return None
    try:
        process, pipe = fork.start(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    except OSError:
        return None
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], ANSWER_S)
    if readable and process.stdout.read(1) == b"\n":
        return process, pipe
    _end(process, pipe)
    return None


def _end(process: subprocess.Popen[bytes], pipe: fork.Descriptor) -> None:
    pipe.close()
    process.kill()
    process.communicate()

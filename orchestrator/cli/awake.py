"""Keep this machine from falling asleep while a run is attached to it: a sleeping laptop gives no sign of life.

A small program of the system does it for as long as we live, however we end: it waits for the end of a pipe of ours, or
for our process id. Where there is none, or it is refused, sleep is what the person decides; the plan's words say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys


def stay_awake(why: str) -> bool:
    """True when the system promised not to suspend by itself. Closing a lid may still do it."""
    if sys.platform == "darwin":
        argv = ["caffeinate", "-i", "-w", str(os.getpid())]
    else:
        words = ["--what=sleep:idle", "--who=tpujob", f"--why={why}", "--mode=block"]
        argv = ["systemd-inhibit", *words, "cat"]
    if shutil.which(argv[0]) is None:
        return False
    try:
        # The pipe's other end is ours alone (not inheritable), so `cat` ends when we do.
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        process.wait(timeout=0.1)  # refused: it ends at once
    except subprocess.TimeoutExpired:
        return True
    except OSError:
        return False
    return False

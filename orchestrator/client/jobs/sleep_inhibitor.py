"""Keep this machine from falling asleep while a run is attached to it: a sleeping laptop gives no sign of life.

A small program of the system does it for as long as we live, however we end: it waits for the end of a pipe of ours.
Where there is none, or it is refused, sleep is what the person decides; the plan's words say so.
"""

from __future__ import annotations

import select
import shutil
import subprocess
import sys

ANSWERS_WITHIN_S = 5.0  # or it hangs, and promises nothing
SAYS_SO = ("sh", "-c", "echo; exec cat")  # started once the system has promised; `cat` ends with the pipe, as we do


def inhibit_sleep(why: str) -> bool:
    """True when the system promised not to suspend by itself. Closing a lid may still do it."""
    if sys.platform == "darwin":
        argv = ["caffeinate", "-i", *SAYS_SO]
    else:
        words = ["--what=sleep:idle", "--who=tpujob", f"--why={why}", "--mode=block"]
        argv = ["systemd-inhibit", *words, *SAYS_SO]
    if shutil.which(argv[0]) is None:
        return False
    try:
        # The other end of its stdin is ours alone (not inheritable), so it ends when we do.
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return False
    assert process.stdout is not None
    with process.stdout as said:
        answered, _, _ = select.select([said], [], [], ANSWERS_WITHIN_S)
        promised = bool(answered) and said.read(1) == b"\n"
    if not promised:
        process.kill()
        process.wait()
    return promised

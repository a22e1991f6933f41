"""How slow this machine is now, measured by a process beside the tests.

A promise counts seconds of a machine that has time for its work. On a busy or slow machine the same work takes longer although
tpujob is right. So the measure is work, too: start a Python and flush to the disk, twice a second.
"""

import atexit
import functools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.waiting import until

QUIET_S = 0.1  # time of that work on a machine that counts as quiet; on an idle machine it takes 0.02
PAUSE_S = 0.5
IN_A_ROW = 10  # consecutive measures that count; one alone does not

MEASURE = """
import os, subprocess, sys, time
out, pause_s, parent = int(sys.argv[1]), float(sys.argv[2]), os.getppid()
due = time.time()
while os.getppid() == parent:
    subprocess.run([sys.executable, "-ISc", ""])
    os.fsync(out)
    now = time.time()
    os.write(out, b"%.6f %.6f\\n" % (now, now - due))
    due = now + pause_s
    time.sleep(pause_s)
"""


@functools.cache
def _measured() -> Path:
    """Return the file with one line for each measure: when it ended, and how long it took from when it was due."""
    descriptor, name = tempfile.mkstemp(prefix="tpujob-machine-")
    process = subprocess.Popen(
        [sys.executable, "-ISc", MEASURE, str(descriptor), str(PAUSE_S)],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
    )
    os.close(descriptor)

    def end() -> None:
        process.kill()
        process.wait()
        Path(name).unlink(missing_ok=True)

    atexit.register(end)
    return Path(name)


def begin() -> None:
    """Start measuring."""
    until(_measured().read_text, "a first measure of this machine")


def slowness(since: float) -> float:
    """Return how many times longer work has taken since then than on a quiet machine, at the worst moment; at least 1."""
    lines = _measured().read_text().rpartition("\n")[0].splitlines()
    rows = [(float(ended), float(took)) for ended, took in map(str.split, lines)]
    took_s = [took for ended, took in rows if ended >= since]
    took_s.append(max(0.0, time.time() - rows[-1][0] - PAUSE_S))  # the measure under way
    windows = [took_s[i : i + IN_A_ROW] for i in range(max(1, len(took_s) - IN_A_ROW + 1))]
    return max(1.0, *(sum(window) / len(window) / QUIET_S for window in windows))

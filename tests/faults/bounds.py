"""The table of promises in a world of the fault matrix: at its speed, and on a machine as slow as this one is now.

An emulated cloud judges claims `speed` times faster. The time that the machine itself needs does not change with it; it
grows on a slow or busy machine. So it is measured by work, too, of a process beside the tests: start a Python and flush to
the disk, twice a second. Nothing here is read from the code under test.
"""

import atexit
import functools
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from orchestrator.drill.bounds import PROMISES, PromiseWorld, bound, seconds
from tests.waiting import until

SHORT_LABEL = 1800.0  # seconds on Google Cloud: how far ahead a label is set in rows that wait for its end
BOOT = seconds("boot")
OWN_DELETE_S = 2.0  # time of a delete beyond the emulator's `delete_s`: it ends the processes of the VMs


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one world.

    `delete_s` is the emulator's. `slowness`: how many times longer work takes than on a quiet machine.
    """

    speed: float
    delete_s: float
    slowness: float = 1.0

    @property
    def absent_s(self) -> float:
        """Return D: seconds from an accepted delete to absence, the cloud's own time."""
        return self.delete_s + OWN_DELETE_S * self.slowness

    def seconds(self, term: str) -> float:
        """Return the seconds of one term of the table."""
        return seconds(term, self.speed, slowness=self.slowness)

    def of(self, name: str, *, failed: int = 0, outage_s: float = 0.0, ready_in_s: float = 0.0) -> float:
        """Return the seconds of one promise of the table."""
        world = PromiseWorld(
            speed=self.speed,
            deletion_s=self.absent_s,
            outage_s=outage_s,
            ready_s=ready_in_s,
            failed_deletes=failed,
            slowness=self.slowness,
        )
        return bound(PROMISES[name], world).seconds

    def command(self, *, failed: int = 0, ready_in_s: float = 0.0) -> float:
        """C0: a normal end, a signal or an exception. `ready_in_s`: the cloud takes no delete before."""
        return self.of("command", failed=failed) + ready_in_s

    def guardian(self, *, ready_in_s: float = 0.0) -> float:
        """C1: the CLI was killed."""
        return self.of("guardian of a create", ready_in_s=ready_in_s)

    def watchdog(self, *, boot: bool = False) -> float:
        """C3, C4, C8: no local layer is left. `boot`: the VM was not up yet."""
        return self.of("watchdog of a create") if boot else self.of("watchdog")

    def creating(self, ready_in_s: float) -> float:
        """C3': no local layer is left, and the slice is still being created."""
        return self.of("watchdog of a create", ready_in_s=ready_in_s)

    def detached(self) -> float:
        """C3 of a detached run, from the end of its job."""
        return self.of("watchdog of a detached run")

    def unarmed(self) -> float:
        """A detached run whose watchdog never reports that it is armed: refused."""
        return self.seconds("boot") + self.command()

    def after_label(self, *, worker: int = 0) -> float:
        """C3 from the end of the label: worker 0 is dead, worker `worker` acts."""
        late_s = self.seconds("rare poll") + worker * self.seconds("stagger")
        return self.seconds("grace") + late_s + self.seconds("watchdog") + self.absent_s

    def collected(self) -> float:
        """C7 and C10, from the end of the label: only gc is left, and it runs as soon as it may."""
        return self.seconds("margin") + self.seconds("gc") + self.absent_s

    def outage(self, outage_s: float) -> float:
        """C5, with the CLI or its guardian alive."""
        return self.of("outage", outage_s=outage_s)


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

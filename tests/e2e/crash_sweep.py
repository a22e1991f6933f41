"""Every crash point with real processes: `python -m tests.e2e.crash_sweep` (minutes; bounded, stops by itself).

Kills `tpujob run` with SIGKILL before and after each of its effects in turn, then runs one other tpujob command, and asks the
emulator's billing meter whether anything is left. Prints one line per point and ends with 1 if any point leaked.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from orchestrator.emulator import control
from tests.cli_fixture import NO_DELAYS, Cli, sandbox
from tests.e2e.test_life import HELLO

LAST = 200  # a run of hello has far fewer effects


def main() -> int:
    os.environ.update(NO_DELAYS)
    bad = points = 0
    for side in ("before", "after"):
        for nth in range(1, LAST):
            with tempfile.TemporaryDirectory(prefix="tpujob-sweep-") as directory:
                cli = Cli(Path(directory), sandbox(Path(directory)))
                try:
                    verdict = _one(cli, f"any:{nth}:{side}")
                finally:
                    control.stop(cli.emulator_directory)
            if verdict is None:
                break
            points += 1
            bad += verdict != "clean"
            print(f"any:{nth}:{side}  {verdict}", flush=True)
    print(f"{points} crash points, {bad} of them not clean")
    return 1 if bad else 0


def _one(cli: Cli, point: str) -> str | None:
    killed = cli("run", cli.job(HELLO), env={"TPUJOB_CRASH_AT": point})
    if killed.returncode == 0:
        return None  # past the last effect
    if killed.returncode != -signal.SIGKILL:
        return f"ended with {killed.returncode}: {killed.stderr}"
    began = time.monotonic()
    after = cli("list")
    took_s = time.monotonic() - began
    alive, processes = cli.alive(), cli.admin("GET", "processes")["nodes"]
    if after.returncode != 0 or alive or processes:
        return f"code {after.returncode}, alive {alive}, processes {processes}, {took_s:.1f} s: {after.stderr}"
    return "clean"


if __name__ == "__main__":
    sys.exit(main())

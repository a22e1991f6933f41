"""Large results: one file beyond 5 GiB, and a hundred thousand small ones, collected.

Whole runs on the emulator. The large file is sparse on the worker, and takes its room at home.
"""

from __future__ import annotations

import re
import subprocess
import time

import psutil
from harness.results import Report, options, spread
from harness.sandbox import ZONE, Sandbox, sandbox, tpujob

GIB, FILES = 6, 100_000
SAMPLE_S = 0.2
JOBS = {
    f"one file of {GIB} GiB": f'truncate -s {GIB}G "$TPUJOB_ARTIFACTS/large"',
    f"{FILES:,} files of a few bytes": f'cd "$TPUJOB_ARTIFACTS" && seq {FILES} | split -l 1 -a 5 - f',
}
COLUMNS = ("results", "collecting s", "client's peak MB")


def main() -> None:
    arguments = options(__doc__ or "", rounds=3)
    report = Report("collect.py", "bringing results home", COLUMNS)
    with sandbox() as here:
        here.emulator()
        for what, command in JOBS.items():
            measured = [_run(here, command) for _ in range(arguments.rounds)]
            seconds, peaks = zip(*measured, strict=True)
            report.row(what, spread(seconds, 1), spread(peaks, 0))
    report.notes = [
        "Hashing on the worker, SSH over loopback, hashing and writing here; two processes share the processors."
    ]
    report.publish(arguments)


def _run(here: Sandbox, command: str) -> tuple[float, float]:
    """Seconds of collecting, as the run's own last lines say, and the most memory that the client took, in MB."""
    job = here.write("collect.yaml", f"tpu: {{accelerator: v5litepod-4, zone: {ZONE}}}\ncommand: {command}\n")
    peak = 0.0
    argv = tpujob("run", str(job))
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, env=here.environment(), cwd=here.directory, text=True
    ) as process:
        while process.poll() is None:
            try:
                peak = max(peak, psutil.Process(process.pid).memory_info().rss / 1e6)
            except psutil.NoSuchProcess:
                break
            time.sleep(SAMPLE_S)
        assert process.stdout is not None
        said = process.stdout.read()
    assert process.returncode == 0, said
    found = re.search(r"collecting (?:(\d+) m )?([\d.]+) s", said)
    assert found is not None, said
    for directory in here.directory.glob("runs/*"):
        subprocess.run(["rm", "-rf", str(directory)], check=True)
    return 60 * int(found[1] or 0) + float(found[2]), peak


if __name__ == "__main__":
    main()

"""A run that two `tpujob top` look at, beside the same run that is left alone, on the emulator.

The job counts as fast as one processor lets it, and reports a step and figures ten times a second; it measures its steps.
Both tops have terminals of their own, which are read, and look from before the first step to after the last one.
"""

from __future__ import annotations

import fcntl
import os
import pty
import statistics
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from harness.results import Report, judged, options, spread
from harness.sandbox import ZONE, Sandbox, sandbox, tpujob

TOPS, TARGET = 2, 1.02
STEPS = 150
LIMIT_S = 180.0  # of one run; a measurement that hangs ends
TRAIN = """\
import json, os, time
artifacts = os.environ["TPUJOB_ARTIFACTS"]
print("ready", flush=True)
while not os.path.exists(os.path.expanduser("~/go")):
    time.sleep(0.05)
took = []
with open(artifacts + "/metrics.jsonl", "w", buffering=1) as file:
    for step in range({steps}):
        began, total = time.perf_counter(), 0
        for number in range(1_000_000):
            total += number * step
        took.append(time.perf_counter() - began)
        print(json.dumps({{"step": step, "loss": 1 / (step + 1), "items_per_s": 1 / took[-1]}}), file=file)
        print("step", step, flush=True)
json.dump(sum(took), open(artifacts + "/took.json", "w"))
"""
JOB = """\
name: top
tpu: {{accelerator: v5litepod-4, zone: {zone}}}
code: code
command: python3 train.py
"""


@dataclass(slots=True)
class Measured:
    steps_per_s: list[float] = field(default_factory=list)
    tops_cpu_s: list[float] = field(default_factory=list)  # of one of them, for a second of the job


def main() -> None:
    arguments = options(str(__doc__), rounds=7)
    report = Report(
        "top.py",
        f"a run that {TOPS} `tpujob top` look at",
        ["run", "steps a second", "× alone", "processor of a top, %"],
    )
    alone, looked_at = Measured(), Measured()
    with sandbox() as here:
        here.emulator()
        here.write("code/train.py", TRAIN.format(steps=STEPS))
        job = here.write("top.yaml", JOB.format(zone=ZONE))
        _run(here, job, Measured(), 0)  # the first round fills caches
        for number in range(arguments.rounds):
            each = [(alone, 0), (looked_at, TOPS)]
            for found, tops in each if number % 2 == 0 else reversed(each):
                _run(here, job, found, tops)
    ratio = statistics.median(alone.steps_per_s) / statistics.median(looked_at.steps_per_s)
    report.row("alone", spread(alone.steps_per_s), "1.00", "")
    kept = f"{ratio:.3f} (≤ {TARGET} ×: {judged(ratio <= TARGET)})"
    report.row(
        f"with {TOPS} tops",
        spread(looked_at.steps_per_s),
        kept,
        spread([100 * each for each in looked_at.tops_cpu_s], 1),
    )
    report.notes = [
        f"{STEPS} steps on one processor of the worker. × alone: how much longer a step takes, by the medians.",
        "A top draws every two seconds, and asks the API every 30; its processor time is without that of its start.",
    ]
    report.publish(arguments)


def _run(here: Sandbox, job: Path, found: Measured, tops: int) -> None:
    process = subprocess.Popen(
        [*tpujob(), "run", str(job)], cwd=here.directory, env=here.environment(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    timer = threading.Timer(LIMIT_S, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        any("ready" in line for line in process.stdout)
        with _looking(here, tops) as seen:
            before = [sum(each.cpu_times()[:2]) for each in seen]
            for home in here.emulator_directory.glob("vms/*/worker0/home"):
                (home / "go").touch()
            any(f"step {STEPS - 1}" in line for line in process.stdout)
            used = [sum(each.cpu_times()[:2]) - cpu for each, cpu in zip(seen, before, strict=True)]
        process.communicate()
    finally:
        timer.cancel()
    if process.returncode != 0:
        raise RuntimeError(f"the run ended with {process.returncode}")
    newest = max(here.directory.glob("runs/*/worker0/artifacts/took.json"), key=lambda path: path.stat().st_mtime)
    took_s = float(newest.read_text())
    found.steps_per_s.append(STEPS / took_s)
    found.tops_cpu_s += [cpu_s / took_s for cpu_s in used]


@contextmanager
def _looking(here: Sandbox, count: int) -> Iterator[list[psutil.Process]]:
    """So many tops on terminals of their own, which have drawn their table."""
    made = [pty.openpty() for _ in range(count)]
    processes = []
    try:
        for ours, terminal in made:
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
            environment = here.environment(TERM="xterm")
            streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
            processes.append(
                subprocess.Popen(
                    [*tpujob(), "top"], cwd=here.directory, env=environment, start_new_session=True, **streams
                )
            )
            drawn = threading.Event()
            threading.Thread(target=_read, args=(ours, drawn), daemon=True).start()
            if not drawn.wait(LIMIT_S):
                raise RuntimeError("top draws nothing")
        yield [psutil.Process(each.pid) for each in processes]
        for (ours, _), process in zip(made, processes, strict=True):
            os.write(ours, b"q")
            if process.wait(LIMIT_S) != 0:
                raise RuntimeError(f"top ended with {process.returncode}")
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for ours, terminal in made:
            os.close(terminal)
            os.close(ours)


def _read(ours: int, drawn: threading.Event) -> None:
    try:
        while data := os.read(ours, 1 << 16):
            if b"asked the API at" in data:
                drawn.set()
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main())

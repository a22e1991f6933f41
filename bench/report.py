"""The page of a run: what it costs the run at its end, and how large it is, for a thousand steps and for a million.

A whole `tpujob run` on the emulator, with a clock around what comes after its slice is gone. The job copies its files.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from harness.results import Report, options, spread, verdict
from harness.sandbox import ZONE, Sandbox, sandbox

TARGET_S = 0.3
MILLION = 1_000_000
METRICS, TIMING = "metrics.jsonl", "timing.jsonl"
LARGEST = "1,000,000 steps, metrics and step times"
RUNS = {  # steps, files
    "1,000 steps, metrics and step times": (1_000, (METRICS, TIMING)),
    "1,000,000 steps, metrics": (MILLION, (METRICS,)),
    LARGEST: (MILLION, (METRICS, TIMING)),
}
JOB = """\
name: report
tpu: {{accelerator: v5litepod-4, zone: {zone}}}
command: cp {files} "$TPUJOB_ARTIFACTS"
"""
CLOCKED = """\
import resource, sys, time
from orchestrator.api.jobs.log_output import JobOutput
from orchestrator.api.results import pages

ended_at = 0.0
close, run_ended = JobOutput.close, pages.run_ended

def closing(output):
    global ended_at
    ended_at = time.monotonic()
    close(output)

def writing(*arguments):
    began = time.process_time()
    found = run_ended(*arguments)
    took, peak = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open("measured", "w") as file:
        print(ended_at, took, peak, file=file)
    return found

JobOutput.close, pages.run_ended = closing, writing
from orchestrator.cli.main import main
sys.argv = ["tpujob", "run", sys.argv[1]]
main()
"""
BY_LINE = """\
import json, sys, time
began = time.process_time()
for path in sys.argv[1:]:
    for line in open(path, "rb"):
        json.loads(line)
print(time.process_time() - began)
"""


@dataclass(slots=True)
class Measured:
    page_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)  # of the command, after its slice is gone
    peak_mb: list[float] = field(default_factory=list)
    by_line_s: list[float] = field(default_factory=list)
    size_kb: float = 0.0


def main() -> None:
    arguments = options(str(__doc__), rounds=5)
    columns = [
        "run",
        "writing the page, processor s",
        "target",
        "all after the slice is gone, s",
        "`json.loads` of each line, processor s",
        "page, KB",
        "client's peak MB",
    ]
    report = Report("report.py", "the page at the end of a run", columns)
    found = {name: Measured() for name in RUNS}
    with sandbox() as here:
        here.emulator()
        jobs = {name: _job(here, steps, files) for name, (steps, files) in RUNS.items()}
        size_mb = sum(path.stat().st_size for path in jobs[LARGEST][1]) / 1e6
        for _ in range(arguments.rounds):
            for name, (job, files) in jobs.items():
                _add(here, job, files, found[name])
    for name, each in found.items():
        report.row(
            name,
            spread(each.page_s),
            verdict(each.page_s, TARGET_S),
            spread(each.end_s),
            spread(each.by_line_s),
            f"{each.size_kb:,.0f}",
            spread(each.peak_mb, 0),
        )
    report.notes = [
        "A line has two metrics, and is read while the job writes it. `timing.jsonl` (`timing: drained`) is read at the end. "
        f"Both of 1,000,000 lines have {size_mb:,.0f} MB.",
        "All after the slice is gone: the last metrics, the result line, the page and the end of Python.",
        "`json.loads`: both files in one Python that keeps nothing, right after the run.",
    ]
    report.publish(arguments)


def _job(here: Sandbox, steps: int, files: tuple[str, ...]) -> tuple[Path, list[Path]]:
    directory = here.directory / f"{steps}-{len(files)}"
    directory.mkdir()
    paths = [directory / file for file in files]
    for path in paths:
        (_write_metrics if path.name == METRICS else _write_timing)(path, steps)
    job = here.write(f"{directory.name}.yaml", JOB.format(zone=ZONE, files=" ".join(map(str, paths))))
    return job, paths


def _write_metrics(path: Path, steps: int) -> None:
    noise = random.Random(1)
    with path.open("w") as file:
        for step in range(1, steps + 1):
            far = math.exp(-5 * step / steps)
            line = {"step": step, "loss": round(2.3 * far + noise.random() / 10, 5), "acc": round(1 - far, 5)}
            file.write(f"{json.dumps(line)}\n")


def _write_timing(path: Path, steps: int) -> None:
    noise, at = random.Random(1), 10.0
    with path.open("w") as file:
        file.write('{"schema": 1, "timing": "drained", "device": "xla:tpu", "processes": 4, "batch_size": 64}\n')
        for step in range(1, steps + 1):
            took = 0.002 + noise.random() / 10_000
            at += took
            file.write(f'{{"epoch":1,"step":{step},"t_s":{at:.5f},"dt_s":{took:.6f}}}\n')


def _add(here: Sandbox, job: Path, files: list[Path], found: Measured) -> None:
    """Run the job once, and read its files line by line."""
    subprocess.run(
        [sys.executable, "-c", CLOCKED, str(job)],
        cwd=here.directory,
        env=here.environment(),
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    over_at = time.monotonic()
    ended_at, page_s, peak_kb = map(float, (here.directory / "measured").read_text().split())
    (directory,) = here.directory.glob("runs/report-*")
    page = directory / "report.html"
    assert all(name in page.read_text() for name in ('"loss"', '"acc"')), "the page has no curves"
    found.size_kb = page.stat().st_size / 1000
    found.page_s.append(page_s)
    found.end_s.append(over_at - ended_at)
    found.peak_mb.append(peak_kb / 1000)
    shutil.rmtree(directory)
    read = subprocess.run([sys.executable, "-c", BY_LINE, *map(str, files)], check=True, capture_output=True, text=True)
    found.by_line_s.append(float(read.stdout))


if __name__ == "__main__":
    main()

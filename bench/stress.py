"""The test suite again and again, beside processor and disk hogs and on a quiet machine: is it green each time?

What was done at this code before is not done again: commits that touch only bench/RESULTS.md count as the same code. The
output of each run is in build/stress/. Ends with 1 if a test failed in any run.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import psutil
from harness.results import PAGE, Report, spread

TOP = PAGE.parents[1]
PLACE = TOP / "build" / "stress"
QUIET_LOAD, QUIET_WAIT_S = 0.5, 300.0
TIERS = {
    "default": "not ci and not exhaustive and not cluster",
    "ci": "ci and not exhaustive",
    "exhaustive": "exhaustive",
}
HOGS = ("processor", "processor", "disk")
BLOCK = bytes(4 << 20)


@dataclass(frozen=True)
class Run:
    """One run of a tier. Seconds are wall seconds; `processor_s` is of the whole machine without the hogs."""

    tier: str
    beside: bool
    number: int
    code: int
    passed: int
    skipped: int
    failed: list[str]
    slowest: str
    slowest_s: float
    wall_s: float
    processor_s: float
    load: float  # the load average of the minute before


@dataclass
class Record:
    """The runs of one state of the code, on disk after each."""

    path: Path
    runs: list[Run] = field(default_factory=list)

    @classmethod
    def open(cls) -> Record:
        record = cls(PLACE / f"{code_id()}.json")
        if record.path.exists():
            record.runs = [Run(**run) for run in json.loads(record.path.read_text())]
        return record

    def add(self, run: Run) -> None:
        self.runs.append(run)
        self.path.write_text(json.dumps([asdict(run) for run in self.runs], indent=1))

    def of(self, tier: str, beside: bool) -> list[Run]:
        return [run for run in self.runs if (run.tier, run.beside) == (tier, beside)]


def code_id() -> str:
    """Names what is committed, whatever bench/RESULTS.md says. Refuses to measure what is not committed."""
    results = str(PAGE.relative_to(TOP))
    changed = _git("status", "--porcelain", "--untracked-files=no").splitlines()
    if any(line[3:] != results for line in changed):
        sys.exit(f"commit first: a run counts for a commit\n{chr(10).join(changed)}")
    files = [line for line in _git("ls-tree", "-r", "HEAD").splitlines() if not line.endswith(f"\t{results}")]
    return hashlib.sha256("\n".join(files).encode()).hexdigest()[:12]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=TOP, check=True, capture_output=True, text=True).stdout


# -- the hogs --------------------------------------------------------------------------------------------------------


def hog(kind: str, starter: int) -> None:
    """Keep a processor busy, or write 4 MiB at a time through to the disk, for as long as the starter lives."""
    place = PLACE / f"hog-{os.getpid()}"
    try:
        while os.getppid() == starter:
            if kind == "processor":
                sum(range(1_000_000))
            else:
                with place.open("wb") as file:
                    file.write(BLOCK)
                    os.fsync(file.fileno())
    finally:
        place.unlink(missing_ok=True)


@contextlib.contextmanager
def hogs(kinds: tuple[str, ...]) -> Iterator[list[psutil.Process]]:
    started = [subprocess.Popen([sys.executable, __file__, "--hog", kind, str(os.getpid())]) for kind in kinds]
    try:
        yield [psutil.Process(process.pid) for process in started]
    finally:
        for process in started:
            process.terminate()
            process.wait()
        for left in PLACE.glob("hog-*"):
            left.unlink()


# -- one run ---------------------------------------------------------------------------------------------------------


def wait_for_quiet() -> None:
    end = time.monotonic() + QUIET_WAIT_S
    while os.getloadavg()[0] >= QUIET_LOAD and time.monotonic() < end:
        time.sleep(5)


def play(tier: str, beside: bool, number: int) -> Run:
    """Beside hogs in an order of its own, on a quiet machine in the usual one."""
    if not beside:
        wait_for_quiet()
    load = os.getloadavg()[0]
    name = f"{tier.replace(' ', '-')}-{'beside' if beside else 'quiet'}-{number}"
    print(f"{time.strftime('%H:%M:%S')} {name}: load {load:.2f}", flush=True)
    found = PLACE / f"{name}.xml"
    words = [sys.executable, "-m", "pytest", "-n", "auto", "-m", TIERS[tier], f"--junitxml={found}"]
    words += [f"--shuffle={number}"] if beside else []
    with hogs(HOGS if beside else ()) as greedy, (PLACE / f"{name}.log").open("wb") as log:
        began, busy = time.monotonic(), _busy_s(greedy)
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        code = _until_ended(subprocess.Popen(words, cwd=TOP, preexec_fn=_hear_ctrl_c, **streams))  # noqa: PLW1509
        took, used = time.monotonic() - began, _busy_s(greedy) - busy
    cases = list(ElementTree.parse(found).iter("testcase")) if found.exists() else []
    slowest = max(cases, key=lambda case: float(case.get("time", 0)), default=None)
    failed = [_id(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    passed = len({_id(case) for case in cases}) - len(set(failed)) - skipped
    slow, slow_s = (_id(slowest), float(slowest.get("time", 0))) if slowest is not None else ("", 0.0)
    run = Run(tier, beside, number, code, passed, skipped, failed, slow, slow_s, took, used, load)
    print(f"         {passed} passed, {len(failed)} failed, {skipped} skipped in {took:.0f} s", *failed, flush=True)
    return run


def _hear_ctrl_c() -> None:
    """Also where this runs in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _until_ended(tests: subprocess.Popen[bytes]) -> int:
    """Its exit code. Who ends us ends it, too, with time to end what it started."""
    try:
        return tests.wait()
    except BaseException:
        tests.send_signal(signal.SIGINT)
        tests.wait()
        raise


def _id(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"


def _busy_s(without: list[psutil.Process]) -> float:
    """Processor seconds of the machine since its start, less those of these processes."""
    times = psutil.cpu_times()
    theirs = [process.cpu_times() for process in without]
    return float(times.user + times.nice + times.system) - sum(one.user + one.system for one in theirs)


# -- all of them -----------------------------------------------------------------------------------------------------


def report(record: Record, rounds: int) -> Report:
    columns = [
        "tier",
        "beside",
        "runs",
        "runs with a failure",
        "tests",
        "skipped",
        "wall s",
        "processor s",
        "load before",
    ]
    columns += ["slowest test (s)"]
    table = Report("stress.py", "the test suite, run after run", columns)
    for tier in TIERS:
        for beside in (True, False):
            runs = record.of(tier, beside)
            if not runs:
                continue
            slowest = max(runs, key=lambda run: run.slowest_s)
            table.row(
                tier,
                "2 processor hogs, 1 disk hog" if beside else "nothing",
                str(len(runs)),
                str(sum(run.code != 0 for run in runs)),
                str(max(run.passed + len(run.failed) for run in runs)),
                str(max(run.skipped for run in runs)),
                spread([run.wall_s for run in runs], 0),
                spread([run.processor_s for run in runs], 0),
                spread([run.load for run in runs]),
                f"{re.sub(r'.*[.]', '', slowest.slowest.partition('::')[0])}::{slowest.slowest.partition('::')[2]} "
                f"({slowest.slowest_s:.0f})".replace("|", "/"),
            )
    table.notes.append("Beside hogs each run has an order of its own (`--shuffle`).")
    table.notes.append("Processor seconds are those of the whole machine, without the hogs.")
    if any(run.load >= QUIET_LOAD for run in record.runs if not run.beside):
        table.notes.append(f"The machine was not quiet (load under {QUIET_LOAD}) before every run that is called so.")
    for run in record.runs:
        table.notes += [f"FAILED in {run.tier}, run {run.number}: {name}" for name in run.failed]
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rounds", type=int, default=6, help="of the default tier, beside hogs and quiet each (default: 6)"
    )
    parser.add_argument("--rest", type=int, default=1, help="rounds of the rest, each (default: 1)")
    parser.add_argument("--only", choices=["beside", "quiet"])
    parser.add_argument("--print-only", action="store_true", help="leave bench/RESULTS.md as it is")
    parser.add_argument("--hog", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hog:
        hog(arguments.hog[0], int(arguments.hog[1]))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    PLACE.mkdir(parents=True, exist_ok=True)
    record = Record.open()
    for tier, rounds in (("default", arguments.rounds), ("ci", arguments.rest), ("exhaustive", arguments.rest)):
        for beside in (True, False):
            if arguments.only == ("quiet" if beside else "beside"):
                continue
            for number in range(len(record.of(tier, beside)) + 1, rounds + 1):
                record.add(play(tier, beside, number))
    report(record, arguments.rounds).publish(arguments)
    return 1 if any(run.code for run in record.runs) else 0


if __name__ == "__main__":
    sys.exit(main())

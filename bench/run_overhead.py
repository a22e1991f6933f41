"""What `tpujob run` adds to a job: its wall time minus the job's own, next to the same steps scripted by hand.

The emulator is up and provisions without delay, so that what is left is ours: starting, asking the API, SSH to every worker,
and the proof that the node is gone. By hand: see harness/by_hand.py.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from harness.processes import cpu_s, timed
from harness.results import Report, options, spread, verdict
from harness.sandbox import ZONE, Sandbox, sandbox, tpujob
from harness.starts import Starts, watch

BY_HAND = Path(__file__).with_name("harness") / "by_hand.py"


@dataclass(frozen=True, slots=True)
class Size:
    """A slice, and what a run on it may cost: wall time against that by hand, the client's processor time and memory."""

    accelerator: str
    workers: int
    ratio: float | None
    cpu_s: float | None = None  # of the client
    peak_mb: float | None = None
    runtime: str = "v2-alpha-tpuv5-lite"


SIZES = (
    Size("v5litepod-8", 1, 1.2),
    Size("v5litepod-64", 16, 1.4),
    Size("v5litepod-256", 64, 1.6),
    Size("v5p-2048", 256, None, cpu_s=8.0, peak_mb=300.0, runtime="v2-alpha-tpuv5"),
)
BEFORE = (
    "Before there was one agent a connection: 1.52 × by hand and with code 1.38 × (1 worker), 2.66 × and 2.34 × (16 workers; "
    "commit b48c270, 2026-11-23), 3.75 × and 3.41 × (64 workers, 2026-11-22); 23 to 30 programs a worker (commit c1b51d7)."
)
# The job's own seconds are the job's to tell: from its first line to its last, on the slowest worker.
MAIN = """\
began=$(date +%s%N)
echo "hello from $(uname -n)"
env | sort > "$TPUJOB_ARTIFACTS/environment.txt"
echo $(( $(date +%s%N) - began )) > "$TPUJOB_ARTIFACTS/own_ns"
"""
JOB = "name: hello\ntpu: {{accelerator: {accelerator}, zone: {zone}}}\n{rest}"
# What the job file says, what is typed on each worker by hand, and whether a bundle travels.
JOBS = {
    "nothing to ship": ("command: |\n" + textwrap.indent(MAIN, "  "), MAIN, False),
    "code shipped": ("code: code\ncommand: sh main.sh\n", "tar xzf bundle.tar.gz && sh main.sh", True),
}


@dataclass(slots=True)
class Overhead:
    """Rounds of one way to run the job."""

    wall_s: list[float] = field(default_factory=list)
    client_cpu_s: list[float] = field(default_factory=list)
    client_peak_mb: list[float] = field(default_factory=list)
    emulator_cpu_s: list[float] = field(default_factory=list)
    programs: list[float] = field(default_factory=list)  # per worker


def main() -> None:
    parents = argparse.ArgumentParser(add_help=False)
    parents.add_argument(
        "--sizes",
        default=",".join(str(size.workers) for size in SIZES),
        metavar="N,…",
        help="numbers of workers (default: %(default)s)",
    )
    arguments = options(str(__doc__), rounds=9, parents=[parents])
    report = Report(
        "run_overhead.py",
        "a run beside the same steps by hand",
        [
            "run",
            "overhead s",
            "× by hand",
            "client's processor s",
            "ms a further worker",
            "client's peak MB",
            "programs per worker",
            "emulator's processor s",
        ],
    )
    wanted = {int(number) for number in arguments.sizes.split(",")}
    with sandbox() as here:
        here.write("code/main.sh", MAIN)
        pid = here.emulator().pid
        starts = watch(pid)
        of_one: dict[tuple[str, str], float] = {}  # the client's processor time with one worker
        for size in (size for size in SIZES if size.workers in wanted):
            ways = _ways(here, size)
            measured = {name: Overhead() for name in ways}
            for number in range(arguments.rounds + 1):
                for name, argv in ways.items():
                    found = Overhead() if number == 0 else measured[name]  # the first round fills caches
                    _once(here, argv, size.workers, pid, starts, found)
            each_ms = {
                name: (statistics.median(found.client_cpu_s) - of_one[name]) / (size.workers - 1) * 1e3
                for name, found in measured.items()
                if name in of_one
            }
            if size.workers == 1:
                of_one = {name: statistics.median(found.client_cpu_s) for name, found in measured.items()}
            for (way, job), found in measured.items():
                title = f"{way}, {size.workers} worker{'s'[: size.workers > 1]}, {job}"
                of_further = [each_ms[name] for name in ((way, job), ("by hand", job)) if name in each_ms]
                cells = _cells(size, found, measured["by hand", job], of_further, by_hand=way == "by hand")
                report.row(title, *cells)
    if starts is not None:
        starts.close()
    report.notes = [
        "Overhead: wall time of the whole command minus the job's own time on its slowest worker (some 10 ms).",
        "The client: the command and all that it started and waited for, such as `ssh` and `scp`; the peak is that of its "
        "largest process. A further worker: what each worker beyond the first adds to that processor time; it has to stay "
        "below what `ssh` and `scp` take.",
        "The emulator's processor time: its own and that of the commands on all workers, but not the detached job.",
        "Programs: every exec below the emulator, per worker, by the kernel's events (root only). Seven are the job's own. "
        "On a real TPU VM each connection is a process of sshd, too, and each copy by hand one of sftp-server.",
        BEFORE,
        "By hand: harness/by_hand.py, `ssh` and `scp` side by side. It does less: no ledger, no supervisor that outlives a cut "
        "connection, no checked artifacts, and a 404 for a proof.",
    ]
    report.publish(arguments)


def _cells(
    size: Size, found: Overhead, by_hand_found: Overhead, of_further: list[float], *, by_hand: bool
) -> list[str]:
    """Return the cells of a row. `of_further`: the processor time of a further worker (ms), this way and by hand, if known."""
    ratio = statistics.median(found.wall_s) / statistics.median(by_hand_found.wall_s)
    cpu, peak, times = spread(found.client_cpu_s), spread(found.client_peak_mb, 0), f"{ratio:.2f}"
    further = f"{of_further[0]:.1f}" if of_further else ""
    if not by_hand:
        times += "" if size.ratio is None else f" ({verdict([ratio], size.ratio, '×')})"
        cpu += "" if size.cpu_s is None else f" ({verdict(found.client_cpu_s, size.cpu_s)})"
        peak += "" if size.peak_mb is None else f" ({verdict(found.client_peak_mb, size.peak_mb, 'MB')})"
        further += f" ({verdict([of_further[0]], round(of_further[1], 1), 'ms')})" if of_further else ""
    programs = spread(found.programs, 1) if found.programs else ""
    return [spread(found.wall_s), times, cpu, further, "" if by_hand else peak, programs, spread(found.emulator_cpu_s)]


def _ways(here: Sandbox, size: Size) -> dict[tuple[str, str], list[str]]:
    """Every job, both ways; each leaves its results in the directory that it is started in."""
    ways: dict[tuple[str, str], list[str]] = {}
    bundle = here.directory / "bundle.tar.gz"
    subprocess.run(["tar", "czf", str(bundle), "-C", str(here.directory / "code"), "main.sh"], check=True)
    reach = [here.emulator().url, str(here.emulator_directory / "token"), size.accelerator, size.runtime]
    for number, (job, (rest, typed, ships)) in enumerate(JOBS.items()):
        file = here.write(f"job{number}.yaml", JOB.format(accelerator=size.accelerator, zone=ZONE, rest=rest))
        by_hand = [sys.executable, str(BY_HAND), *reach, typed, str(bundle) if ships else ""]
        ways["tpujob run", job] = tpujob("run", str(file))
        ways["by hand", job] = by_hand
    return ways


def _once(here: Sandbox, argv: list[str], workers: int, pid: int, starts: Starts | None, found: Overhead) -> None:
    output = here.directory / "output"
    output.mkdir()
    started = starts.count() if starts is not None else 0
    before_s = cpu_s(pid)
    spent = timed(argv, here.environment(), output)
    found.emulator_cpu_s.append(cpu_s(pid) - before_s)
    # What is shown is the terminal's matter; every worker's line is in its log.
    own_s = [int(path.read_text()) / 1e9 for path in output.rglob("own_ns")]
    assert len(own_s) == workers, f"{len(own_s)} workers of {workers} brought their artifacts"
    assert spent.stdout.count("hello from ") in (1, workers), spent.stdout
    assert not here.nodes(), "the node is still there"
    found.wall_s.append(spent.wall_s - max(own_s))
    found.client_cpu_s.append(spent.cpu_s)
    found.client_peak_mb.append(spent.peak_mb)
    if starts is not None:
        found.programs.append((starts.count() - started) / workers)
    shutil.rmtree(output)


if __name__ == "__main__":
    main()

"""What `tpujob run` adds to a job: its wall time minus the job's own, next to the same steps scripted by hand.

The emulator is up and provisions without delay, so that what is left is ours: starting, asking the API, SSH to every worker,
and the proof that the node is gone. By hand: see harness/by_hand.py.
"""

from __future__ import annotations

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

BY_HAND = Path(__file__).with_name("harness") / "by_hand.py"
SIZES = (("v5litepod-8", 1, 1.5), ("v5litepod-64", 16, 3.0))  # type, workers, target in seconds
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
    emulator_cpu_s: list[float] = field(default_factory=list)


def main() -> None:
    arguments = options(str(__doc__), rounds=9)
    report = Report(
        "run_overhead.py",
        "a run beside the same steps by hand",
        ["run", "overhead s", "target", "client's processor s", "emulator's processor s", "× by hand"],
    )
    with sandbox() as here:
        here.write("code/main.sh", MAIN)
        pid = here.emulator().pid
        for accelerator, workers, target_s in SIZES:
            ways = _ways(here, accelerator)
            measured = {name: Overhead() for name in ways}
            for number in range(arguments.rounds + 1):
                for name, argv in ways.items():
                    found = Overhead() if number == 0 else measured[name]  # the first round fills caches
                    _once(here, argv, workers, pid, found)
            for (way, job), found in measured.items():
                by_hand_s = statistics.median(measured["by hand", job].wall_s)
                report.row(
                    f"{way}, {workers} worker{'s'[: workers > 1]}, {job}",
                    spread(found.wall_s),
                    verdict(found.wall_s, target_s) if way == "tpujob run" else "",
                    spread(found.client_cpu_s),
                    spread(found.emulator_cpu_s),
                    f"{statistics.median(found.wall_s) / by_hand_s:.2f}",
                )
    report.notes = [
        "Overhead: wall time of the whole command minus the job's own time on its slowest worker (some 10 ms).",
        "The emulator's processor time: its own and that of the commands on all workers, but not the detached job.",
        "By hand: harness/by_hand.py, `ssh` and `scp` side by side. It does less: no ledger, no supervisor that outlives a cut "
        "connection, no checked artifacts, and a 404 for a proof.",
    ]
    report.publish(arguments)


def _ways(here: Sandbox, accelerator: str) -> dict[tuple[str, str], list[str]]:
    """Every job, both ways; each leaves its results in the directory that it is started in."""
    ways: dict[tuple[str, str], list[str]] = {}
    bundle = here.directory / "bundle.tar.gz"
    subprocess.run(["tar", "czf", str(bundle), "-C", str(here.directory / "code"), "main.sh"], check=True)
    reach = [here.emulator().url, str(here.emulator_directory / "token"), accelerator]
    for number, (job, (rest, typed, ships)) in enumerate(JOBS.items()):
        file = here.write(f"job{number}.yaml", JOB.format(accelerator=accelerator, zone=ZONE, rest=rest))
        by_hand = [sys.executable, str(BY_HAND), *reach, typed, str(bundle) if ships else ""]
        ways["tpujob run", job] = tpujob("run", str(file))
        ways["by hand", job] = by_hand
    return ways


def _once(here: Sandbox, argv: list[str], workers: int, pid: int, found: Overhead) -> None:
    output = here.directory / "output"
    output.mkdir()
    before_s = cpu_s(pid)
    spent = timed(argv, here.environment(), output)
    assert spent.stdout.count("hello from ") == workers, spent.stdout
    own_s = [int(path.read_text()) / 1e9 for path in output.rglob("own_ns")]
    assert len(own_s) == workers, f"{len(own_s)} workers of {workers} brought their artifacts"
    assert not here.nodes(), "the node is still there"
    found.wall_s.append(spent.wall_s - max(own_s))
    found.client_cpu_s.append(spent.cpu_s)
    found.emulator_cpu_s.append(cpu_s(pid) - before_s)
    shutil.rmtree(output)


if __name__ == "__main__":
    main()

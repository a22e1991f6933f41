"""How long the quick commands take to start, against Python itself and, where it is installed, gcloud.

The ledger is empty and no emulator runs. Every round measures each command once, in turn.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys

from harness.processes import Spent, timed
from harness.results import Report, options, spread, verdict
from harness.sandbox import Sandbox, sandbox, tpujob

MAX_FACTOR = 5.0  # of the processor time of `python -c pass`
QUICK = ("--help", "--version", "list", "status", "offers")
PYTHON = "`python -c pass`"


def main() -> None:
    arguments = options(str(__doc__), rounds=21)
    report = Report(
        "cli_start.py",
        "start of the quick commands",
        ["command", "processor s", "× `python -c pass`", "target", "wall s", "modules"],
    )
    commands = {PYTHON: [sys.executable, "-c", "pass"], "`python -S -c pass`": [sys.executable, "-S", "-c", "pass"]}
    commands |= {f"`tpujob {word}`": tpujob(word) for word in QUICK}
    if gcloud := shutil.which("gcloud"):
        commands["`gcloud --version`"] = [gcloud, "--version"]
    spent: dict[str, list[Spent]] = {name: [] for name in commands}
    modules: dict[str, str] = {}
    with sandbox() as here:
        for number in range(arguments.rounds + 1):
            for name, argv in commands.items():
                once = timed(argv, here.environment(), here.directory)
                if number > 0:  # the first round fills caches and creates the empty ledger
                    spent[name].append(once)
        modules = {name: count(argv, here) for name, argv in commands.items() if "gcloud" not in name}
    python_s = statistics.median(each.cpu_s for each in spent[PYTHON])
    for name, each in spent.items():
        factors = [once.cpu_s / python_s for once in each]
        report.row(
            name,
            spread([once.cpu_s for once in each], 3),
            f"{statistics.median(factors):.1f}",
            verdict(factors, MAX_FACTOR, "×") if "tpujob" in name else "",
            spread([once.wall_s for once in each], 3),
            modules.get(name, ""),
        )
    report.notes = [
        "Empty ledger, no emulator running, files in the page cache, output to a file.",
        "`python -c pass` runs what the environment runs at each start: for an editable install, its finder. `-S` is without.",
    ]
    if gcloud is None:
        report.notes.append("gcloud is not installed here.")
    report.publish(arguments)


def count(argv: list[str], here: Sandbox) -> str:
    """Return how many modules the process imports."""
    listed = subprocess.run(
        [sys.executable, "-X", "importtime", *(argv[1:] if argv[0] == sys.executable else argv)],
        env=here.environment(),
        cwd=here.directory,
        capture_output=True,
        text=True,
        check=True,
    )
    return str(sum(line.startswith("import time:") and "|" in line for line in listed.stderr.splitlines()) - 1)


if __name__ == "__main__":
    main()

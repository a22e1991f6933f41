"""How long the quick commands take to start, against Python itself and, where it is installed, gcloud.

The ledger is empty and no emulator runs. Every round measures each command once, in turn.
"""

from __future__ import annotations

import shutil
import statistics
import sys

from harness.processes import Spent, timed
from harness.results import Report, options, spread, verdict
from harness.sandbox import sandbox, tpujob

TARGET_S = {"--help": 0.15, "list": 0.15, "status": 0.15, "offers": 0.25}


def main() -> None:
    arguments = options(str(__doc__), rounds=21)
    report = Report(
        "cli_start.py",
        "start of the quick commands",
        ["command", "wall s", "target", "processor s", "× `python -c pass`"],
    )
    commands = {"`python -c pass`": [sys.executable, "-c", "pass"]}
    commands |= {f"`tpujob {word}`": tpujob(word) for word in TARGET_S}
    if gcloud := shutil.which("gcloud"):
        commands["`gcloud --version`"] = [gcloud, "--version"]
    spent: dict[str, list[Spent]] = {name: [] for name in commands}
    with sandbox() as here:
        for number in range(arguments.rounds + 1):
            for name, argv in commands.items():
                once = timed(argv, here.environment(), here.directory)
                if number > 0:  # the first round fills caches and makes the empty ledger
                    spent[name].append(once)
    python_s = statistics.median(each.wall_s for each in spent["`python -c pass`"])
    for name, each in spent.items():
        wall_s = [once.wall_s for once in each]
        report.row(
            name,
            spread(wall_s, 3),
            verdict(wall_s, TARGET_S[name.strip("`").partition(" ")[2]]) if "tpujob" in name else "",
            spread([once.cpu_s for once in each], 3),
            f"{statistics.median(wall_s) / python_s:.1f}",
        )
    report.notes = ["Empty ledger, no emulator running, files in the page cache, output to a file."]
    if gcloud is None:
        report.notes.append("gcloud is not installed here.")
    report.publish(arguments)


if __name__ == "__main__":
    main()

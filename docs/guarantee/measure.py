"""Writes unclaimed.csv: for how long slices were billed without a claim in many simulated worlds, and what was promised there.

`python docs/guarantee/measure.py [WORLDS]`, then `plot.py`. Each row is one slice; where no layer could act in that world,
nothing was promised and `bound_s` is empty. The worlds are those of `python -m tests.simulation`, from seed 0 on.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.simulation.oracle.bounds import NEVER  # noqa: E402
from tests.simulation.scenarios.random_worlds import world_of  # noqa: E402

CSV = HERE / "unclaimed.csv"
WORLDS = 10_000


def main() -> int:
    worlds, broken = int(sys.argv[1]) if len(sys.argv) > 1 else WORLDS, 0
    with CSV.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("class", "seed", "unclaimed_s", "bound_s"))
        for seed in range(worlds):
            result = world_of(seed).run()
            broken += bool(result.violations)
            for layer, unclaimed_s, bound_s in result.unclaimed:
                promised = "" if bound_s >= NEVER else f"{bound_s:.1f}"
                rows.writerow((layer.partition(",")[0].partition(" ")[0], seed, f"{unclaimed_s:.2f}", promised))
    print(f"{worlds} worlds, {broken} with a broken promise")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

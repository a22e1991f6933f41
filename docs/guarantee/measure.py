"""Writes unclaimed.csv: how long slices were billed without a claim in many simulated worlds, and what was promised there.

`python docs/guarantee/measure.py [WORLDS]`, then `plot.py`. The worlds are those of `python -m tests.simulation`, from seed 0
on. For each layer the file has one row for each percent of its slices (`share`: so many were billed for at most that long),
and one (`share` is `bound`) for the slice that used most of its bound. `seed` is the world of that slice. `none` counts the
slices in worlds in which no layer could act; nothing was promised there.
"""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from tests.simulation.oracle.periods import NEVER  # noqa: E402
from tests.simulation.scenarios.random_worlds import world_of  # noqa: E402

CSV = HERE / "unclaimed.csv"
WORLDS = 10_000
Slice = tuple[float, float, int]  # seconds without a claim, its bound, the seed of its world


def measure(worlds: int) -> tuple[dict[str, list[Slice]], int]:
    """Return the slices of each layer, and the number of worlds that violated an invariant."""
    slices: dict[str, list[Slice]] = defaultdict(list)
    violating = 0
    for seed in range(worlds):
        result = world_of(seed).run()
        violating += bool(result.violations)
        for layer, unclaimed_s, bound_s in result.unclaimed:
            slices[layer].append((unclaimed_s, bound_s, seed))
    return slices, violating


def rows(layer: str, slices: list[Slice]) -> list[tuple[object, ...]]:
    def row(share: str, each: Slice) -> tuple[object, ...]:
        unclaimed_s, bound_s, seed = each
        return layer, len(slices), share, f"{unclaimed_s:.2f}", f"{bound_s:.1f}", seed

    if all(bound_s >= NEVER for _, bound_s, _ in slices):
        return [(layer, len(slices), "", "", "", "")]
    ordered = sorted(slices)
    percents = [ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)] for percent in range(1, 101)]
    quantiles = [row(f"{percent / 100:.2f}", each) for percent, each in enumerate(percents, 1)]
    return [*quantiles, row("bound", max(ordered, key=lambda each: each[0] / each[1]))]


def commit() -> str:
    """Return the short hash of the code that is measured, with a + if the code has changes that are not committed."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "--short=7", "HEAD") + (
        "+" if git("status", "--porcelain", "orchestrator", "tests") else ""
    )


def main() -> int:
    worlds = int(sys.argv[1]) if len(sys.argv) > 1 else WORLDS
    slices, violating = measure(worlds)
    with CSV.open("w", newline="") as file:
        file.write(f"# seeds 0 to {worlds - 1}, commit {commit()}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("layer", "slices", "share", "unclaimed_s", "bound_s", "seed"))
        for layer in sorted(slices):
            writer.writerows(rows(layer, slices[layer]))
    print(f"{worlds} worlds, {violating} violated an invariant")
    return 1 if violating else 0


if __name__ == "__main__":
    sys.exit(main())

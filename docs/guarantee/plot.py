"""Draws unclaimed.svg and writes the measured table of docs/bounds.md from unclaimed.csv. Standard library only.

The curve of a layer says which share of its slices was billed for at most so many seconds after the last claim ended.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PAGE, CSV, SVG = HERE.parent / "bounds.md", HERE / "unclaimed.csv", HERE / "unclaimed.svg"
BEGIN, END = "<!-- measured: written by docs/guarantee/plot.py -->", "<!-- end of measured -->"
LAYERS = {
    "local": ("command, guardian or timer", "#0b6e4f"),
    "watchdog": ("watchdog on the VM", "#1f5fbf"),
    "gc": ("gc, every 60 s", "#b3470b"),
}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 400, 70, 24, 24, 62
DECADES = (0.1, 1, 10, 100, 1000)


@dataclass(frozen=True, slots=True)
class Row:
    layer: str
    slices: int
    share: str
    unclaimed_s: float
    bound_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class Measured:
    """`where`: the seeds and the commit. `unbounded`: slices in worlds in which no layer could act."""

    where: str
    rows: tuple[Row, ...]
    unbounded: int

    def of(self, layer: str) -> list[Row]:
        """Return the percentiles of a layer, the shortest first."""
        return [row for row in self.rows if row.layer == layer and row.share != "bound"]

    def tightest(self, layer: str) -> Row:
        """Return the slice that used most of its bound."""
        return next(row for row in self.rows if row.layer == layer and row.share == "bound")

    def quantile(self, layer: str, share: float) -> float:
        return next(row.unclaimed_s for row in self.of(layer) if row.share == f"{share:.2f}")


def read() -> Measured:
    with CSV.open(newline="") as file:
        where = file.readline().removeprefix("# ").strip()
        rows = list(csv.DictReader(file))
    bounded = tuple(
        Row(r["layer"], int(r["slices"]), r["share"], float(r["unclaimed_s"]), float(r["bound_s"]), int(r["seed"]))
        for r in rows
        if r["share"]
    )
    return Measured(where, bounded, sum(int(row["slices"]) for row in rows if not row["share"]))


def table(measured: Measured) -> str:
    where = re.sub(r"\d{4,}(?=,)", lambda seed: f"{int(seed[0]):,}", measured.where)
    lines = [
        f"{where[:1].upper()}{where[1:]}:",
        "",
        "| layer with the shortest bound | slices | median | 99 % | longest | largest share of its own bound |",
        "|---|---|---|---|---|---|",
    ]
    for layer, (label, _) in LAYERS.items():
        tightest = measured.tightest(layer)
        times = " | ".join(f"{measured.quantile(layer, share):.1f} s" for share in (0.5, 0.99, 1.0))
        used = f"{tightest.unclaimed_s / tightest.bound_s:.0%}".replace("%", " %")
        lines.append(f"| {label} | {tightest.slices:,} | {times} | {used} |")
    lines.append(f"| none: no layer could act, so there is no bound | {measured.unbounded:,} | | | | |")
    return "\n".join(lines)


def page_text(page: str) -> str:
    """Return the page with a current table, and everything else as it was."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(read())}\n{END}{after}"


def x_of(seconds: float) -> float:
    low, high = math.log10(DECADES[0]), math.log10(DECADES[-1])
    share = (math.log10(min(max(seconds, DECADES[0]), DECADES[-1])) - low) / (high - low)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def y_of(share: float) -> float:
    return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)


def curve(rows: list[Row]) -> str:
    path, before = [f"M{x_of(rows[0].unclaimed_s):.0f} {y_of(0):.1f}"], 0.0
    for row in rows:
        x, share = x_of(row.unclaimed_s), float(row.share)
        path.append(f"L{x:.0f} {y_of(before):.1f}L{x:.0f} {y_of(share):.1f}")
        before = share
    return "".join(path)


def text(x: float, y: float, label: str, *, anchor: str = "middle", color: str = "#333") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{color}">{label}</text>'


def svg() -> str:
    measured = read()
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
        "<title>How long slices were billed after their last claim ended</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = y_of(share)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(text(LEFT - 8, y + 4, f"{share:.0%}".replace("%", " %"), anchor="end"))
    for seconds in DECADES:
        x = x_of(seconds)
        parts.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(text(x, HEIGHT - BOTTOM + 18, f"{seconds:g} s"))
    parts.append(
        text(
            (LEFT + WIDTH - RIGHT) / 2,
            HEIGHT - 14,
            "billed for at most so long after the last claim ended (emulator: periods 30 times shorter)",
        )
    )
    for number, (layer, (label, color)) in enumerate(LAYERS.items()):
        parts.append(f'<path d="{curve(measured.of(layer))}" fill="none" stroke="{color}" stroke-width="2"/>')
        y = TOP + 20 + 20 * number
        parts.append(f'<path d="M{LEFT + 14} {y - 4}h22" stroke="{color}" stroke-width="3"/>')
        slices = f"{label}: {measured.tightest(layer).slices:,} slices"
        parts.append(text(LEFT + 44, y, slices, anchor="start", color=color))
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    SVG.write_text(svg(), encoding="utf-8")
    PAGE.write_text(page_text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

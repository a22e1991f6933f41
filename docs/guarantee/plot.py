"""Draws unclaimed.svg and writes the table of docs/guarantee.md out of unclaimed.csv. Standard library only.

The curve of a layer says which share of its slices was billed for at most so many seconds after the last claim ended.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
PAGE, CSV, SVG = HERE.parent / "guarantee.md", HERE / "unclaimed.csv", HERE / "unclaimed.svg"
BEGIN, END = "<!-- measured: written by docs/guarantee/plot.py -->", "<!-- end of measured -->"
LAYERS = {
    "L1/L2": ("CLI, guardian or timer (L1, L2)", "#0b6e4f"),
    "L3": ("the switch on the VM (L3)", "#1f5fbf"),
    "L4": ("gc every 60 s (L4)", "#b3470b"),
}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 400, 70, 24, 24, 62
DECADES = (0.1, 1, 10, 100, 1000)

Row = tuple[float, float | None]  # unclaimed, bound


def read() -> tuple[dict[str, list[Row]], int]:
    """The rows by layer, those with the shortest time first, and the last seed among them."""
    found: dict[str, list[Row]] = {}
    last = 0
    with CSV.open(newline="") as file:
        for row in csv.DictReader(file):
            bound_s = float(row["bound_s"]) if row["bound_s"] else None
            found.setdefault(row["class"], []).append((float(row["unclaimed_s"]), bound_s))
            last = max(last, int(row["seed"]))
    return {layer: sorted(rows, key=lambda row: row[0]) for layer, rows in found.items()}, last


def quantile(rows: Sequence[Row], share: float) -> float:
    return rows[max(0, math.ceil(share * len(rows)) - 1)][0]


def table(rows: dict[str, list[Row]], last: int) -> str:
    lines = [
        f"Seeds 0 to {last}:",
        "",
        "| kept by | slices | median | 99 % | longest | most of its bound |",
        "|---|---|---|---|---|---|",
    ]
    for layer, (words, _) in LAYERS.items():
        own = rows.get(layer, [])
        if own:
            used = max(unclaimed_s / bound_s for unclaimed_s, bound_s in own if bound_s)
            times = " | ".join(f"{quantile(own, share):.1f} s" for share in (0.5, 0.99, 1.0))
            lines.append(f"| {words} | {len(own):,} | {times} | {used:.0%} |")
    lines.append(f"| nobody could act | {len(rows.get('nobody', ())):,} | nothing is promised | | | |")
    return "\n".join(lines)


def page_text(page: str) -> str:
    """The page with its table renewed, and everything else as it was."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(*read())}\n{END}{after}"


def x_of(seconds: float) -> float:
    low, high = math.log10(DECADES[0]), math.log10(DECADES[-1])
    share = (math.log10(min(max(seconds, DECADES[0]), DECADES[-1])) - low) / (high - low)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def y_of(share: float) -> float:
    return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)


def curve(rows: Sequence[Row]) -> str:
    """Thinned to one point for each pixel."""
    points: dict[int, float] = {}
    for number, (unclaimed_s, _) in enumerate(rows, 1):
        points[round(x_of(unclaimed_s))] = number / len(rows)
    path, before = [f"M{x_of(rows[0][0]):.0f} {y_of(0):.1f}"], 0.0
    for x, share in sorted(points.items()):
        path.append(f"L{x} {y_of(before):.1f}L{x} {y_of(share):.1f}")
        before = share
    return "".join(path)


def text(x: float, y: float, words: str, *, anchor: str = "middle", color: str = "#333") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{color}">{words}</text>'


def svg() -> str:
    rows, _ = read()
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
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "billed for at most so long after the last claim ended"))
    for number, (layer, (words, color)) in enumerate(LAYERS.items()):
        own = rows.get(layer, [])
        if own:
            parts.append(f'<path d="{curve(own)}" fill="none" stroke="{color}" stroke-width="2"/>')
            y = TOP + 20 + 20 * number
            parts.append(f'<path d="M{LEFT + 14} {y - 4}h22" stroke="{color}" stroke-width="3"/>')
            parts.append(text(LEFT + 44, y, f"{words}: {len(own):,} slices", anchor="start", color=color))
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    SVG.write_text(svg(), encoding="utf-8")
    PAGE.write_text(page_text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

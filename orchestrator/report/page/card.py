"""A run as a small card for the output of a notebook: how it ended, its main figures, and a picture of its first curves.

It has no script and no style sheet, which notebooks remove, and takes the colors of what is around it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.report.files import metrics
from orchestrator.report.files.metrics import Point, last_text, short
from orchestrator.report.page.html import render_card
from orchestrator.report.page.pictures import Chart, Series, rank
from orchestrator.text.redaction import Redactor
from orchestrator.text.terminal import printable

MOST_FIGURES, MOST_CURVES, POINTS = 4, 2, 120
NO_FIGURE = "schema"  # of metrics.json
WIDTH, HEIGHT = 260, 64
MOST_CHARS, NAME_CHARS = 300, 60
NOTE = "EMULATED: its seconds are not those of a real TPU, and nothing was billed."
COLORS = {"good": "#2e9d5b", "bad": "#d9473d", "open": "#8a8a8a"}  # on light and on dark ground


def card(
    name: str, state: str, kind: str, facts: Sequence[str], directory: Path, values: Mapping[str, Any],
    *, why: str = "", emulated: bool = False, page: Path | None = None,
) -> str:  # fmt: skip
    """Return the HTML of a run. `kind`: good, bad or open. `values`: its metrics. `page`: where its report is.

    A run whose directory is gone has no picture.
    """
    known = metrics.read(directory)
    plain = {key: value for key, value in values.items() if type(value) in (int, float) and math.isfinite(value)}
    figures = {key: short(value) for key, value in plain.items() if key != NO_FIGURE}
    figures |= {key: last_text(metric) for key, metric in known.items()}
    texts = {"name": name, "state": state, "why": why[:MOST_CHARS], "page": "" if page is None else str(page)}
    shown = {
        **{key: printable(text) for key, text in texts.items()},
        "facts": facts,
        "figures": [(_name(key), figures[key]) for key in sorted(figures, key=rank)[:MOST_FIGURES]],
        "curves": list(_curves(directory)),
        "color": COLORS[kind],
        "note": NOTE if emulated else "",
        "size": (WIDTH, HEIGHT),
    }
    return render_card(shown, Redactor().hide)


def _curves(directory: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the description and the path of each curve that is drawn."""
    drawn = {name: curve.points(POINTS) for name, curve in metrics.curves(directory).items()}
    some = sorted((name for name, points in drawn.items() if len({x for x, _ in points}) > 1), key=rank)
    for name in some[:MOST_CURVES]:
        yield _name(name), Chart(_name(name), (Series(0, drawn[name]),)).summary, _path(drawn[name])


def _path(points: Sequence[Point]) -> str:
    """Return the `d` of a path; where a value is no number, it has a gap."""
    values = [value for _, value in points if value is not None] or [0.0]
    low, high, begin, end = min(values), max(values), points[0][0], points[-1][0]
    found, pen = [], "M"
    for x, value in points:
        if value is None:
            pen = "M"
            continue
        # Halves: no difference is infinite.
        share = (value / 2 - low / 2) / (high / 2 - low / 2) if high / 2 > low / 2 else 0.5
        found.append(f"{pen}{(x - begin) / (end - begin) * WIDTH:.1f} {HEIGHT - 3 - share * (HEIGHT - 6):.1f}")
        pen = "L"
    return " ".join(found)


def _name(name: str) -> str:
    return printable(name)[:NAME_CHARS]

"""Lines of metrics: one JSON object a line, such as `{"step": 1200, "loss": 0.41}`. Pure.

They come from a job, so nothing of a line is relied on: what is no number under a short printable name is left out.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LINE_BYTES = 16 << 10  # longer lines are left out
NAMES = 100  # of one run
NAME_CHARS = 64
_LESS_IS_BETTER = re.compile(
    r"loss|err|perplexity|ppl|\b(mse|mae|rmse|wer|cer|fid|nll)\b|time|latency|(?<!per)_(s|ms)$", re.I
)
_MORE_IS_BETTER = re.compile(
    r"acc|auc|auroc|f1|bleu|rouge|precision|recall|score|reward|return|mfu|throughput|iou|dice|psnr|ssim|ndcg|mrr|correct|exact"
    r"|win_?rate|pass@|top_?[15]|(per_|/)s(ec)?\b|(^|[/_])(r2|map|em)$",
    re.I,
)


@dataclass(frozen=True, slots=True)
class MetricLine:
    """The values of one line; None for NaN and infinities. `step` is None where the line has none."""

    step: int | None
    values: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class NotFinite:
    """A metric that is no finite number any more: `NaN`, `Infinity` or `-Infinity` since a step, None if that has no number."""

    value: str
    step: int | None

    def __str__(self) -> str:
        return self.value if self.step is None else f"{self.value} since step {self.step:,}"


def line_of(found: Any) -> MetricLine | None:
    """Return what this object of a line says; None without numbers."""
    if not isinstance(found, dict):
        return None
    values = {name: number(value) for name, value in found.items() if name != "step" and is_metric(name, value)}
    return MetricLine(step_of(found.get("step")), values) if values else None


def is_metric(name: str, value: object) -> bool:
    """Return whether the value counts: a number, under a name that can be shown."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 < len(name) <= NAME_CHARS
        and name.isprintable()
    )


def number(value: float) -> float | None:
    """Return a finite float; None for any other."""
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def spelled(value: float) -> str:
    """Return how JSON as Python writes it spells a value that is not finite; an integer that no float holds is infinite."""
    return "Infinity" if value > 0 else "-Infinity" if value < 0 else "NaN"


def step_of(value: object) -> int | None:
    """Return the value as a step, None if it is no whole number from 0 on."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def less_is_better(name: str) -> bool | None:
    """Return whether the best value of this metric is its lowest or its highest, by its name; None where that is not known.

    The lowest: of a loss, an error, a time. The highest: of an accuracy, a score, a rate. Neither: of a learning rate, a norm.
    """
    if _LESS_IS_BETTER.search(name.replace("/", " ")):
        return True
    return False if _MORE_IS_BETTER.search(name) else None

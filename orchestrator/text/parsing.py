"""Text from outside, read with care: files that a person wrote, JSON, and lines of metrics. Pure.

The parser of JSON recurses with each level. At the limit of Python it fails, and so does every finalizer that happens to run
there. Metrics come from a job, so nothing of a line is relied on: what is no number under a short printable name is left out.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def text_of(raw: bytes) -> str:
    """Return the text of UTF-8 with or without a byte order mark. Raises ValueError with the end of a sentence."""
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in raw[:4]:
        raise ValueError("is UTF-16 or binary; save it as UTF-8")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"is not UTF-8 (byte 0x{raw[error.start]:02x} in line {line}); save it as UTF-8") from None


DEEPEST = 500  # levels; half of what Python allows
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{\]}]', re.DOTALL)


def loads(text: str | bytes, **options: Any) -> Any:
    """Return the value of a JSON text. `options`: those of `json.loads`. Raises ValueError for a deep one, too."""
    decoded = text.decode("utf-8-sig", "surrogatepass") if isinstance(text, bytes) else text
    if decoded.count("[") + decoded.count("{") > DEEPEST and _depth(decoded) > DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    return json.loads(decoded, **options)


def _depth(text: str) -> int:
    """Return the deepest level, which has to be right only for valid JSON."""
    deepest = level = 0
    for token in _TOKENS.finditer(text):
        mark = token[0]
        if mark in "[{":
            level += 1
            deepest = max(deepest, level)
        elif mark in "]}":
            level -= 1
    return deepest


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

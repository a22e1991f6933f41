"""What a terminal is, whether it shows colors, and how a long line is wrapped on it."""

from __future__ import annotations

import functools
import os
import shutil
from typing import TextIO

HANG = 9  # columns: a long line goes on below its text, not below its stage


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_color(stream: TextIO) -> bool:
    """Whether text on the stream may be colored."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def wrapped(text: str, stream: TextIO, indent: int = HANG) -> str:
    """Return the text with its lines wrapped at the width of a terminal, between words; unchanged elsewhere."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    if all(len(line) <= width for line in text.split("\n")):
        return text
    import textwrap

    fill = functools.partial(textwrap.wrap, width=width, subsequent_indent=" " * indent, break_long_words=False)
    lines = (fill(line, break_on_hyphens=False) or [""] for line in text.split("\n"))
    return "\n".join(part for parts in lines for part in parts)

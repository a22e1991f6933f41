"""What a terminal is, whether it shows colors, and how a long line is wrapped on it."""

import functools
import os
import shutil
from typing import TextIO

GOOD = {"succeeded", "READY", "ACTIVE", "live", "billing"}
BAD = {"failed", "error", "unproven", "down", "not", "unknown", "PREEMPTED", "SUSPENDED", "FAILED", "TERMINATED"}
ESCAPES = {"green": "\x1b[32m", "red": "\x1b[31m", "yellow": "\x1b[33m", "": ""}
RESET = "\x1b[0m"
HANG = 9  # columns: a long line goes on below its text, not below its stage


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_color(stream: TextIO) -> bool:
    """Whether text on the stream may be colored."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def color_of(state: str) -> str:
    """Return green for what is as it should be, red for what failed or is not proven, yellow for what waits or goes on."""
    word = state.partition(" ")[0].rstrip(":")
    return "green" if word in GOOD else "red" if word in BAD else "yellow" if word else ""


def wrapped(text: str, stream: TextIO, indent: int = HANG) -> str:
    """Return the text with its lines wrapped at the width of a terminal, between words; unchanged elsewhere.

    What is in backticks, such as a command to copy, stays on one line, if need be on one that is too long.
    """
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    if all(len(line.expandtabs()) <= width for line in text.split("\n")):
        return text
    import re
    import textwrap

    fill = functools.partial(textwrap.wrap, width=width, subsequent_indent=" " * indent, break_long_words=False)
    whole = re.sub("`[^`\n]*`", lambda found: found[0].replace(" ", "\0"), text)
    lines = (fill(line, break_on_hyphens=False) or [""] for line in whole.split("\n"))
    return "\n".join(part for parts in lines for part in parts).replace("\0", " ")

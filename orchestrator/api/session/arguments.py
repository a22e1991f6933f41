"""Durations, sizes and workers as a command line or a caller gives them, checked."""

import math
from datetime import timedelta

from orchestrator.capacity import provisioning
from orchestrator.errors import UserError
from orchestrator.promise.lease import access
from orchestrator.text.units import parse_duration, parse_size

Duration = str | timedelta
Provisioning = provisioning.Provisioning
Via = access.Via
# How long a slice may exist, be held after a success or unused, be held after a failure; and how long to wait for capacity.
LIFE, HOLD, HOLD_FAILED, WAIT = ("6m", "7d"), ("1m", "7d"), ("1m", "24h"), ("1s", "7d")
CHECK = ("1s", "7d")  # how long a program may run here


def seconds(what: str, duration: Duration, least: str, most: str) -> float:
    """Return the seconds of a duration given as `what`. Raises UserError unless it is from `least` to `most`."""
    try:
        value = parse_duration(duration, least, most) if isinstance(duration, str) else duration.total_seconds()
    except ValueError as error:
        raise UserError(f"{what} {duration}: {error}") from error
    if not parse_duration(least) <= value <= parse_duration(most):
        raise UserError(f"{what} {duration}: must be between {least} and {most}")
    return value


def size(what: str, text: str) -> float:
    """Return the bytes of a size given as `what`; infinity for `none`. Raises UserError."""
    try:
        return math.inf if text == "none" else parse_size(text)
    except ValueError as error:
        raise UserError(f"{what} {text}: {error}, or none") from error


def worker_or_all(text: str) -> int | None:
    """Return the index of a worker given as `--worker`; None for `all`. Raises UserError."""
    if text == "all":
        return None
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"--worker {text}: must be the index of a worker, from 0, or `all`")
    return int(text)

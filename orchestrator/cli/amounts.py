"""Durations that people type as options, read with the bounds of the option."""

from __future__ import annotations

from orchestrator.core.text.durations import parse_duration
from orchestrator.errors import UserError


def duration(option: str, text: str, *, least: str, most: str) -> float:
    """Seconds. Raises UserError that names the option."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UserError(f"{option} {text}: {error}") from error
    if not parse_duration(least) <= seconds <= parse_duration(most):
        raise UserError(f"{option} {text}: must be between {least} and {most}")
    return seconds

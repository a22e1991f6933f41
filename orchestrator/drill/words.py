"""A bound in words, for people: with what it adds up to here, and with letters for what is not ours to promise."""

from __future__ import annotations

from orchestrator.core.text.durations import format_duration
from orchestrator.promises import Bound


def formula(bound: Bound) -> str:
    """`time to live 9 s + grace 1.8 s + …`"""
    return " + ".join(f"{part.words} {format_duration(part.seconds)}" for part in bound.parts)


def symbolic(bound: Bound) -> str:
    """`18 m 20 s + O + D`"""
    known = sum(part.seconds for part in bound.parts if not part.letter)
    return " + ".join([format_duration(known), *(part.letter for part in bound.parts if part.letter)])

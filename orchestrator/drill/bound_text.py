"""A bound as text: with the seconds of the drill, or with letters for what tpujob cannot bound. Pure."""

from orchestrator.core.text.durations import format_duration
from orchestrator.promises import Bound


def formula(bound: Bound) -> str:
    """Return `time to live 9 s + grace 1.8 s + …`."""
    return " + ".join(f"{part.label} {format_duration(part.seconds)}" for part in bound.parts)


def symbolic(bound: Bound) -> str:
    """Return `18 m 20 s + O + D`."""
    known = sum(part.seconds for part in bound.parts if not part.letter)
    return " + ".join([format_duration(known), *(part.letter for part in bound.parts if part.letter)])

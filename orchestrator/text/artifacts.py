"""The value of `artifacts:`: patterns, after the word `only` where nothing else is to be collected."""

from collections.abc import Sequence

ONLY = "only"


def patterns(artifacts: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns."""
    return tuple(artifacts if takes_all(artifacts) else artifacts[1:])


def takes_all(artifacts: Sequence[str]) -> bool:
    """Return whether what the job writes beside its artifacts is collected, too."""
    return tuple(artifacts[:1]) != (ONLY,)

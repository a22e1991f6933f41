"""The rules of `metrics:`: patterns that find numbers in the log of a job. Pure.

They are those of `regex`, which are the ones of Python's `re`: its search has a time limit, and a log may be hostile.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.core.jobfile.yaml_source import Path
from orchestrator.core.text.metric_lines import NAME_CHARS
from orchestrator.core.text.names import shown

MAX_PATTERNS, PATTERN_CHARS = 20, 500


def metric_problems(patterns: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what is wrong with the patterns, each at its place."""
    if len(patterns) > MAX_PATTERNS:
        yield ("metrics",), f"{len(patterns)} patterns; at most {MAX_PATTERNS} can be searched for"
    if patterns and set(patterns) <= {"step"}:
        yield ("metrics",), "finds only the step; name a metric too, such as `loss: 'loss ([0-9.]+)'`"
    for name, pattern in patterns.items():
        path = ("metrics", name)
        if not str(name).isprintable() or not 0 < len(str(name)) <= NAME_CHARS:
            yield path, f"is no name of a metric: use 1 to {NAME_CHARS} printable characters, such as `loss`"
        elif isinstance(pattern, str) and (problem := _problem(pattern)):
            yield path, problem


def _problem(pattern: str) -> str | None:
    if len(pattern) > PATTERN_CHARS:
        return f"a pattern of {len(pattern):,} characters; at most {PATTERN_CHARS} are taken"
    import regex

    try:
        groups = regex.compile(pattern).groups
    except (regex.error, RecursionError, OverflowError) as error:
        return f"`{shown(pattern)}` is no regular expression: {error}"
    if groups != 1:
        return f"`{shown(pattern)}` has {groups} groups; write exactly one, around the number: `loss[= ]+([0-9.eE+-]+)`"
    return None

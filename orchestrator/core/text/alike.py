"""Say once what many workers say alike: texts that differ only in numbers, addresses, ids and names of workers."""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

MOST_RANGES = 4  # of workers, in a text
MOST_KINDS = 3  # of messages, in an error
TEXT_CHARS = 500  # of a text are compared

_WORKER = re.compile(r"\bworker(\d+)\b")
_VARYING = re.compile(
    r"""
      \bworker\d+\b
    | \b0x[0-9a-f]+\b
    | \b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b           # UUID
    | (?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])   # IPv6, and times of day
    | \b(?=[a-f]*\d)[0-9a-f]{7,}\b                              # hashes and ids
    | \d+(?:[.,:]\d+)*(?:e[+-]?\d+)?                            # numbers, IPv4, ports
    """,
    re.VERBOSE | re.IGNORECASE,
)

Item = TypeVar("Item")


def masked(text: str) -> str:
    """Return the text with `#` in place of everything in which alike texts differ."""
    return _VARYING.sub("#", text[:TEXT_CHARS])


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    """Return the items with the same key together, in the order of the first of each group."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def worker_names(indexes: Iterable[int]) -> str:
    """Return the names of workers, neighbors as a range: `worker0 to worker62 and worker64`; of many ranges the first."""
    ranges: list[list[int]] = []
    for index in sorted(set(indexes)):
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    parts = [part for first, last in ranges for part in _parts(first, last)]
    names = [name for name, _ in parts[:MOST_RANGES]]
    if left := sum(count for _, count in parts[MOST_RANGES:]):
        names.append(f"{left} more")
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""


def said_once(messages: Sequence[str]) -> str:
    """Return messages of several workers as one: the first of those that are alike, with the names of their workers."""
    groups = grouped(messages, masked)
    parts = [group[0] if len(group) == 1 else f"{group[0]} ({_alike(group)})" for group in groups[:MOST_KINDS]]
    if left := sum(map(len, groups[MOST_KINDS:])):
        parts.append(f"and {left:,} more")
    return "; ".join(parts)


def _alike(messages: Sequence[str]) -> str:
    named = [found for message in messages if (found := _WORKER.search(message))]
    if len(named) < len(messages):
        return f"{len(messages)} alike"
    return f"{len(messages)} alike: {worker_names(int(found[1]) for found in named)}"


def _parts(first: int, last: int) -> list[tuple[str, int]]:
    """Return a range as it is named, and how many workers each name stands for; two neighbors are named each."""
    if last - first > 1:
        return [(f"worker{first} to worker{last}", last - first + 1)]
    return [(f"worker{index}", 1) for index in range(first, last + 1)]

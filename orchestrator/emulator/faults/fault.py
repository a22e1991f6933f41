"""One fault, and its JSON: read strictly, with one clear line for each mistake; written so that it can be read again.

Pure. The shape is documented in docs/emulator.md; the admin path, the CLI and simulators all come through `read`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from orchestrator.emulator.faults.kinds import CHOICES, KINDS, OPERATIONS, Role
from orchestrator.emulator.plain_data import BadData

Ranges = tuple[tuple[int, int | None], ...]
CALLERS = ("client", "vm", "any")
MAX_SECONDS = 1e9
FIELDS = ("kind", "operation", "caller", "match", "when")
ADDED = ("id", "added_at", "calls", "hits")  # by us; read again from the state file
MATCH = ("node", "zone", "state")
WHEN = ("calls", "first", "probability", "seed", "from_s", "until_s")


class BadFault(BadData):
    """This is not a fault; the message is for a person."""


@dataclass(frozen=True, slots=True)
class When:
    """All of it has to hold. `calls` counts from 1 the calls that match; times are seconds after the fault was added."""

    calls: Ranges = ()
    probability: float | None = None
    seed: int = 0
    from_s: float = 0.0
    until_s: float | None = None

    def open_at(self, age_s: float) -> bool:
        return self.from_s <= age_s and (self.until_s is None or age_s < self.until_s)

    def chosen(self, call: int) -> bool:
        if self.calls and not chosen(self.calls, call):
            return False
        return self.probability is None or luck(self.seed, call) < self.probability


@dataclass(slots=True)
class Fault:
    """`parameters` are those of its kind, all of them. `calls` counts the calls that match, `hits` those it spoiled."""

    kind: str
    operation: str  # as it was given; `operations` are those it means
    operations: frozenset[str]
    caller: str = "any"
    node: str | None = None  # globs
    zone: str | None = None
    state: str | None = None
    when: When = field(default_factory=When)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    added_at: float = 0.0
    calls: int = 0
    hits: int = 0

    @property
    def role(self) -> Role:
        return KINDS[self.kind].role

    @property
    def seconds(self) -> float:
        return float(self.parameters["seconds"])

    @property
    def happens(self) -> bool:
        """For an ENDING: does the call have its effect all the same?"""
        return self.kind == "lost_reply" or bool(self.parameters.get("effect", False))

    def meets(self, operation: str, caller: str, zone: str, node: str | None, state: str | None, now: float) -> bool:
        """Count this call if it is one of mine; is it one that I spoil?"""
        if operation not in self.operations or self.caller not in ("any", caller):
            return False
        if self.state is not None and self.state != state:
            return False
        if self.zone is not None and not fnmatchcase(zone, self.zone):
            return False
        if self.node is not None and (node is None or not fnmatchcase(node, self.node)):
            return False
        if not self.when.open_at(now - self.added_at):
            return False
        self.calls += 1
        return self.when.chosen(self.calls)

    def as_json(self) -> dict[str, Any]:
        """What `read` takes, and what was counted since."""
        match = {name: value for name in MATCH if (value := getattr(self, name)) is not None}
        when: dict[str, Any] = {"calls": _text(self.when.calls)} if self.when.calls else {}
        if self.when.probability is not None:
            when |= {"probability": self.when.probability, "seed": self.when.seed}
        when |= {"from_s": self.when.from_s} if self.when.from_s else {}
        when |= {"until_s": self.when.until_s} if self.when.until_s is not None else {}
        counted = {name: getattr(self, name) for name in ADDED}
        shape = {"kind": self.kind, "operation": self.operation, "caller": self.caller, "match": match, "when": when}
        return counted | shape | dict(self.parameters)


def read(data: object) -> Fault:
    """A fault from its JSON. BadFault says what is wrong with it."""
    said = _object("a fault", data)
    name = said.get("kind")
    if not isinstance(name, str) or name not in KINDS:
        raise BadFault(f"A fault needs a kind; there are {', '.join(KINDS)}.")
    kind = KINDS[name]
    _known(f'a fault of kind "{name}"', said, (*FIELDS, *kind.parameters), ADDED)
    match = _object("match", said.get("match", {}))
    _known("match", match, MATCH)
    operation, operations = _operations(name, said.get("operation"))
    caller = said.get("caller", "any")
    if caller not in CALLERS:
        raise BadFault(f"caller is one of {', '.join(CALLERS)}, not {caller!r}.")
    return Fault(
        kind=name,
        operation=operation,
        operations=operations,
        caller=caller,
        node=_glob("match.node", match.get("node")),
        zone=_glob("match.zone", match.get("zone")),
        state=_glob("match.state", match.get("state", kind.state)),
        when=_when(said.get("when", {})),
        parameters={
            key: _parameter(key, said.get(key, default), default, negative=name == "clock")
            for key, default in kind.parameters.items()
        },
        id=str(said.get("id", "")),
        added_at=_number("added_at", said.get("added_at", 0.0)),
        calls=int(_number("calls", said.get("calls", 0))),
        hits=int(_number("hits", said.get("hits", 0))),
    )


def _operations(kind: str, said: object) -> tuple[str, frozenset[str]]:
    """One or several globs; without any, all that the kind is about."""
    patterns = [part.strip() for part in said.split(",")] if isinstance(said, str) else said
    if patterns is None:
        patterns = ["*"] if KINDS[kind].operations == OPERATIONS else list(KINDS[kind].operations)
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise BadFault(f"operation is a text like nodes.delete or nodes.*, or a list of them, not {said!r}.")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in OPERATIONS):
            raise BadFault(f'No operation is called "{pattern}"; there are {", ".join(OPERATIONS)}.')
    possible = KINDS[kind].operations
    meant = frozenset(name for name in possible if any(fnmatchcase(name, pattern) for pattern in patterns))
    if not meant:
        raise BadFault(f'A fault of kind "{kind}" is about {", ".join(possible)}, not about {", ".join(patterns)}.')
    return ",".join(patterns), meant


def _when(data: object) -> When:
    said = _object("when", data)
    _known("when", said, WHEN)
    if "calls" in said and "first" in said:
        raise BadFault("when.first is the same as when.calls 1-N: give one of them.")
    calls = ranges(said["calls"], "when.calls") if "calls" in said else ()
    if "first" in said:
        calls = ((1, _count("when.first", said["first"])),)
    probability = said.get("probability")
    if probability is not None and not 0 <= _number("when.probability", probability) <= 1:
        raise BadFault(f"when.probability is between 0 and 1, not {probability!r}.")
    from_s, until_s = said.get("from_s", 0.0), said.get("until_s")
    for name, value in (("from_s", from_s), ("until_s", until_s)):
        if value is not None and not 0 <= _number(f"when.{name}", value) <= MAX_SECONDS:
            raise BadFault(f"when.{name} is a number of seconds from now on, not {value!r}.")
    if until_s is not None and until_s <= from_s:
        raise BadFault(f"when.until_s ({until_s}) is not after when.from_s ({from_s}).")
    seed = said.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise BadFault(f"when.seed is a whole number, not {seed!r}.")
    return When(calls, probability, seed, float(from_s), None if until_s is None else float(until_s))


def chosen(numbers: Ranges, number: int) -> bool:
    return any(first <= number and (last is None or number <= last) for first, last in numbers)


def ranges(said: object, name: str) -> Ranges:
    """`2`, `[1, 3]` or `"1,3,5-7,9-"`."""
    parts = [str(part) for part in said] if isinstance(said, list) else str(said).split(",")
    found: list[tuple[int, int | None]] = []
    for part in parts:
        match = re.fullmatch(r"\s*([0-9]{1,9})(-([0-9]{0,9}))?\s*", part, re.ASCII)
        if match is None:
            raise BadFault(f"{name} is like 2, [1, 3] or 1,3,5-7,9- and not {said!r}.")
        first = int(match[1])
        last = first if match[2] is None else int(match[3]) if match[3] else None
        if first < 1 or (last is not None and last < first):
            raise BadFault(f"{name} counts from 1 and upwards: {part.strip()!r} is no such range.")
        found.append((first, last))
    return tuple(found)


def _text(ranges: Ranges) -> str:
    return ",".join(str(a) if a == b else f"{a}-" if b is None else f"{a}-{b}" for a, b in ranges)


def _parameter(name: str, value: object, default: object, *, negative: bool) -> Any:
    if name in CHOICES:
        if value not in CHOICES[name] or isinstance(value, bool):
            raise BadFault(f"{name} is one of {', '.join(map(str, CHOICES[name]))}, not {value!r}.")
        return value
    if isinstance(default, bool):
        return _require(name, "true or false", value, isinstance(value, bool))
    if isinstance(default, str):
        return _require(name, "a text", value, isinstance(value, str))
    if isinstance(default, list):
        fine = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return _require(name, "a list of texts", value, fine)
    number = _number(name, value)
    if abs(number) > MAX_SECONDS or (number < 0 and not negative):
        raise BadFault(f"{name} must be between {'-1e9' if negative else '0'} and 1e9, not {value!r}.")
    return number


def _require(name: str, what: str, value: object, fine: bool) -> object:
    if not fine:
        raise BadFault(f"{name} is {what}, not {value!r}.")
    return value


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124 - NaN
        raise BadFault(f"{name} is a number, not {value!r}.")
    return value


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadFault(f"{name} is a whole number from 1 on, not {value!r}.")
    return value


def _glob(name: str, value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise BadFault(f"{name} is a text, not {value!r}.")
    return value


def _object(what: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadFault(f"{what[0].upper()}{what[1:]} is a JSON object, not {value!r}.")
    return value


def _known(what: str, said: Mapping[str, Any], fields: tuple[str, ...], passed: tuple[str, ...] = ()) -> None:
    for name in said:
        if name not in (*fields, *passed):
            raise BadFault(f'There is no field "{name}" in {what}; there are {", ".join(fields)}.')


def luck(seed: int, call: int) -> float:
    """Between 0 and 1, and the same for the same seed and call wherever it is asked."""
    digest = hashlib.blake2b(b"%d:%d" % (seed, call), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64

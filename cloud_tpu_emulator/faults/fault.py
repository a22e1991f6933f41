"""One fault and its JSON; the faults of one cloud, and the decision which of them a call meets.

Pure. A fault is read strictly, with one clear line for each mistake, and written so that it can be read again.
docs/emulator.md documents the shape; the daemon's own paths, the CLI and simulators all use `read`.

The decision is seeded: the daemon and simulators call `Faults.decide` once for each call. The same faults and the same calls in
the same order give the same decisions, also across a restart of the daemon.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from cloud_tpu_emulator.faults.kinds import CHOICES, KINDS, LIMITS, OPERATIONS, RELAY, Role
from cloud_tpu_emulator.faults.plain_data import INTERNAL, LARGEST, BadData, check_object, check_value
from cloud_tpu_emulator.faults.plain_data import read as read_data

Ranges = tuple[tuple[int, int | None], ...]  # each from one number to another, both included; None: without end
CALLERS = ("client", "vm", "any")
FIELDS = ("kind", "operation", "caller", "match", "when")
COUNTED = ("id", "added_at", "calls", "hits")  # written by the emulator; read again from the state file
WHEN = ("calls", "first", "probability", "seed", "from_s", "until_s")


@dataclass(frozen=True, slots=True)
class Match:
    """What a call must be about. `node` and `zone` are globs."""

    node: str | None = None
    zone: str | None = None
    state: str | None = None

    def matches(self, zone: str, node: str | None, state: str | None) -> bool:
        """Return whether the call is about such a node; `node` None: about no single node."""
        if self.state is not None and self.state != state:
            return False
        if self.zone is not None and not fnmatchcase(zone, self.zone):
            return False
        return self.node is None or (node is not None and fnmatchcase(node, self.node))


def in_ranges(numbers: Ranges, number: int) -> bool:
    """Return whether one of the ranges has the number."""
    return any(first <= number and (last is None or number <= last) for first, last in numbers)


def parse_ranges(data: object, name: str) -> Ranges:
    """Return the ranges in `2`, `[1, 3]` or `"1,3,5-7,9-"`. Raises BadData, in which `name` is the place of the data."""
    parts = [str(part) for part in data] if isinstance(data, list) else str(data).split(",")
    found: list[tuple[int, int | None]] = []
    for part in parts:
        match = re.fullmatch(r"\s*([0-9]{1,9})(-([0-9]{0,9}))?\s*", part, re.ASCII)
        if match is None:
            raise BadData(f"{name} must be like 2, [1, 3] or 1,3,5-7,9-, not {data!r}.")
        first = int(match[1])
        last = first if match[2] is None else int(match[3]) if match[3] else None
        if first < 1 or (last is not None and last < first):
            raise BadData(f"{name} counts upwards from 1; {part.strip()!r} is not such a range.")
        found.append((first, last))
    return tuple(found)


def uniform(seed: int, call: int) -> float:
    """Return a number from 0 to 1, always the same for the same seed and call."""
    digest = hashlib.blake2b(b"%d:%d" % (seed, call), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@dataclass(frozen=True, slots=True)
class When:
    """All conditions must hold. `calls` counts matching calls from 1; times are seconds after the fault was added."""

    calls: Ranges = field(default=(), metadata={"parse": parse_ranges})
    probability: float | None = field(default=None, metadata={"most": 1})
    seed: int = field(default=0, metadata={"least": -(2**63), "most": 2**63})
    from_s: float = 0.0
    until_s: float | None = None

    def open_at(self, age_s: float) -> bool:
        """Return whether the fault applies so many seconds after it was added."""
        return self.from_s <= age_s and (self.until_s is None or age_s < self.until_s)

    def selects(self, call: int) -> bool:
        """Return whether the fault applies to the call with this number."""
        if self.calls and not in_ranges(self.calls, call):
            return False
        return self.probability is None or uniform(self.seed, call) < self.probability

    def as_json(self) -> dict[str, Any]:
        """Return the conditions that are set, as `read` takes them."""
        found = {name: value for name, value in asdict(self).items() if value != getattr(ALWAYS, name)}
        return found | ({"calls": _text(self.calls)} if self.calls else {})


ALWAYS = When()


@dataclass(slots=True)
class Fault:
    """`parameters` are all those of its kind. `calls` counts the calls that match, `hits` those that the fault changes."""

    kind: str
    operation: str  # as given; `operations` are those that it stands for
    operations: frozenset[str]
    caller: str = "any"
    match: Match = Match()
    when: When = ALWAYS
    parameters: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    added_at: float = 0.0  # Unix seconds of the cloud's clock
    calls: int = 0
    hits: int = 0

    @property
    def role(self) -> Role:
        """The role of its kind."""
        return KINDS[self.kind].role

    @property
    def seconds(self) -> float:
        """The parameter `seconds`. KeyError for a kind without it."""
        return float(self.parameters["seconds"])

    @property
    def takes_effect(self) -> bool:
        """Of a REPLY: whether the call takes effect all the same."""
        return self.kind == "lost_reply" or bool(self.parameters.get("effect", False))

    def strikes(self, operation: str, caller: str, zone: str, node: str | None, state: str | None, now: float) -> bool:
        """Count the call if it matches, and return whether the fault changes it."""
        if operation not in self.operations or self.caller not in ("any", caller):
            return False
        if not self.match.matches(zone, node, state) or not self.when.open_at(now - self.added_at):
            return False
        self.calls += 1
        return self.when.selects(self.calls)

    def as_json(self) -> dict[str, Any]:
        """Return what `read` takes, and the counts."""
        match = {name: value for name, value in asdict(self.match).items() if value is not None}
        counted = {name: getattr(self, name) for name in COUNTED}
        shape = {"kind": self.kind, "operation": self.operation, "caller": self.caller, "match": match}
        return counted | shape | {"when": self.when.as_json()} | dict(self.parameters)


def read(data: object) -> Fault:
    """Return a fault from its JSON. Raises BadData, whose message is one line."""
    data = check_object("a fault", data)
    name = data.get("kind")
    if not isinstance(name, str) or name not in KINDS:
        wrong = f'There is no fault of kind "{name}"' if isinstance(name, str) else "A fault needs a kind"
        raise BadData(f"{wrong}; there are {', '.join(KINDS)}.")
    kind = KINDS[name]
    check_object(f'a fault of kind "{name}"', data, (*FIELDS, *kind.parameters), COUNTED)
    _check_literal(name, data.get("literal"))
    operation, operations = _operations(name, data.get("operation"))
    limits = {"seconds": {"least": -LARGEST}} if name == "clock" else LIMITS
    match = {"state": kind.state} | dict(check_object("match", data.get("match", {})))
    return Fault(
        kind=name,
        operation=operation,
        operations=operations,
        caller=check_value("caller", data.get("caller", "any"), str, choices=CALLERS),
        match=read_data(Match, match, "match", "match."),
        when=_when(data.get("when", {})),
        parameters={
            key: check_value(
                key, data.get(key, default), type(default), choices=CHOICES.get(key, ()), **limits.get(key, {})
            )
            for key, default in kind.parameters.items()
        },
        id=str(data.get("id", "")),
        added_at=check_value("added_at", data.get("added_at", 0.0), float, most=INTERNAL["most"]),
        calls=check_value("calls", data.get("calls", 0), int),
        hits=check_value("hits", data.get("hits", 0), int),
    )


def _check_literal(kind: str, text: object) -> None:
    """Raise BadData unless it can be what it stands for: of an operation a google.rpc.Status, of a reply any text."""
    if KINDS[kind].role is Role.REPLY or not isinstance(text, str) or not text:
        return
    with contextlib.suppress(ValueError):
        status = json.loads(text)
        if isinstance(status, dict) and isinstance(status.get("code"), int):
            return
    raise BadData(
        f'literal must be a google.rpc.Status as JSON, such as {{"code": 5, "message": "…"}}, not {text[:80]!r}.'
    )


def _operations(kind: str, data: object) -> tuple[str, frozenset[str]]:
    """Read one or several globs; without any, all that the kind concerns."""
    patterns = [part.strip() for part in data.split(",")] if isinstance(data, str) else data
    if patterns is None:
        patterns = ["*"] if KINDS[kind].operations == OPERATIONS else list(KINDS[kind].operations)
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise BadData(f"operation must be a string like nodes.delete or nodes.*, or a list of them, not {data!r}.")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in (*OPERATIONS, *RELAY)):
            raise BadData(f'There is no operation "{pattern}"; there are {", ".join((*OPERATIONS, *RELAY))}.')
    possible = KINDS[kind].operations
    selected = frozenset(name for name in possible if any(fnmatchcase(name, pattern) for pattern in patterns))
    if not selected:
        raise BadData(f'A fault of kind "{kind}" concerns {", ".join(possible)}, not {", ".join(patterns)}.')
    return ",".join(patterns), selected


def _when(data: object) -> When:
    data = dict(check_object("when", data, WHEN))
    if "first" in data:
        if "calls" in data:
            raise BadData("when.first is short for when.calls 1-N: give one of them.")
        data["calls"] = f"1-{check_value('when.first', data.pop('first'), int, least=1)}"
    when = read_data(When, data, "when", "when.")
    if when.until_s is not None and when.until_s <= when.from_s:
        raise BadData(f"when.until_s ({when.until_s:g}) must be after when.from_s ({when.from_s:g}).")
    return when


def _text(ranges: Ranges) -> str:
    return ",".join(str(a) if a == b else f"{a}-" if b is None else f"{a}-{b}" for a, b in ranges)


class NoReply(Exception):
    """The call gets no reply, whether or not it took effect. On the wire the connection closes."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Which faults one call meets. `effect` goes to the cloud's state; the rest concerns the reply."""

    effect: Fault | None = None
    reply: Fault | None = None
    slow_s: float = 0.0
    clock_s: float = 0.0  # by how much the Date header is ahead
    hits: tuple[str, ...] = ()  # the ids of all these faults

    @property
    def takes_effect(self) -> bool:
        """Whether the call reaches the cloud at all."""
        return self.reply is None or self.reply.takes_effect


NO_FAULT = Decision()


class Faults:
    """Faults in the order in which they were added: of several with the same role, the first one applies."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._faults = {fault.id: fault for fault in faults}
        self._count = max((int(name[1:]) for name in self._faults if name[1:].isdigit()), default=0)

    def __bool__(self) -> bool:
        return bool(self._faults)

    def add(self, data: object, now: float) -> Fault:
        """Add a fault from its JSON. The times of its `when` count from `now`. Raises BadData."""
        return self.add_all([data], now)[0]

    def add_all(self, rows: Iterable[object], now: float) -> list[Fault]:
        """Add all of them, or none. Raises BadData."""
        added = [read(row) for row in rows]
        for fault in added:
            self._count += 1
            fault.id, fault.added_at, fault.calls, fault.hits = f"f{self._count}", now, 0, 0
            self._faults[fault.id] = fault
        return added

    def clear(self, ids: Iterable[str] | None = None) -> int:
        """Remove these faults, or all; return how many there were."""
        removed = [name for name in (self._faults if ids is None else ids) if name in self._faults]
        for name in removed:
            del self._faults[name]
        return len(removed)

    def decide(self, operation: str, caller: str, name: str, now: float, state: str | None = None) -> Decision:
        """Count the call, and return the faults that it meets; NO_FAULT if none.

        `name` is the full name of a node, a queued resource or a place, `state` the state of that node or queued resource;
        `caller` is "client" or "vm".
        """
        parts = name.split("/")
        zone = parts[3] if len(parts) > 3 else "-"
        node = parts[5] if len(parts) > 5 and parts[4] in ("nodes", "queuedResources") else None
        met = [fault for fault in self._faults.values() if fault.strikes(operation, caller, zone, node, state, now)]
        return _decision(met) if met else NO_FAULT

    def dump(self) -> list[dict[str, Any]]:
        """Return what `load` reads."""
        return [fault.as_json() for fault in self._faults.values()]

    @classmethod
    def load(cls, rows: Iterable[Mapping[str, Any]]) -> Faults:
        """Return the faults of `dump`. Raises BadData."""
        return cls(read(row) for row in rows)


def _decision(met: list[Fault]) -> Decision:
    reply = next((fault for fault in met if fault.role is Role.REPLY), None)
    takes_effect = reply is None or reply.takes_effect
    effect = next((fault for fault in met if takes_effect and fault.role is Role.EFFECT), None)
    modifiers = [fault for fault in met if fault.role is Role.MODIFIER]
    applied = [*modifiers, *(fault for fault in (effect, reply) if fault is not None)]
    for fault in applied:
        fault.hits += 1
    return Decision(
        effect,
        reply,
        sum(fault.seconds for fault in modifiers if fault.kind == "slow"),
        sum(fault.seconds for fault in modifiers if fault.kind == "clock"),
        tuple(fault.id for fault in applied),
    )

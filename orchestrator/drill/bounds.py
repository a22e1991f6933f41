"""The promised bounds: how long a slice may still be billed after its claim ended, by event. Written by hand.

docs/bounds.md prints this table with its formulas, docs/guarantee.md the main rows; `tpujob drill`, the fault matrix and the
simulator compare their measurements with it. It imports nothing of the code that keeps the promises, and that code does not
import it (tests/unit/test_imports.py): a changed period cannot change a promise.
tests/unit/test_docs.py derives each number from the periods of the code, so it fails after such a change. All times are
seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

EMULATED_SPEED = 30.0  # by default, claims of the emulated cloud are this much faster
LOOK_S = 30.0  # the longest pause between two reads during a teardown; at first it is a quarter of the time waited


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a formula, in seconds on Google Cloud.

    `emulated_s`: its value on an emulated cloud, before its speed divides it; None: the same. `real_s` is added there at any
    speed. `letter`: the symbol of a term whose length tpujob cannot promise.
    """

    label: str
    google_s: float
    emulated_s: float | None = None
    real_s: float = 0.0
    letter: str = ""


TERMS = {
    "command": Term("the command's own work", 10, 0, real_s=10),
    "guardian": Term("the guardian's own work", 5, 0, real_s=5),
    "timer": Term("until the timer", 300, 0, real_s=300),
    "gc": Term("the gc run's own work", 5, 0, real_s=5),
    "watchdog": Term("the watchdog's own work", 20, real_s=3),  # processes start no faster there
    "retry": Term("the longest pause between two tries", 30, 0, real_s=30),
    "look": Term("until the next read", LOOK_S),
    "heartbeat": Term("heartbeat", 60),
    "poll": Term("poll", 60),
    "rare poll": Term("poll of a worker that is not the first", 300),
    "ttl": Term("time to live", 900),
    "grace": Term("grace", 180),
    "boot": Term("boot", 600),
    "linger": Term("linger", 3600),
    "margin": Term("margin", 120),
    "stagger": Term("the worker's turn", 60),
    "renew": Term("until the label is renewed", 1800),
    "label": Term("claim of a renewed label", 4500),
    "provision": Term("provisioning in the first label", 2700, 9000),
    "claimed": Term("what is left of the label", 4500, 9600),  # there the first label reaches furthest
    "READY": Term("until READY", 2700),
    "D": Term("deletion", 300, letter="D"),
    "O": Term("outage", 0, letter="O"),
    "S": Term("until the next gc run", 1800, letter="S"),
}


@dataclass(frozen=True, slots=True)
class PromisedBound:
    """A row of the table. `formula` names terms; it is empty if another line has the bound, or if there is none."""

    class_: str
    event: str
    deleted_by: str
    formula: str
    google: str
    emulated: str


PROMISES = {
    "command": PromisedBound("C0", "the end of a run, Ctrl-C, SIGTERM, an error", "command",
        "command + D", "10 s + D", "10 s + D"),
    "guardian": PromisedBound("C1", "the command was killed", "guardian",
        "guardian + D", "5 s + D", "5 s + D"),
    "guardian of a create": PromisedBound(
        "C1", "the command was killed while the slice was CREATING, and the cloud takes no delete before READY",
        "guardian", "guardian + READY + look + D", "45 m 35 s + D", "7.5 s + D"),
    "timer": PromisedBound("C2", "the command and its guardian were killed; your machine lives",
        "timer; without a timer, as C3", "timer + guardian + D", "5 m 5 s + D", "5 m 5 s + D"),
    "watchdog": PromisedBound("C3", "attached run: your machine died, slept or lost its network", "watchdog",
        "ttl + grace + watchdog + D", "18 m 20 s + D", "39.7 s + D"),
    "watchdog of a detached run": PromisedBound("C3", "detached run: your machine died; counted from the end of its job",
        "watchdog", "linger + grace + 3 poll + watchdog + D", "1 h 6 m + D", "2 m 16 s + D"),
    "watchdog of a held slice": PromisedBound("C3", "held slice: your machine died; counted from the end of its time",
        "watchdog", "grace + grace + 3 poll + watchdog + D", "9 m 20 s + D", "21.7 s + D"),
    "watchdog of a create": PromisedBound("C3'", "your machine died while the slice was CREATING or booting",
        "watchdog", "READY + boot + ttl + grace + watchdog + D", "1 h 13 m + D", "1 m 2 s + D"),
    "cut off": PromisedBound("C4", "the client is cut off from the cloud for good", "watchdog",
        "", "as C3", "as C3"),
    "outage": PromisedBound("C5", "the API was unreachable; the command or its guardian lives", "command or guardian",
        "command + O + retry + D", "40 s + O + D", "40 s + O + D"),
    "watchdog after an outage": PromisedBound("C5", "the API was unreachable; only the watchdog lives", "watchdog",
        "ttl + grace + watchdog + O + grace + 3 poll + D", "24 m 20 s + O + D", "51.7 s + O + D"),
    "dead VM": PromisedBound("C6", "a VM hangs or died, the client lives", "command",
        "", "as C0, at the latest 10 m after the last reply of the VM", "the same"),
    "gc": PromisedBound("C7", "attached run: your machine and the watchdogs died, or the watchdogs may not delete",
        "gc", "claimed + margin + gc + S + D", "1 h 17 m + S + D", "5 m 29 s + S + D"),
    "gc of a detached run": PromisedBound("C7", "detached run, held slice: the same; counted from the deadline", "gc",
        "margin + gc + S + D", "2 m 5 s + S + D", "9 s + S + D"),
    "revoked": PromisedBound("C8", "the client's credentials were revoked", "watchdog",
        "", "as C3", "as C3"),
    "all revoked": PromisedBound("C8", "the credentials of the client and of the VMs were revoked", "gc",
        "", "as C7", "as C7"),
    "clock": PromisedBound("C9", "a clock is wrong, by any amount", "",
        "", "labels are in the server's time; + 1 %", "+ 1 %"),
    "no ledger": PromisedBound("C10", "the ledger is lost or damaged", "gc",
        "", "as C7; with `tpujob gc` by hand: once the label has expired", "as C7"),
    "stuck": PromisedBound("C11", "the cloud accepts deletes, and the node stays", "",
        "", "none: exit code 75 after 10 m; retried", "the same"),
    "frozen": PromisedBound("C12", "403 to everything: project, billing or organization is frozen", "",
        "", "none: exit code 75 after 10 m; retried", "the same"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PromiseWorld:
    """What a bound depends on besides the table. `speed` None: Google Cloud."""

    speed: float | None = None
    deletion_s: float = TERMS["D"].google_s  # D
    outage_s: float = 0.0  # O
    gc_every_s: float = TERMS["S"].google_s  # S
    ready_s: float = TERMS["READY"].google_s  # from the create call to READY
    failed_deletes: int = 0  # deletes that were accepted and had no effect
    slowness: float = 1.0  # how many times longer than on a quiet machine tpujob's own work takes

    @property
    def on_google(self) -> PromiseWorld:
        """The same event on Google Cloud."""
        return PromiseWorld(outage_s=self.outage_s, failed_deletes=self.failed_deletes)


@dataclass(frozen=True, slots=True)
class Part:
    """One addend of a bound."""

    label: str
    seconds: float
    letter: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """A formula with its numbers."""

    parts: tuple[Part, ...]

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)


def seconds(name: str, speed: float | None = None, *, slowness: float = 1.0) -> float:
    """Return one term in seconds, at this speed of an emulated cloud; None: on Google Cloud."""
    term = TERMS[name]
    if speed is None:
        return term.google_s
    emulated_s = term.google_s if term.emulated_s is None else term.emulated_s
    return emulated_s / speed + term.real_s * slowness


def bound(promise: PromisedBound, world: PromiseWorld) -> Bound:
    """Return the bound in this world. Each delete without effect adds one deletion and one pause until the next read."""
    assert promise.formula, f"{promise.class_} has no formula of its own"
    parts: list[Part] = []
    for word in promise.formula.split(" + "):
        count, _, name = word.rpartition(" ")
        parts += _deletion(world) if name == "D" else [_part(name, int(count or 1), world)]
    return Bound(tuple(parts))


def _part(name: str, count: int, world: PromiseWorld) -> Part:
    term = TERMS[name]
    given = {"READY": world.ready_s, "O": world.outage_s, "S": world.gc_every_s, "look": _look_s(world.ready_s)}
    each_s = given[name] if name in given else seconds(name, world.speed, slowness=world.slowness)
    return Part(f"{count} × {term.label}" if count > 1 else term.label, count * each_s, term.letter)


def _deletion(world: PromiseWorld) -> list[Part]:
    failed, d = world.failed_deletes, TERMS["D"]
    if not failed:
        return [Part(d.label, world.deletion_s, d.letter)]
    looks_s = sum(_look_s(times * world.deletion_s) for times in range(1, failed + 1))
    deletions = Part(f"{failed + 1} deletions", (failed + 1) * world.deletion_s, f"{failed + 1} {d.letter}")
    return [Part(f"{failed} looks", looks_s), deletions]


def _look_s(waited_s: float) -> float:
    return min(LOOK_S, waited_s / 4)

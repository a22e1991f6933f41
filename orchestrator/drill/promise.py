"""The promise as numbers: how long a slice may be billed after its last claim ended, by what still works. Pure.

One function for each class of docs/guarantee.md, and a test that the page says the same. They see the periods (a Pace) and
what a disaster does to the world, and nothing that was measured. What belongs to the cloud, or to fate, stays a letter: D is
the time from an accepted delete to absence, O the length of an outage of the API, S the time between two sweeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.core.durations import format_duration
from orchestrator.core.pace import GOOGLE, Pace

OWNER_S = 10.0  # C0: the CLI itself, from the end of its claim to a delete on the wire
GUARDIAN_S = 5.0  # C1
TIMER_S = 300.0  # C2: the period of `tpujob install-sweeper`
SWITCH_S = 20.0  # C3: beyond its periods, at Google's pace
PROCESSES_S = 3.0  # what the emulator cannot make faster of them: processes start no quicker there
SWEEP_S = 5.0  # C7: one pass over all zones
SWEEP_EVERY_S = 1800.0  # as docs/sweeping.md proposes
LOOK_S = 30.0  # the longest pause between two looks of a teardown


@dataclass(frozen=True, slots=True)
class World:
    """What a bound depends on: the periods, and what a disaster does."""

    pace: Pace = GOOGLE
    deletion_s: float = GOOGLE.absent_s  # D
    outage_s: float = 0.0  # O
    failed_deletes: int = 0  # deletes that are accepted and come to nothing
    provision_s: float = GOOGLE.provision_s  # from the create call to READY
    sweep_every_s: float = SWEEP_EVERY_S

    @property
    def speed(self) -> float:
        return GOOGLE.beat_s / self.pace.beat_s

    @property
    def on_google(self) -> World:
        """The same disaster there."""
        return World(outage_s=self.outage_s, failed_deletes=self.failed_deletes)


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a bound. What has a `letter` is not ours to promise: on Google Cloud its length is anybody's guess."""

    words: str
    seconds: float
    letter: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    terms: tuple[Term, ...]

    @property
    def seconds(self) -> float:
        return sum(term.seconds for term in self.terms)

    @property
    def formula(self) -> str:
        """`time to live 9 s + grace 1.8 s + …`"""
        return " + ".join(f"{term.words} {format_duration(term.seconds)}" for term in self.terms)

    @property
    def symbolic(self) -> str:
        """`18 m 20 s + O + D`"""
        known = sum(term.seconds for term in self.terms if not term.letter)
        return " + ".join([format_duration(known), *(term.letter for term in self.terms if term.letter)])


Promise = Callable[[World], Bound]


def owner(world: World) -> Bound:
    """C0: the CLI is there to the end."""
    return Bound((Term("the CLI's own", OWNER_S), *_deletion(world)))


def guardian(world: World) -> Bound:
    """C1: the CLI is gone, its machine is not."""
    return Bound((Term("the guardian's own", GUARDIAN_S), *_deletion(world)))


def guardian_of_a_create(world: World) -> Bound:
    """C1 where the cloud drops or refuses deletes while the create is under way: until READY, and one look more."""
    look = Term("the next look", _look_s(world.provision_s))
    own = Term("the guardian's own", GUARDIAN_S)
    return Bound((own, Term("until READY", world.provision_s), look, *_deletion(world)))


def timer(world: World) -> Bound:
    """C2: the CLI and its guardian are gone, and the machine has the timer of `tpujob install-sweeper`."""
    return Bound((Term("until the timer", TIMER_S), Term("its own", GUARDIAN_S), *_deletion(world)))


def switch(world: World) -> Bound:
    """C3, attached: nobody is left but the VM itself."""
    pace = world.pace
    own = (Term("time to live", pace.ttl_s), Term("grace", pace.grace_s), _switch_own(world))
    return Bound((*own, *_outage(world), *_deletion(world)))


def switch_of_a_create(world: World) -> Bound:
    """C3': nobody is left, and the VM is still to come."""
    coming = (Term("until READY", world.provision_s), Term("boot", world.pace.boot_s))
    return Bound((*coming, *switch(world).terms))


def switch_of_a_detached_run(world: World) -> Bound:
    """C3, detached: the job ended on its VM, and nobody came for its artifacts."""
    return Bound((Term("linger", world.pace.linger_s), *_after_a_look(world), *_deletion(world)))


def switch_of_a_held_slice(world: World) -> Bound:
    """C3, held: its time is over, and nobody is there to delete it."""
    return Bound((Term("grace", world.pace.grace_s), *_after_a_look(world), *_deletion(world)))


def sweeper(world: World) -> Bound:
    """C7: only a sweep from elsewhere is left, and it has to respect the claim in the labels."""
    pace = world.pace
    label_s = max(
        pace.label_ttl_s, pace.provision_s + pace.boot_s
    )  # the first one reaches over the create and the boot
    return Bound(
        (
            Term("what the label still promises", label_s),
            Term("margin", pace.margin_s),
            Term("the sweep's own", SWEEP_S),
            Term("until the next sweep", world.sweep_every_s, "S"),
            *_deletion(world),
        )
    )


def _after_a_look(world: World) -> tuple[Term, ...]:
    pace = world.pace
    return Term("grace", pace.grace_s), Term("three polls", 3 * pace.poll_s), _switch_own(world)


def _switch_own(world: World) -> Term:
    return Term("the switch's own", min(SWITCH_S, PROCESSES_S + SWITCH_S / world.speed))


def _outage(world: World) -> tuple[Term, ...]:
    if not world.outage_s:
        return ()
    pace = world.pace
    return Term("outage", world.outage_s, "O"), Term("grace after it", pace.grace_s), Term("polls", 3 * pace.poll_s)


def _deletion(world: World) -> tuple[Term, ...]:
    failed = world.failed_deletes
    if not failed:
        return (Term("deletion", world.deletion_s, "D"),)
    looks_s = sum(_look_s(times * world.deletion_s) for times in range(1, failed + 1))
    return Term(f"{failed} looks", looks_s), Term(
        f"{failed + 1} deletions", (failed + 1) * world.deletion_s, f"{failed + 1} D"
    )


def _look_s(waited_s: float) -> float:
    """A teardown pauses for a quarter of what it has waited so far, and never long."""
    return min(LOOK_S, waited_s / 4)

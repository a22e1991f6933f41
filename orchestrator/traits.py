"""What is true of a place, as data. All other code asks for a trait, and never of which kind a place is.

A place is a folder of `places/`, named as `on:` of a job file names it. Its modules `traits`, `check` and `by_hand` are loaded
here by name, when they are first asked for: this module stands below the job file, which asks what a place refuses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from orchestrator.promise.lease import periods
from orchestrator.promise.lease.lease import SliceName

NAMES = ("tpu", "gke", "local")
PLACES = "orchestrator.places"
is_emulated = periods.is_emulated


@dataclass(frozen=True, slots=True)
class Traits:
    """The traits of one kind of place."""

    name: str  #: as `on:` of a job file has it
    clouds: tuple[str, ...]  #: as the ledger names it; an emulated one is the same place at another address
    noun: str  #: what a job gets there, for people: "slice", "JobSet", "process"
    area: str = ""  #: where it is within a project, for people: "zone", "namespace"
    awaited: str = ""  #: what a run waits for first, for people: "VM", "pods"
    reached: str = ""  #: how its workers are reached, as the stage of messages about that: "ssh", "pods"
    billed: bool = False  #: it costs dollars while it exists, so a lease claims it, and its absence is proven
    tpus: bool = False  #: its workers have TPUs
    by_target: bool = False  #: `--cloud`, `--project` and the settings say where; else the job does
    one_list: bool = False  #: one list has every area of a project; else those to look in have to be named
    held: bool = False  #: it outlives its job where the user or uncollected results need it, and goes from run to run
    watched: bool = False  #: its workers have a watchdog, which hears heartbeats of the process that claims them
    made_with_job: bool = False  #: the job goes there with the create call, and starts without this machine
    vms: bool = False  #: its workers are VMs of the user's: `ssh`, `scp`, `forward`, `stop`, `start`, `extend`
    results_stay: bool = False  #: a job there may send its results to a bucket, so that they outlive its workers
    alone: bool = False  #: one job runs there at a time: two would slow each other down, and spoil the figures
    dollars: str = ""  #: what its dollars are, where they are not those of its own bill
    unpriced: str = "the price table has no price for it"  #: why a price is unknown, where it is


# Of a newer tpujob, which wrote the ledger: it may be billed, and nothing else is known of it.
NEWER = Traits("", (), "slice", "zone", "VM", "ssh", billed=True)


class ByHand(Protocol):
    """The module `by_hand` of a place that is billed: sentences and commands for people, where nothing is proven."""

    MAY: str  #: what may go on; its price follows

    def where(self, name: SliceName) -> str:
        """Return where it is."""

    def delete_command(self, name: SliceName, lease_id: str | None = None) -> str:
        """Return the command that deletes it."""

    def look_commands(self, name: SliceName, lease_id: str) -> tuple[str, ...]:
        """Return the commands that show it; the last one all that belongs to its lease."""


class FileChecks(Protocol):
    """The module `check` of each place: what it refuses of a job file, before anything else is known. Pure."""

    UNUSED: tuple[str, ...]  #: keys of a job file that have no effect there

    @property
    def problems(self) -> Callable[[Mapping[str, Any]], Iterator[tuple[tuple[str | int, ...], str]]]:
        """Yields the path of a key and the end of a sentence about it, for each mistake. Values may be of wrong types."""


@functools.cache
def traits_on(name: str) -> Traits:
    """Return the traits of a place, by its name: that of `on:`."""
    found: Traits = import_module(f"{PLACES}.{name}.traits").TRAITS
    return found


@functools.cache
def traits_of(cloud: str) -> Traits:
    """Return the traits of the place of a run or a lease, by its `cloud`; NEWER for one that no place here has."""
    return next((traits_on(name) for name in NAMES if cloud in traits_on(name).clouds), NEWER)


def billed() -> tuple[str, ...]:
    """Return the places at which something may be billed."""
    return tuple(name for name in NAMES if traits_on(name).billed)


def billed_clouds() -> tuple[str, ...]:
    """Return the clouds in which something may be billed."""
    return tuple(cloud for name in billed() for cloud in traits_on(name).clouds)


def checks_on(name: object) -> FileChecks:
    """Return what a place refuses of a job file, by its name; for what is no place, what the first one refuses."""
    found = import_module(f"{PLACES}.{name if name in NAMES else NAMES[0]}.check")
    return cast("FileChecks", found)


def by_hand(cloud: str) -> ByHand:
    """Return what a person is told, and may type, where the release of a lease of this cloud is not proven."""
    return cast("ByHand", import_module(f"{PLACES}.{traits_of(cloud).name or NAMES[0]}.by_hand"))

"""What is true of a place, as data. All other code asks for a trait, and never of which kind a place is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from orchestrator.promise.lease.cloud_api import SliceName


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

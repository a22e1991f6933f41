"""What is true of a place, as data. All other code asks for a trait, and never of which kind a place is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traits:
    """The traits of one kind of place."""

    name: str  #: as `on:` of a job file has it
    clouds: tuple[str, ...]  #: as the ledger names it; an emulated one is the same place at another address
    noun: str  #: what a job gets there, for people: "slice", "JobSet", "process"
    billed: bool  #: it costs dollars while it exists, so a lease claims it, and its absence is proven
    held: bool  #: it outlives its job where the user or uncollected results need it: `up`, `--keep`, `tpujob collect`
    watched: bool  #: its workers have a watchdog, to which this machine sends heartbeats while it claims the slice
    made_with_job: bool  #: the job goes there with the create call, and starts without this machine

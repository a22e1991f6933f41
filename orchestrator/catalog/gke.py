"""What GKE has of the catalog's types: labels of its nodes, machine types, chips of a host. No decisions.

`gke_catalog.csv` is read once. A type may come in two forms: eight chips of v6e are one host of eight or two hosts of four.
"""

from dataclasses import dataclass
from functools import cache

from orchestrator import catalog
from orchestrator.catalog import rows_of, sizes_of

ACCELERATOR_LABEL = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
CHIPS_LABEL = "cloud.google.com/gke-accelerator-count"  # of a node
LABELS = (ACCELERATOR_LABEL, TOPOLOGY_LABEL, CHIPS_LABEL)
SPOT_LABEL, FLEX_START_LABEL, QUEUED_LABEL = (
    f"cloud.google.com/gke-{each}" for each in ("spot", "flex-start", "queued")
)
# Of a reservation: its project, its name, a block of it, and a part of that.
RESERVATION_LABELS = tuple(
    f"cloud.google.com/reservation-{each}" for each in ("project", "name", "blocks", "subblocks")
)
_PART = "[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?"
# A pattern with a group for each.
RESERVATION = (
    rf"(?:projects/([a-z0-9.:-]{{4,100}})/reservations/)?({_PART})"
    rf"(?:/reservationBlocks/({_PART})(?:/reservationSubBlocks/({_PART}))?)?"
)
CAPACITY_LABELS = (SPOT_LABEL, FLEX_START_LABEL, QUEUED_LABEL, *RESERVATION_LABELS)
TPU = "google.com/tpu"  # the resource: chips


@dataclass(frozen=True, slots=True)
class GkeSlice:
    """One accelerator type as the node pools of GKE have it, with one machine type."""

    kind: catalog.AcceleratorType
    accelerator: str  # the value of ACCELERATOR_LABEL
    machine_type: str
    chips_per_host: int  # google.com/tpu of a node
    flex_start: bool  # whether GKE has flex-start for it

    @property
    def topology(self) -> str:
        """The value of TOPOLOGY_LABEL."""
        return self.kind.topology

    @property
    def hosts(self) -> int:
        """The nodes of one slice."""
        return self.kind.chips // self.chips_per_host


def slices(accelerator_type: str) -> tuple[GkeSlice, ...]:
    """Return the forms of a type, the default first; nothing for a type that GKE lacks. The name is that of the catalog."""
    return _table().get(accelerator_type, ())


def lookup(accelerator_type: str, machine_type: str | None = None) -> GkeSlice | None:
    """Return a type with this machine type, or in its default form; None where GKE lacks it."""
    return next((each for each in slices(accelerator_type) if machine_type in (None, each.machine_type)), None)


def types() -> tuple[str, ...]:
    """Return every accelerator type that GKE has."""
    return tuple(_table())


def nearest(accelerator_type: str, *, count: int = 3) -> list[str]:
    """Return the types of GKE that are closest to one that it lacks: by chips in its generation, else in the newest ones."""
    kind = catalog.lookup(catalog.canonical(accelerator_type))
    if kind is None:
        return catalog.nearest(accelerator_type, count=count, among=types())
    forms = [each[0].kind for each in _table().values()]
    same = [each for each in forms if each.generation == kind.generation]
    closest = sorted(same or reversed(forms), key=lambda each: abs(each.chips - kind.chips))
    return [each.name for each in closest[:count]]


@cache
def _table() -> dict[str, tuple[GkeSlice, ...]]:
    kinds = filter(None, map(catalog.lookup, catalog.types()))
    names = {(kind.generation, int(kind.name.rpartition("-")[2])): kind for kind in kinds}
    found: dict[str, tuple[GkeSlice, ...]] = {}
    for row in rows_of("gke_catalog.csv"):
        for size in sizes_of(row["sizes"]):
            kind = names[row["generation"], size]
            chips, flex_start = int(row["chips_per_host"]), row["flex_start"] == "yes"
            form = GkeSlice(kind, row["accelerator"], row["machine_type"], chips, flex_start)
            found[kind.name] = (*found.get(kind.name, ()), form)
    return found

"""The Cloud TPU catalog: accelerator types, how users write them, topologies, zones, and dated prices. No decisions.

`tpu_catalog.csv` is read once; `gke` has what GKE calls the same types. Every package may import this one, which uses only the
standard library: it is the only code that client and emulator share. What the table does not have is None or empty, never zero.
"""

import csv
import difflib
import math
import pkgutil
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache


def rows_of(file: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a file of this package, by the names of its columns."""
    data = pkgutil.get_data(__package__, file)  # a fifth of the import time of importlib.resources
    assert data is not None, f"the package was built without {file}"
    yield from csv.DictReader(line for line in data.decode().splitlines() if not line.startswith("#"))


def sizes_of(text: str) -> Iterator[int]:
    """ "8 16 128..512/128" → 8, 16, 128, 256, 384, 512."""
    for word in text.split():
        span, _, step = word.partition("/")
        first, _, last = span.partition("..")
        yield from range(int(first), int(last or first) + 1, int(step or 1))


# What names a generation, the longer ones first. GKE has v5-lite-podslice, Compute Engine 5lp, the API V5LITE_POD.
_GENERATIONS = {
    **dict.fromkeys(("v5litepod", "v5-lite", "v5lite", "v5e", "5lp", "5l", "5e"), "v5e"),
    **dict.fromkeys(("v5p", "5p"), "v5p"),
    **dict.fromkeys(("trillium", "v6e", "6e", "v6"), "v6e"),
    **dict.fromkeys(("ironwood", "7x", "v7"), "tpu7x"),
    **{name: f"v{name[-2] if name[-1] == 'p' else name[-1]}" for name in ("v4", "4p", "v3", "3p", "v2")},
    "v5": "v5",  # v5e or v5p
}
_NAMES = "|".join(_GENERATIONS)
_TYPE = re.compile(rf"(?:tpu-?)?v?({_NAMES})-?(?:pod|slice|device|podslice)?(?:[-:/ ]?(\d+(?:x\d+)*))?", re.ASCII)
_WITHIN = re.compile(rf"(?<![a-z0-9])(?:tpu-?|ct)?v?({_NAMES})(?!\d)")
_NUMBER = re.compile(r"tpu-?(?=\d(?:[-:/ ]|$))")  # tpu7 is v7
_MACHINE = re.compile(r"(?:ct|tpu)(\d[a-z]*)-(?:hightpu|standard)-(\d+)t(?:-tpu)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Spelled:
    """A generation, and how large a slice of it: by the number of the API's name, by its chips, or by its shape."""

    generation: str  # or how the names of several begin
    number: int | None = None
    chips: int | None = None
    sides: tuple[int, ...] | None = None  # ascending, without those of one chip
    is_guess: bool = False  # it may be another: of several, or named in a text that is not understood


def _spelled(text: str) -> Spelled | None:
    """Return what a text names, as far as it is understood: at least its generation. None: not even that."""
    plain = text.strip().lower()[:80].replace("_", "")
    if machine := _MACHINE.fullmatch(plain):
        name, chips = machine[1], int(machine[2])
        if generation := _GENERATIONS.get(name) or _GENERATIONS.get(f"v{name}"):
            return Spelled(generation, chips=chips)
    plain = _NUMBER.sub("v", plain)
    if found := _TYPE.fullmatch(plain):
        generation, size = _GENERATIONS[found[1]], found[2]
        if size is None:
            return Spelled(generation, is_guess=generation == "v5")
        sides = [int(side) for side in size.split("x")]
        if len(sides) == 1:
            return Spelled(generation, number=sides[0])
        return Spelled(generation, chips=math.prod(sides), sides=_shape(size))
    named = _WITHIN.findall(plain)  # of a runtime, `v2-alpha-tpuv6e`, the last one counts
    return Spelled(_GENERATIONS[named[-1]], is_guess=True) if named else None


def _shape(topology: str) -> tuple[int, ...]:
    """Return the sides of a topology in an order of its own, without those of one chip: 2x2 and 2x2x1 are one shape."""
    return tuple(sorted(side for side in map(int, topology.split("x")) if side > 1))


# SkyPilot's catalog v9, where the prices come from, carries no date: this is the month in which they were copied.
PRICES_AS_OF = "price table 2026-11"

# Flex-start for training and serving. https://cloud.google.com/tpu/docs/request-using-flex-start, page of 2025-08.
_FLEX_START = {"v6e": ("asia-northeast1-b", "us-east5-a"), "v5e": ("us-west4-a",)}
_FLEX_START_SERVING = dict.fromkeys(("v5litepod-1", "v5litepod-4", "v5litepod-8"), ("us-central1-a",))

_API_TYPES = {"v2": "V2", "v3": "V3", "v4": "V4", "v5e": "V5LITE_POD", "v5p": "V5P", "v6e": "V6E"}  # not TPU7x
_THREE_DIMENSIONS = ("v4", "v5p", "tpu7x")


@dataclass(frozen=True, slots=True)
class AcceleratorType:
    """One accelerator type, such as v5litepod-8. The number counts chips or cores, depending on the generation."""

    name: str
    family: str  # the part before the number: "v5litepod"
    generation: str  # its common name: "v5e"
    api_type: str  # acceleratorConfig.type of the API: "V5LITE_POD"; empty: it does not have it
    topology: str  # acceleratorConfig.topology of the API, in chips: "2x4"
    chips: int
    cores: int  # TensorCores
    hosts: int  # TPU VMs: the workers of the slice
    default_runtime: str  # empty: the Cloud TPU API does not have the type
    hbm_gib: int  # of the whole slice

    @property
    def in_cloud_tpu_api(self) -> bool:
        """Whether the Cloud TPU API has it at all, in whichever zone."""
        return bool(self.api_type)

    @property
    def cores_per_host(self) -> int:
        return self.cores // self.hosts


@dataclass(frozen=True, slots=True)
class Offer:
    """One row of the table: some accelerator types of one generation, in one zone, at one price."""

    generation: str
    accelerator_types: tuple[str, ...]
    zone: str
    region: str
    ondemand_usd_chip_hour: float | None
    spot_usd_chip_hour: float | None


def lookup(accelerator_type: str) -> AcceleratorType | None:
    """Return the type; None if it is not in the table, as a type that is newer than the table."""
    return _table().types.get(accelerator_type)


def canonical(text: str) -> str:
    """Return the API's name of an accelerator type: `v5e-8`, `v5e8`, `tpu-v5-lite-podslice-2x4`, `ct5lp-hightpu-8t` →
    `v5litepod-8`.

    A type that is not in the table is returned unchanged. The API accepts only its own names.
    """
    written = _spelled(text)
    if written is None:
        return text
    for kind in _table().types.values():
        if kind.generation != written.generation:
            continue
        fits = written.chips == kind.chips and written.sides in (None, _shape(kind.topology))
        if fits if written.number is None else kind.name.endswith(f"-{written.number}"):
            return kind.name
    return text


def generation(text: str) -> str | None:
    """Return the generation that a text names without a size, whatever it calls it; None if it names none, or a type."""
    written = _spelled(text)
    if written is None or written.number is not None or written.chips is not None or written.is_guess:
        return None
    return written.generation


def spoken(accelerator_type: str) -> str:
    """Return the common name of an accelerator type: `v5litepod-8` → `v5e-8`. One that is not in the table stays as it is."""
    kind = lookup(accelerator_type)
    return f"{kind.generation}-{kind.name.rpartition('-')[2]}" if kind else accelerator_type


def types() -> tuple[str, ...]:
    """Return every accelerator type of the table."""
    return tuple(_table().types)


def offers() -> tuple[Offer, ...]:
    """Return every row of the table."""
    return _table().offers


def zones() -> tuple[str, ...]:
    """Return every zone with TPUs."""
    return tuple(dict.fromkeys(offer.zone for offer in offers()))


def regions() -> tuple[str, ...]:
    """Return every region with TPUs."""
    return tuple(dict.fromkeys(offer.region for offer in offers()))


def zones_of(region: str) -> tuple[str, ...]:
    """Return the zones of a region; empty if it is not in the table."""
    return tuple(dict.fromkeys(offer.zone for offer in offers() if offer.region == region))


def types_in_zone(zone: str) -> tuple[str, ...]:
    """Return the types that a zone offers."""
    return tuple(dict.fromkeys(name for offer in offers() if offer.zone == zone for name in offer.accelerator_types))


def zones_with(accelerator_type: str) -> tuple[str, ...]:
    """Return the zones that offer this type, in the order of the table."""
    return tuple(dict.fromkeys(offer.zone for offer in offers() if accelerator_type in offer.accelerator_types))


def flex_start_zones(accelerator_type: str) -> tuple[str, ...]:
    """Return the zones in which Google documents flex-start for this type."""
    kind = lookup(accelerator_type)
    training = _FLEX_START.get(kind.generation, ()) if kind else ()
    return training + _FLEX_START_SERVING.get(accelerator_type, ())


def usd_per_hour(accelerator_type: str, zone: str, *, spot: bool) -> float | None:
    """Return dollars for an hour of the whole slice, as of PRICES_AS_OF; None if the table has no price."""
    kind = lookup(accelerator_type)
    for offer in offers():
        if kind and offer.zone == zone and accelerator_type in offer.accelerator_types:
            per_chip = offer.spot_usd_chip_hour if spot else offer.ondemand_usd_chip_hour
            return None if per_chip is None else round(per_chip * kind.chips, 5)
    return None


def runtimes(generation: str) -> tuple[str, ...]:
    """Return the runtime versions for a generation ("v5e"), the default first."""
    kinds = _table().types.values()
    found = (kind.default_runtime for kind in kinds if kind.generation == generation and kind.in_cloud_tpu_api)
    return tuple(dict.fromkeys(found))


def nearest(text: str, *, count: int = 3, among: Sequence[str] = ()) -> list[str]:
    """Return the types closest to a mistyped one: of the generation that it names and closest in size; none of another.

    `among`: the types that count; left out, those of the Cloud TPU API. Where it has none of that generation, all count.
    """
    known = among or [each for each in types() if zones_with(each)]
    name, written = text.strip().lower(), _spelled(text)
    if name.isdecimal():
        return [each for each in reversed(known) if each.endswith(f"-{name}")][:count]
    if written is None:
        return []
    kinds = [kind for kind in _table().types.values() if kind.generation.startswith(written.generation)]
    kinds = [kind for kind in kinds if kind.name in known] or kinds

    def distance(kind: AcceleratorType) -> int:
        if written.number is not None:
            return abs(int(kind.name.rpartition("-")[2]) - written.number)
        return abs(kind.chips - (written.chips or 0))

    return [kind.name for kind in sorted(kinds, key=distance)[:count]]


def nearest_place(text: str, *, count: int = 3) -> list[str]:
    """Return the zones and regions closest to a mistyped one."""
    return difflib.get_close_matches(text.strip().lower()[:80], regions() + zones(), n=count, cutoff=0.7)


@dataclass(frozen=True, slots=True)
class _Table:
    offers: tuple[Offer, ...]
    types: dict[str, AcceleratorType]


@cache
def _table() -> _Table:
    found: list[Offer] = []
    known: dict[str, AcceleratorType] = {}
    for row in rows_of("tpu_catalog.csv"):
        names = [f"{row['prefix']}{size}" for size in sizes_of(row["sizes"])]
        known |= {name: _accelerator_type(name, row) for name in names if name not in known}
        prices = (float(text) if text else None for text in (row["ondemand_usd_chip_hour"], row["spot_usd_chip_hour"]))
        if row["zone"]:
            found.append(Offer(row["generation"], tuple(names), row["zone"], row["region"], *prices))
    return _Table(tuple(found), known)


def _accelerator_type(name: str, row: dict[str, str]) -> AcceleratorType:
    size, cores_per_chip = int(name.rpartition("-")[2]), int(row["tensorcores_per_chip"])
    chips = size if row["number_means"] == "chips" else size // cores_per_chip
    hosts = 1 if chips <= int(row["single_host_chips"]) else chips // int(row["chips_per_host"])
    return AcceleratorType(
        name=name,
        family=row["prefix"].rstrip("-"),
        generation=row["generation"],
        api_type=_API_TYPES.get(row["generation"], ""),
        topology=default_topology(chips, dimensions=3 if row["generation"] in _THREE_DIMENSIONS else 2),
        chips=chips,
        cores=chips * cores_per_chip,
        hosts=hosts,
        default_runtime=row["default_runtime"],
        hbm_gib=chips * int(row["hbm_gib_per_chip"]),
    )


# The default topology of a slice: "2x4", "4x4x12". Pure arithmetic.
#
# Small 3-D slices are listed; from 64 chips on they consist of 4x4x4 cubes, arranged as compactly as their number allows
# (compared with every shape of v4, v5p and TPU7x that Google's xpk lists).

_SMALL_3D = {1: "1x1x1", 4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4"}
_CUBE_CHIPS = 64


def default_topology(chips: int, *, dimensions: int) -> str:
    """Return the API's text for a plane (v2, v3, v5e, v6e) or a torus of three dimensions (v4, v5p, TPU7x) of `chips` chips."""
    if dimensions == 2:
        rows = 2 ** ((chips.bit_length() - 1) // 2)
        return f"{rows}x{chips // rows}"
    if chips in _SMALL_3D:
        return _SMALL_3D[chips]
    return "x".join(str(4 * side) for side in _most_compact(chips // _CUBE_CHIPS))


def _most_compact(cubes: int) -> tuple[int, int, int]:
    """Return three ascending factors with the smallest sum."""
    boxes = [
        (a, b, cubes // (a * b))
        for a in range(1, int(cubes ** (1 / 3)) + 2)
        if cubes % a == 0
        for b in range(a, cubes // a + 1)
        if (cubes // a) % b == 0 and cubes // (a * b) >= b
    ]
    return min(boxes, key=sum)

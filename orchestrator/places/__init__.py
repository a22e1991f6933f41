"""Where a job runs: a slice of the Cloud TPU API, the pods of a JobSet, this machine. A folder for each, and one contract.

The contract is `place.py`; the promises that it makes are played on every place by `tests/places/`. `google/` is shared:
credentials, the translation of errors, buckets. Outside of this package nothing asks of which kind a place is: it asks for one
of its `Traits`. A folder is named as `on:` of a job file names the place, and is imported when it is needed.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, cast

from orchestrator.promise.lease.cloud_api import is_emulated as is_emulated

if TYPE_CHECKING:
    from orchestrator.places.area import Areas
    from orchestrator.places.place import Place
    from orchestrator.places.refusals import FileChecks
    from orchestrator.traits import ByHand, Traits

NAMES = ("tpu", "gke", "local")


@functools.cache
def place_on(name: str) -> Place:
    """Return a place by its name: that of `on:`."""
    found: Place = import_module(f"{__name__}.{name}.place").PLACE
    return found


def checks_on(name: object) -> FileChecks:
    """Return what a place refuses of a job file, by its name; for what is no place, what the first one refuses."""
    found = import_module(f"{__name__}.{name if name in NAMES else NAMES[0]}.check")
    return cast("FileChecks", found)


def place_of(cloud: str) -> Place:
    """Return the place of a run or a lease, by its `cloud`."""
    return place_on(traits_of(cloud).name or NAMES[0])


def billed() -> tuple[str, ...]:
    """Return the places at which something may be billed."""
    return tuple(name for name in NAMES if traits_on(name).billed)


def billed_clouds() -> tuple[str, ...]:
    """Return the clouds in which something may be billed."""
    return tuple(cloud for name in billed() for cloud in traits_on(name).clouds)


@functools.cache
def traits_on(name: str) -> Traits:
    """Return the traits of a place, by its name: that of `on:`."""
    found: Traits = import_module(f"{__name__}.{name}.traits").TRAITS
    return found


@functools.cache
def traits_of(cloud: str) -> Traits:
    """Return the traits of the place of a run or a lease, by its `cloud`; NEWER for one that no place here has."""
    from orchestrator.traits import NEWER

    return next((traits_on(name) for name in NAMES if cloud in traits_on(name).clouds), NEWER)


def areas_on(name: str) -> Areas:
    """Return where a billed place is asked for what no ledger here need know, by its name."""
    return cast("Areas", import_module(f"{__name__}.{name}.area"))


def by_hand(cloud: str) -> ByHand:
    """Return what a person is told, and may type, where the release of a lease of this cloud is not proven."""
    return cast("ByHand", import_module(f"{__name__}.{traits_of(cloud).name or NAMES[0]}.by_hand"))

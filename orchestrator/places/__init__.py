"""Where a job runs: a slice of the Cloud TPU API, the pods of a JobSet, this machine. A folder for each, and one contract.

The contract is `place.py`; the promises that it makes are played on every place by `tests/places/`. `google/` is shared:
credentials, the translation of errors, buckets. Outside of this package nothing asks of which kind a place is: it asks for one
of its `Traits`. A folder is named as `on:` of a job file names the place, and is imported when it is needed.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, cast

from orchestrator.core.lease.clouds import is_emulated as is_emulated

if TYPE_CHECKING:
    from orchestrator.places.traits import ByHand, Traits

NAMES = ("tpu", "gke", "local")


@functools.cache
def traits_on(name: str) -> Traits:
    """Return the traits of a place, by its name: that of `on:`."""
    found: Traits = import_module(f"{__name__}.{name}.traits").TRAITS
    return found


@functools.cache
def traits_of(cloud: str) -> Traits:
    """Return the traits of the place of a run or a lease, by its `cloud`; NEWER for one that no place here has."""
    from orchestrator.places.traits import NEWER

    return next((traits_on(name) for name in NAMES if cloud in traits_on(name).clouds), NEWER)


def by_hand(cloud: str) -> ByHand:
    """Return what a person is told, and may type, where the release of a lease of this cloud is not proven."""
    return cast("ByHand", import_module(f"{__name__}.{traits_of(cloud).name}.by_hand"))

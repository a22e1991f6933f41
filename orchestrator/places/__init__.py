"""Where a job runs: a slice of the Cloud TPU API, the pods of a JobSet, this machine. A folder for each, and one contract.

The contract is `place.py`; the promises that it makes are played on every place by `tests/places/`. `google/` is shared:
credentials, the translation of errors, buckets. Outside of this package nothing asks of which kind a place is: it asks for one
of its `Traits`. A folder is named as `on:` of a job file names the place, and is imported when it is needed.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, cast

from orchestrator.traits import NAMES, traits_of

if TYPE_CHECKING:
    from orchestrator.places.area import Areas
    from orchestrator.places.place import Place


@functools.cache
def place_on(name: str) -> Place:
    """Return a place by its name: that of `on:`."""
    found: Place = import_module(f"{__name__}.{name}.place").PLACE
    return found


def place_of(cloud: str) -> Place:
    """Return the place of a run or a lease, by its `cloud`."""
    return place_on(traits_of(cloud).name or NAMES[0])


def areas_on(name: str) -> Areas:
    """Return where a billed place is asked for what no ledger here need know, by its name."""
    return cast("Areas", import_module(f"{__name__}.{name}.area"))

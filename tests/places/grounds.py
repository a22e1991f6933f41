"""Every ground by its name: how it is made for a test, and which tests play a promise there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.places.cli_grounds import ControlPlane, Emulated, Here
from tests.places.ground import Ground
from tests.places.simulated_grounds import SimulatedJobSet, SimulatedSlice
from tests.places.toy.ground import ToyGround

GROUNDS: dict[str, tuple[type[Ground], Callable[[Any], Ground]]] = {
    "simulated slice": (SimulatedSlice, lambda get: SimulatedSlice()),
    "simulated JobSet": (SimulatedJobSet, lambda get: SimulatedJobSet()),
    "toy": (ToyGround, lambda get: ToyGround(get("tmp_path"), *get("toys"))),
    "this machine": (Here, lambda get: Here(get("tpujob"))),
    "emulator": (Emulated, lambda get: Emulated(get("tpujob"))),
    "control plane": (ControlPlane, lambda get: ControlPlane(get("gke"))),
}
REFUSED = {"tpu": "tpu: {slices: 2}", "gke": "ports: [8888]", "local": "bucket: gs://b/runs"}  # of a job, by each place
TIERS = {"emulator": pytest.mark.ci, "control plane": pytest.mark.cluster}
IN_EVERY_TIER = {("emulator", "detached"), ("emulator", "cancel")}


def mark(ground: str, promise: str) -> Any:
    played = (ground, promise) in IN_EVERY_TIER or ground not in TIERS
    return pytest.param(ground, id=ground, marks=() if played else TIERS[ground])

"""In a world with nothing but a death, the simulator allows what the table of promises says, and no more."""

from typing import Any

import pytest

from orchestrator import promises
from orchestrator.core.lease import cloud_api
from orchestrator.promises import PROMISES
from tests.simulation.model.faults import FaultPlan
from tests.simulation.model.world import GC_ONLY, GUARDIAN_ONLY, NO_LAYER, SPEED, WATCHDOG_ONLY, Layers, World
from tests.simulation.mutants.registry import RUN
from tests.simulation.scenarios.random_worlds import Workload

READY_S, DELETE_S = 5.0, 0.5
TRAVEL_S = 1.0  # of a delete and its reply
CLOCKS = 1.02  # two clocks may be wrong by one percent each
UP, GC_EVERY_S = Workload("up", hold_s=60.0), 20.0


def everything(at: float) -> dict[str, Any]:
    return {"crashes": [(None, at, "machine")]}


@pytest.mark.parametrize(("promise", "workload", "layers", "plan"), [
    ("command", Workload("run", lasts_s=5.0), Layers(), {}),
    ("guardian", RUN, GUARDIAN_ONLY, {"crashes": [(None, 12.0, "cli")]}),
    ("watchdog", RUN, WATCHDOG_ONLY, everything(12.0)),
    ("watchdog of a create", RUN, WATCHDOG_ONLY, everything(2.0)),
    ("watchdog of a create", UP, WATCHDOG_ONLY, everything(2.0)),
    ("watchdog of a create", UP, WATCHDOG_ONLY, everything(0.5)),
    ("watchdog of a held slice", UP, WATCHDOG_ONLY, everything(20.0)),
    ("gc", Workload("run", lasts_s=60.0, gc_every_s=GC_EVERY_S), GC_ONLY, everything(12.0)),
    ("gc", Workload("up", hold_s=60.0, gc_every_s=GC_EVERY_S), GC_ONLY, everything(2.0)),
])  # fmt: skip
def test_a_world_with_one_death_is_held_to_the_table_of_promises(
    promise: str, workload: Workload, layers: Layers, plan: dict[str, Any]
) -> None:
    world = World(1, workload, FaultPlan(provision_s=READY_S, delete_s=DELETE_S, **plan), layers=layers)
    assert not world.run().violations
    of_the_table = promises.PromiseWorld(
        speed=SPEED, deletion_s=DELETE_S + TRAVEL_S, ready_s=READY_S, gc_every_s=GC_EVERY_S
    )
    bound_s = promises.bound(PROMISES[promise], of_the_table).seconds
    assert world.verdicts
    for took_s, verdict in world.verdicts.values():
        assert took_s <= verdict.allowed_s <= CLOCKS * bound_s


def test_the_bounds_come_from_the_table_and_not_from_the_timings_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def allowed_s() -> list[float]:
        world = World(1, RUN, FaultPlan(provision_s=READY_S, **everything(12.0)), layers=WATCHDOG_ONLY)
        world.run()
        return [verdict.allowed_s for _, verdict in world.verdicts.values()]

    before = allowed_s()
    monkeypatch.setattr(cloud_api, "GOOGLE", cloud_api.Timings(ttl_s=9000.0, grace_s=1800.0))
    assert allowed_s() == before


def test_without_any_layer_nothing_is_promised() -> None:
    world = World(1, RUN, FaultPlan(provision_s=READY_S, **everything(12.0)), layers=NO_LAYER)
    world.run()
    assert {verdict.layer for _, verdict in world.verdicts.values()} == {"none"}

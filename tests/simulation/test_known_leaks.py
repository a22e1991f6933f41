"""Known leaks of other tools around creating, queueing and preemption, one by one.

Each test is the smallest world in which the leak would happen, with only the layer that has to prevent it. It checks the
end: what was created, in which order it was deleted, and the exit code.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from orchestrator.core.lease.lease import LeaseState
from tests.simulation.model.faults import FOREVER, FaultPlan
from tests.simulation.model.world import GC_ONLY, NO_LAYER, WATCHDOG_ONLY, ZONES, Layers, World
from tests.simulation.oracle.claims import Resource
from tests.simulation.scenarios.commands import Candidates
from tests.simulation.scenarios.random_worlds import Workload

RUN = Workload("run", lasts_s=10.0, boot_s=1.0)
QUEUED = replace(RUN, candidates=Candidates(ZONES[:1], 1, 60.0))
TRIES_IN_A_MINUTE = 11  # of a create whose reply is lost each time


def play(workload: Workload, *, layers: Layers = NO_LAYER, **plan: Any) -> World:
    world = World(1, workload, FaultPlan(**plan), layers=layers)
    violations = world.run().violations
    assert not violations, violations
    return world


def code(world: World) -> int:
    owner = world.oracle.claims[0].owner
    assert owner is not None and owner.result is not None
    return int(owner.result.exit_code)


def requests(world: World) -> list[Resource]:
    return [resource for resource in world.oracle.resources.values() if resource.request is not None]


def nothing_is_left(world: World) -> bool:
    state = world.cloud.state
    owed = [lease for lease in world.laptop.ledger.leases.values() if lease.state is not LeaseState.GONE]
    return not state.nodes and not state.queue.rows and not owed


def one_after_the_other(resources: list[Resource]) -> bool:
    """Return whether each was created only after the one before was gone."""
    return all(
        before.gone_at is not None and before.gone_at < after.created_at for before, after in pairwise(resources)
    )


@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize("workload", [RUN, QUEUED], ids=["a node", "a queued request"])
def test_a_create_whose_reply_is_lost_makes_one_known_slice(workload: Workload, lost: int) -> None:
    world = play(workload, lost_creates=lost)
    assert code(world) == 0 and len(world.oracle.nodes()) == 1 and nothing_is_left(world)


@pytest.mark.parametrize("workload", [RUN, QUEUED], ids=["a node", "a queued request"])
def test_a_create_that_takes_too_long_is_deleted(workload: Workload) -> None:
    world = play(workload, provision_s=500.0)
    [node] = world.oracle.nodes()
    assert code(world) != 0 and node.gone_at is not None and nothing_is_left(world)


def test_a_zone_whose_replies_are_lost_is_emptied_before_the_next_zone_is_asked() -> None:
    """Every reply to creates in the first zone is lost, until the command leaves that zone."""
    world = play(replace(RUN, candidates=Candidates(ZONES[:2])), lost_creates=TRIES_IN_A_MINUTE)
    nodes = world.oracle.nodes()
    zones = [lease.name.zone for lease in world.laptop.ledger.leases.values()]
    assert code(world) == 0 and zones == list(ZONES[:2])
    assert len(nodes) == 2 and one_after_the_other(nodes) and nothing_is_left(world)


def test_a_request_whose_node_was_deleted_is_deleted_too() -> None:
    """The node alone is deleted in the console: its request is SUSPENDED, and holds quota."""
    world = play(QUEUED, user_deletes_at=9.0)
    [request] = requests(world)
    assert code(world) == 71 and request.request is not None and request.request.initiator == "USER"
    assert nothing_is_left(world)


def test_a_request_that_the_watchdog_may_not_delete_is_deleted_by_gc() -> None:
    workload = replace(QUEUED, gc_every_s=30.0, candidates=Candidates(ZONES[:1], 1, 10.0))
    both = Layers(guardian=False, watchdog=True, gc=True, timer=False)
    world = play(workload, layers=both, crashes=[(None, 9.0, "machine")], vm_may_delete_requests=False)
    [node], [request] = world.oracle.nodes(), requests(world)
    assert node.deleted_by.startswith("watchdog") and request.gone_at is not None and node.gone_at is not None
    assert request.gone_at > node.gone_at and not world.cloud.state.queue.rows


def test_a_request_that_expires_is_gone_before_the_command_reports_no_capacity() -> None:
    world = play(replace(QUEUED, candidates=Candidates(ZONES[:1], 1, 20.0)), full=[(ZONES[0], 0.0, 3600.0)])
    assert code(world) == 69 and world.oracle.nodes() == [] and nothing_is_left(world)


def test_a_command_killed_while_it_waits_leaves_no_request_that_gets_a_node_later() -> None:
    guardian = Layers(guardian=True, watchdog=False, gc=False, timer=False)
    world = play(QUEUED, layers=guardian, full=[(ZONES[0], 0.0, 40.0)], crashes=[(None, 10.0, "cli")])
    assert world.oracle.nodes() == [] and nothing_is_left(world)


def test_a_slice_that_becomes_ready_after_the_machine_died_is_deleted_by_its_watchdog() -> None:
    world = play(QUEUED, layers=WATCHDOG_ONLY, full=[(ZONES[0], 0.0, 40.0)], crashes=[(None, 10.0, "machine")])
    [node] = world.oracle.nodes()
    assert node.created_at - world.faults.begun_at >= 40.0 and node.deleted_by.startswith("watchdog")
    assert not world.cloud.state.nodes and not world.cloud.state.queue.rows


@pytest.mark.parametrize(("words", "plan"), [
    ("FAILED at once", {"closed": ZONES[:1]}),
    ("FAILED when its time was over", {"full": [(ZONES[0], 0.0, FOREVER)]}),
    ("SUSPENDED with its node", {"preemptions": [(10.0, 0.0)]}),
    ("SUSPENDED while PROVISIONING", {"preemptions": [(4.0, 0.0)]}),
])  # fmt: skip
def test_a_dead_request_is_deleted(words: str, plan: dict[str, Any]) -> None:
    world = play(replace(QUEUED, candidates=Candidates(ZONES[:1], 1, 20.0)), **plan)
    asked = requests(world)
    assert asked and all(request.gone_at is not None for request in asked) and nothing_is_left(world), words
    assert code(world) == (0 if "PROVISIONING" in words else code(world) or -1), "a run with time left asks again"


def test_gc_deletes_a_dead_request_when_no_other_layer_is_left() -> None:
    workload = replace(QUEUED, gc_every_s=30.0, candidates=Candidates(ZONES[:1], 1, 10.0))
    world = play(workload, layers=GC_ONLY, full=[(ZONES[0], 0.0, FOREVER)], crashes=[(None, 5.0, "machine")])
    assert world.oracle.nodes() == [] and not world.cloud.state.queue.rows

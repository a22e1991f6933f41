"""Random worlds violate nothing, and neither do the seeds that once did, nor the known leaks of other tools.

500 worlds by default, 1,500 in CI, 10,000 in all; of those with jobs on a cluster half as many.

Each leak is played in the smallest world in which it would happen, with only the layer that has to prevent it: what was
created, in which order it was deleted, and the exit code. In a world with nothing but a death, the simulator allows what
the table of promises says, and no more.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orchestrator.drill import bounds
from orchestrator.drill.bounds import PROMISES
from orchestrator.promise.lease import periods
from orchestrator.promise.lease.lease import LeaseState
from tests import ROOT
from tests.simulation.model.faults import FOREVER, FaultPlan, cloud_fault
from tests.simulation.model.world import GC_ONLY, GUARDIAN_ONLY, NO_LAYER, SPEED, WATCHDOG_ONLY, ZONES, Layers, World
from tests.simulation.mutants.registry import RUN
from tests.simulation.oracle.claims import Resource
from tests.simulation.scenarios import clusters, scarcity
from tests.simulation.scenarios.clusters import cluster_world_of
from tests.simulation.scenarios.commands import Candidates, type_down
from tests.simulation.scenarios.random_worlds import FAMILIES, Workload, world_of

LINES = [line.split() for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines() if line[:1].isdigit()]
WORLDS, CHUNK = (500, 1_500, 10_000), 250  # by default, in CI, in all
CLUSTERS = (250, 750, 5_000)


def check(seed: int, kind: str = "") -> None:
    world = (
        cluster_world_of(seed, trace=True) if kind == "cluster:" else world_of(seed, plain=kind == "plain:", trace=True)
    )
    result = world.run()
    if result.violations:
        trace = "\n".join(result.trace[-25:])
        broken = "; ".join(f"{v.invariant}: {v.text}" for v in result.violations)
        pytest.fail(f"TPUJOB_SIM_SEED={seed} {kind} {broken}\n{world.workload}\n{world.plan}\n{trace}")


def chunks(default: int, in_ci: int, worlds: int) -> Iterator[Any]:
    """Each chunk is a test of its own, so that processes share them."""
    for first in range(0, worlds, CHUNK):
        marks = () if first < default else pytest.mark.ci if first < in_ci else pytest.mark.exhaustive
        yield pytest.param(first, marks=marks)


@pytest.mark.parametrize("first", list(chunks(*WORLDS)))
def test_random_worlds_violate_nothing(first: int) -> None:
    for seed in range(first, first + CHUNK):
        check(seed)


@pytest.mark.parametrize("first", list(chunks(*CLUSTERS)))
def test_random_worlds_with_a_cluster_violate_nothing(first: int) -> None:
    for seed in range(first, first + CHUNK):
        check(seed, "cluster:")


@pytest.mark.parametrize("speed", [1.0, 8.0, 100.0], ids=["Google's", "8 times that", "100 times that"])
def test_the_promises_hold_at_every_speed(speed: float) -> None:
    """The programs have times of their own that no speed scales: the ratio must not matter."""
    for seed in range(60):
        result = world_of(seed, speed=speed).run()
        assert not result.violations, f"TPUJOB_SIM_SEED={seed} at speed {speed}: {result.violations[0]}"


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[0])
def test_a_seed_that_once_violated_something_no_longer_does(line: list[str]) -> None:
    check(int(line[0]), line[1])


def test_the_same_seed_is_the_same_world_event_for_event() -> None:
    for seed in range(20, 30):
        first, second = world_of(seed, trace=True).run(), world_of(seed, trace=True).run()
        assert first.trace == second.trace and first.events == second.events
        first, second = cluster_world_of(seed, trace=True).run(), cluster_world_of(seed, trace=True).run()
        assert first.trace == second.trace and first.events == second.events


def test_the_same_seed_is_the_same_world_in_every_process() -> None:
    """Sets of strings have another order in each process; in world 6, two slices become absent at one instant."""
    replay = [sys.executable, "-m", "tests.simulation", "--seed", "6", "--trace"]
    traces = {subprocess.check_output(replay, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": seed}) for seed in "1234"}
    assert len(traces) == 1


def test_every_family_of_faults_occurs_within_300_worlds() -> None:
    met = {name for seed in range(300) for name in world_of(seed).plan.families}
    assert met == {*FAMILIES, *scarcity.FAMILIES, "access", "clock_steps", "kept_failed", "left_results", "sweep"}


def test_every_family_of_faults_of_a_cluster_occurs_within_300_worlds() -> None:
    met = {name for seed in range(300) for name in cluster_world_of(seed).plan.families}
    assert met == {*clusters.FAMILIES, *clusters.OF_THIS_SIDE, "clock_steps"}


@pytest.mark.ci
def test_worlds_with_a_cluster_see_every_end_of_a_job() -> None:
    """The exit codes of docs/gke.md, and jobs that a machine left to the control plane, which ended them."""
    missing: set[Any] = {0, 1, 7, 64, 65, 69, 71, 75, 77, 124, 130, "left"}
    for seed in range(600):
        world = cluster_world_of(seed, trace=True)
        told = [line.partition(" exits with ")[2].partition(":")[0] for line in world.run().trace]
        missing -= {int(code) for code in told if code}
        if any(each.at_limit and each.claim is not None for each in world.cluster.sets):
            missing.discard("left")
        if not missing:
            return
    pytest.fail(f"no world ends so: {missing}")


@pytest.mark.parametrize("down_at", [4.0, 9.0, 12.5, 16.0])
def test_concurrent_teardowns_of_one_slice_all_end_well(down_at: float) -> None:
    """The user in two terminals, the run itself, a timer and gc, over a cloud whose deletes fail twice."""

    def workload(world: World) -> None:
        Workload("run", lasts_s=8.0, timer_s=3.0, gc_every_s=5.0)(world)
        for pause_s in (0.0, 0.05, 1.0):
            world.at(down_at + pause_s, type_down, world)

    failing = [cloud_fault("operation_fails", "nodes.delete")] * 2
    world = World(11, workload, FaultPlan(delete_effects=failing))
    result = world.run()
    assert not result.violations, result.violations
    assert world.oracle.existing() == [] and world.laptop.ledger.open_leases() == []


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
    of_the_table = bounds.PromiseWorld(
        speed=SPEED, deletion_s=DELETE_S + TRAVEL_S, ready_s=READY_S, gc_every_s=GC_EVERY_S
    )
    bound_s = bounds.bound(PROMISES[promise], of_the_table).seconds
    assert world.verdicts
    for took_s, verdict in world.verdicts.values():
        assert took_s <= verdict.allowed_s <= CLOCKS * bound_s


def test_the_bounds_come_from_the_table_and_not_from_the_timings_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def allowed_s() -> list[float]:
        world = World(1, RUN, FaultPlan(provision_s=READY_S, **everything(12.0)), layers=WATCHDOG_ONLY)
        world.run()
        return [verdict.allowed_s for _, verdict in world.verdicts.values()]

    before = allowed_s()
    monkeypatch.setattr(periods, "GOOGLE", periods.Timings(ttl_s=9000.0, grace_s=1800.0))
    assert allowed_s() == before


def test_without_any_layer_nothing_is_promised() -> None:
    world = World(1, RUN, FaultPlan(provision_s=READY_S, **everything(12.0)), layers=NO_LAYER)
    world.run()
    assert {verdict.layer for _, verdict in world.verdicts.values()} == {"none"}

"""Random worlds violate nothing, and neither do the seeds that once did.

500 worlds by default, 1,500 in CI, 10,000 in all; of those with jobs on a cluster half as many.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.simulation.model.faults import FaultPlan, cloud_fault
from tests.simulation.model.world import World
from tests.simulation.scenarios import clusters, scarcity
from tests.simulation.scenarios.clusters import cluster_world_of
from tests.simulation.scenarios.commands import type_down
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
        world = cluster_world_of(seed)
        world.run()
        missing -= {process.result.exit_code for process in world.judge.told}
        if any(each.limit_at is not None and each.of is not None for each in world.judge.fates.values()):
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

"""`tpujob gc` from a machine that knows nothing but the project."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from orchestrator.errors import CloudUnavailable
from orchestrator.promise import gc, release
from orchestrator.promise.effects.base import Lock, Now, Record, StartGuardian
from orchestrator.promise.effects.cloud import Create
from orchestrator.promise.gc import collect_garbage
from orchestrator.promise.lease import absence, claim_labels
from orchestrator.promise.lease.changes import Created, CreateRefused, CreateSent, Intent
from orchestrator.promise.lease.cloud_api import Listing
from orchestrator.promise.obtain import acquire, candidate_search
from orchestrator.text import names
from tests.simulation.model.cloud import PROJECT
from tests.simulation.model.faults import FaultPlan, cloud_fault
from tests.simulation.model.world import GC_ONLY, NO_LAYER, ZONES, Result, Violation, World
from tests.simulation.mutants.registry import RUN, NoEffect, Plays, mutant, one, power_cut, replaces, scenario, seeds
from tests.simulation.oracle.invariants import Invariant
from tests.simulation.scenarios import commands
from tests.simulation.scenarios.random_worlds import Workload

# -- scenarios -------------------------------------------------------------------------------------------------------


@scenario
def gc_beside_runs() -> Plays:
    yield "a run", one(Workload("run", lasts_s=100.0, gc_every_s=20.0))


@scenario
def gc_only_flaky_api() -> Plays:
    flaky = {"rates": {"e503": 0.1, "lost_reply": 0.1}}
    return seeds(20, replace(RUN, gc_every_s=600.0), GC_ONLY, **flaky, **power_cut(12.0))


@scenario
def gc_only_failing_deletes() -> Plays:
    effects = [cloud_fault("operation_fails", "nodes.delete")] * 10
    return seeds(3, replace(RUN, gc_every_s=60.0), GC_ONLY, delete_effects=effects, **power_cut(12.0))


@scenario
def gc_among_foreign_slices() -> Plays:
    yield "neighbours", one(replace(RUN, gc_every_s=10.0, foreign_slices=True))


@scenario
def gc_partial_lists() -> Plays:
    """A gc run that could not see a zone is never complete."""

    def played() -> Result:
        def workload(world: World) -> None:
            RUN(world)
            program = collect_garbage(PROJECT, ZONES, world.capabilities, deadline_s=30.0)
            process = world.laptop.run("gc", program, role="timer")
            assert process is not None

            def ended(_: Any) -> None:
                if process.result is not None and process.result.done:
                    world.violations.append(_untrue(world))

            process.on_exit = ended

        return World(3, workload, FaultPlan(unreachable=1.0), layers=NO_LAYER).run()

    yield "zones unreachable all the time", played


def _untrue(world: World) -> Violation:
    return Violation(
        Invariant.HONEST_EXIT_CODE,
        world.faults.elapsed_s(),
        "gc says that it saw everything, though every list was partial",
    )


# -- mutants ---------------------------------------------------------------------------------------------------------


@mutant("gc_partial_lists")
def partial_list_complete() -> Any:
    """A list that names unreachable zones counts as complete."""
    return patch.object(Listing, "complete", property(lambda self: True))


@replaces(claim_labels, "read_claim", "gc_beside_runs")
def gc_by_age(_: Any, view: Any, timings: Any) -> claim_labels.LabelClaim:
    """Gc judges by age, not by the claim (janitors)."""
    until = (view.created_at or 0.0) + 30.0
    return claim_labels.LabelClaim(until, until)


@replaces(gc._Collection, "wait", "gc_only_flaky_api")
async def gc_asks_once(_: Any, self: Any, pause_s: float) -> bool:
    """Gc sends each question once (boskos)."""
    return False


@mutant("gc_among_foreign_slices")
def gc_by_label() -> Any:
    """Gc deletes everything with the label (ml-auto-solutions)."""
    return patch.object(names, "is_ours", lambda node, labels: labels.get("tpujob") == "1")


@mutant("gc_among_foreign_slices")
def gc_by_prefix() -> Any:
    """Gc deletes everything with the name prefix."""
    return patch.object(names, "is_ours", lambda node, labels: node.startswith("tpujob-"))


@replaces(gc._Collection, "_delete_and_verify", "gc_only_failing_deletes")
async def gc_believes_delete(real: Any, self: Any, name: Any) -> None:
    """Gc counts an accepted delete as done."""
    await real(self, name)
    if name in self.collected.ended and name in self._deleted_at:
        self.collected.ended[name] = replace(self.collected.ended[name], gone=True)


# -- scenarios -------------------------------------------------------------------------------------------------------


@scenario
def lost_create() -> Plays:
    for lost in (1, 2):
        yield f"{lost} replies lost", one(RUN, layers=NO_LAYER, lost_creates=lost)
        late = [cloud_fault("late", "nodes.create", seconds=6.0)]
        yield f"{lost} late", one(RUN, layers=NO_LAYER, create_effects=late * lost)


@scenario
def stockout_leaves_node() -> Plays:
    effects = [cloud_fault("create_fails_leaving_node", "nodes.create", state="TERMINATED")]
    yield "the failed create leaves a node", one(RUN, layers=NO_LAYER, create_effects=effects, stockouts=ZONES[:1])


@scenario
def taken_name() -> Plays:
    def played() -> Result:
        def workload(world: World) -> None:
            RUN(world)
            commands.take_name(world)

        return World(3, workload, FaultPlan(), layers=NO_LAYER).run()

    yield "a foreign node has the name", played


# -- mutants ---------------------------------------------------------------------------------------------------------


@replaces(candidate_search, "acquire", "deaths")
async def create_before_intent(_: Any, lease: Any, request: Any, capabilities: Any) -> Any:
    """The ledger records the slice after the create call (Terraform)."""
    await Lock(lease.id)
    await StartGuardian()
    operation = await Create(_stamped(lease, request, capabilities, await Now()), await Now())
    await Record(Intent(lease))
    await Record(CreateSent(lease.id, await Now()), Created(lease.id, await Now(), operation.name))
    return await acquire.wait_until_ready(
        lease, capabilities, give_up_at=await Now() + capabilities.timings.provision_s
    )


@mutant("deaths_guardian_only")
def guardian_after_create() -> Iterator[None]:
    """The guardian starts after the create call."""
    create = acquire._create

    async def created(*args: Any, **named: Any) -> None:
        await create(*args, **named)
        await StartGuardian()

    with (
        patch.object(acquire, "StartGuardian", lambda: NoEffect(answer=True)),
        patch.object(acquire, "_create", created),
    ):
        yield


@mutant("deaths_guardian_only")
def no_guardian() -> Any:
    """There is no guardian."""
    return patch.object(acquire, "StartGuardian", lambda: NoEffect(answer=True))


@replaces(acquire, "_create", "lost_create")
async def retries_under_new_name(real: Any, lease: Any, request: Any, *, give_up_at: float) -> None:
    """A create whose reply was lost is repeated under another name (SkyPilot#797)."""
    try:
        await Record(CreateSent(lease.id, await Now()))
        operation = await Create(request, await Now())
    except CloudUnavailable:
        name = replace(request.name, node=request.name.node + "x")
        await real(lease, replace(request, name=name), give_up_at=give_up_at)
    else:
        await Record(Created(lease.id, await Now(), operation.name))


@replaces(acquire, "_create", "lost_create")
async def lost_reply_is_refusal(_: Any, lease: Any, request: Any, *, give_up_at: float) -> None:
    """A lost reply counts as a refusal."""
    await Record(CreateSent(lease.id, await Now()))
    try:
        operation = await Create(request, await Now())
    except CloudUnavailable as error:
        await Record(CreateRefused(lease.id, await Now(), error.message))
        raise
    await Record(Created(lease.id, await Now(), operation.name))


@replaces(candidate_search, "release_owed", "stockout_leaves_node")
async def next_zone_before_proof(_: Any, held: Any, capabilities: Any, reason: str) -> None:
    """The next zone is asked before the slice in this one is proven gone (dstack, SkyPilot#2990)."""
    await release.try_record(release.ReleaseBegan(held.lease.id, await Now(), reason))


@replaces(absence, "is_ours", "taken_name", also=acquire)
def adopts_foreign(*_: Any) -> bool:
    """A foreign node with the chosen name is adopted and deleted."""
    return True


def _stamped(lease: Any, request: Any, capabilities: Any, now: float) -> Any:
    return replace(request, labels={**request.labels, **claim_labels.labels(lease, now, capabilities.timings)})

"""Intent before effect: the ledger, the guardian and the name of a slice come before its create call."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from orchestrator.core.lease import absence, claim_labels
from orchestrator.core.lease.lease import Created, CreateRefused, Intent, Sent
from orchestrator.engine.effects.base import Lock, Now, Record, StartGuardian
from orchestrator.engine.effects.cloud import Create
from orchestrator.engine.leases import release
from orchestrator.engine.provision import acquire, candidate_search
from orchestrator.errors import CloudUnavailable
from tests.simulation.model.faults import FaultPlan, cloud_fault
from tests.simulation.model.world import NO_LAYER, ZONES, Result, World
from tests.simulation.mutants.registry import RUN, NoEffect, Plays, mutant, one, replaces, scenario
from tests.simulation.scenarios import commands

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
    operation = await Create(_stamped(lease, request, capabilities, await Now()))
    await Record(Intent(lease))
    await Record(Sent(lease.id, await Now()), Created(lease.id, await Now(), operation.name))
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
        await Record(Sent(lease.id, await Now()))
        operation = await Create(request)
    except CloudUnavailable:
        name = replace(request.name, node=request.name.node + "x")
        await real(lease, replace(request, name=name), give_up_at=give_up_at)
    else:
        await Record(Created(lease.id, await Now(), operation.name))


@replaces(acquire, "_create", "lost_create")
async def lost_reply_is_refusal(_: Any, lease: Any, request: Any, *, give_up_at: float) -> None:
    """A lost reply counts as a refusal."""
    await Record(Sent(lease.id, await Now()))
    try:
        operation = await Create(request)
    except CloudUnavailable as error:
        await Record(CreateRefused(lease.id, await Now(), error.message))
        raise
    await Record(Created(lease.id, await Now(), operation.name))


@replaces(candidate_search, "release_owed", "stockout_leaves_node")
async def next_zone_before_proof(_: Any, held: Any, capabilities: Any, reason: str) -> None:
    """The next zone is asked before the slice in this one is proven gone (dstack, SkyPilot#2990)."""
    await release.try_record(release.Down(held.lease.id, await Now(), reason))


@replaces(absence, "is_ours", "taken_name", also=acquire)
def adopts_foreign(*_: Any) -> bool:
    """A foreign node with the chosen name is adopted and deleted."""
    return True


def _stamped(lease: Any, request: Any, capabilities: Any, now: float) -> Any:
    return replace(request, labels={**request.labels, **claim_labels.labels(lease, now, capabilities.timings)})

"""Claims: heartbeats, labels, extensions, and the hand-over of a run to its job."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from orchestrator.core.lease import claim_labels
from orchestrator.core.lease.lease import LeaseState
from orchestrator.engine.effects.base import Now, ReadLease, Record
from orchestrator.engine.leases import release, renewal
from orchestrator.errors import CloudUnavailable, Vanished
from orchestrator.places.vms import stay
from orchestrator.run import finish, program
from tests.simulation.model.faults import FOREVER, cloud_fault
from tests.simulation.model.world import GC_ONLY, NO_LAYER, WATCHDOG_ONLY
from tests.simulation.mutants.registry import RUN, NoEffect, Plays, mutant, no_op, one, power_cut, replaces, scenario
from tests.simulation.scenarios.random_worlds import Workload

# -- scenarios -------------------------------------------------------------------------------------------------------


@scenario
def long_runs() -> Plays:
    for workers in (1, 2):
        workload = Workload("run", lasts_s=420.0, workers=workers, gc_every_s=30.0)
        yield f"{workers} workers", one(workload)


@scenario
def kept() -> Plays:
    yield "kept", one(Workload("keep", lasts_s=4.0, hold_s=90.0))


@scenario
def kept_labels_fail() -> Plays:
    for kind in ("operation_fails", "operation_forgets"):
        effects = [cloud_fault(kind, "nodes.patch", seconds=1.0)]
        yield kind, one(Workload("keep", lasts_s=4.0, hold_s=90.0), patch_effects=effects)


@scenario
def extended() -> Plays:
    for workers in (1, 2):
        workload = Workload("run", lasts_s=300.0, workers=workers, extend_at=15.0, gc_every_s=30.0)
        yield f"{workers} workers", one(workload)


@scenario
def extended_reply_lost() -> Plays:
    workload = Workload("up", hold_s=60.0, extend_at=20.0, gc_every_s=10.0, life_s=60.0)
    yield "a held slice", one(workload, layers=GC_ONLY, lost_patches=2, **power_cut(40.0))


@scenario
def extended_at_hand_over() -> Plays:
    for tenth in range(60, 120):
        workload = Workload("detached", lasts_s=80.0, extend_at=tenth / 10)
        yield f"at {tenth / 10} s", one(workload)


@scenario
def extended_before_followed() -> Plays:
    for extend_at in (10.0, 18.6, 23.0):
        workload = Workload("detached", lasts_s=40.0, life_s=30.0, extend_at=extend_at, boot_s=4.0)
        yield f"extended at {extend_at} s", one(workload)


@scenario
def down_at_hand_over() -> Plays:
    for tenth in range(70, 110, 2):
        yield f"down at {tenth / 10} s", one(Workload("detached", lasts_s=40.0, down_at=tenth / 10))


@scenario
def proven_by_other_process() -> Plays:
    workload = Workload("run", lasts_s=20.0, down_at=15.0)
    rest = {"stopped": [(10.0, 40.0)], "forbidden": {"laptop-api": [(30.0, FOREVER)]}}
    yield "down, then no permission", one(workload, layers=NO_LAYER, **rest)


@scenario
def client_cut_off() -> Plays:
    for at in (12.0, 15.0):
        yield f"at {at} s", one(RUN, layers=WATCHDOG_ONLY, cut={"laptop-api": [(at, FOREVER)]})


@scenario
def detached_unarmed() -> Plays:
    yield "no watchdog", one(Workload("detached", lasts_s=10.0), script_runs=False)
    yield "no permission", one(Workload("detached", lasts_s=10.0), forbidden={"vm-api": [(0.0, FOREVER)]})


# -- mutants ---------------------------------------------------------------------------------------------------------


@mutant("worlds")
def no_heartbeat() -> Any:
    """An attached run sends no heartbeat."""
    return patch.object(program, "SendHeartbeats", NoEffect)


@mutant("long_runs")
def no_renewal() -> Any:
    """An attached run never renews its label."""
    return patch.object(renewal.LeaseRenewal, "_renew", no_op)


@mutant("kept")
def kept_in_ledger_only() -> Any:
    """`--keep` is written to the ledger, not to the labels."""
    return patch.object(renewal, "_write", no_op)


@mutant("kept_labels_fail")
def label_update_believed() -> Iterator[None]:
    """An accepted label update counts as done."""
    asked: list[bool] = []

    def shows(view: Any, said: Any) -> bool:
        asked.append(True)
        return len(asked) % 2 == 0  # first no (an update is needed), then yes

    with patch.object(renewal, "_has", shows):
        yield


@mutant("extended")
def claim_may_shrink() -> Any:
    """An update may shorten a claim."""
    return patch.object(claim_labels, "read_claimed_until", lambda said: 0.0)


@mutant("client_cut_off")
def heartbeats_during_release() -> Any:
    """Heartbeats continue while the release waits for the API."""
    return patch.object(finish, "Disconnect", NoEffect)


@mutant("detached_unarmed")
def detach_unarmed() -> Iterator[None]:
    """A detached run starts although its watchdog proved nothing (SkyPilot#5946)."""

    async def handed_over(lease: Any, capabilities: Any) -> Any:
        await renewal._write(lease, renewal.apply(lease, renewal.Detached(lease.id, await Now())), capabilities)
        await Record(renewal.Detached(lease.id, await Now()))
        return await ReadLease(lease.id)

    with patch.object(program, "wait_for_watchdogs", no_op), patch.object(program, "hand_over", handed_over):
        yield


@replaces(renewal, "_write", "extended_reply_lost")
async def extended_twice(real: Any, before: Any, wanted: Any, capabilities: Any, **how: Any) -> None:
    """An extension whose reply was lost is added again."""
    if before.deadline == wanted.deadline:
        return await real(before, wanted, capabilities, **how)
    for _ in range(5):
        found, skew_s = await renewal._listed(wanted)
        said = await renewal._claim_labels(before, wanted, found, skew_s, capabilities)
        try:
            await renewal.SetLabels(wanted.name, {**found.labels, **said})
        except CloudUnavailable:
            await renewal.Sleep(1.0)
        else:
            return None
    return None


@replaces(stay, "end_of", "extended_before_followed")
def follower_ignores_extension(real: Any, lease: Any, began: float, max_duration_s: float) -> Any:
    """Whatever follows a detached job uses the limit of the job file, not the extended one."""
    return real(lease, began, min(max_duration_s, 30.0))


@replaces(renewal, "_exclusively", "down_at_hand_over")
async def released_during_hand_over(alone: Any, lease: Any, made: Any) -> Any:
    """A slice that is released during a hand-over is reported as a bug."""
    try:
        return await alone(lease, made)
    except Vanished as error:
        raise (error.__cause__ or error) from None


@mutant("extended_at_hand_over")
def concurrent_label_updates() -> Any:
    """Two commands update the labels of one slice at once."""
    return patch.object(renewal, "_exclusively", lambda lease, made: made())


@replaces(release, "latest_lease", "proven_by_other_process")
async def other_proof_ignored(_: Any, lease: Any) -> Any:
    """A release ignores the proof that another process recorded."""
    return replace(lease, state=LeaseState.DOWN)

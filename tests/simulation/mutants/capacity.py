"""Too little capacity: queued requests, races, preemptions and restarts."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from orchestrator.core.lease import absence, claim_labels
from orchestrator.core.lease.lease import Lease, Mode, Purpose
from orchestrator.engine.effects.base import ReadLease
from orchestrator.engine.leases import recover, release, renewal
from orchestrator.engine.provision import race
from orchestrator.places.tpu.api import client
from orchestrator.places.tpu.api.calls import ApiCalls
from orchestrator.places.vms import stay
from orchestrator.run import finish
from orchestrator.run import program as run
from tests.simulation.model.faults import FOREVER, cloud_fault
from tests.simulation.model.world import GC_ONLY, GUARDIAN_ONLY, NO_LAYER, RACE_ZONES, WATCHDOG_ONLY, ZONES
from tests.simulation.mutants.registry import (
    QUEUED,
    RACE,
    RUN,
    NoEffect,
    Plays,
    mutant,
    no_op,
    one,
    power_cut,
    scenario,
    succeeds,
)
from tests.simulation.scenarios.commands import Candidates
from tests.simulation.scenarios.random_worlds import Workload

# -- scenarios -------------------------------------------------------------------------------------------------------


def _failing(kind: str, count: int, seconds: float = 1.0) -> list[Any]:
    return [cloud_fault(kind, "queuedResources.delete", seconds=seconds)] * count


@scenario
def loser_whose_delete_fails() -> Plays:
    """Both slices are READY at the same moment, and the first deletes of the loser come to nothing."""
    for kind in ("operation_fails", "operation_forgets"):
        workload = replace(RACE, lasts_s=400.0)
        yield kind, one(workload, layers=NO_LAYER, request_delete_effects=_failing(kind, 2))


@scenario
def loser_when_winner_stays() -> Plays:
    """The command ends long before the loser is gone."""
    for kind in ("keep", "detached"):
        workload = replace(RACE, kind=kind, lasts_s=2.0, hold_s=120.0)
        yield kind, one(workload, layers=WATCHDOG_ONLY, request_delete_effects=_failing("stuck", 2, 60.0))


@scenario
def killed_in_a_race() -> Plays:
    """The deletes of one request fail for a while; the others must not wait for it."""
    full = [(zone, 0.0, 90.0) for zone in RACE_ZONES]
    for at in (2.0, 4.0):
        rest = {"request_delete_effects": _failing("stuck", 1, 100.0), "crashes": [(None, at, "cli")], "full": full}
        yield f"killed at {at} s", one(RACE, layers=GUARDIAN_ONLY, **rest)


@scenario
def forbidden_to_read() -> Plays:
    yield "no permission at all", one(RACE, layers=NO_LAYER, forbidden={"laptop-api": [(0.0, FOREVER)]})


@scenario
def queue_closed() -> Plays:
    """The request is FAILED before it is visible."""
    hidden = [cloud_fault("hidden", "nodes.create", seconds=8.0)]
    yield "seen late", one(QUEUED, layers=NO_LAYER, closed=ZONES[:1], create_effects=hidden)


@scenario
def waiting_in_queue() -> Plays:
    full = [(ZONES[0], 0.0, 30.0)]
    yield "until there is capacity", one(QUEUED, layers=NO_LAYER, full=full)
    yield "Ctrl-C", one(QUEUED, layers=NO_LAYER, full=full, signals=[10.0])
    deaf = {"signals": [10.0], "request_delete_effects": _failing("operation_fails", 1)}
    yield "Ctrl-C, and the delete fails", one(QUEUED, layers=NO_LAYER, full=full, **deaf)


@scenario
def preempted() -> Plays:
    """With notice and without. A run that may restart does."""
    for notice_s in (0.0, 1.0, 5.0):
        for queued in (0, 1):
            workload = replace(RUN, lasts_s=20.0, candidates=Candidates(ZONES[:1], queued, spot=True, restarts=2))
            for second in (27.5 + 1.5 * queued, 40.0):
                rest = {"preemptions": [(12.0, notice_s), (second, notice_s)], "delete_s": 6.0}
                yield f"{queued} queued, at {second} s, notice {notice_s} s", succeeds(workload, **rest)


@scenario
def extended_and_preempted() -> Plays:
    candidates = Candidates(ZONES[:1], spot=True, restarts=2)
    workload = replace(RUN, lasts_s=60.0, life_s=30.0, extend_at=12.0, candidates=candidates)
    yield "extended, preempted", one(workload, preemptions=[(26.0, 0.0)])


@scenario
def early_out_of_queue() -> Plays:
    """It was allowed to wait for two minutes. Then its laptop dies, and only gc is left."""
    workload = replace(RUN, lasts_s=60.0, gc_every_s=20.0, candidates=Candidates(ZONES[:1], 1, 120.0))
    yield "a run", one(workload, layers=GC_ONLY, **power_cut(40.0))


@scenario
def up_and_machine_die() -> Plays:
    for at in (0.5, 2.0, 4.0):
        yield (
            f"power cut at {at} s",
            one(Workload("up", hold_s=60.0), layers=WATCHDOG_ONLY, provision_s=5.0, **power_cut(at)),
        )


@scenario
def dies_before_held() -> Plays:
    workload = Workload("up", hold_s=60.0, gc_every_s=20.0, candidates=Candidates(ZONES[:1], 1, 120.0))
    for step in range(165, 265, 4):
        rest = {"crashes": [("up", step, "machine")]}
        yield f"machine dies at step {step}", one(workload, layers=GC_ONLY, **rest)


# -- mutants ---------------------------------------------------------------------------------------------------------


@mutant("the deletes of the losers of a race are sent once and counted as done", "loser_whose_delete_fails")
def losers_deleted_once() -> Iterator[None]:
    real = race._Race.finish

    async def finish(self: Any, seen: Any, took_s: float) -> Any:
        winner = await real(self, seen, took_s)
        self.owed.losers = []
        return winner

    with patch.object(race._Race, "finish", finish):
        yield


@mutant("the losers of a race are forgotten when the winner is kept or handed over", "loser_when_winner_stays")
def losers_forgotten() -> Iterator[None]:
    real = finish.release_owed

    async def let_go(held: Any, capabilities: Any, reason: str) -> None:
        if held.lease is None:
            held.losers = []
        await real(held, capabilities, reason)

    with patch.object(finish, "release_owed", let_go):
        yield


@mutant("the losers of a race are not deleted", "loser_whose_delete_fails")
def losers_not_deleted() -> Iterator[None]:
    async def unsent(leases: Any, *, reason: str) -> None:
        return None

    with patch.object(race, "send_deletes", unsent), patch.object(race.LoserRelease, "tick", no_op):
        yield


@mutant("the next attempt asks for a slice before the lost one is proven gone (SkyPilot#1500)", "preempted")
def restart_before_proof() -> Iterator[None]:
    real = run.release_owed

    async def let_go(held: Any, capabilities: Any, reason: str) -> None:
        if held.lease is not None and "preempted" in reason:
            await release.send_deletes([held.lease], reason=reason)
            held.lease = None
        await real(held, capabilities, reason)

    with patch.object(run, "release_owed", let_go):
        yield


@mutant("a new attempt reuses the name of the lost slice", "preempted")
def name_reused() -> Iterator[None]:
    real, drafts = run._attempt, []

    async def attempted(job: Any, capabilities: Any, outcome: Any) -> None:
        drafts.append(job.stay.drafts)
        await real(job, capabilities, outcome)

    with patch.object(run, "_attempt", attempted), patch.object(stay, "Make", lambda _: NoEffect(answer=drafts[-1])):
        yield


@mutant("a queued resource is deleted without force (spotax)", "waiting_in_queue")
def delete_without_force() -> Iterator[None]:
    real = ApiCalls._delete

    def delete(self: Any, call: str, request: Any) -> Any:
        return real(self, call, {**request, "force": False} if "force" in request else request)

    with patch.object(ApiCalls, "_delete", delete):
        yield


@mutant("a queued slice counts as absent when its node is (SkyPilot)", "waiting_in_queue")
def node_only_proof() -> Iterator[None]:
    real = ApiCalls.list

    def listed(self: Any, project: str, zone: str, queued: bool = False) -> Any:
        return real(self, project, zone)

    with patch.object(ApiCalls, "_queue", lambda self, name: None), patch.object(ApiCalls, "list", listed):
        yield


@mutant("a queued request waits longer than asked for", "waiting_in_queue")
def request_outlives_wait() -> Iterator[None]:
    with patch.object(client, "_seconds", lambda seconds: f"{int(seconds) + 3600}s"):
        yield


@mutant("recovery releases slices one after the other", "killed_in_a_race")
def recovers_one_by_one() -> Iterator[None]:
    real = release.release_all

    async def release_all(owed: Any, capabilities: Any, *, budget_s: float) -> Any:
        return [released for each in owed for released in await real([each], capabilities, budget_s=budget_s)]

    with patch.object(recover, "release_all", release_all):
        yield


@mutant("a candidate that was never asked for has to be proven gone", "forbidden_to_read")
def unasked_needs_proof() -> Iterator[None]:
    async def written(lease: Any) -> bool:
        return True

    with patch.object(race, "is_recorded", written):
        yield


@mutant("a queued request whose create failed counts as absent", "queue_closed")
def failed_request_is_gone() -> Iterator[None]:
    settled = absence.settles_at

    def believed(lease: Any, creates: Any, *args: Any, **named: Any) -> Any:
        failed = isinstance(creates, tuple) and creates and all(operation.error is not None for operation in creates)
        return None if failed else settled(lease, creates, *args, **named)

    with patch.object(absence, "settles_at", believed):
        yield


@mutant("labels still grant the wait after it is over", "early_out_of_queue")
def labels_keep_waiting() -> Iterator[None]:
    real = renewal._claim_labels

    async def said(*args: Any, anew: bool = False) -> Any:
        return await real(*args)

    with patch.object(renewal, "_claim_labels", said):
        yield


@mutant("the labels of `up` reach to the deadline before the slice is held", "dies_before_held")
def labels_held_early() -> Iterator[None]:
    real = claim_labels.claimed_until

    def claimed_until(lease: Any, now: float, timings: Any) -> Any:
        unheld = lease.ready_at is not None and lease.purpose is Purpose.HOLD and lease.hold_until is None
        return lease.deadline if unheld else real(lease, now, timings)

    with patch.object(claim_labels, "claimed_until", claimed_until):
        yield


@mutant("the watchdog counts no silence before the slice of `up` is held", "up_and_machine_die")
def mode_held_early() -> Iterator[None]:
    def mode(lease: Any) -> Mode:
        if lease.detached_at is not None:
            return Mode.DETACHED
        return Mode.HOLD if lease.purpose is Purpose.HOLD else Mode.RUN

    with patch.object(Lease, "mode", property(mode)):
        yield


@mutant("an extension is lost with the slice it was made for", "extended_and_preempted")
def extension_lost() -> Iterator[None]:
    real = run._count_use

    async def count(job: Any, outcome: Any, lost: Any, lost_at: float) -> None:
        lease = outcome.lease
        extended_s = 0.0 if lease is None else (await ReadLease(lease.id)).deadline - lease.deadline
        await real(job, outcome, lost, lost_at)
        outcome.used_s += extended_s

    with patch.object(run, "_count_use", count):
        yield

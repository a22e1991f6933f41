"""Too little capacity: queued requests, races, preemptions, restarts; the ways by which slices are asked for; and logins."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from orchestrator.errors import CloudError, CloudUnavailable
from orchestrator.places.tpu.api import create_request
from orchestrator.places.tpu.api.calls import ApiCalls
from orchestrator.places.vms import stay
from orchestrator.promise import recover, release, renewal
from orchestrator.promise.effects.base import Now, ReadLease, Record
from orchestrator.promise.effects.cloud import GrantLogin
from orchestrator.promise.lease import absence, access, claim_labels
from orchestrator.promise.lease.access import AccessWish, Route, Via
from orchestrator.promise.lease.changes import LoginGranted, LoginRefused
from orchestrator.promise.lease.lease import Lease, Mode, Purpose
from orchestrator.promise.obtain import acquire, candidate_search
from orchestrator.run import finish, restart
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
    replaces,
    scenario,
    succeeds,
)
from tests.simulation.scenarios.commands import Candidates
from tests.simulation.scenarios.crash_sweep import SCENARIOS, deaths
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
        rest: dict[str, Any] = {
            "request_delete_effects": _failing("stuck", 1, 100.0),
            "crashes": [(None, at, "cli")],
            "full": full,
        }
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
    deaf: dict[str, Any] = {"signals": [10.0], "request_delete_effects": _failing("operation_fails", 1)}
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
        rest: dict[str, Any] = {"crashes": [("up", step, "machine")]}
        yield f"machine dies at step {step}", one(workload, layers=GC_ONLY, **rest)


# -- mutants ---------------------------------------------------------------------------------------------------------


@replaces(candidate_search._Race, "finish", "loser_whose_delete_fails")
async def losers_deleted_once(real: Any, self: Any, seen: Any, took_s: float) -> Any:
    """The deletes of the losers of a race are sent once and counted as done."""
    winner = await real(self, seen, took_s)
    self.owed.losers = []
    return winner


@replaces(finish, "release_owed", "loser_when_winner_stays")
async def losers_forgotten(real: Any, held: Any, capabilities: Any, reason: str) -> None:
    """The losers of a race are forgotten when the winner is kept or handed over."""
    if held.lease is None:
        held.losers = []
    await real(held, capabilities, reason)


@mutant("loser_whose_delete_fails")
def losers_not_deleted() -> Iterator[None]:
    """The losers of a race are not deleted."""

    async def unsent(leases: Any, *, reason: str) -> None:
        return None

    with (
        patch.object(candidate_search, "send_deletes", unsent),
        patch.object(candidate_search.LoserRelease, "tick", no_op),
    ):
        yield


@replaces(restart, "release_owed", "preempted")
async def restart_before_proof(real: Any, held: Any, capabilities: Any, reason: str) -> None:
    """The next attempt asks for a slice before the lost one is proven gone (SkyPilot#1500)."""
    if held.lease is not None and "preempted" in reason:
        await release.send_deletes([held.lease], reason=reason)
        held.lease = None
    await real(held, capabilities, reason)


@mutant("preempted")
def name_reused() -> Iterator[None]:
    """A new attempt reuses the name of the lost slice."""
    real, drafts = run._attempt, []

    async def attempted(job: Any, capabilities: Any, outcome: Any) -> None:
        drafts.append(job.stay.drafts)
        await real(job, capabilities, outcome)

    with patch.object(run, "_attempt", attempted), patch.object(stay, "Make", lambda _: NoEffect(answer=drafts[-1])):
        yield


@replaces(ApiCalls, "_delete", "waiting_in_queue")
def delete_without_force(real: Any, self: Any, call: str, request: Any) -> Any:
    """A queued resource is deleted without force (spotax)."""
    return real(self, call, {**request, "force": False} if "force" in request else request)


@mutant("waiting_in_queue")
def node_only_proof() -> Iterator[None]:
    """A queued slice counts as absent when its node is (SkyPilot)."""
    real = ApiCalls.list

    def listed(self: Any, project: str, zone: str, queued: bool = False) -> Any:
        return real(self, project, zone)

    with patch.object(ApiCalls, "_queue", lambda self, name: None), patch.object(ApiCalls, "list", listed):
        yield


@mutant("waiting_in_queue")
def request_outlives_wait() -> Any:
    """A queued request waits longer than asked for."""
    return patch.object(create_request, "_seconds", lambda seconds: f"{int(seconds) + 3600}s")


@replaces(recover, "release_all", "killed_in_a_race")
async def recovers_one_by_one(real: Any, owed: Any, capabilities: Any, *, budget_s: float) -> Any:
    """Recovery releases slices one after the other."""
    return [released for each in owed for released in await real([each], capabilities, budget_s=budget_s)]


@replaces(candidate_search, "is_recorded", "forbidden_to_read")
async def unasked_needs_proof(_: Any, lease: Any) -> bool:
    """A candidate that was never asked for has to be proven gone."""
    return True


@replaces(absence, "settles_at", "queue_closed")
def failed_request_is_gone(settled: Any, lease: Any, creates: Any, *args: Any, **named: Any) -> Any:
    """A queued request whose create failed counts as absent."""
    failed = isinstance(creates, tuple) and creates and all(operation.error is not None for operation in creates)
    return None if failed else settled(lease, creates, *args, **named)


@replaces(renewal, "_claim_labels", "early_out_of_queue")
async def labels_keep_waiting(real: Any, *args: Any, anew: bool = False) -> Any:
    """Labels still grant the wait after it is over."""
    return await real(*args)


@replaces(claim_labels, "claimed_until", "dies_before_held")
def labels_held_early(real: Any, lease: Any, now: float, timings: Any) -> Any:
    """The labels of `up` reach to the deadline before the slice is held."""
    unheld = lease.ready_at is not None and lease.purpose is Purpose.HOLD and lease.hold_until is None
    return lease.deadline if unheld else real(lease, now, timings)


@mutant("up_and_machine_die")
def mode_held_early() -> Iterator[None]:
    """The watchdog counts no silence before the slice of `up` is held."""

    def mode(lease: Any) -> Mode:
        if lease.detached_at is not None:
            return Mode.DETACHED
        return Mode.HOLD if lease.purpose is Purpose.HOLD else Mode.RUN

    with patch.object(Lease, "mode", property(mode)):
        yield


@replaces(restart, "_count_use", "extended_and_preempted")
async def extension_lost(real: Any, job: Any, outcome: Any, lost: Any, lost_at: float) -> None:
    """An extension is lost with the slice it was made for."""
    lease = outcome.lease
    extended_s = 0.0 if lease is None else (await ReadLease(lease.id)).deadline - lease.deadline
    await real(job, outcome, lost, lost_at)
    outcome.used_s += extended_s


WITH_KEY = replace(RUN, wish=AccessWish(os_login="on"))

# -- scenarios -------------------------------------------------------------------------------------------------------


@scenario
def os_login() -> Plays:
    yield "OS Login", one(WITH_KEY, layers=NO_LAYER)
    for ahead_s in (-86400.0, 86400.0):
        yield f"a clock {ahead_s:.0f} s ahead", one(WITH_KEY, layers=NO_LAYER, clock_offset_s=ahead_s)


@scenario
def os_login_away() -> Plays:
    for kind in ("cut", "forbidden"):
        for seed in range(1, 9):  # a connection that is cut is refused at once, or is never answered
            yield f"{kind}, {seed}", one(WITH_KEY, layers=NO_LAYER, seed=seed, **{kind: {"os-login": [(8.0, 27.0)]}})


@scenario
def import_under_way() -> Plays:
    """The process dies while its import is under way; the guardian is faster than OS Login."""
    every = next(each for each in SCENARIOS if each.name == "a run with OS Login whose import is slow")
    for step, kind in deaths(every, "cli"):
        if step < 40:
            yield f"dies at step {step}", lambda n=step, k=kind: every.world(n, k, layers=GUARDIAN_ONLY).run()  # type: ignore[misc]


@scenario
def extended_while_it_ends() -> Plays:
    """`extend` and `down` in two terminals."""
    held = Workload("up", hold_s=60.0, life_s=90.0, extend_at=20.0, down_at=20.5, wish=AccessWish(os_login="on"))
    rest = {"login_rates": {"slow": 1.0}, "rates_until": 20.7, "delete_s": 0.3}
    for seed in range(10):
        yield f"seed {seed}", one(held, layers=GUARDIAN_ONLY, seed=seed, **rest)


@scenario
def both_policies() -> Plays:
    for says in ("call", "operation", "in spite"):
        rest: dict[str, Any] = {"forbid_external_ips": True, "require_os_login": True, "policy_says": says}
        yield says, one(RUN, layers=NO_LAYER, **rest)


# -- mutants ---------------------------------------------------------------------------------------------------------


@mutant("os_login")
def key_after_create() -> Iterator[None]:
    """The key is imported after the create: a VM remembers that there was none."""
    create, grant = acquire._create, acquire._grant_login

    async def granted(lease: Any, skew_s: float) -> Any:
        return lease

    async def created(lease: Any, request: Any, *, give_up_at: float) -> None:
        await create(lease, request, give_up_at=give_up_at)
        await GrantLogin(lease, lease.deadline)

    assert grant is not None
    with patch.object(acquire, "_grant_login", granted), patch.object(acquire, "_create", created):
        yield


@replaces(acquire, "_grant_login", "os_login")
async def key_expires_by_own_clock(real: Any, lease: Any, skew_s: float) -> Any:
    """The key expires by this machine's clock."""
    return await real(lease, 0.0)


@mutant("os_login")
def key_stays() -> Any:
    """The key stays in the profile."""
    return patch.object(release, "RevokeLogin", lambda lease: NoEffect())


@mutant("os_login_away")
def key_is_left_at_once() -> Any:
    """A key that is not removed at the first try is left."""
    return patch.object(release, "LOGIN_S", 0.0)


@replaces(release, "Report", "os_login_away")
def key_is_left_silently(real: Any, stage: str, text: str, **more: Any) -> Any:
    """A key that cannot be removed is left without a word."""
    return real(stage, "" if "until it expires" in text else text, **more)


@replaces(release._Teardown, "_revoke_login", "import_under_way")
async def import_is_forgotten(real: Any, teardown: Any, *, last: bool) -> tuple[str, ...]:
    """A lease is GONE while the import of its key is under way."""
    return tuple(each for each in await real(teardown, last=last) if "settled" not in each)


@replaces(acquire, "_grant_login", "import_refused_again")
async def refusal_covers_lost_import(_: Any, lease: Any, skew_s: float) -> Any:
    """The refusal of an import covers the one before it, whose reply was lost."""
    grant = GrantLogin(lease, lease.deadline + skew_s)
    try:
        user = await acquire.retry.until(await Now() + acquire.PATIENCE_S, grant)
    except CloudUnavailable:
        raise
    except CloudError as error:
        await acquire.try_record(LoginRefused(lease.id, await Now(), error.message))
        raise
    await Record(LoginGranted(lease.id, await Now(), user))
    return await ReadLease(lease.id)


@scenario
def import_refused_again() -> Plays:
    rest = {"login_rates": {"lost_reply": 1.0}, "rates_until": 0.3, "forbidden": {"os-login": [(0.4, 20.0)]}}
    for seed in range(5):
        yield f"seed {seed}", one(WITH_KEY, layers=NO_LAYER, seed=seed, **rest)


@mutant("extended_while_it_ends")
def extension_imports() -> Any:
    """An extension imports the key again, which was removed meanwhile."""
    return patch.object(renewal, "ExtendLogin", GrantLogin)


@mutant("both_policies")
def ways_alternate() -> Iterator[None]:
    """After a refusal another way is taken, whatever was learned before."""
    ways = itertools.cycle((Via.EXTERNAL, Via.IAP))
    with patch.object(access, "route", lambda wish, rules: Route(next(ways))):
        yield

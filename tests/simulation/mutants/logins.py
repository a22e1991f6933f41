"""Keys in the OS Login profile, and the ways by which slices are asked for."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from orchestrator.core.lease import access
from orchestrator.core.lease.access import AccessWish, Route, Via
from orchestrator.core.lease.lease import LoginGranted
from orchestrator.engine.effects.base import Now, ReadLease, Record
from orchestrator.engine.effects.cloud import GrantLogin
from orchestrator.engine.leases import release, renewal
from orchestrator.engine.provision import acquire
from tests.simulation.model.world import GUARDIAN_ONLY, NO_LAYER
from tests.simulation.mutants.registry import RUN, NoEffect, Plays, mutant, one, replaces, scenario
from tests.simulation.scenarios.crash_sweep import SCENARIOS, deaths
from tests.simulation.scenarios.random_worlds import Workload

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
        rest = {"forbid_external_ips": True, "require_os_login": True, "policy_says": says}
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
    except acquire.CloudUnavailable:
        raise
    except acquire.CloudError as error:
        await acquire.try_record(acquire.LoginRefused(lease.id, await Now(), error.message))
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

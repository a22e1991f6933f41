"""The proof of absence, and the command that waits for it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from orchestrator.core.lease import absence
from orchestrator.core.lease.absence import Verdict
from orchestrator.core.lease.cloud_api import CREATE, Listing
from orchestrator.core.lease.lease import Settled
from orchestrator.engine.effects.base import Now
from orchestrator.engine.leases import obligations, recover, release
from orchestrator.errors import AuthError, CloudError
from orchestrator.run import finish, restart
from orchestrator.run import program as run
from tests.simulation.model.faults import FOREVER, cloud_fault
from tests.simulation.model.world import NO_LAYER
from tests.simulation.mutants.registry import RUN, NoEffect, Plays, mutant, one, replaces, scenario

# -- scenarios -------------------------------------------------------------------------------------------------------


@scenario
def command_only() -> Plays:
    """No other layer would finish a teardown."""
    for at in (0.5, 2.0, 4.0, 8.0, 12.0):
        failing = [cloud_fault("operation_fails", "nodes.delete")]
        yield f"Ctrl-C twice at {at} s", one(RUN, layers=NO_LAYER, signals=[at, at + 0.3], delete_effects=failing)
        slow = {"rates": {"e503": 0.5}, "rates_until": 60.0, "signals": [at]}
        yield f"Ctrl-C at {at} s, the API stutters", one(RUN, layers=NO_LAYER, **slow)
        gone = {"forbidden": {"laptop-api": [(at, at + 60.0)]}, "signals": [at + 0.5]}
        yield f"no permission from {at} s on", one(RUN, layers=NO_LAYER, **gone)


@scenario
def create_seen_late() -> Plays:
    late = [cloud_fault("hidden", "nodes.create", seconds=8.0)]
    for down_at in (3.0, 4.0, 5.0, 6.0, 7.0):
        workload = replace(RUN, down_at=down_at)
        yield f"down at {down_at} s", one(workload, layers=NO_LAYER, create_effects=late)
        crash = {"crashes": [(None, down_at, "cli")], "command_after_s": 0.5}
        yield f"killed at {down_at} s", one(RUN, layers=NO_LAYER, create_effects=late, **crash)


@scenario
def failing_deletes() -> Plays:
    for kind in ("operation_fails", "operation_forgets"):
        effects = [cloud_fault(kind, "nodes.delete")] * 2
        yield kind, one(RUN, layers=NO_LAYER, delete_effects=effects)


@scenario
def stalled_delete() -> Plays:
    """The delete is accepted, the node is DELETING, and nothing happens until the next delete."""
    for times in (1, 2):
        stalled = [cloud_fault("stalled", "nodes.delete")] * times
        yield f"{times} times", one(RUN, layers=NO_LAYER, delete_effects=stalled)


@scenario
def create_operation_unlisted() -> Plays:
    """The create is under way, its node is not visible, and the list of operations is partial."""
    unlisted = [("operations.list", (0.0, 30.0), cloud_fault("unreachable", "operations.list"))]
    hidden = {"create_effects": [cloud_fault("hidden", "nodes.create", seconds=35.0)], "provision_s": 40.0}
    for tenth in range(2, 6):
        rest = {"lost_creates": 9, "signals": [tenth / 10], "spoiled": unlisted, **hidden}
        yield f"Ctrl-C at {tenth / 10} s", one(RUN, layers=NO_LAYER, **rest)


@scenario
def create_with_unknown_verb() -> Plays:
    """The list of operations is complete, and the verb of the create is unknown."""
    hidden = {"create_effects": [cloud_fault("hidden", "nodes.create", seconds=35.0)], "provision_s": 40.0}
    for tenth in range(2, 6):
        rest = {"lost_creates": 9, "signals": [tenth / 10], "create_verb": "provision", **hidden}
        yield f"Ctrl-C at {tenth / 10} s", one(RUN, layers=NO_LAYER, **rest)


@scenario
def create_lands_between_replies() -> Plays:
    """The node is created while the reply that shows no create is on its way; the list that follows is stale."""
    stale = [("nodes.list", (5.0, 60.0), cloud_fault("stale_list", "nodes.list", seconds=20.0))]
    for late_s in (9.0, 11.0, 13.0, 14.0):
        late = [cloud_fault("late", "nodes.create", seconds=late_s)] * 9
        rest = {"create_effects": late, "spoiled": stale, "slow_replies": {"operations.list": 4.0}}
        yield f"{late_s} s late", one(RUN, layers=NO_LAYER, signals=[0.4], **rest)


@scenario
def permission_revoked() -> Plays:
    for at in (3.0, 8.0):
        yield f"from {at} s on", one(RUN, layers=NO_LAYER, forbidden={"laptop-api": [(at, FOREVER)]})


# -- mutants ---------------------------------------------------------------------------------------------------------


@replaces(release._Teardown, "one_pass", "worlds")
async def accepted_delete_is_done(_: Any, self: Any, capabilities: Any) -> Verdict:
    """An accepted delete counts as done (dstack)."""
    await self._delete(await Now())
    return Verdict(gone=self._deleted_at is not None)


@replaces(absence, "judge", "deaths")
def one_404_is_gone(_: Any, lease: Any, evidence: Any, now: float, capabilities: Any) -> Verdict:
    """A 404 counts as gone while a create may still land (dstack)."""
    return Verdict(gone=evidence.view is None)


@mutant("deaths")
def unsettled_create_ignored() -> Any:
    """The proof does not wait for creates to settle."""
    return patch.object(absence, "settles_at", lambda *_, **__: None)


@replaces(absence, "settles_at", "create_seen_late")
def invisible_create_settled(real: Any, *args: Any, **named: Any) -> Any:
    """A successful create counts as settled before its node is visible."""
    return real(*args, **{**named, "seen": True})


@replaces(release._Teardown, "one_pass", "deaths")
async def stale_proof(_: Any, self: Any, capabilities: Any) -> Verdict:
    """Get and list are asked before the create has settled."""
    now = await Now()
    view = await self._ask(release.Get(self.lease.name))
    if view is not None and not isinstance(view, release.CloudError) and await self._should_delete(view, now):
        await self._delete(now)
        view = await self._ask(release.Get(self.lease.name))
    listing = await self._ask(release.ListSlices(*release._place(self.lease))) if view is None else None
    creates = await self._creates() if view is None else ()
    evidence = release.Evidence(view, listing, creates, self._seen)
    return absence.judge(self.lease, evidence, await Now(), capabilities)


@replaces(release._Teardown, "_creates", "create_operation_unlisted")
async def partial_operations_complete(whole: Any, self: Any) -> Any:
    """A partial list of operations counts as complete."""
    if self.lease.sends == 1 and self.lease.operation is not None:
        return await whole(self)
    listing = await self._ask(release.ListOperations(*release._place(self.lease)))
    return listing if isinstance(listing, CloudError) else tuple(filter(self._is_our_create, listing.rows))


@replaces(release._Teardown, "_is_our_create", "create_with_unknown_verb")
def unknown_verb_ignored(ours: Any, self: Any, operation: Any) -> bool:
    """An operation with an unknown verb does not count as a create."""
    return operation.verb == CREATE and ours(self, operation)


@mutant("create_lands_between_replies")
def single_look() -> Iterator[None]:
    """The proof does not look again after the create has settled."""
    ask, note = release._Teardown._ask, release.try_record
    settled: set[Any] = set()

    async def noted(event: Any) -> None:
        await note(event)
        if isinstance(event, Settled):
            settled.add(event.lease_id)

    async def asked(self: Any, question: Any) -> Any:
        if isinstance(question, release.Get) and self.lease.id in settled:
            settled.discard(self.lease.id)
            return None  # the view of a moment ago
        return await ask(self, question)

    with patch.object(release, "try_record", noted), patch.object(release._Teardown, "_ask", asked):
        yield


@mutant("stalled_delete")
def stalled_delete_not_repeated() -> Any:
    """A delete under way is never sent again."""
    return patch.object(release, "DELETE_AGAIN_S", float("inf"))


@mutant("worlds", "command_only")
def forbidden_is_gone() -> Iterator[None]:
    """403 is read as "not there" (SkyPilot, tpuz)."""
    ask = release._Teardown._ask

    async def asked(self: Any, question: Any) -> Any:
        answer = await ask(self, question)
        return None if isinstance(answer, AuthError) else answer

    judge = absence.judge

    def judged(lease: Any, evidence: Any, now: float, capabilities: Any) -> Verdict:
        listing = evidence.listing or Listing(())
        return judge(lease, replace(evidence, listing=listing), now, capabilities)

    with patch.object(release._Teardown, "_ask", asked), patch.object(absence, "judge", judged):
        yield


@replaces(release._Teardown, "_should_delete", "failing_deletes")
async def failed_delete_not_repeated(_: Any, self: Any, view: Any, now: float) -> bool:
    """A delete is sent once, and the failure of its operation is never read."""
    return bool(self._deleted_at is None)


@replaces(obligations, "release_all", "permission_revoked", also=recover)
async def gives_up_as_gone(real: Any, owed: Any, capabilities: Any, *, budget_s: float) -> Any:
    """The teardown gives up after a time and records the slice as gone (dstack: 15 minutes)."""
    results = await real(owed, capabilities, budget_s=budget_s)
    for released in results:
        if not released.gone:
            await release.try_record(release.Gone(released.lease.id, await Now(), evidence="gave up"))
    return [replace(released, gone=True) for released in results]


@mutant("command_only")
def leaves_early() -> Any:
    """The command exits after the first failed look."""
    return patch.object(obligations, "RELEASE_S", 0.0)


@mutant("command_only")
def second_signal_interrupts() -> Iterator[None]:
    """A second signal interrupts the teardown."""
    with (
        patch.object(release, "Shield", NoEffect),
        patch.object(run, "Shield", NoEffect),
        patch.object(restart, "Shield", NoEffect),
        patch.object(finish, "Shield", NoEffect),
    ):
        yield

"""A race: all queued candidates are requested at once, the first slice that is READY wins, and the losers are released.

While they wait, nothing is billed. Once one has won, the others may be billed until they are proven gone: all deletes leave
at once, before anything else happens, and are repeated until they take effect.
"""

from collections.abc import Sequence
from typing import Protocol

from orchestrator.core.lease.cloud_api import Capabilities, SliceRequest
from orchestrator.core.lease.lease import Lease, NotAllowed
from orchestrator.core.planning import refusals
from orchestrator.core.planning.refusals import Step
from orchestrator.core.text.durations import format_duration, format_usd_per_hour
from orchestrator.engine.effects.base import Now, Report, Shield, Sleep, Unlock
from orchestrator.engine.leases.obligations import RELEASE_S, Obligations, is_recorded, report_loser
from orchestrator.engine.leases.release import release_all, send_deletes
from orchestrator.engine.provision.acquire import create_slice
from orchestrator.engine.provision.drafts import Draft
from orchestrator.engine.provision.readiness import ReadyCheck, check_ready, shorten_labels
from orchestrator.engine.runtime import retry
from orchestrator.errors import CloudError, CloudUnavailable, TeardownUnproven, Vanished

AGAIN_S = (1.0, 2.0, 4.0)  # pauses before the retries of the losers' deletes, for which the winner waits
LOOK_S = 15.0  # between two passes over the losers


class RefusalRecorder(Protocol):
    """The search, which learns of every candidate that is refused."""

    def record_refusal(self, request: SliceRequest, error: CloudError) -> Step:
        """Store the refusal; return what follows from it."""

    async def record_tried(self, draft: Draft, why: str) -> None:
        """Record a candidate that is proven gone."""


async def run(
    drafts: Sequence[Draft], capabilities: Capabilities, owed: Obligations, referee: RefusalRecorder
) -> Lease | None:
    """Return the winner; None if no candidate is left. Raises TeardownUnproven if a refused one is not proven gone."""
    race_state = _Race(capabilities, owed, referee)
    for draft in drafts:
        await race_state.enter(draft)
    began = await Now()
    for pause_s in retry.pauses(longest_s=10.0):
        check = await race_state.first_ready()
        if check is not None:
            return await race_state.finish(check, await Now() - began)
        if not race_state.waiting:
            await race_state.release_dropped(RELEASE_S)
            return None
        await race_state.release_dropped(0.0)
        waiting = f"{len(race_state.waiting)} wait, {format_duration(await Now() - began)}"
        text = f"{waiting}; nothing is billed until one is ready, then {race_state.price}"
        await Report("race", text, passing=True)
        await Sleep(pause_s, lease_id=next(iter(race_state.waiting.values())).lease.id)
    raise AssertionError("pauses() never ends")


class _Race:
    def __init__(self, capabilities: Capabilities, owed: Obligations, referee: RefusalRecorder) -> None:
        self.capabilities, self.owed, self.recorder = capabilities, owed, referee
        self.waiting: dict[str, Draft] = {}
        self.dropped: dict[str, tuple[Draft, str]] = {}  # with the reason; not yet proven gone

    @property
    def price(self) -> str:
        """The price of the winner, for display."""
        prices = {runner.lease.usd_per_hour for runner in self.waiting.values()}
        known = {price for price in prices if price is not None}
        if known != prices:
            return format_usd_per_hour(None)
        return format_usd_per_hour(max(known)) + (" at most" if len(known) > 1 else "")

    async def enter(self, draft: Draft) -> None:
        """Create one candidate; drop it if it is refused."""
        lease, request = draft
        await Report("race", f"{request.accelerator_type} {request.name.zone} as {request.name.node}", passing=True)
        self.owed.losers.append(lease)  # unless it wins
        try:
            self.waiting[lease.id] = Draft(await create_slice(lease, request, self.capabilities), request)
        except NotAllowed as error:
            raise Vanished(f"{lease.name.node} was released by another tpujob command") from error
        except CloudError as error:
            await self._drop(draft, error)

    async def first_ready(self) -> ReadyCheck | None:
        """The first candidate that is READY; None while none is."""
        for runner in list(self.waiting.values()):
            lease = runner.lease
            try:
                check = await check_ready(lease)
                late_from = (lease.ready_by or 0.0) + self.capabilities.timings.provision_s
                if check.ready is None and await Now() >= late_from:
                    raise CloudUnavailable(f"{lease.name.node} was not ready in time")
            except CloudError as error:
                await self._drop(runner, error)
                continue
            if check.ready is not None:
                return check
        return None

    async def _drop(self, draft: Draft, error: CloudError) -> None:
        """Send its delete now; the proof must not delay the check of the others."""
        lease = draft.lease
        self.waiting.pop(lease.id, None)
        if self.recorder.record_refusal(draft.request, error) is Step.STOP:
            raise error
        self.dropped[lease.id] = draft, refusals.describe(error)
        if await is_recorded(lease):
            await send_deletes([lease], reason=refusals.describe(error))
            await Shield(raised=False)

    async def release_dropped(self, budget_s: float) -> None:
        """Make one pass over the dropped candidates. With a budget, raises TeardownUnproven for one not proven gone then."""
        owed = [(draft.lease, why) for draft, why in self.dropped.values() if await is_recorded(draft.lease)]
        released = {each.lease.id: each for each in await release_all(owed, self.capabilities, budget_s=budget_s)}
        for draft, why in list(self.dropped.values()):
            lease, request = draft
            proof = released.get(lease.id)
            if proof is not None and not proof.gone:
                if budget_s > 0:
                    self.owed.released = proof
                    raise TeardownUnproven(f"{lease.name.node}: {why}, but it is not proven gone")
                continue
            del self.dropped[lease.id]
            self.owed.losers = [other for other in self.owed.losers if other.id != lease.id]
            await Unlock(lease.id)
            await Report("race", f"{request.accelerator_type} {request.name.zone}   {why} (released: absent)")
            await self.recorder.record_tried(draft, why)
        await Shield(raised=False)

    async def finish(self, check: ReadyCheck, took_s: float) -> Lease:
        """Return the winner, after the deletes of all others have left."""
        winner = check.ready
        assert winner is not None, "only a READY slice wins"
        del self.waiting[winner.id]
        self.owed.lease = winner
        self.owed.losers = [lease for lease in self.owed.losers if lease.id != winner.id]
        others = [runner.lease for runner in self.waiting.values()]
        await send_deletes(others, reason=f"{winner.name.zone} was first", again_s=AGAIN_S)
        await Shield(raised=False)
        where = f"{winner.accelerator_type} {winner.name.zone}"
        await Report("ready", f"{where} won in {took_s:.1f} s · {winner.name.node}")
        await shorten_labels(check, self.capabilities)
        return winner


class LoserRelease:
    """Releases the losers of a race, one pass per `tick`, while the job runs on the winner."""

    def __init__(self, owed: Obligations, capabilities: Capabilities) -> None:
        self._owed, self._capabilities = owed, capabilities
        self._not_before = 0.0

    async def tick(self, silent_s: float = 0.0) -> None:
        """Make a pass, if the last one was long enough ago."""
        if not self._owed.losers:
            return
        now = await Now()
        if now < self._not_before:
            return
        self._not_before = now + min(LOOK_S, self._capabilities.timings.heartbeat_s)
        owed = [(lease, "another zone was first") for lease in self._owed.losers]
        for released in await release_all(owed, self._capabilities, budget_s=0.0):
            lease = released.lease
            if released.gone:
                self._owed.losers = [other for other in self._owed.losers if other.id != lease.id]
                await Unlock(lease.id)
                await report_loser(lease)
        await Shield(raised=False)

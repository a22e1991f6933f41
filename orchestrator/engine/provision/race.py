"""A race: every queued candidate is asked for at once, the first slice that is READY wins, the others are seen off.

While they wait nothing is billed. From the moment that one has won, the others may be billed until their deletion is
proven: the deletes leave at once, all of them, before anything else happens, and are repeated until they have worked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from orchestrator.core.lease.lease import Lease, NotAllowed
from orchestrator.core.lease.slices import Capabilities, SliceRequest
from orchestrator.core.planning import next_candidate
from orchestrator.core.planning.next_candidate import Step
from orchestrator.core.text.durations import format_duration, format_usd_per_hour
from orchestrator.engine.effects.base import Now, Report, Shield, Sleep, Unlock
from orchestrator.engine.leases.obligations import RELEASE_S, Obligations, is_written, report_loser
from orchestrator.engine.leases.release import release_all, send_deletes
from orchestrator.engine.provision.acquire import Seen, begin, look_in, shorten_labels
from orchestrator.engine.provision.drafts import Draft
from orchestrator.engine.runtime import retry
from orchestrator.errors import CloudError, CloudUnavailable, TeardownUnproven, Vanished

AGAIN_S = (1.0, 2.0, 4.0)  # the winner waits for so long while deletes of the others are not answered
LOOK_S = 15.0  # between two looks at those that lost


class Referee(Protocol):
    """Hears of each that is refused."""

    def note(self, request: SliceRequest, error: CloudError) -> Step:
        """What follows from that."""

    async def tried(self, draft: Draft, why: str) -> None:
        """It is proven gone."""


async def run(drafts: Sequence[Draft], capabilities: Capabilities, owed: Obligations, referee: Referee) -> Lease | None:
    """The winner; None when nobody is left."""
    racing = _Race(capabilities, owed, referee)
    for draft in drafts:
        await racing.enter(draft)
    began = await Now()
    for pause_s in retry.pauses(longest_s=10.0):
        seen = await racing.look()
        if seen is not None:
            return await racing.won_by(seen, await Now() - began)
        if not racing.runners:
            await racing.see_off(RELEASE_S)
            return None
        await racing.see_off(0.0)
        waited = format_duration(await Now() - began)
        waiting = f"{len(racing.runners)} wait, {waited}; nothing is billed until one is there, then {racing.price}"
        await Report("race", waiting, passing=True)
        await Sleep(pause_s)
    raise AssertionError("pauses() never ends")


class _Race:
    def __init__(self, capabilities: Capabilities, owed: Obligations, referee: Referee) -> None:
        self.capabilities, self.owed, self.referee = capabilities, owed, referee
        self.runners: dict[str, Draft] = {}
        self.out: dict[str, tuple[Draft, str]] = {}  # and why; not yet proven gone

    @property
    def price(self) -> str:
        """Of whichever wins."""
        prices = [runner.lease.usd_per_hour for runner in self.runners.values()]
        known = [price for price in prices if price is not None]
        if len(known) < len(prices) or len(set(known)) == 1:
            return format_usd_per_hour(known[0] if len(known) == len(prices) else None)
        return f"{format_usd_per_hour(max(known))} at most"

    async def enter(self, draft: Draft) -> None:
        lease, request = draft
        await Report("race", f"{request.accelerator_type} {request.name.zone} as {request.name.node}", passing=True)
        self.owed.losers.append(lease)  # until it has won
        try:
            self.runners[lease.id] = Draft(await begin(lease, request, self.capabilities), request)
        except NotAllowed as error:
            raise Vanished(f"{lease.name.node} was released by another tpujob command") from error
        except CloudError as error:
            await self._out(draft, error)

    async def look(self) -> Seen | None:
        """The first that is READY."""
        for runner in list(self.runners.values()):
            lease = runner.lease
            try:
                seen = await look_in(lease)
                if (
                    seen.ready is None
                    and await Now() >= (lease.ready_by or 0.0) + self.capabilities.timings.provision_s
                ):
                    raise CloudUnavailable(f"{lease.name.node} was not ready in time")
            except CloudError as error:
                await self._out(runner, error)
                continue
            if seen.ready is not None:
                return seen
        return None

    async def _out(self, draft: Draft, error: CloudError) -> None:
        """Its delete leaves now; the proof must not keep anybody from seeing that another one is there."""
        lease = draft.lease
        self.runners.pop(lease.id, None)
        if self.referee.note(draft.request, error) is Step.STOP:
            raise error
        self.out[lease.id] = draft, next_candidate.describe(error)
        if await is_written(lease):
            await send_deletes([lease], reason=next_candidate.describe(error))
            await Shield(raised=False)

    async def see_off(self, budget_s: float) -> None:
        """Those that are out. Raises TeardownUnproven if one is not proven gone when the budget is over, and there is one."""
        owed = [(draft.lease, why) for draft, why in self.out.values() if await is_written(draft.lease)]
        released = {each.lease.id: each for each in await release_all(owed, self.capabilities, budget_s=budget_s)}
        for draft, why in list(self.out.values()):
            lease, request = draft
            proof = released.get(lease.id)
            if proof is not None and not proof.gone:
                if budget_s > 0:
                    self.owed.released = proof
                    raise TeardownUnproven(f"{lease.name.node}: {why}, but it is not proven gone")
                continue
            del self.out[lease.id]
            self.owed.losers = [other for other in self.owed.losers if other.id != lease.id]
            await Unlock(lease.id)
            await Report("race", f"{request.accelerator_type} {request.name.zone}   {why} (released: absent)")
            await self.referee.tried(draft, why)
        await Shield(raised=False)

    async def won_by(self, seen: Seen, took_s: float) -> Lease:
        """The deletes of all others leave before anything else happens."""
        winner = seen.ready
        assert winner is not None, "who is not READY wins nothing"
        del self.runners[winner.id]
        self.owed.lease = winner
        self.owed.losers = [lease for lease in self.owed.losers if lease.id != winner.id]
        others = [runner.lease for runner in self.runners.values()]
        await send_deletes(others, reason=f"{winner.name.zone} was first", again_s=AGAIN_S)
        await Shield(raised=False)
        await Report(
            "ready", f"{winner.accelerator_type} {winner.name.zone} won in {took_s:.1f} s · {winner.name.node}"
        )
        await shorten_labels(seen, self.capabilities)
        return winner


class Losers:
    """Sees off those that lost, a step at a time, while the winner works: call `turn` as often as you like."""

    def __init__(self, owed: Obligations, capabilities: Capabilities) -> None:
        self._tenure, self._can = owed, capabilities
        self._not_before = 0.0

    async def tick(self, silent_s: float = 0.0) -> None:
        if not self._tenure.losers:
            return
        now = await Now()
        if now < self._not_before:
            return
        self._not_before = now + min(LOOK_S, self._can.timings.heartbeat_s)
        owed = [(lease, "another zone was first") for lease in self._tenure.losers]
        for released in await release_all(owed, self._can, budget_s=0.0):
            lease = released.lease
            if released.gone:
                self._tenure.losers = [other for other in self._tenure.losers if other.id != lease.id]
                await Unlock(lease.id)
                await report_loser(lease)
        await Shield(raised=False)

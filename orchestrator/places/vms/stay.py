"""The stay of a job on VMs: the search for a slice, and the way to its workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from orchestrator import errors
from orchestrator.hosts.fleet.effects import Connect
from orchestrator.places.leased import LeasedStay
from orchestrator.places.place import MAX_COST, Ask, End, Standing
from orchestrator.promise.effects import retry
from orchestrator.promise.effects.base import Make, Now, Record, Report
from orchestrator.promise.effects.cloud import Workers
from orchestrator.promise.lease.changes import Leased
from orchestrator.promise.lease.cloud_api import Capabilities
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.obligations import Obligations
from orchestrator.promise.obtain.candidate_search import Search, find
from orchestrator.promise.obtain.drafts import Draft, Drafter
from orchestrator.traits import Traits

if TYPE_CHECKING:
    from orchestrator.hosts.fleet.crew import Crew


CONNECT_S = 300.0  # sshd of a fresh VM may take minutes to come up
CONNECT_AGAIN_S = 120.0
LAST_MINUTE_S = 60.0  # kept free before the deadline, to stop the job and to collect


def end_of(lease: Lease, began: float, max_duration_s: float) -> End:
    """Return the end of a job that began at `began`: early enough to collect before the deadline of the lease."""
    own_end = began + max_duration_s
    spare_s = min(LAST_MINUTE_S, (min(lease.deadline, own_end) - began) / 10)
    if lease.deadline >= own_end or lease.budget_usd is None:
        return End(min(lease.deadline, own_end) - spare_s)
    return End(lease.deadline - spare_s, MAX_COST)


@dataclass(frozen=True, slots=True)
class VmStay(LeasedStay):
    """`drafts`: the candidates in order, names already chosen; `drafter` makes the same ones again, under new names."""

    traits: Traits
    drafts: tuple[Draft, ...] = ()
    drafter: Drafter | None = None
    wait_s: float = 0.0  # for capacity
    race: bool = False  # ask for all queued candidates at once

    async def obtain(self, ask: Ask, owed: Obligations, capabilities: Capabilities) -> Lease:
        drafts = self.drafts
        if ask.again:
            assert self.drafter is not None
            drafts = await Make(partial(self.drafter.make, ask.used_s, ask.spent_usd))
        search = Search(
            drafts,
            wait_s=self.wait_s,
            race=self.race,
            drafter=self.drafter,
            used_s=ask.used_s,
            spent_usd=ask.spent_usd,
            attempt=ask.attempt.id,
        )
        return await find(search, capabilities, owed)

    async def settle(self, ask: Ask, lease: Lease | None, capabilities: Capabilities) -> Standing:
        assert lease is not None
        if ask.attached:
            began = ask.attempt.started_at or lease.created_at
            # An extension before this attach is in the lease already, not in the job file.
            end = end_of(lease, began, max(ask.max_duration_s, lease.deadline - began))
            return Standing(lease, began, end, lease.billed_from or began)
        ready_at = await Now()
        await Record(Leased(ask.attempt.id, ready_at, lease.id))
        # `limits.max_duration` does not count the wait for capacity. A slice that was held before was created earlier.
        began = max(ask.at, lease.created_at if lease.ready_by is None else ready_at)
        end = end_of(lease, began, ask.max_duration_s)
        return Standing(lease, began, end, max(lease.billed_from or ready_at, ask.at), ask.spent_usd)

    async def connect(self, ask: Ask, lease: Lease | None) -> Crew:
        assert lease is not None
        now, patience_s = await Now(), CONNECT_AGAIN_S
        if ask.attached:
            await Report("attach", f"connecting to {lease.name.node}", passing=True)
        else:
            await Report("connect", f"waiting for SSH on {lease.name.node}", passing=True)
            patience_s = max(min(CONNECT_S, lease.ends_at - now), 1.0)  # not past the end of its claim
        try:
            workers = await retry.until(now + patience_s, Workers(lease.name))
            return await Connect(lease, workers, patience_s)
        except (errors.WrongState, errors.RemoteError):
            if ask.attached:
                await self.look(lease)  # its watchdog may be deleting it: then the job does not go on
            raise

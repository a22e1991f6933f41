"""Finding a slice: candidates in order, each proven gone before the next is asked; again and again, as long as one may wait.

A candidate that cannot be had says why in one line. What is out of capacity is asked again later, what is out of quota or
forbidden is left out together with its like, and what nobody understands stops the search (`core.planning.next_candidate`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from orchestrator.core.lease.attempt import Tried
from orchestrator.core.lease.lease import Lease, NotAllowed
from orchestrator.core.lease.slices import Capabilities, SliceRequest
from orchestrator.core.planning import next_candidate
from orchestrator.core.planning.next_candidate import Step
from orchestrator.core.text.durations import format_duration
from orchestrator.engine.effects.base import Make, Now, Report, Shield, Sleep
from orchestrator.engine.leases.obligations import Obligations, release_owed
from orchestrator.engine.leases.release import as_written, note
from orchestrator.engine.provision import race
from orchestrator.engine.provision.acquire import acquire
from orchestrator.engine.provision.drafts import Draft, Drafter
from orchestrator.engine.runtime import retry
from orchestrator.errors import CapacityError, CloudError, Preempted, TeardownUnproven, Vanished

LEAST_VALID_S = 1.0  # the API counts whole seconds


@dataclass(frozen=True, slots=True)
class Search:
    """What may be asked for. `drafter` makes the same candidates again under new names: no name is ever used twice."""

    drafts: tuple[Draft, ...]
    wait_s: float = 0.0  # for capacity, altogether; 0: every candidate is asked once
    race: bool = False  # all queued candidates at once
    drafter: Drafter | None = None  # None: every candidate is asked once
    used_s: float = 0.0  # of the job's time, by attempts before this one
    spent_usd: float = 0.0
    attempt: str | None = None  # the attempt that it is for: its story tells which candidates were tried


async def find(search: Search, capabilities: Capabilities, owed: Obligations) -> Lease:
    """The first candidate that is READY. Raises the CloudError that kept the last of them from it."""
    seeking = _Seeking(search, capabilities, owed, await Now() + search.wait_s)
    drafts = search.drafts
    # A stockout lasts minutes; and every asking costs a create call, of which a project has only so many a minute.
    for pause_s in retry.pauses(
        first_s=capabilities.timings.heartbeat_s / 2, longest_s=5 * capabilities.timings.heartbeat_s
    ):
        lease = await seeking.round(drafts)
        if lease is not None:
            return lease
        now = await Now()
        if search.drafter is None or now + pause_s >= seeking.give_up_at or not seeking.open(drafts):
            break
        left = format_duration(seeking.give_up_at - now)
        await Report("wait", f"nothing is there, and nothing is billed; asking again, for {left} more", passing=True)
        await Sleep(pause_s)
        drafts = await Make(partial(search.drafter.make, search.used_s, search.spent_usd))
    raise seeking.failure(drafts)


@dataclass(slots=True)
class _Seeking:
    """What one search remembers between its rounds."""

    search: Search
    capabilities: Capabilities
    owed: Obligations
    give_up_at: float
    closed: set[tuple[str, bool, str]] = field(default_factory=set)
    refusals: dict[str, CloudError] = field(default_factory=dict)  # candidate → why not, the last time

    def open(self, drafts: tuple[Draft, ...]) -> list[Draft]:
        return [
            draft for draft in drafts if not any(next_candidate.is_excluded(draft.request, key) for key in self.closed)
        ]

    async def round(self, drafts: tuple[Draft, ...]) -> Lease | None:
        """Each candidate once."""
        queued = [draft for draft in drafts if draft.request.queue is not None]
        for draft in drafts:
            if draft not in self.open(drafts):
                continue
            if draft.request.queue is None:
                lease = await self._one(draft)
            elif self.search.race and len(queued) > 1:
                racing, queued = self.open(tuple(queued)), []
                lease = await self._race(racing) if racing else None
            elif draft in queued:
                lease = await self._one(await self._timed(draft, among=len(queued)))
                queued.remove(draft)
            else:
                continue  # it was in the race
            if lease is not None:
                return lease
        return None

    async def _timed(self, draft: Draft, *, among: int) -> Draft:
        """Who waits in turn shares the time."""
        request = draft.request
        assert request.queue is not None
        if self.search.wait_s <= 0:
            return draft
        left_s = max(self.give_up_at - await Now(), self.search.wait_s / 100)
        queue = replace(request.queue, valid_for_s=max(left_s / among, LEAST_VALID_S))
        return Draft(draft.lease, replace(request, queue=queue))

    async def _one(self, draft: Draft) -> Lease | None:
        where, node = words(draft.request), draft.lease.name.node
        await Report("create", f"{where} as {node}", passing=True)
        self.owed.lease, began = draft.lease, await Now()
        try:
            self.owed.lease = await acquire(*draft, self.capabilities)
        except NotAllowed as error:
            raise Vanished(f"{node} was released by another tpujob command") from error
        except CloudError as error:
            await self._refused(draft, error)
            return None
        await Report("ready", f"{where} in {await Now() - began:.1f} s · {node}")
        return self.owed.lease

    async def _refused(self, draft: Draft, error: CloudError) -> None:
        """No other candidate is asked before this one is proven gone: its create may have landed all the same."""
        if self.note(draft.request, error) is Step.STOP:
            raise error
        where, why = words(draft.request), next_candidate.describe(error)
        await release_owed(self.owed, self.capabilities, why)
        if self.owed.unproven:
            raise TeardownUnproven(f"{where}: {why}, but the failed create is not proven gone") from error
        reason = (await as_written(draft.lease)).reason
        if reason not in ("", why):  # none: it was refused before it was written down
            raise Vanished(f"{draft.lease.name.node} was given up meanwhile: {reason}") from error
        await Report("create", f"{where}   {why} (released: absent) → next")
        await self.tried(draft, why)
        await Shield(raised=False)

    async def tried(self, draft: Draft, why: str) -> None:
        if self.search.attempt is not None:
            await note(Tried(self.search.attempt, await Now(), draft.lease.id, words(draft.request), why))

    def note(self, request: SliceRequest, error: CloudError) -> Step:
        self.refusals[words(request)] = error
        step = next_candidate.step_after(error)
        if step is Step.SKIP:
            self.closed.add(next_candidate.quota_key(request, error))
        return step

    async def _race(self, drafts: list[Draft]) -> Lease | None:
        timed = [await self._timed(draft, among=1) for draft in drafts]
        return await race.run(timed, self.capabilities, self.owed, self)

    def failure(self, drafts: tuple[Draft, ...]) -> CloudError:
        errors = list(self.refusals.values())
        full = [error for error in errors if isinstance(error, CapacityError | Preempted)]
        if not full:
            return errors[-1]
        places = ", ".join(dict.fromkeys(draft.request.name.zone for draft in drafts))
        return CapacityError(
            f"no capacity in any zone that was asked for ({places})",
            hint="name more zones or `zone: any`, try spot, or wait: `wait: 6h` in a job's `tpu:`, `up --wait 6h`",
            details={where: error.message for where, error in self.refusals.items()},
        )


def words(request: SliceRequest) -> str:
    """`v5litepod-8 us-central1-a spot, queued`: which candidate it is."""
    kinds = [
        *(["spot"] if request.spot else []),
        *(["reserved"] if request.reserved else []),
        *([] if request.queue is None else ["queued" if request.queue.flex_start_s is None else "flex-start"]),
    ]
    return " ".join([request.accelerator_type, request.name.zone, ", ".join(kinds)]).rstrip()

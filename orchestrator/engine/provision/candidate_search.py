"""Finding a slice: candidates in order, the next one only when the one before is proven gone, repeated until the wait is over.

After each refusal `core.planning.refusals` decides: a candidate without capacity is tried again later; one that its place
does not offer is left out; one without quota or permission, too, with all others under the same quota; a refusal of the whole
project, or an error that is not understood, stops the search.
"""

from dataclasses import dataclass, field, replace
from functools import partial

from orchestrator import errors
from orchestrator.core.lease import access
from orchestrator.core.lease.cloud_api import Capabilities, SliceRequest
from orchestrator.core.lease.lease import Lease, NotAllowed
from orchestrator.core.lease.run_and_attempt import Tried
from orchestrator.core.planning import refusals
from orchestrator.core.planning.refusals import QuotaKey, Step
from orchestrator.core.text.durations import format_duration
from orchestrator.engine.effects.base import Make, Now, Report, Shield, Sleep
from orchestrator.engine.leases.cancellation import check_attempt
from orchestrator.engine.leases.obligations import Obligations, release_owed
from orchestrator.engine.leases.release import latest_lease, try_record
from orchestrator.engine.provision import race
from orchestrator.engine.provision.acquire import acquire
from orchestrator.engine.provision.drafts import Draft, Drafter
from orchestrator.engine.runtime import retry

LEAST_VALID_S = 1.0  # the API counts whole seconds


@dataclass(frozen=True, slots=True)
class Search:
    """The candidates and how to try them. `drafter` makes them again under new names: no name is used twice."""

    drafts: tuple[Draft, ...]
    wait_s: float = 0.0  # for capacity, altogether; 0: every candidate is tried once
    race: bool = False  # request all queued candidates at once
    drafter: Drafter | None = None  # None: every candidate is tried once
    used_s: float = 0.0  # of the job's time, by earlier attempts
    spent_usd: float = 0.0  # of the job's budget, by earlier attempts
    attempt: str | None = None  # the id of the attempt, whose record lists the candidates that were tried


async def find(search: Search, capabilities: Capabilities, owed: Obligations) -> Lease:
    """Return the first candidate that is READY.

    Raises CapacityError if at least one candidate has no capacity, else the last candidate's CloudError; Vanished if a slice
    was released meanwhile; Canceled if the run was canceled; TeardownUnproven if a failed create is not proven gone.
    """
    state = _SearchState(search, capabilities, owed, await Now() + search.wait_s)
    drafts = search.drafts
    # A stockout lasts minutes, and every try costs a create call, which the project's quota limits per minute.
    period_s = capabilities.timings.heartbeat_s
    for pause_s in retry.pauses(first_s=period_s / 2, longest_s=5 * period_s):
        lease, drafts = await state.try_ways(drafts)
        if lease is not None:
            return lease
        now = await Now()
        if search.drafter is None or now + pause_s >= state.give_up_at or not state.available(drafts):
            break
        left = format_duration(state.give_up_at - now)
        await Report("wait", f"no capacity, nothing is billed; trying again, for {left} more", passing=True)
        await Sleep(pause_s, attempt_id=search.attempt)
        drafts = await Make(partial(search.drafter.make, search.used_s, search.spent_usd))
    raise state.failure(drafts)


@dataclass(slots=True)
class _SearchState:
    """The state of one search between its rounds."""

    search: Search
    capabilities: Capabilities
    owed: Obligations
    give_up_at: float
    excluded: set[QuotaKey] = field(default_factory=set)
    refusals: dict[str, errors.CloudError] = field(default_factory=dict)  # candidate → its last error

    async def try_ways(self, drafts: tuple[Draft, ...]) -> tuple[Lease | None, tuple[Draft, ...]]:
        """Try each candidate once, again by another way where a policy refuses the first. Return the drafts that were tried."""
        while True:
            try:
                return await self.try_all(drafts), drafts
            except (errors.ExternalAddressRefused, errors.OsLoginRequired) as refusal:
                drafts = await self._other_way(drafts, refusal)

    async def _other_way(self, drafts: tuple[Draft, ...], refusal: errors.CloudError) -> tuple[Draft, ...]:
        """Release what was created, which may exist in spite of the refusal; return the same candidates by another way."""
        drafter, why = self.search.drafter, refusals.describe(refusal)
        found = await Make(partial(drafter.reroute, drafts[0].lease.route, refusal)) if drafter is not None else None
        if drafter is None or found is None:
            raise refusal
        await release_owed(self.owed, self.capabilities, why)
        if self.owed.unproven:
            raise errors.TeardownUnproven(f"{why}, but the failed create is not proven gone") from refusal
        await Report("access", f"{refusals.policy(refusal)}: the workers are reached {access.describe(found)}")
        await Shield(raised=False)
        made: tuple[Draft, ...] = await Make(partial(drafter.make, self.search.used_s, self.search.spent_usd))
        return made

    def available(self, drafts: tuple[Draft, ...]) -> list[Draft]:
        """The candidates that may be had, as far as their quotas and their places are known."""
        return [draft for draft in drafts if not self._is_excluded(draft.request)]

    def _is_excluded(self, request: SliceRequest) -> bool:
        known = self.refusals.get(describe_candidate(request))
        if known is not None and known.scope == "place":
            return True
        return any(refusals.is_excluded(request, key) for key in self.excluded)

    async def try_all(self, drafts: tuple[Draft, ...]) -> Lease | None:
        """Try each candidate once; None if none could be had."""
        queued = [draft for draft in drafts if draft.request.queue is not None]
        for draft in drafts:
            if draft not in self.available(drafts):
                continue
            if self.search.attempt is not None:
                await check_attempt(self.search.attempt)
            if draft.request.queue is None:
                lease = await self._try_candidate(draft)
            elif self.search.race and len(queued) > 1:
                racing, queued = self.available(tuple(queued)), []
                timed = [await self._with_share_of_wait(each, among=1) for each in racing]
                lease = await race.run(timed, self.capabilities, self.owed, self) if timed else None
            elif draft in queued:
                lease = await self._try_candidate(await self._with_share_of_wait(draft, among=len(queued)))
                queued.remove(draft)
            else:
                continue  # it was part of the race
            if lease is not None:
                return lease
        return None

    async def _with_share_of_wait(self, draft: Draft, *, among: int) -> Draft:
        """Queued candidates that are tried one after the other share the time that is left."""
        request = draft.request
        assert request.queue is not None
        if self.search.wait_s <= 0:
            return draft
        left_s = max(self.give_up_at - await Now(), self.search.wait_s / 100)
        queue = replace(request.queue, valid_for_s=max(left_s / among, LEAST_VALID_S))
        return Draft(draft.lease, replace(request, queue=queue))

    async def _try_candidate(self, draft: Draft) -> Lease | None:
        where, node = describe_candidate(draft.request), draft.lease.name.node
        await Report("create", f"{where} as {node}", passing=True)
        self.owed.lease, began = draft.lease, await Now()
        try:
            self.owed.lease = await acquire(*draft, self.capabilities)
        except NotAllowed as error:
            raise errors.Vanished(f"{node} was released by another tpujob command") from error
        except errors.CloudError as error:
            await self._refused(draft, error)
            return None
        await Report("ready", f"{where} in {await Now() - began:.1f} s · {node}")
        return self.owed.lease

    async def _refused(self, draft: Draft, error: errors.CloudError) -> None:
        """Release the candidate: the next one must not be tried before its create is proven to have no effect."""
        if self.record_refusal(draft.request, error) is Step.STOP:
            raise error
        where, why = describe_candidate(draft.request), refusals.describe(error)
        await release_owed(self.owed, self.capabilities, why)
        if self.owed.unproven:
            raise errors.TeardownUnproven(f"{where}: {why}, but the failed create is not proven gone") from error
        reason = (await latest_lease(draft.lease)).reason
        if reason not in ("", why):  # empty: it was refused before it was recorded
            raise errors.Vanished(f"{draft.lease.name.node} was released meanwhile: {reason}") from error
        await Report("create", f"{where}   {why} (released: absent) → next")
        await self.record_tried(draft, why)
        await Shield(raised=False)

    async def record_tried(self, draft: Draft, why: str) -> None:
        if self.search.attempt is not None:
            where = describe_candidate(draft.request)
            await try_record(Tried(self.search.attempt, await Now(), draft.lease.id, where, why))

    def record_refusal(self, request: SliceRequest, error: errors.CloudError) -> Step:
        self.refusals[describe_candidate(request)] = error
        step = refusals.step_after(error)
        if step is Step.SKIP and error.scope != "place":
            self.excluded.add(refusals.quota_key(request, error))
        return step

    def failure(self, drafts: tuple[Draft, ...]) -> errors.CloudError:
        """The error of a search without result: what the user can change is named, beside a stockout, too."""
        full = [error for error in self.refusals.values() if isinstance(error, errors.CapacityError | errors.Preempted)]
        others = {error.message: error for error in self.refusals.values() if error not in full}
        if not full:
            return ([error for error in others.values() if error.scope != "place"] or list(others.values()))[-1]
        asked = [draft.request for draft in drafts if self.refusals.get(describe_candidate(draft.request)) in full]
        places = ", ".join(dict.fromkeys(request.name.zone for request in asked))
        text = f"no capacity in {places}" if others else f"no capacity in any zone that was asked for ({places})"
        if any(request.reserved for request in asked):  # the words tell a wrong reservation from a full one
            text += f": {', '.join(dict.fromkeys(error.message for error in full))}"
        more = "name more zones or `zone: any`, try spot, or wait: `wait: 6h` in a job's `tpu:`, `up --wait 6h`"
        return errors.CapacityError(
            "; ".join((text, *map(refusals.describe, others.values()))),
            hint="; or ".join(
                (*dict.fromkeys(e.hint for e in others.values() if isinstance(e, errors.QuotaError) and e.hint), more)
            ),
            details={where: error.message for where, error in self.refusals.items()},
        )


def describe_candidate(request: SliceRequest) -> str:
    """Return type, zone and provisioning of a candidate: `v5litepod-8 us-central1-a spot, queued`."""
    queue = request.queue
    queued = "" if queue is None else "queued" if queue.flex_start_s is None else "flex-start"
    kinds = filter(None, ("spot" if request.spot else "", "reserved" if request.reserved else "", queued))
    return " ".join([request.accelerator_type, request.name.zone, ", ".join(kinds)]).rstrip()

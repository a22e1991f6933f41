"""Finding a slice: candidates in order, each proven gone before the next, or all queued ones at once, of which the first wins.

After each refusal `promise.obtain.refusals` decides: a candidate without capacity is tried again later; one that its place
does not offer is left out; one without quota or permission, too, with all others under the same quota; a refusal of the whole
project, or an error that is not understood, stops the search.

While they wait, nothing is billed. Once one has won, the others may be billed until they are proven gone: all deletes leave
at once, before anything else happens, and are repeated until they take effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from orchestrator import errors
from orchestrator.promise.effects import retry
from orchestrator.promise.effects.base import Make, Now, Report, Sleep, Unlock, UnmaskSignals
from orchestrator.promise.lease import access
from orchestrator.promise.lease.changes import NotAllowed, Tried
from orchestrator.promise.lease.cloud_api import Capabilities, SliceRequest
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.obligations import RELEASE_S, Obligations, is_recorded, release_owed, report_loser
from orchestrator.promise.obtain import refusals
from orchestrator.promise.obtain.acquire import ReadyCheck, acquire, check_ready, create_slice, shorten_labels
from orchestrator.promise.obtain.drafts import Draft, Drafter
from orchestrator.promise.obtain.refusals import QuotaKey, Step
from orchestrator.promise.release import latest_lease, release_all, send_deletes, try_record
from orchestrator.promise.standing import check_attempt
from orchestrator.text.units import format_duration, format_usd_per_hour

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
        lease, drafts = await state.try_routes(drafts)
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

    async def try_routes(self, drafts: tuple[Draft, ...]) -> tuple[Lease | None, tuple[Draft, ...]]:
        """Try each candidate once, and by another route where a policy refuses the first. Return the drafts that were tried."""
        while True:
            try:
                return await self.try_all(drafts), drafts
            except (errors.ExternalAddressRefused, errors.OsLoginRequired) as refusal:
                drafts = await self._other_route(drafts, refusal)

    async def _other_route(self, drafts: tuple[Draft, ...], refusal: errors.CloudError) -> tuple[Draft, ...]:
        """Release what was created, which may exist in spite of the refusal; return the same candidates by another route."""
        drafter, why = self.search.drafter, refusals.describe(refusal)
        found = await Make(partial(drafter.reroute, drafts[0].lease.route, refusal)) if drafter is not None else None
        if drafter is None or found is None:
            raise refusal
        await release_owed(self.owed, self.capabilities, why)
        if self.owed.unproven:
            raise errors.TeardownUnproven(f"{why}, but the failed create is not proven gone") from refusal
        await Report("access", f"{refusals.policy(refusal)}: the workers are reached {access.describe(found)}")
        await UnmaskSignals()
        made: tuple[Draft, ...] = await Make(partial(drafter.make, self.search.used_s, self.search.spent_usd))
        return made

    def available(self, drafts: tuple[Draft, ...]) -> list[Draft]:
        """The candidates that may be had, as far as their quotas and their places are known."""
        return [draft for draft in drafts if not self._is_excluded(draft.request)]

    def _is_excluded(self, request: SliceRequest) -> bool:
        known = self.refusals.get(describe_candidate(request))
        of_place = known is not None and known.scope == "place"
        return of_place or any(refusals.is_excluded(request, key) for key in self.excluded)

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
                lease = await run_race(timed, self) if timed else None
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
        await UnmaskSignals()

    async def record_tried(self, draft: Draft, why: str) -> None:
        """Record a candidate that is proven gone."""
        if self.search.attempt is not None:
            where = describe_candidate(draft.request)
            await try_record(Tried(self.search.attempt, await Now(), draft.lease.id, where, why))

    def record_refusal(self, request: SliceRequest, error: errors.CloudError) -> Step:
        """Store the refusal; return what follows from it."""
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


AGAIN_S = (1.0, 2.0, 4.0)  # pauses before the retries of the losers' deletes, for which the winner waits
LOOK_S = 15.0  # between two passes over the losers


async def run_race(drafts: Sequence[Draft], search: _SearchState) -> Lease | None:
    """Return the winner; None if no candidate is left. Raises TeardownUnproven if a refused one is not proven gone."""
    race_state = _Race(search)
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
        await Report("race", f"{waiting}; nothing is billed until one is ready, then {race_state.price}", passing=True)
        await Sleep(pause_s, lease_id=next(iter(race_state.waiting.values())).lease.id)
    raise AssertionError("pauses() never ends")


class _Race:
    def __init__(self, search: _SearchState) -> None:
        self.capabilities, self.owed, self.search = search.capabilities, search.owed, search
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
            raise errors.Vanished(f"{lease.name.node} was released by another tpujob command") from error
        except errors.CloudError as error:
            await self._drop(draft, error)

    async def first_ready(self) -> ReadyCheck | None:
        """The first candidate that is READY; None while none is."""
        for runner in list(self.waiting.values()):
            lease = runner.lease
            try:
                check = await check_ready(lease)
                late_from = (lease.ready_by or 0.0) + self.capabilities.timings.provision_s
                if check.ready is None and await Now() >= late_from:
                    raise errors.CloudUnavailable(f"{lease.name.node} was not ready in time")
            except errors.CloudError as error:
                await self._drop(runner, error)
                continue
            if check.ready is not None:
                return check
        return None

    async def _drop(self, draft: Draft, error: errors.CloudError) -> None:
        """Send its delete now; the proof must not delay the check of the others."""
        lease = draft.lease
        self.waiting.pop(lease.id, None)
        if self.search.record_refusal(draft.request, error) is Step.STOP:
            raise error
        self.dropped[lease.id] = draft, refusals.describe(error)
        if await is_recorded(lease):
            await send_deletes([lease], reason=refusals.describe(error))
            await UnmaskSignals()

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
                    raise errors.TeardownUnproven(f"{lease.name.node}: {why}, but it is not proven gone")
                continue
            del self.dropped[lease.id]
            self.owed.losers = [other for other in self.owed.losers if other.id != lease.id]
            await Unlock(lease.id)
            await Report("race", f"{request.accelerator_type} {request.name.zone}   {why} (released: absent)")
            await self.search.record_tried(draft, why)
        await UnmaskSignals()

    async def finish(self, check: ReadyCheck, took_s: float) -> Lease:
        """Return the winner, after the deletes of all others have left."""
        winner = check.ready
        assert winner is not None, "only a READY slice wins"
        del self.waiting[winner.id]
        self.owed.lease = winner
        self.owed.losers = [lease for lease in self.owed.losers if lease.id != winner.id]
        others = [runner.lease for runner in self.waiting.values()]
        await send_deletes(others, reason=f"{winner.name.zone} was first", again_s=AGAIN_S)
        await UnmaskSignals()
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
        await UnmaskSignals()

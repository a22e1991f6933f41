"""Garbage collection: find slices whose claim is over by their labels alone, delete them, and see them absent.

It needs nothing of the machine that created them: no ledger and no process. It acts only on slices with tpujob's name *and*
label, judges by the server's clock, reads the claim again right before each delete, and counts a zone as complete only if
its whole list was read. `tpujob gc` runs it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from orchestrator import catalog
from orchestrator.errors import AuthError, BadRequest, CloudError, CloudUnavailable, UnexpectedReply
from orchestrator.promise.effects.base import Effect, Now, Report, Sleep, T
from orchestrator.promise.effects.cloud import Delete, Get, ListSlices, ListZones
from orchestrator.promise.effects.retry import pauses
from orchestrator.promise.lease import claim_labels
from orchestrator.promise.lease.cloud_api import Capabilities, Listing, SliceState, SliceView
from orchestrator.promise.lease.lease import SliceName
from orchestrator.promise.release import DELETE_AGAIN_S, FailuresAsAnswers
from orchestrator.text import names
from orchestrator.text.units import format_usd_per_hour

DEADLINE_S = 600.0  # shorter than the period at which a timer starts the next run
LONGEST_PAUSE_S = 20.0


@dataclass(frozen=True, slots=True)
class Expired:
    """A slice whose claim is over. `gone`: seen absent after its delete; otherwise `problem` is why not."""

    view: SliceView
    why: str
    gone: bool = False
    problem: str = ""

    @property
    def usd_per_hour(self) -> float | None:
        """Its list price; None if unknown."""
        return catalog.usd_per_hour(self.view.accelerator_type, self.view.name.zone, spot=self.view.spot)

    @property
    def price(self) -> str:
        """Its price for display. A slice that waits in a queue, or is only listed still, holds quota and costs nothing."""
        free = self.view.state in (SliceState.QUEUED, SliceState.TOMBSTONE)
        return "not billed" if free else format_usd_per_hour(self.usd_per_hour)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A slice that is still claimed."""

    view: SliceView
    until: float  # unix seconds, the server's clock


@dataclass(frozen=True, slots=True)
class Doubtful:
    """A slice that is left alone because it cannot be judged or has one of tpujob's two marks; or with unreadable labels."""

    view: SliceView
    why: str


@dataclass(slots=True)
class Collected:
    """What a gc run found and did."""

    project: str
    dry_run: bool = False
    zones: list[str] = field(default_factory=list)
    ended: dict[SliceName, Expired] = field(default_factory=dict)
    claimed: dict[SliceName, Claimed] = field(default_factory=dict)
    doubtful: dict[SliceName, Doubtful] = field(default_factory=dict)
    incomplete: dict[str, str] = field(default_factory=dict)  # zone → why
    hint: str = ""  # what helps against the first of these, if its error says so

    @property
    def done(self) -> bool:
        """Whether every zone was complete, and every slice whose claim is over is gone."""
        return not self.incomplete and all(each.gone for each in self.ended.values())

    @property
    def found(self) -> int:
        """How many slices of tpujob there were."""
        return len(self.ended) + len(self.claimed)

    @property
    def deleted(self) -> int:
        """How many slices are gone."""
        return sum(each.gone for each in self.ended.values())


async def collect_garbage(
    project: str,
    zones: Sequence[str] | None,
    capabilities: Capabilities,
    *,
    dry_run: bool = False,
    deadline_s: float = DEADLINE_S,
) -> Collected:
    """Delete every slice whose claim is over, in these zones; None: in all of the project. Never raises CloudError.

    Calls that fail are repeated until `deadline_s` is over.
    """
    collection = _Collection(project, capabilities, dry_run, await Now() + deadline_s)
    await collection.find_zones(zones)
    for pause_s in pauses(first_s=0.5, longest_s=LONGEST_PAUSE_S):
        await collection.one_pass()
        if collection.nothing_left or not await collection.wait(pause_s):
            break
    return collection.result()


class _Collection(FailuresAsAnswers):
    """The state of one gc run between its passes."""

    def __init__(self, project: str, capabilities: Capabilities, dry_run: bool, deadline: float) -> None:
        self.collected = Collected(project, dry_run)
        self._timings = capabilities.timings
        self._deadline = deadline
        self._pending: dict[str, str] = {}  # zone → why there is no complete list of it yet
        self._server_now: dict[str, float] = {}
        self._deleted_at: dict[SliceName, float] = {}

    async def find_zones(self, zones: Sequence[str] | None) -> None:
        if zones is None:
            listing = await self._until_answered(ListZones(self.collected.project))
            if isinstance(listing, CloudError):
                self._give_up("-", listing, f"the project's zones cannot be listed: {listing.message}")
                return
            for place in listing.unreachable:
                self.collected.incomplete[place] = "unreachable"
            zones = listing.rows
            if not zones:
                self.collected.incomplete["-"] = "the API named no zone for this project"
        self.collected.zones = list(dict.fromkeys(zones))
        self._pending = dict.fromkeys(self.collected.zones, "not asked: the time was over")

    async def one_pass(self) -> None:
        """List every zone without a complete list yet, then delete or verify every slice whose claim is over."""
        for zone in list(self._pending):
            if await Now() >= self._deadline:
                return
            await self._list_zone(zone)
        for name in [name for name, each in self.collected.ended.items() if not each.gone]:
            if not self.collected.dry_run and await Now() < self._deadline:
                await self._delete_and_verify(name)

    async def _list_zone(self, zone: str) -> None:
        await Report("gc", f"{self.collected.project}, {zone}", passing=True)
        listing = await self._ask(ListSlices(self.collected.project, zone, queued=True))
        failure = listing if isinstance(listing, CloudError) else None
        if failure is not None and not (isinstance(failure, CloudUnavailable) and failure.retry_after_s):
            listing = await self._ask(ListSlices(self.collected.project, zone))  # nodes, which are billed, still count
        if isinstance(listing, CloudError):
            self._list_failed(zone, listing, listing.message)
            return
        if listing.server_now is None:
            self._pending[zone] = "the API did not say what time it is, so no claim can be judged"
            return
        # Later passes use this time too: an older time judges a claim as longer, never as shorter.
        self._server_now[zone] = listing.server_now
        if failure is not None:
            self._list_failed(zone, failure, f"its queued requests cannot be listed: {failure.message}")
        elif listing.complete:
            del self._pending[zone]
        else:
            self._pending[zone] = f"the list is not complete: {', '.join(listing.unreachable)} unreachable"
        await self._sort(listing)

    def _list_failed(self, zone: str, error: CloudError, why: str) -> None:
        """Keep the zone for another pass, unless the user has to act first (no permission, no such zone)."""
        self._pending[zone] = why
        if not isinstance(error, CloudUnavailable | UnexpectedReply):
            del self._pending[zone]
            self._give_up(zone, error, why)

    def _give_up(self, zone: str, error: CloudError, why: str) -> None:
        self.collected.incomplete[zone] = why
        self.collected.hint = self.collected.hint or error.hint or ""

    async def _sort(self, listing: Listing[SliceView]) -> None:
        ended = self.collected.ended
        new = [view.name for view in listing.rows if view.name not in ended and self._classify(view) is not None]
        for name in new:
            each = ended[name]
            verb = "would be deleted" if self.collected.dry_run else "deleting it"
            what = f"{name.node} ({each.view.accelerator_type}, {name.zone}, {each.price})"
            await Report("gc", f"{what}: {each.why}; {verb}")
            if not self.collected.dry_run:
                await self._delete_and_verify(name)

    def _classify(self, view: SliceView) -> str | None:
        """Sort the slice into `claimed`, `ended` or `doubtful`; return why its claim is over, None if it is not."""
        name, collected = view.name, self.collected
        collected.claimed.pop(name, None)
        if not names.is_ours(name.node, view.labels):
            if doubt := names.ownership_doubt(name.node, view.labels):
                collected.doubtful[name] = Doubtful(view, doubt)
            return None
        claim = claim_labels.read_claim(view, self._timings)
        if claim is None:
            why_not = "its labels cannot be read and its age is unknown: look at it yourself"
            collected.doubtful[name] = Doubtful(view, why_not)
            return None
        if claim.remarks:
            collected.doubtful[name] = Doubtful(view, "; ".join(claim.remarks))
        why = claim_labels.expiry_reason(claim, self._server_now[name.zone], self._timings)
        if why is None:
            collected.claimed[name] = Claimed(view, min(claim.claimed_until, claim.deadline))
            return None
        before = collected.ended.get(name)
        collected.ended[name] = replace(before, view=view, why=why) if before else Expired(view, why)
        return why

    async def _delete_and_verify(self, name: SliceName) -> None:
        """Delete the slice if it still exists with an expired claim, which is read again right before each delete."""
        before = self.collected.ended[name]
        view = await self._ask(Get(name))
        if isinstance(view, SliceView) and not await self._still_expired(view, before):
            return
        if isinstance(view, SliceView) and self._should_delete(view, await Now()):
            view = await self._delete(name)
        if view is None:
            self.collected.ended[name] = replace(before, gone=True, problem="")
            await Report("gc", f"{name.node} absent")
        else:
            problem = view.message if isinstance(view, CloudError) else f"still there: {view.native_state}"
            self.collected.ended[name] = replace(self.collected.ended[name], problem=problem)

    async def _still_expired(self, view: SliceView, before: Expired) -> bool:
        same = view.labels.get(names.LEASE_ID) == before.view.labels.get(names.LEASE_ID)
        if same and self._classify(view) is not None:
            return True
        del self.collected.ended[view.name]
        if view.name not in self.collected.claimed:
            self.collected.doubtful[view.name] = Doubtful(view, "its labels changed during this gc run: left alone")
        await Report("gc", f"{view.name.node}: claimed again, or not of tpujob; left alone")
        return False

    def _should_delete(self, view: SliceView, now: float) -> bool:
        sent_at = self._deleted_at.get(view.name)
        return sent_at is None or view.state is not SliceState.DELETING or now - sent_at >= DELETE_AGAIN_S

    async def _delete(self, name: SliceName) -> SliceView | CloudError | None:
        answer = await self._ask(Delete(name))
        if isinstance(answer, CloudError):
            if not isinstance(answer, CloudUnavailable):
                answer.message = f"the delete was refused: {answer.message}"
            return answer
        self._deleted_at[name] = await Now()
        return await self._ask(Get(name))

    # -- calls, and when to stop ----------------------------------------------------------------------------------

    @property
    def nothing_left(self) -> bool:
        waiting = () if self.collected.dry_run else self.collected.ended.values()
        return not self._pending and all(each.gone for each in waiting)

    async def wait(self, pause_s: float) -> bool:
        """Pause before the next pass. Return False if there is no time for one."""
        pause_s, self.wait_s = max(pause_s, self.wait_s), 0.0
        if await Now() + pause_s >= self._deadline:
            return False
        await Sleep(pause_s)
        return True

    def result(self) -> Collected:
        self.collected.incomplete.update(self._pending)
        return self.collected

    async def _until_answered(self, effect: Effect[T]) -> T | CloudError:
        for pause_s in pauses(first_s=0.5, longest_s=LONGEST_PAUSE_S):
            answer = await self._ask(effect)
            final = not isinstance(answer, CloudError) or isinstance(answer, AuthError | BadRequest)
            if final or not await self.wait(pause_s):
                return answer
        raise AssertionError("pauses() never ends")

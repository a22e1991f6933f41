"""Garbage collection: find slices that nobody claims any more by their labels alone, delete them, and see them absent.

The layer that needs nothing of the machine that made them: no ledger, no process, not even the same machine. It acts only on
what carries our name *and* our label, judges by the server's clock, reads a claim again right before each delete, and says
"complete" only of zones whose whole list it saw. `tpujob gc` drives it, and a simulator does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from orchestrator import catalog
from orchestrator.core.lease import claim_labels
from orchestrator.core.lease.slices import Capabilities, Listing, SliceName, SliceState, SliceView
from orchestrator.core.text import names
from orchestrator.core.text.durations import format_usd_per_hour
from orchestrator.engine.effects.base import Effect, Now, Report, Sleep
from orchestrator.engine.effects.cloud import Delete, Get, ListSlices, ListZones
from orchestrator.engine.leases.release import DELETE_AGAIN_S
from orchestrator.engine.runtime.retry import pauses
from orchestrator.errors import AuthError, BadRequest, CloudError, CloudUnavailable, UnexpectedReply

T = TypeVar("T")

DEADLINE_S = 600.0  # below the period at which a timer would start the next one
LONGEST_PAUSE_S = 20.0


@dataclass(frozen=True, slots=True)
class Expired:
    """A slice whose claim is over. `gone`: seen absent after its delete; else `problem` says what keeps it."""

    view: SliceView
    why: str
    gone: bool = False
    problem: str = ""

    @property
    def usd_per_hour(self) -> float | None:
        return catalog.usd_per_hour(self.view.accelerator_type, self.view.name.zone, spot=self.view.spot)

    @property
    def price(self) -> str:
        """For a person. What waits in a queue, or is dead and only listed, holds quota and costs nothing."""
        free = self.view.state in (SliceState.QUEUED, SliceState.TOMBSTONE)
        return "not billed" if free else format_usd_per_hour(self.usd_per_hour)


@dataclass(frozen=True, slots=True)
class Claimed:
    view: SliceView
    until: float  # unix seconds, the server's clock


@dataclass(frozen=True, slots=True)
class Doubtful:
    """Left alone: it cannot be judged, or only half of it says that it is ours. Also claims that are partly unreadable."""

    view: SliceView
    why: str


@dataclass(slots=True)
class Collected:
    """What a gc run saw and did. Only with nothing `incomplete` and every one of `ended` gone has it done its work."""

    project: str
    dry_run: bool = False
    zones: list[str] = field(default_factory=list)
    ended: dict[SliceName, Expired] = field(default_factory=dict)
    claimed: dict[SliceName, Claimed] = field(default_factory=dict)
    doubtful: dict[SliceName, Doubtful] = field(default_factory=dict)
    incomplete: dict[str, str] = field(default_factory=dict)  # zone → why

    @property
    def done(self) -> bool:
        return not self.incomplete and all(each.gone for each in self.ended.values())

    @property
    def found(self) -> int:
        return len(self.ended) + len(self.claimed)

    @property
    def deleted(self) -> int:
        return sum(each.gone for each in self.ended.values())


async def collect_garbage(
    project: str,
    zones: Sequence[str] | None,
    capabilities: Capabilities,
    *,
    dry_run: bool = False,
    deadline_s: float = DEADLINE_S,
) -> Collected:
    """Every zone that is named, or that the project has. Whatever gets no answer is asked again until the deadline."""
    collection = _Collection(project, capabilities, dry_run, await Now() + deadline_s)
    await collection.find_zones(zones)
    for pause_s in pauses(first_s=0.5, longest_s=LONGEST_PAUSE_S):
        await collection.one_pass()
        if collection.nothing_left or not await collection.wait(pause_s):
            break
    return collection.result()


class _Collection:
    """What one gc run remembers between its passes."""

    def __init__(self, project: str, capabilities: Capabilities, dry_run: bool, deadline: float) -> None:
        self.collected = Collected(project, dry_run)
        self._pace = capabilities.timings
        self._deadline = deadline
        self._pending: dict[str, str] = {}  # zone → why there is no complete list of it yet
        self._server_now: dict[str, float] = {}
        self._deleted_at: dict[SliceName, float] = {}
        self._retry_after_s = 0.0

    async def find_zones(self, zones: Sequence[str] | None) -> None:
        if zones is None:
            listing = await self._until_answered(ListZones(self.collected.project))
            if isinstance(listing, CloudError):
                self.collected.incomplete["-"] = f"the project's zones cannot be listed: {listing.message}"
                return
            for place in listing.unreachable:
                self.collected.incomplete[place] = "unreachable"
            zones = listing.rows
            if not zones:
                self.collected.incomplete["-"] = "the API named no zone for this project"
        self.collected.zones = list(dict.fromkeys(zones))
        self._pending = dict.fromkeys(self.collected.zones, "not asked: the time was over")

    async def one_pass(self) -> None:
        """Look at every zone that still owes a complete list, then see after everything that is to go."""
        for zone in list(self._pending):
            if await Now() >= self._deadline:
                return
            await self._look(zone)
        for name in [name for name, each in self.collected.ended.items() if not each.gone]:
            if not self.collected.dry_run and await Now() < self._deadline:
                await self._see_off(name)

    async def _look(self, zone: str) -> None:
        await Report("gc", f"{self.collected.project}, {zone}", passing=True)
        listing = await self._ask(ListSlices(self.collected.project, zone, queued=True))
        silent = listing if isinstance(listing, CloudError) else None
        if silent is not None and not (isinstance(silent, CloudUnavailable) and silent.retry_after_s):
            listing = await self._ask(ListSlices(self.collected.project, zone))  # what is billed has to go all the same
        if isinstance(listing, CloudError):
            self._not_seen(zone, listing, listing.message)
            return
        if listing.server_now is None:
            self._pending[zone] = "the API did not say what time it is, so no claim can be judged"
            return
        # Later in this run it is later than this; to judge by an older time is only ever too kind.
        self._server_now[zone] = listing.server_now
        if silent is not None:
            self._not_seen(zone, silent, f"its queued requests cannot be listed: {silent.message}")
        elif listing.complete:
            del self._pending[zone]
        else:
            self._pending[zone] = f"the list is not complete: {', '.join(listing.unreachable)} unreachable"
        await self._sort(listing)

    def _not_seen(self, zone: str, error: CloudError, why: str) -> None:
        """Whoever may not look, or looks for what is not there, need not look again: a person must act."""
        self._pending[zone] = why
        if not isinstance(error, CloudUnavailable | UnexpectedReply):
            self.collected.incomplete[zone] = self._pending.pop(zone)

    async def _sort(self, listing: Listing[SliceView]) -> None:
        new = []
        for view in listing.rows:
            if view.name not in self.collected.ended and self._judge(view) is not None:
                new.append(view.name)
        for name in new:
            each = self.collected.ended[name]
            verb = "would be deleted" if self.collected.dry_run else "deleting it"
            what = f"{name.node} ({each.view.accelerator_type}, {name.zone}, {each.price})"
            await Report("gc", f"{what}: {each.why}; {verb}")
            if not self.collected.dry_run:
                await self._see_off(name)

    def _judge(self, view: SliceView) -> str | None:
        """File the slice where it belongs; why its claim is over, if it is."""
        name, collected = view.name, self.collected
        collected.claimed.pop(name, None)
        if not names.is_ours(name.node, view.labels):
            if half := names.ownership_doubt(name.node, view.labels):
                collected.doubtful[name] = Doubtful(view, half)
            return None
        claim = claim_labels.read_claim(view, self._pace)
        if claim is None:
            collected.doubtful[name] = Doubtful(view, "its labels cannot be read and its age is unknown: look at it yourself")
            return None
        if claim.remarks:
            collected.doubtful[name] = Doubtful(view, "; ".join(claim.remarks))
        why = claim_labels.expiry_reason(claim, self._server_now[name.zone], self._pace)
        if why is None:
            collected.claimed[name] = Claimed(view, min(claim.claimed_until, claim.deadline))
            return None
        before = collected.ended.get(name)
        collected.ended[name] = replace(before, view=view, why=why) if before else Expired(view, why)
        return why

    async def _see_off(self, name: SliceName) -> None:
        """Delete what is still there and still unclaimed. Its claim is read anew each time, right before the delete."""
        before = self.collected.ended[name]
        view = await self._ask(Get(name))
        if isinstance(view, SliceView) and not await self._may_go(view, before):
            return
        if isinstance(view, SliceView) and self._should_delete(view, await Now()):
            view = await self._delete(name)
        if view is None:
            self.collected.ended[name] = replace(before, gone=True, problem="")
            await Report("gc", f"{name.node} absent")
        elif isinstance(view, CloudError):
            self._problem(name, view.message)
        else:
            self._problem(name, f"still there: {view.native_state}")

    async def _may_go(self, view: SliceView, before: Expired) -> bool:
        if view.labels.get(names.LEASE_ID) == before.view.labels.get(names.LEASE_ID) and self._judge(view) is not None:
            return True
        del self.collected.ended[view.name]
        if view.name not in self.collected.claimed:
            self.collected.doubtful[view.name] = Doubtful(view, "it changed hands while gc looked at it: left alone")
        await Report("gc", f"{view.name.node}: claimed anew, or not ours; left alone")
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

    def _problem(self, name: SliceName, problem: str) -> None:
        self.collected.ended[name] = replace(self.collected.ended[name], problem=problem)

    # -- asking, and when to stop ---------------------------------------------------------------------------------

    @property
    def nothing_left(self) -> bool:
        waiting = () if self.collected.dry_run else self.collected.ended.values()
        return not self._pending and all(each.gone for each in waiting)

    async def wait(self, pause_s: float) -> bool:
        """False when the time does not reach for another pass."""
        pause_s = max(pause_s, min(self._retry_after_s, 60.0))
        self._retry_after_s = 0.0
        if await Now() + pause_s >= self._deadline:
            return False
        await Sleep(pause_s)
        return True

    def result(self) -> Collected:
        self.collected.incomplete.update(self._pending)
        return self.collected

    async def _until_answered(self, question: Effect[T]) -> T | CloudError:
        for pause_s in pauses(first_s=0.5, longest_s=LONGEST_PAUSE_S):
            answer = await self._ask(question)
            final = not isinstance(answer, CloudError) or isinstance(answer, AuthError | BadRequest)
            if final or not await self.wait(pause_s):
                return answer
        raise AssertionError("pauses() never ends")

    async def _ask(self, question: Effect[T]) -> T | CloudError:
        """The answer, or the error in its place: within a gc run no failed question ends the work."""
        try:
            return await question
        except CloudError as error:
            if isinstance(error, CloudUnavailable) and error.retry_after_s:
                self._retry_after_s = max(self._retry_after_s, error.retry_after_s)
            return error

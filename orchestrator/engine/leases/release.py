"""Release a lease: delete its slice and prove that it is absent. The only program that ever deletes.

It never gives up by itself short of its budget, believes no operation, takes no error for an absence, and may be run
by anybody at any time, twice at once or again after a crash: deleting is idempotent and only the ledger's state is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from orchestrator.core.lease import absence
from orchestrator.core.lease.absence import Evidence, Verdict
from orchestrator.core.lease.attempt import AttemptEvent
from orchestrator.core.lease.lease import Down, Gone, Lease, LeaseEvent, LeaseState, NotAllowed, Settled
from orchestrator.core.lease.slices import Capabilities, Listing, Operation, SliceState, SliceView
from orchestrator.engine.effects.base import Effect, Now, ReadLease, Record, Report, Shield, Sleep
from orchestrator.engine.effects.cloud import Delete, DeleteAll, Get, GetOperation, ListOperations, ListSlices
from orchestrator.engine.runtime.retry import pauses
from orchestrator.errors import CloudError, CloudUnavailable, TpujobError

T = TypeVar("T")

DELETE_AGAIN_S = 60.0  # a delete that was accepted and shows no effect for so long is sent again
LONGEST_WAIT_S = 60.0  # however long a 429 asks for
CREATE_VERBS = ("create", "createnode", "createqueuedresource")
OTHER_VERBS = ("delete", "update", "stop", "start", "reset")  # each alone, or with the kind of what it changes after it


async def send_deletes(leases: Sequence[Lease], *, reason: str, again_s: Sequence[float] = ()) -> None:
    """Only the first step of a release: no answer or proof of one lease keeps the delete of another waiting.

    `again_s`: the pauses before each further try of those that were not answered.
    """
    await Shield()
    now = await Now()
    for lease in leases:
        await note(Down(lease.id, now, reason))
    names = tuple(lease.name for lease in leases if lease.operation is not None)
    for pause_s in (0.0, *again_s):
        if not names:
            return
        if pause_s:
            await Sleep(pause_s)
        answers = await DeleteAll(names)
        names = tuple(n for n, answer in zip(names, answers, strict=True) if isinstance(answer, CloudUnavailable))


@dataclass(frozen=True, slots=True)
class Released:
    lease: Lease
    gone: bool
    checked_at: float
    verdict: Verdict
    deletes_sent: int = 0
    answer: str = ""  # what the cloud said to the last of them


async def release(lease: Lease, capabilities: Capabilities, *, reason: str, budget_s: float) -> Released:
    """Drive the lease to proven absence, or say what is missing when the budget is over. Never raises CloudError."""
    (released,) = await release_all([(lease, reason)], capabilities, budget_s=budget_s)
    return released


async def release_all(
    owed: Sequence[tuple[Lease, str]], capabilities: Capabilities, *, budget_s: float
) -> list[Released]:
    """The same for several leases, each with its reason: no proof of one keeps the delete of another waiting."""
    if not owed:
        return []
    await Shield()
    started = await Now()
    for lease, reason in owed:
        await note(Down(lease.id, started, reason))
    teardowns = [_Teardown(await as_written(lease)) for lease, _ in owed]
    if len(teardowns) > 1:
        await _delete_first(teardowns)
    for pause_s in pauses(first_s=0.05, growth=1.25):  # people wait for this one
        for teardown in teardowns:
            await teardown.tick(capabilities)
        waiting = [teardown for teardown in teardowns if not teardown.released.gone]
        left_s = started + budget_s - await Now()
        if not waiting or left_s <= 0:
            break
        for teardown in waiting:
            text = f"{teardown.lease.name.node}: {'; '.join(teardown.released.verdict.missing)}"
            await Report("release", text, passing=True)
        await Sleep(min(max(pause_s, *(teardown.wait_s for teardown in waiting)), max(left_s, 0.05)))
    for teardown in teardowns:  # the passes over the others took their time
        await teardown.heed_others()
    return [teardown.released for teardown in teardowns]


async def _delete_first(teardowns: Sequence[_Teardown]) -> None:
    """The deletes of all that need no question first, at once."""
    now, ripe = await Now(), [teardown for teardown in teardowns if teardown.may_delete_first]
    if ripe:
        answers = await DeleteAll(tuple(teardown.lease.name for teardown in ripe))
        for teardown, answer in zip(ripe, answers, strict=True):
            await teardown.deleted(now, answer)


class _Teardown:
    """What one release remembers between its passes."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.deletes_sent = 0
        self.answer = ""
        self.wait_s = 0.0  # what the API asked for in the last pass: 429 with Retry-After
        self._seen = False
        self._deleted_at: float | None = None
        self._delete_operation: str | None = None
        self.released = Released(lease, False, 0.0, Verdict(gone=False))

    async def tick(self, capabilities: Capabilities) -> None:
        """One pass, and what it showed; nothing more once the slice is gone."""
        if self.released.gone:
            return
        verdict = await self.one_pass(capabilities)
        now = await Now()
        if verdict.gone:
            await note(Gone(self.lease.id, now, evidence=verdict.evidence))
        self.released = Released(self.lease, verdict.gone, now, verdict, self.deletes_sent, self.answer)
        await self.heed_others()

    async def heed_others(self) -> None:
        """Somebody else may have been quicker, and have the proof."""
        if not self.released.gone and (await as_written(self.lease)).state is LeaseState.GONE:
            self.released = replace(self.released, gone=True, verdict=Verdict(gone=True))

    @property
    def may_delete_first(self) -> bool:
        """The API confirmed that this name is ours: no question before the delete."""
        return self._deleted_at is None and self.lease.operation is not None

    async def one_pass(self, capabilities: Capabilities) -> Verdict:
        self.wait_s = 0.0
        if self.may_delete_first:
            await self._delete(await Now())
        now = await Now()
        view = await self._ask(Get(self.lease.name))
        if isinstance(view, SliceView):
            if not absence.is_ours(view, self.lease):
                return _foreign(self.lease)  # while it has the name, nothing of ours can
            self._seen = True
            if await self._should_delete(view, now):
                await self._delete(now)
                view = await self._ask(Get(self.lease.name))
        creates = await self._creates() if view is None else ()
        now = await Now()
        settled = absence.settles_at(self.lease, creates, now, capabilities, seen=self._seen) is None
        if view is None and not self.lease.settled and settled:
            await note(Settled(self.lease.id, now))
            view = await self._ask(Get(self.lease.name))  # the create may have landed between that answer and this one
        listing: Listing[SliceView] | CloudError | None = None
        if not isinstance(view, SliceView):
            listing = await self._ask(ListSlices(*_place(self.lease), queued=self.lease.name.queued))
        return absence.judge(self.lease, Evidence(view, listing, creates, self._seen), now, capabilities)

    async def _should_delete(self, view: SliceView, now: float) -> bool:
        if self._deleted_at is None:
            return True
        if self._delete_operation is not None:
            operation = await self._ask(GetOperation(self._delete_operation))
            if isinstance(operation, Operation) and operation.done:
                if operation.error is not None:
                    self.answer = f"accepted, and its operation failed: {operation.error}"
                return True  # "done", with or without an error, and yet the slice is there
            if isinstance(operation, Operation) and self.lease.name.queued:
                # Of a request that is PROVISIONING a delete is accepted, and fails a while later: one at a time.
                return now - self._deleted_at >= DELETE_AGAIN_S
        return view.state is not SliceState.DELETING or now - self._deleted_at >= DELETE_AGAIN_S

    async def _delete(self, now: float) -> None:
        answer = await self._ask(Delete(self.lease.name))
        await self.deleted(now, answer)

    async def deleted(self, now: float, operation: Operation | CloudError | None) -> None:
        """The answer to the delete that left at `now`."""
        self._deleted_at, self._delete_operation = now, None
        self.deletes_sent += 1
        if isinstance(operation, CloudError):
            self.answer = f"refused: {operation.message}"
            if not isinstance(operation, CloudUnavailable):
                await Report("release", f"{self.lease.name.node}: delete refused: {operation.message}", passing=True)
            self._deleted_at = None  # not known to have been accepted: send it again in the next pass
        elif operation is not None:
            self._delete_operation, self._seen = operation.name, True
            if not self.answer.startswith("accepted"):  # how an earlier accepted one failed says more
                self.answer = "accepted"

    async def _creates(self) -> tuple[Operation, ...] | CloudError:
        """Every create operation on our name that the API knows. One that was named to us needs no listing."""
        if self.lease.settled or self.lease.sends <= 0:
            return ()
        if self.lease.sends == 1 and self.lease.operation is not None:
            operation = await self._ask(GetOperation(self.lease.operation))
            if isinstance(operation, Operation):
                return (operation,)
            return operation or CloudUnavailable("the API does not know the create's operation any more")
        listing = await self._ask(ListOperations(*_place(self.lease)))
        if isinstance(listing, CloudError):
            return listing
        if not listing.complete:
            return CloudUnavailable(f"operations incomplete: {', '.join(listing.unreachable)} unreachable")
        return tuple(operation for operation in listing.rows if self._is_our_create(operation))

    def _is_our_create(self, operation: Operation) -> bool:
        """One that may yet make a node of a queued request counts as ours too, but only to say that it is under way."""
        name, verb = self.lease.name, operation.verb.lower()
        if not operation.target.endswith(f"/{name.node}") or verb.startswith(OTHER_VERBS):
            return False
        if verb not in CREATE_VERBS:
            return not operation.done  # what it is nobody here knows: it may be a create
        return not name.queued or operation.target.endswith(f"/queuedResources/{name.node}") or not operation.done

    async def _ask(self, question: Effect[T]) -> T | CloudError:
        """The answer, or the error in its place: within a teardown no failed question ends the loop."""
        try:
            return await question
        except CloudUnavailable as error:
            if error.retry_after_s is not None:
                self.wait_s = max(self.wait_s, min(error.retry_after_s, LONGEST_WAIT_S))
            return error
        except CloudError as error:
            return error


def _place(lease: Lease) -> tuple[str, str]:
    return lease.name.project, lease.name.zone


def _foreign(lease: Lease) -> Verdict:
    if lease.operation is None and lease.sends <= 0:
        why = "every create was refused: the slice of this name is not ours"
        return Verdict(gone=True, last_seen="not ours", evidence=why)
    why = f"a slice named {lease.name.node} exists that does not carry our run label: neither adopted nor deleted"
    return Verdict(gone=False, missing=(why,), last_seen="not ours")


async def as_written(lease: Lease) -> Lease:
    """The ledger knows more than the value that a caller carries around: how many creates left, and what they are called."""
    try:
        return await ReadLease(lease.id)
    except TpujobError:
        return lease


async def note(event: LeaseEvent | AttemptEvent) -> None:
    """Record, but let no ledger trouble stop a deletion: the cloud is the truth about what exists."""
    try:
        await Record(event)
    except NotAllowed:
        pass  # someone else was quicker: DOWN and GONE are where we are all going
    except TpujobError as error:
        await Report("warning", f"{error.message}; the teardown goes on without it")

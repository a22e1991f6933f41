"""Release a lease: delete its slice and prove that it is absent. Apart from gc, the only program that deletes.

It does not stop before its budget is over, trusts no operation, takes no error for absence, and may run in any process at any
time, twice at once or again after a crash: deletes are idempotent, and only the ledger is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.errors import AuthError, CloudError, CloudUnavailable, TpujobError
from orchestrator.promise.effects.base import (
    Effect,
    MaskSignals,
    Now,
    ReadLease,
    Record,
    Report,
    Sleep,
    StartGuardian,
    T,
)
from orchestrator.promise.effects.cloud import (
    Delete,
    DeleteAll,
    Get,
    GetOperation,
    ListOperations,
    ListSlices,
    OwnCreate,
    RevokeLogin,
)
from orchestrator.promise.effects.retry import pauses
from orchestrator.promise.lease import absence
from orchestrator.promise.lease.absence import Creates, Evidence, Released, Verdict
from orchestrator.promise.lease.changes import AttemptEvent, Gone, LeaseEvent, NotAllowed, ReleaseBegan, Settled
from orchestrator.promise.lease.cloud_api import CREATE, Capabilities, Listing, Operation, SliceState, SliceView
from orchestrator.promise.lease.lease import Lease, LeaseState

DELETE_AGAIN_S = 60.0  # a delete that was accepted without effect for so long is sent again
LONGEST_WAIT_S = 60.0  # even if a 429 asks for more
LOGIN_S = 60.0  # an import of a key takes effect within it or not at all; an OS Login that is away is asked for so long
OTHER_VERBS = ("delete", "update", "stop", "start", "reset")  # alone, or followed by the kind of resource


async def send_deletes(leases: Sequence[Lease], *, reason: str, again_s: Sequence[float] = ()) -> None:
    """Send the deletes of several leases at once, and wait for no proof: the first step of their release.

    `again_s`: the pauses in seconds before each retry of those that got no reply.
    """
    await MaskSignals()
    now = await Now()
    for lease in leases:
        await try_record(ReleaseBegan(lease.id, now, reason))
    names = tuple(lease.name for lease in leases if lease.operation is not None)
    for pause_s in (0.0, *again_s):
        if not names:
            return
        if pause_s:
            await Sleep(pause_s)
        answers = await DeleteAll(names)
        names = tuple(n for n, answer in zip(names, answers, strict=True) if isinstance(answer, CloudUnavailable))


async def release(lease: Lease, capabilities: Capabilities, *, reason: str, budget_s: float) -> Released:
    """Delete the slice until it is proven absent, or until the budget is over. Never raises CloudError."""
    (released,) = await release_all([(lease, reason)], capabilities, budget_s=budget_s)
    return released


async def release_all(
    owed: list[tuple[Lease, str]], capabilities: Capabilities, *, budget_s: float, yields: bool = False
) -> list[Released]:
    """Release several leases, each with its reason, at once: no delete waits for the proof of another lease.

    `yields`: to a process that may do more, once the cloud refuses the credentials of this one.
    """
    if not owed:
        return []
    await MaskSignals()
    started = await Now()
    for lease, reason in owed:
        await try_record(ReleaseBegan(lease.id, started, reason))
    teardowns = [_Teardown(await latest_lease(lease)) for lease, _ in owed]
    if len(teardowns) > 1:
        await _delete_first(teardowns)
    for pause_s in pauses(first_s=0.05, growth=1.25):  # short: the user waits for it
        last = await Now() >= started + budget_s
        for teardown in teardowns:
            await teardown.tick(capabilities, last=last and budget_s > 0)  # without a budget others follow
        waiting = [teardown for teardown in teardowns if not teardown.released.gone]
        if not waiting or last or (yields and all(teardown.released.refused for teardown in waiting)):
            break
        left_s = started + budget_s - await Now()
        for teardown in waiting:
            text = f"{teardown.lease.name.node}: {'; '.join(teardown.released.verdict.missing)}"
            await Report("release", text, passing=True)
        await Sleep(min(max(pause_s, *(teardown.wait_s for teardown in waiting)), max(left_s, 0.05)))
    for teardown in teardowns:  # meanwhile another process may have proven its absence
        await teardown.check_ledger()
    return [teardown.released for teardown in teardowns]


async def _delete_first(teardowns: Sequence[_Teardown]) -> None:
    """Send at once the deletes of all slices that need no `get` first."""
    now, confirmed = await Now(), [teardown for teardown in teardowns if teardown.may_delete_first]
    if confirmed:
        answers = await DeleteAll(tuple(teardown.lease.name for teardown in confirmed))
        for teardown, answer in zip(confirmed, answers, strict=True):
            await teardown.deleted(now, answer)


class FailuresAsAnswers:
    """Base of a loop over calls that no failed call ends."""

    wait_s = 0.0  # the longest Retry-After of this pass

    async def _ask(self, effect: Effect[T]) -> T | CloudError:
        """Return the result, or the error in its place."""
        try:
            return await effect
        except CloudError as error:
            if isinstance(error, CloudUnavailable) and error.retry_after_s is not None:
                self.wait_s = max(self.wait_s, min(error.retry_after_s, LONGEST_WAIT_S))
            return error


class _Teardown(FailuresAsAnswers):
    """The state of one release between its passes."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.deletes_sent = 0
        self.answer = ""
        self._seen = self._refused = False
        self._deleted_at: float | None = None
        self._delete_operation: str | None = None
        self._login_until: float | None = None
        self.released = Released(lease, False, 0.0, Verdict(gone=False))

    async def tick(self, capabilities: Capabilities, *, last: bool) -> None:
        """Make one pass and store its verdict; do nothing once the slice is gone.

        `last`: a key that OS Login does not remove now is left to a later command.
        """
        if self.released.gone:
            return
        verdict = await self.one_pass(capabilities)
        if verdict.gone and self.lease.route.os_login:
            missing = await self._revoke_login(last=last)
            verdict = replace(verdict, gone=not missing, missing=missing)
        now = await Now()
        if verdict.gone:
            await try_record(Gone(self.lease.id, now, evidence=verdict.evidence))
        self.released = Released(
            self.lease, verdict.gone, now, verdict, self.deletes_sent, self.answer, refused=self._refused
        )
        await self.check_ledger()

    async def _revoke_login(self, *, last: bool) -> tuple[str, ...]:
        """Remove the key from the OS Login profile. Return what is missing; nothing once it is left to a later command."""
        error, now = await self._ask(RevokeLogin(self.lease)), await Now()
        self._login_until = self._login_until or now + LOGIN_S
        if isinstance(error, CloudError):
            if isinstance(error, CloudUnavailable) and now < self._login_until and not last:
                return (f"its SSH key is still in your OS Login profile: {error.message}",)
            await _leave_key(self.lease, error)
        elif not self.lease.route.user and now < (self.lease.down_at or now) + LOGIN_S and not last:
            return ("the import of its SSH key into your OS Login profile has not settled",)
        return ()

    async def check_ledger(self) -> None:
        """Take over the proof if another process was faster."""
        if not self.released.gone and (await latest_lease(self.lease)).state is LeaseState.GONE:
            self.released = replace(self.released, gone=True, verdict=Verdict(gone=True))

    @property
    def may_delete_first(self) -> bool:
        """Whether the API confirmed the create, so that the delete needs no `get` before it."""
        return self._deleted_at is None and self.lease.operation is not None

    async def one_pass(self, capabilities: Capabilities) -> Verdict:
        """Delete if necessary, collect the evidence, and judge it."""
        self.wait_s, self._refused = 0.0, False
        if self.may_delete_first:
            await self._delete(await Now())
        now = await Now()
        view = await self._ask(Get(self.lease.name))
        if isinstance(view, SliceView):
            if not absence.is_ours(view, self.lease):
                return _foreign(self.lease)  # while it has the name, no slice of this lease can have it
            self._seen = True
            if await self._should_delete(view, now):
                await self._delete(now)
                view = await self._ask(Get(self.lease.name))
        creates = await self._creates() if view is None else ()
        own_ended_at = await OwnCreate(self.lease.name) if view is None and not self.lease.settled else None
        now = await Now()
        certain_at = absence.settles_at(
            self.lease, creates, now, capabilities, seen=self._seen, own_ended_at=own_ended_at
        )
        settled = certain_at is None
        if view is None and not self.lease.settled and settled:
            await try_record(Settled(self.lease.id, now))
            view = await self._ask(Get(self.lease.name))  # the create may have taken effect since the last `get`
        listing: Listing[SliceView] | CloudError | None = None
        if not isinstance(view, SliceView):
            listing = await self._ask(ListSlices(*_place(self.lease), queued=self.lease.name.queued))
        self._refused = self._refused or isinstance(view, AuthError) or isinstance(listing, AuthError)
        evidence = Evidence(view, listing, creates, self._seen, own_ended_at)
        return absence.judge(self.lease, evidence, now, capabilities)

    async def _should_delete(self, view: SliceView, now: float) -> bool:
        if self._deleted_at is None:
            return True
        if self._delete_operation is not None:
            operation = await self._ask(GetOperation(self._delete_operation))
            if isinstance(operation, Operation) and operation.done:
                if operation.error is not None:
                    self.answer = f"accepted, and its operation failed: {operation.error}"
                return True  # done, with or without an error, and the slice still exists
            if isinstance(operation, Operation) and self.lease.name.queued:
                # While a request is PROVISIONING, a delete is accepted and fails later: send one at a time.
                return now - self._deleted_at >= DELETE_AGAIN_S
        return view.state is not SliceState.DELETING or now - self._deleted_at >= DELETE_AGAIN_S

    async def _delete(self, now: float) -> None:
        answer = await self._ask(Delete(self.lease.name))
        await self.deleted(now, answer)

    async def deleted(self, now: float, operation: Operation | CloudError | None) -> None:
        """Store the reply to the delete that left at `now`."""
        self._deleted_at, self._delete_operation = now, None
        self.deletes_sent += 1
        if isinstance(operation, CloudError):
            self.answer = f"refused: {operation.message}"
            self._refused = self._refused or isinstance(operation, AuthError)
            if not isinstance(operation, CloudUnavailable):
                await Report("release", f"{self.lease.name.node}: delete refused: {operation.message}", passing=True)
            self._deleted_at = None  # not known to have been accepted: send it again in the next pass
        elif operation is not None:
            self._delete_operation, self._seen = operation.name, True
            if not self.answer.startswith("accepted"):  # keep how an earlier accepted one failed
                self.answer = "accepted"

    async def _creates(self) -> Creates:
        """Every create operation on the lease's name that the API knows. The only one with a known name needs no list."""
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
        """Whether the operation may be a create of the lease. An unknown one, or one on the request's node, counts only
        while it is under way.
        """
        name, verb = self.lease.name, operation.verb
        if not operation.target.endswith(f"/{name.node}") or verb.startswith(OTHER_VERBS):
            return False
        if verb != CREATE:
            return not operation.done  # an unknown verb may be a create
        return not name.queued or operation.target.endswith(f"/queuedResources/{name.node}") or not operation.done


async def remove_key(lease: Lease) -> None:
    """Remove the key of a lease from the OS Login profile, with one try: it has an expiry, so a failure is only reported."""
    try:
        await RevokeLogin(lease)
    except CloudError as error:
        await _leave_key(lease, error)


async def _leave_key(lease: Lease, error: CloudError) -> None:
    why = "its SSH key stays in your OS Login profile until it expires, or a later command removes it"
    await Report("release", f"{lease.name.node}: {why}: {error.message}")


def _place(lease: Lease) -> tuple[str, str]:
    return lease.name.project, lease.name.zone


def _foreign(lease: Lease) -> Verdict:
    if lease.operation is None and lease.sends <= 0:
        why = "every create was refused: the slice of this name is not of this lease"
        return Verdict(gone=True, last_seen="not of this lease", evidence=why)
    why = f"a slice named {lease.name.node} exists without the label of this lease: neither adopted nor deleted"
    return Verdict(gone=False, missing=(why,), last_seen="not of this lease")


async def latest_lease(lease: Lease) -> Lease:
    """Return the lease as the ledger has it now; the given value if the ledger cannot be read."""
    try:
        return await ReadLease(lease.id)
    except TpujobError:
        return lease


async def try_start_guardian() -> None:
    """Start the guardian, which goes on if this process is killed. Without one, warn and go on."""
    try:
        await StartGuardian()
    except TpujobError as error:
        await Report("warning", error.message)


async def try_record(event: LeaseEvent | AttemptEvent) -> None:
    """Record the event, unless the ledger refuses: a failing ledger must not stop a deletion."""
    try:
        await Record(event)
    except NotAllowed:
        pass  # another process was faster: the lease is DOWN or GONE already
    except TpujobError as error:
        await Report("warning", f"{error.message}; the teardown goes on without it")

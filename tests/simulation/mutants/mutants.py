"""Bugs of the past, kept: each is a small change of production code that can be switched on, and must then be noticed.

Most are other tools' bugs (their issue is named), some were ours until the simulator found them. `GROUNDS` are where they
are hunted: whole worlds, deaths at every step, or one layer with the others switched off, where a bound that another layer
hides becomes visible.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from orchestrator.clouds.tpu import queued_request
from orchestrator.clouds.tpu.calls import ApiCalls
from orchestrator.core.lease import absence, claim_labels, timekeeping
from orchestrator.core.lease.absence import Verdict
from orchestrator.core.lease.lease import (
    Created,
    CreateRefused,
    Held,
    Intent,
    Lease,
    LeaseState,
    Mode,
    Purpose,
    Sent,
    Settled,
)
from orchestrator.core.lease.slices import Listing, SliceState
from orchestrator.core.text import names
from orchestrator.engine.effects.base import Effect, Lock, Now, ReadLease, Record, StartGuardian, Unlock
from orchestrator.engine.effects.cloud import Create
from orchestrator.engine.guardian import loop
from orchestrator.engine.jobs import attempt, collection, monitor, run
from orchestrator.engine.leases import gc, obligations, recover, release, renewal
from orchestrator.engine.provision import acquire, race, search
from orchestrator.errors import AuthError, CloudError, CloudUnavailable, Vanished
from orchestrator.ledger.clocks import Clocks
from orchestrator.vm import watchdog


@dataclass(frozen=True)
class Mutant:
    name: str
    bug: str
    change: Callable[[], contextlib.AbstractContextManager[Any]]
    scenarios: tuple[str, ...]  # names in `grounds.GROUNDS`, where it is hunted, the best first


MUTANTS: dict[str, Mutant] = {}


def mutant(bug: str, *scenarios: str) -> Callable[[Callable[[], Iterator[None]]], None]:
    def register(change: Callable[[], Iterator[None]]) -> None:
        name = change.__name__
        MUTANTS[name] = Mutant(name, bug, contextlib.contextmanager(change), scenarios)

    return register


class Nothing(Effect[Any]):
    """In place of an effect: it answers, and nothing happens."""

    slow = False

    def __init__(self, *_: Any, answer: Any = None) -> None:
        self.answer = answer

    def perform(self, world: Any) -> Any:
        return self.answer


async def _no_op(*_: Any, **__: Any) -> None:
    return None


# -- the proof of absence --------------------------------------------------------------------------------------------


@mutant("a delete that was accepted counts as done (dstack)", "worlds")
def fireforget() -> Iterator[None]:
    async def one_pass(self: Any, capabilities: Any) -> Verdict:
        await self._delete(await Now())
        return Verdict(gone=self._deleted_at is not None)

    with patch.object(release._Teardown, "one_pass", one_pass):
        yield


@mutant("a 404 counts as gone, whatever may still be landing (dstack)", "deaths")
def trust404() -> Iterator[None]:
    def judge(lease: Any, evidence: Any, now: float, capabilities: Any) -> Verdict:
        return Verdict(gone=evidence.view is None)

    with patch.object(absence, "judge", judge):
        yield


@mutant("no create is waited for to settle", "deaths")
def noquarantine() -> Iterator[None]:
    with patch.object(absence, "settled", lambda *_, **__: None):
        yield


@mutant("a create that succeeded counts as settled before its node is visible (ours, F5)", "create_seen_late")
def blindsettle() -> Iterator[None]:
    settled = absence.settled
    with patch.object(absence, "settled", lambda *a, **k: settled(*a, **{**k, "seen": True})):
        yield


@mutant("get and list are asked before the create is seen to settle (ours, F3)", "deaths")
def staleproof() -> Iterator[None]:
    async def one_pass(self: Any, capabilities: Any) -> Verdict:
        now = await Now()
        view = await self._ask(release.Get(self.lease.name))
        if view is not None and not isinstance(view, release.CloudError) and await self._should_delete(view, now):
            await self._delete(now)
            view = await self._ask(release.Get(self.lease.name))
        listing = await self._ask(release.ListSlices(*release._place(self.lease))) if view is None else None
        creates = await self._creates() if view is None else ()
        evidence = release.Evidence(view, listing, creates, self._seen)
        return absence.judge(self.lease, evidence, await Now(), capabilities)

    with patch.object(release._Teardown, "one_pass", one_pass):
        yield


@mutant("an incomplete list of operations is taken for complete (ours)", "create_under_way_unlisted")
def operations_taken_for_all() -> Iterator[None]:
    async def creates(self: Any) -> Any:
        if self.lease.sends == 1 and self.lease.operation is not None:
            return await whole(self)
        listing = await self._ask(release.ListOperations(*release._place(self.lease)))
        return listing if isinstance(listing, CloudError) else tuple(filter(self._is_our_create, listing.rows))

    whole = release._Teardown._creates
    with patch.object(release._Teardown, "_creates", creates):
        yield


@mutant("an operation whose verb is unknown counts as none (ours)", "create_of_an_unknown_verb")
def unknown_verb() -> Iterator[None]:
    ours = release._Teardown._is_our_create

    def known(self: Any, operation: Any) -> bool:
        return operation.verb.lower() in release.CREATE_VERBS and ours(self, operation)

    with patch.object(release._Teardown, "_is_our_create", known):
        yield


@mutant("nobody looks once more after the create has settled (ours)", "landing_between_two_answers")
def one_look() -> Iterator[None]:
    ask, note = release._Teardown._ask, release.note
    settled: set[Any] = set()

    async def noted(event: Any) -> None:
        await note(event)
        if isinstance(event, Settled):
            settled.add(event.lease_id)

    async def asked(self: Any, question: Any) -> Any:
        if isinstance(question, release.Get) and self.lease.id in settled:
            settled.discard(self.lease.id)
            return None  # as it was a moment ago
        return await ask(self, question)

    with patch.object(release, "note", noted), patch.object(release._Teardown, "_ask", asked):
        yield


@mutant("a delete that is under way is never sent again (L11)", "stalled_delete")
def deleted_once() -> Iterator[None]:
    with patch.object(release, "DELETE_AGAIN_S", float("inf")):
        yield


@mutant("403 is read as `not there` (SkyPilot, tpuz)", "worlds", "only_command")
def forbidden_is_gone() -> Iterator[None]:
    ask = release._Teardown._ask

    async def asked(self: Any, question: Any) -> Any:
        answer = await ask(self, question)
        return None if isinstance(answer, AuthError) else answer

    judge = absence.judge

    def judged(lease: Any, evidence: Any, now: float, capabilities: Any) -> Verdict:
        listing = evidence.listing or Listing(())
        return judge(lease, replace(evidence, listing=listing), now, capabilities)

    with patch.object(release._Teardown, "_ask", asked), patch.object(absence, "judge", judged):
        yield


@mutant("a list that names unreachable zones is taken for complete (L21)", "gc_partly_blind")
def partial() -> Iterator[None]:
    with patch.object(Listing, "complete", property(lambda self: True)):
        yield


@mutant("a delete is sent once, and its operation's failure is never read (L10)", "failing_deletes")
def delete_once() -> Iterator[None]:
    async def should_delete(self: Any, view: Any, now: float) -> bool:
        return bool(self._deleted_at is None)

    with patch.object(release._Teardown, "_should_delete", should_delete):
        yield


@mutant("after a time the teardown is given up and written down as done (dstack: 15 minutes)", "revoked")
def giveup15() -> Iterator[None]:
    real = release.release_all

    async def release_all(owed: Any, capabilities: Any, *, budget_s: float) -> Any:
        results = await real(owed, capabilities, budget_s=budget_s)
        for released in results:
            if not released.gone:
                await release.note(release.Gone(released.lease.id, await Now(), evidence="gave up"))
        return [replace(released, gone=True) for released in results]

    with patch.object(obligations, "release_all", release_all), patch.object(recover, "release_all", release_all):
        yield


@mutant("the command leaves after the first failed look", "only_command")
def giveup() -> Iterator[None]:
    with patch.object(obligations, "RELEASE_S", 0.0):
        yield


@mutant("a second signal cuts the teardown short (L04)", "only_command")
def noshield() -> Iterator[None]:
    with patch.object(release, "Shield", Nothing), patch.object(run, "Shield", Nothing):
        yield


# -- intent before effect ----------------------------------------------------------------------------------------------


@mutant("the ledger hears of the slice after the create (Terraform, L01)", "deaths")
def nowal() -> Iterator[None]:
    async def acquired(lease: Any, request: Any, capabilities: Any) -> Any:
        await Lock(lease.id)
        await StartGuardian()
        operation = await Create(_stamped(lease, request, capabilities, await Now()))
        await Record(Intent(lease))
        await Record(Sent(lease.id, await Now()), Created(lease.id, await Now(), operation.name))
        return await acquire.wait_until_ready(
            lease, capabilities, give_up_at=await Now() + capabilities.timings.provision_s
        )

    with patch.object(search, "acquire", acquired):
        yield


def _stamped(lease: Any, request: Any, capabilities: Any, now: float) -> Any:
    return replace(request, labels={**request.labels, **claim_labels.labels(lease, now, capabilities.timings)})


@mutant("the guardian is armed after the create", "deaths_alone")
def guardian_after_create() -> Iterator[None]:
    create = acquire._create

    async def created(*args: Any, **named: Any) -> None:
        await create(*args, **named)
        await StartGuardian()

    with (
        patch.object(acquire, "StartGuardian", lambda: Nothing(answer=True)),
        patch.object(acquire, "_create", created),
    ):
        yield


@mutant("there is no guardian", "deaths_alone")
def noguard() -> Iterator[None]:
    with patch.object(acquire, "StartGuardian", lambda: Nothing(answer=True)):
        yield


@mutant("a create whose reply was lost is tried again under another name (SkyPilot#797)", "lost_create")
def newname() -> Iterator[None]:
    real = acquire._create

    async def created(lease: Any, request: Any, *, give_up_at: float) -> None:
        try:
            await Record(Sent(lease.id, await Now()))
            operation = await Create(request)
        except CloudUnavailable:
            name = replace(request.name, node=request.name.node + "x")
            await real(lease, replace(request, name=name), give_up_at=give_up_at)
        else:
            await Record(Created(lease.id, await Now(), operation.name))

    with patch.object(acquire, "_create", created):
        yield


@mutant("a lost reply counts as refused: the create left no trace (L05)", "lost_create")
def lost_is_refused() -> Iterator[None]:
    async def created(lease: Any, request: Any, *, give_up_at: float) -> None:
        await Record(Sent(lease.id, await Now()))
        try:
            operation = await Create(request)
        except CloudUnavailable as error:
            await Record(CreateRefused(lease.id, await Now(), error.message))
            raise
        await Record(Created(lease.id, await Now(), operation.name))

    with patch.object(acquire, "_create", created):
        yield


@mutant("the next zone is tried before this one is proven empty (dstack, SkyPilot#2990)", "stockout_leaves_node")
def zone_fallback() -> Iterator[None]:
    async def let_go(held: Any, capabilities: Any, reason: str) -> None:
        await release.note(release.Down(held.lease.id, await Now(), reason))

    with patch.object(search, "release_owed", let_go):
        yield


@mutant("whatever has the name is adopted, and deleted, as ours (L37)", "taken_name")
def adopt_foreign() -> Iterator[None]:
    with patch.object(absence, "ours", lambda view, lease: True), patch.object(acquire, "ours", lambda *_: True):
        yield


# -- claims --------------------------------------------------------------------------------------------------------------


@mutant("an attached run shows no sign of life", "worlds")
def no_beat() -> Iterator[None]:
    with patch.object(attempt, "SendHeartbeats", Nothing):
        yield


@mutant("an attached run never renews its label", "long_runs")
def no_renewal() -> Iterator[None]:
    with patch.object(renewal.LeaseRenewal, "_renew", _no_op):
        yield


@mutant("`--keep` is written to the ledger alone, not to the labels", "kept")
def keep_forgets_label() -> Iterator[None]:
    with patch.object(renewal, "_write", _no_op):
        yield


@mutant("a label update that was accepted counts as done (ours, F4)", "kept_labels_lost")
def trust_relabel() -> Iterator[None]:
    asked: list[bool] = []

    def shows(view: Any, said: Any) -> bool:
        asked.append(True)
        return len(asked) % 2 == 0  # before: no, it has to be sent; after: surely

    with patch.object(renewal, "_shows", shows):
        yield


@mutant("times in labels are the laptop's own (R: absolute client clock)", "wrong_clock")
def client_clock() -> Iterator[None]:
    async def no_skew(*_: Any, **__: Any) -> float:
        return 0.0

    with patch.object(renewal, "clock_skew", no_skew), patch.object(acquire, "clock_skew", no_skew):
        yield


@mutant(
    "the time of the ledger is the wall clock's (ours)",
    "clock_set_forward_at_create",
    "clock_set_in_a_run",
    "clock_put_right_while_held",
)
def wall_clock() -> Iterator[None]:
    with patch.object(Clocks, "now", lambda self, cloud: self._host.wall()):
        yield


@mutant("after a restart the wall clock says how much time has passed", "restarted_with_another_clock")
def wall_after_restart() -> Iterator[None]:
    anchored = timekeeping.anchored
    with patch.object(timekeeping, "anchored", lambda before, leases, **rest: anchored(before, (), **rest)):
        yield


@mutant("after a restart nobody asks how much time has passed", "restarted_after_the_hold")
def time_unasked() -> Iterator[None]:
    with patch.object(renewal, "ask_time", _no_op):
        yield


@mutant("a claim that moves may become shorter (ours, F12)", "extended")
def shorter_claim() -> Iterator[None]:
    with patch.object(claim_labels, "claimed_until_label", lambda said: 0.0):
        yield


@mutant("signs of life go on while the release waits for the API (ours, F2)", "client_cut_off")
def beats_on() -> Iterator[None]:
    with patch.object(run, "Disconnect", Nothing):
        yield


@mutant("a detached run starts although its switch proved nothing (SkyPilot#5946)", "detached_unarmed")
def detach_unarmed() -> Iterator[None]:
    async def handed_over(lease: Any, capabilities: Any) -> Any:
        await renewal._write(lease, renewal.apply(lease, renewal.Detached(lease.id, await Now())), capabilities)
        await Record(renewal.Detached(lease.id, await Now()))
        return await ReadLease(lease.id)

    with patch.object(attempt, "wait_for_watchdogs", _no_op), patch.object(attempt, "hand_over", handed_over):
        yield


@mutant("a command waits for its slice past the slice's own deadline (ours, F9)", "slow_create")
def deadline_waits() -> Iterator[None]:
    real = acquire.wait_until_ready

    async def patient(lease: Any, capabilities: Any, *, give_up_at: float, operation: str | None = None) -> Any:
        for pause_s in acquire.retry.pauses(longest_s=10.0):
            view = await acquire._look(lease)
            if view is not None and view.state is SliceState.READY:
                return await real(lease, capabilities, give_up_at=give_up_at, operation=operation)
            if await Now() > give_up_at:
                raise CloudUnavailable("still not READY")
            await acquire.Sleep(pause_s)
        raise AssertionError

    with patch.object(acquire, "wait_until_ready", patient):
        yield


@mutant("artifacts are waited for past the deadline (ours, F8)", "end_while_collecting")
def collect_past_end() -> Iterator[None]:
    with patch.object(collection, "LAST_COLLECT_S", 1800.0):
        yield


@mutant("results that stay behind are held to the deadline", "results_left_behind")
def held_to_the_end() -> Iterator[None]:
    real = collection.keep

    async def keep(owed: Any, until: float, capabilities: Any) -> Any:
        return await real(owed, owed.lease.deadline, capabilities)

    with patch.object(collection, "keep", keep):
        yield


@mutant("a slice is held for its results in the ledger, and not in its labels", "results_left_behind")
def held_unlabelled() -> Iterator[None]:
    async def keep(owed: Any, until: float, capabilities: Any) -> Any:
        lease, owed.lease = owed.lease, None
        await Record(Held(lease.id, await Now(), until))
        owed.kept_until = until
        await Unlock(lease.id)
        return await ReadLease(lease.id)

    with patch.object(collection, "keep", keep):
        yield


@mutant("an extension whose reply was lost is added once more (ours, F11)", "extended_answer_lost")
def extended_twice() -> Iterator[None]:
    real = renewal._write

    async def write(before: Any, wanted: Any, capabilities: Any, **how: Any) -> None:
        if before.deadline == wanted.deadline:
            return await real(before, wanted, capabilities, **how)
        for _ in range(5):
            found, skew_s = await renewal._listed(wanted)
            said = await renewal._said(before, wanted, found, skew_s, capabilities)
            try:
                await renewal.SetLabels(wanted.name, {**found.labels, **said})
            except CloudUnavailable:
                await renewal.Sleep(1.0)
            else:
                return None
        return None

    with patch.object(renewal, "_write", write):
        yield


@mutant(
    "whoever follows a detached job goes by the job file's limit, not by the extension (ours, F20)",
    "extended_before_it_is_followed",
)
def old_limit() -> Iterator[None]:
    real = monitor.end_of

    def end_of(lease: Any, began: float, max_duration_s: float) -> Any:
        return real(lease, began, min(max_duration_s, 30.0))

    with patch.object(monitor, "end_of", end_of):
        yield


@mutant("an answer that took long is taken for a clock that is wrong (ours, F19)", "lid_closed_at_create")
def slow_is_wrong() -> Iterator[None]:
    async def clock_skew(listing: Any, *, asked_at: float, said: bool = False) -> float:
        return (listing.server_now or 0.0) - await Now()

    with patch.object(renewal, "clock_skew", clock_skew), patch.object(acquire, "clock_skew", clock_skew):
        yield


@mutant("the switch is born with the laptop's times (ours, F17)", "clock_behind_and_blind")
def born_wrong() -> Iterator[None]:
    with patch.object(acquire, "restamped", lambda script, labels: script):
        yield


@mutant("a slice that is given up while it changes hands is a bug in tpujob (ours, F23)", "down_at_hand_over")
def strict_hand_over() -> Iterator[None]:
    alone = renewal._alone

    async def unfiltered(lease: Any, made: Any) -> Any:
        try:
            return await alone(lease, made)
        except Vanished as error:
            raise (error.__cause__ or error) from None

    with patch.object(renewal, "_alone", unfiltered):
        yield


@mutant("two commands change the labels of one slice at once (ours, F13)", "extended_at_hand_over")
def no_claim_lock() -> Iterator[None]:
    with patch.object(renewal, "_alone", lambda lease, made: made()):
        yield


@mutant("a release does not hear that another process has the proof (ours, F14)", "proved_by_another")
def deaf_release() -> Iterator[None]:
    async def unread(lease: Any) -> Any:
        return replace(lease, state=LeaseState.DOWN)

    with patch.object(release, "as_written", unread):
        yield


# -- recovery and guardian ---------------------------------------------------------------------------------------------------


@mutant("recovery believes that what is being deleted already is somebody's business", "deaths_alone")
def down_is_done() -> Iterator[None]:
    real = recover.release_reason

    def dead_wood(lease: Any, *, now: float, owner_alive: bool) -> str | None:
        return None if lease.state is LeaseState.DOWN else real(lease, now=now, owner_alive=owner_alive)

    with patch.object(recover, "release_reason", dead_wood), patch.object(loop, "release_reason", dead_wood):
        yield


@mutant("a disk that is full keeps recovery from deleting (ours, F6)", "disk_full")
def full_disk() -> Iterator[None]:
    async def strict(event: Any) -> None:
        await Record(event)

    with patch.object(recover, "note", strict):
        yield


@mutant("the guardian leaves what is held alone", "holds_alone")
def guardian_leaves() -> Iterator[None]:
    with patch.object(loop, "TakeGuardianLock", lambda: Nothing(answer=False)):
        yield


@mutant("recovery takes leases from living processes", "timer_beside_runs")
def no_owner_check() -> Iterator[None]:
    nobody = patch.object(recover, "IsLocked", lambda lease_id: Nothing(answer=False))
    with nobody, patch.object(recover, "Lock", lambda lease_id: Nothing(answer=True)):
        yield


# -- the switch on the VM ------------------------------------------------------------------------------------------------------


@mutant("the switch is installed after the create (SkyPilot#5946)", "only_switch")
def arm_after_create() -> Iterator[None]:
    with patch.object(acquire, "restamped", lambda script, labels: ""):
        yield


@mutant("the switch counts through a pause of its VM", "vm_pauses")
def countoutage() -> Iterator[None]:
    def watched(self: Any, now: float) -> None:
        self.left_s -= 0.0 if self.seen_at is None else now - self.seen_at
        self.seen_at = now

    with patch.object(watchdog.Countdown, "watch", watched):
        yield


@mutant("a failed poll makes the switch begin to count anew", "switch_alone_flaky")
def stretch() -> Iterator[None]:
    real = watchdog.Watchdog.ask

    def ask(self: Any) -> Iterator[Any]:
        yield from real(self)
        if self.status == 0:
            self.silence.restart()

    with patch.object(watchdog.Watchdog, "ask", ask):
        yield


@mutant("gaps between polls count as outages too soon", "second_worker_flaky")
def gap90() -> Iterator[None]:
    real = watchdog.Countdown.__init__

    def init(self: Any, total_s: float, max_gap_s: float, grace_s: float) -> None:
        real(self, total_s, max_gap_s * 0.3, grace_s)

    with patch.object(watchdog.Countdown, "__init__", init):
        yield


@mutant("the switch is content with an accepted delete", "switch_alone_failing")
def oneshot_switch() -> Iterator[None]:
    real = watchdog.Watchdog.delete

    def delete(self: Any, reason: str) -> Iterator[Any]:
        if not getattr(self, "accepted", False):
            yield from real(self, reason)
            self.accepted = self.said is not None and self.said.endswith("(200)")

    with patch.object(watchdog.Watchdog, "delete", delete):
        yield


@mutant("the switch believes what it was born with, and reads no labels", "long_runs")
def stale_config() -> Iterator[None]:
    real = watchdog.Watchdog.take

    def take(self: Any, labels: dict[str, Any]) -> None:
        real(
            self,
            {**labels, "tpujob-claimed-until": str(self.config["claimed_until"]), "tpujob-mode": self.config["mode"]},
        )

    with patch.object(watchdog.Watchdog, "take", take):
        yield


@mutant("an old sign of life counts for ever", "only_switch")
def beats_from_before() -> Iterator[None]:
    real = watchdog.Watchdog.look

    def look(self: Any) -> Iterator[Any]:
        yield from real(self)
        if self.beat is not None:
            self.silence.restart()

    with patch.object(watchdog.Watchdog, "look", look):
        yield


# -- gc ------------------------------------------------------------------------------------------------------------------------


@mutant("gc goes by age, not by the claim (janitors)", "gc_beside_runs")
def gc_by_age() -> Iterator[None]:
    def read(view: Any, timings: Any) -> claim_labels.LabelClaim:
        until = (view.created_at or 0.0) + 30.0
        return claim_labels.LabelClaim(until, until)

    with patch.object(claim_labels, "read", read):
        yield


@mutant("gc tries every question once (boskos)", "gc_alone_flaky")
def oneshot() -> Iterator[None]:
    async def wait(self: Any, pause_s: float) -> bool:
        return False

    with patch.object(gc._Collection, "wait", wait):
        yield


@mutant("gc takes our label for enough (ml-auto-solutions)", "gc_among_neighbours")
def gc_by_label() -> Iterator[None]:
    with patch.object(names, "is_ours", lambda node, labels: labels.get("tpujob") == "1"):
        yield


@mutant("gc takes our prefix for enough", "gc_among_neighbours")
def gc_by_prefix() -> Iterator[None]:
    with patch.object(names, "is_ours", lambda node, labels: node.startswith("tpujob-")):
        yield


@mutant("gc sends its delete and believes in it", "gc_alone_failing")
def gc_fire_and_forget() -> Iterator[None]:
    real = gc._Collection._see_off

    async def see_off(self: Any, name: Any) -> None:
        await real(self, name)
        if name in self.collected.ended and name in self._deleted_at:
            self.collected.ended[name] = replace(self.collected.ended[name], gone=True)

    with patch.object(gc._Collection, "_see_off", see_off):
        yield


# -- not enough capacity -------------------------------------------------------------------------------------------------------


@mutant("the deletes of those that lost a race are sent once and believed", "loser_whose_delete_fails")
def losers_believed() -> Iterator[None]:
    real = race._Race.won_by

    async def won_by(self: Any, seen: Any, took_s: float) -> Any:
        winner = await real(self, seen, took_s)
        self.owed.losers = []
        return winner

    with patch.object(race._Race, "won_by", won_by):
        yield


@mutant(
    "those that lost a race are forgotten when the winner is kept or left to its job", "loser_when_the_winner_stays"
)
def losers_forgotten() -> Iterator[None]:
    real = run.release_owed

    async def let_go(held: Any, capabilities: Any, reason: str) -> None:
        if held.lease is None:
            held.losers = []
        await real(held, capabilities, reason)

    with patch.object(run, "release_owed", let_go):
        yield


@mutant("nobody says to the losers of a race that it is over", "loser_whose_delete_fails")
def losers_wait_on() -> Iterator[None]:
    async def unsent(leases: Any, *, reason: str) -> None:
        return None

    with patch.object(race, "send_deletes", unsent), patch.object(race.Losers, "tick", _no_op):
        yield


@mutant("the next attempt is asked for before the lost slice is proven gone (SkyPilot#1500, L18)", "taken_away")
def hasty_restart() -> Iterator[None]:
    real = run.release_owed

    async def let_go(held: Any, capabilities: Any, reason: str) -> None:
        if held.lease is not None and ("taken away" in reason or "is being taken" in reason):
            await release.send_deletes([held.lease], reason=reason)
            held.lease = None
        await real(held, capabilities, reason)

    with patch.object(run, "release_owed", let_go):
        yield


@mutant("a new attempt goes by the name of the one before (L37)", "taken_away")
def old_name() -> Iterator[None]:
    real, drafts = run.attempt, []

    async def attempted(job: Any, capabilities: Any, outcome: Any) -> None:
        drafts.append(outcome.drafts)
        await real(job, capabilities, outcome)

    with patch.object(run, "attempt", attempted), patch.object(run, "Make", lambda _: Nothing(answer=drafts[-1])):
        yield


@mutant("a queued resource is deleted without force (spotax, L16)", "waiting_in_a_queue")
def no_force() -> Iterator[None]:
    real = ApiCalls._delete

    def delete(self: Any, call: str, request: Any) -> Any:
        return real(self, call, {**request, "force": False} if "force" in request else request)

    with patch.object(ApiCalls, "_delete", delete):
        yield


@mutant("a queued slice is absent when its node is (SkyPilot, L14)", "waiting_in_a_queue")
def node_alone() -> Iterator[None]:
    real = ApiCalls.list

    def listed(self: Any, project: str, zone: str, queued: bool = False) -> Any:
        return real(self, project, zone)

    with patch.object(ApiCalls, "_queue", lambda self, name: None), patch.object(ApiCalls, "list", listed):
        yield


@mutant("a queued request waits for as long as it likes (L15)", "waiting_in_a_queue")
def no_valid_until() -> Iterator[None]:
    with patch.object(queued_request, "_seconds", lambda seconds: f"{int(seconds) + 3600}s"):
        yield


@mutant("recovery sees one slice off after the other (ours)", "killed_in_a_race")
def one_by_one() -> Iterator[None]:
    real = release.release_all

    async def release_all(owed: Any, capabilities: Any, *, budget_s: float) -> Any:
        return [released for each in owed for released in await real([each], capabilities, budget_s=budget_s)]

    with patch.object(recover, "release_all", release_all):
        yield


@mutant("a candidate that was never asked for has to be proven gone (ours)", "forbidden_to_look")
def proves_nothing() -> Iterator[None]:
    async def written(lease: Any) -> bool:
        return True

    with patch.object(race, "is_written", written):
        yield


@mutant("a queued request whose create failed is not there (ours)", "queue_closed")
def failed_is_gone() -> Iterator[None]:
    settled = absence.settled

    def believed(lease: Any, creates: Any, *args: Any, **named: Any) -> Any:
        failed = isinstance(creates, tuple) and creates and all(operation.error is not None for operation in creates)
        return None if failed else settled(lease, creates, *args, **named)

    with patch.object(absence, "settled", believed):
        yield


@mutant("labels claim on and on for a waiting that is over (ours)", "early_out_of_its_queue")
def waits_on_in_labels() -> Iterator[None]:
    real = renewal._said

    async def said(*args: Any, anew: bool = False) -> Any:
        return await real(*args)

    with patch.object(renewal, "_said", said):
        yield


@mutant("what `up` brings claims to its deadline before it is held (ours)", "dies_before_it_is_held")
def held_at_once() -> Iterator[None]:
    real = claim_labels.claimed_until

    def claimed_until(lease: Any, now: float, timings: Any) -> Any:
        unheld = lease.ready_at is not None and lease.purpose is Purpose.HOLD and lease.hold_until is None
        return lease.deadline if unheld else real(lease, now, timings)

    with patch.object(claim_labels, "claimed_until", claimed_until):
        yield


@mutant("the switch counts no silence of what `up` brings before it is held (ours)", "up_dies_with_everything")
def held_from_the_start() -> Iterator[None]:
    def mode(lease: Any) -> Mode:
        if lease.detached_at is not None:
            return Mode.DETACHED
        return Mode.HOLD if lease.purpose is Purpose.HOLD else Mode.RUN

    with patch.object(Lease, "mode", property(mode)):
        yield


@mutant("an extension is lost with the slice it was typed for (ours)", "extended_and_taken_away")
def extension_lost() -> Iterator[None]:
    real = run._count

    async def count(job: Any, outcome: Any, lost: Any, lost_at: float) -> None:
        lease = outcome.lease
        extended_s = 0.0 if lease is None else (await ReadLease(lease.id)).deadline - lease.deadline
        await real(job, outcome, lost, lost_at)
        outcome.used_s += extended_s

    with patch.object(run, "_count", count):
        yield

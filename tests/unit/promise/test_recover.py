"""Recovery and obligations: which leases are overdue, what the cloud says of a job that ended alone, and what is owed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.errors import (
    AuthError,
    CapacityError,
    CloudError,
    CloudUnavailable,
    DeadlineExceeded,
    SliceLost,
    UnknownLease,
)
from orchestrator.promise import recover as recovery
from orchestrator.promise.effects.base import (
    Effect,
    IsLocked,
    Lock,
    Now,
    OpenAttempts,
    OpenLeases,
    ReadAttempt,
    ReadLease,
    Record,
    Report,
    Unlock,
)
from orchestrator.promise.effects.cloud import Get, ListSlices
from orchestrator.promise.lease.absence import unchecked
from orchestrator.promise.lease.changes import Extended, Ready, ReleaseBegan, apply
from orchestrator.promise.lease.cloud_api import Listing, SliceState, SliceView
from orchestrator.promise.lease.lease import Lease, LeaseState, Purpose
from orchestrator.promise.lease.run_and_attempt import Attempt
from orchestrator.promise.obligations import Obligations, keep_slice, release_owed
from orchestrator.promise.recover import Overdue, close_attempts, overdue, recover
from orchestrator.promise.release import send_deletes
from orchestrator.text import names
from tests.fakes.leases import lease_and_request, lease_on
from tests.simulation.model.bench import CAN, Bench, Crash, created, driven, held
from tests.simulation.model.cloud_client import CloudClient

NOW = 1_800_000_000.0
NAME, NAME_ID = lease_and_request().lease.name, lease_and_request().lease.id
READY, WAITING = LeaseState.READY, {"state": LeaseState.CREATING, "detached_at": NOW - 50, "sent_at": NOW - 60}
ADMITTED_BY = {**WAITING, "ready_by": NOW - 1}
HELD = {"purpose": Purpose.HOLD, "hold_until": NOW + 900, "state": READY}
DETACHED = {"state": READY, "detached_at": NOW - 50}
LOST = SliceLost("its node was preempted")


def lease(**fields: Any) -> Lease:
    return lease_on(NAME, NOW - 60, **fields)


def view(state: SliceState, **fields: Any) -> SliceView:
    return SliceView(NAME, state, state.name, "v5litepod-8", "r", {}, **fields)


@dataclass
class Machine:
    """One machine with leases, and a cloud that says the same of each slice."""

    leases: list[Lease]
    says: SliceView | CloudError | None = None
    attempts: list[Attempt] = field(default_factory=list)
    locked: set[str] = field(default_factory=set)
    asked: int = 0
    recorded: list[Any] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)  # locks that another process gets first
    server_ahead_s: float = 0.0

    def overdue(self, **how: Any) -> list[Overdue]:
        return driven(overdue("emulated", **how), self._answer)

    def _answer(self, effect: Effect[Any]) -> Any:
        match effect:
            case Now(cloud=cloud):
                return NOW + (1.0 if cloud == "google" else 0.0)
            case OpenLeases():
                return self.leases
            case OpenAttempts():
                return self.attempts
            case IsLocked(lease_id=name):
                return name in self.locked
            case Lock(lease_id=name):
                self.log.append(f"lock {name}")
                return name not in self.taken
            case Unlock(lease_id=name):
                return self.log.append(f"unlock {name}")
            case ReadLease(lease_id=name):
                for each in self.leases:
                    if each.id == name:
                        return each
                raise UnknownLease("no lease")
            case ReadAttempt(attempt_id=name):
                return next(each for each in self.attempts if each.id == name)
            case Report():
                return None
            case Record(events=(Extended() as event,)):
                self.leases = [apply(each, event) if each.id == event.lease_id else each for each in self.leases]
                return None
            case Record():
                return self.recorded.extend(effect.events)
            case ListSlices():
                if isinstance(self.says, CloudError):
                    raise self.says
                rows = (self.says,) if isinstance(self.says, SliceView) else ()
                return Listing(rows, server_now=NOW + self.server_ahead_s)
            case Get():
                self.asked += 1
                if isinstance(self.says, CloudError):
                    raise self.says
                return self.says
        raise AssertionError(effect)


@pytest.mark.parametrize(("fields", "says", "why"), [
    (HELD, None, "was deleted"), (DETACHED, None, "was deleted"), (WAITING, None, "was deleted"),
    (DETACHED, CloudUnavailable("no answer"), ""),
    (DETACHED, view(SliceState.TOMBSTONE, error=LOST), LOST),
    (DETACHED, view(SliceState.TOMBSTONE), "was taken away while its job ran (TOMBSTONE)"),
    (HELD, view(SliceState.TOMBSTONE, error=LOST), ""), (HELD, view(SliceState.READY), ""),
    (DETACHED, view(SliceState.READY), ""), (DETACHED, view(SliceState.STOPPED), ""),
    (WAITING, view(SliceState.QUEUED), ""), (ADMITTED_BY, view(SliceState.CREATING), CapacityError("not all of its pods")),
    (ADMITTED_BY, view(SliceState.QUEUED), CapacityError("was not admitted")),
    (ADMITTED_BY, view(SliceState.QUEUED, ran=True), ""),
])  # fmt: skip
def test_what_the_cloud_says_of_a_slice_without_a_process(
    fields: dict[str, Any], says: SliceView | CloudError | None, why: str | CloudError
) -> None:
    machine = Machine([lease(**fields)], says)
    found = machine.overdue(look=True)
    words = why if isinstance(why, str) else why.message
    assert [words in each.why for each in found] == [True] * bool(words) and machine.asked == 1
    assert not found or type(found[0].error) is (type(why) if isinstance(why, CloudError) else type(None))
    assert machine.recorded == []


@pytest.mark.parametrize(("running_s", "since"), [(None, NOW), (30.0, NOW - 30), (500.0, NOW - 60)])
def test_a_job_that_was_admitted_meanwhile_is_recorded_with_the_time_since_which_its_pods_run(
    running_s: float | None, since: float
) -> None:
    for fields in (ADMITTED_BY, {**ADMITTED_BY, "created_at": NOW - 900}):
        machine = Machine([lease(**fields)], view(SliceState.READY, running_s=running_s))
        assert machine.overdue() == [] and machine.recorded == [Ready(machine.leases[0].id, since)]


def test_the_cloud_is_only_asked_on_request_or_when_a_job_was_to_be_admitted_by_now() -> None:
    for fields, asked in ((HELD, 0), (DETACHED, 0), (WAITING, 0), (ADMITTED_BY, 1)):
        machine = Machine([lease(**fields)], view(SliceState.STOPPED))
        assert machine.overdue() == [] and machine.asked == asked
    claimed = Machine([lease(state=LeaseState.CREATING)], locked={lease().id})
    assert claimed.overdue(look=True) == [] and claimed.asked == 0


@pytest.mark.parametrize(("of", "locked", "left"), [("", True, True), ("", False, False), ("another", True, False)])
def test_a_detached_job_that_another_command_follows_is_left_to_that_one(of: str, locked: bool, left: bool) -> None:
    attempts = [Attempt("a-1", "a", lease_id=of or lease().id), Attempt("b-1", "b", lease_id="other")]
    machine = Machine([lease(**DETACHED)], None, attempts, {"a-1"} if locked else set())
    assert bool(machine.overdue(look=True)) is not left


def test_the_slice_that_up_takes_over_is_spared_until_its_deadline_or_its_release() -> None:
    for fields, spared in (({}, True), ({"deadline": NOW}, False), ({"state": LeaseState.DOWN, "down_at": NOW}, False)):
        found = Machine([lease(**{"state": READY, "handle": "mine", **fields})]).overdue(spare="mine")
        assert (found == []) is spared
    assert Machine([lease(state=READY, handle="other")]).overdue(spare="mine")


@pytest.mark.parametrize("ahead_s", [0.0, 7200.0])
@pytest.mark.parametrize(("later_s", "over"), [(-10, True), (0, True), (25, True), (3600, False)])
@pytest.mark.parametrize(("fields", "alive"), [
    ({"state": READY, "deadline": NOW}, True), ({**HELD, "hold_until": NOW}, False), ({**DETACHED, "deadline": NOW}, False),
])  # fmt: skip
def test_an_end_that_another_machine_has_moved_counts(
    fields: dict[str, Any], alive: bool, later_s: float, over: bool, ahead_s: float
) -> None:
    """The labels say it, by the server's clock; a difference of seconds is one of clocks."""
    until = str(int(NOW + later_s + ahead_s))
    own = {names.LEASE_ID: NAME_ID, names.DEADLINE: until, names.CLAIMED_UNTIL: until}
    says = replace(view(SliceState.READY), labels=own)
    machine = Machine([lease(**fields)], says, locked={lease().id} if alive else set())
    machine.server_ahead_s = ahead_s
    assert bool(machine.overdue()) is over
    assert machine.leases[0].ends_at == (NOW + later_s if not over else NOW)


def test_an_end_that_is_over_counts_where_there_is_nothing_to_read() -> None:
    for says in (None, view(SliceState.TOMBSTONE)):
        (found,) = Machine([lease(state=READY, deadline=NOW)], says).overdue()
        assert found.unread is None


def test_nothing_is_released_because_of_the_time_while_the_labels_cannot_be_read(released: list[str]) -> None:
    """Another machine may have moved the end; without an answer nothing could be deleted anyway."""
    machine = Machine([lease(state=READY, deadline=NOW)], CloudUnavailable("503"))
    (found,) = machine.overdue()
    assert found.unread is not None
    (result,) = driven(recover("emulated", CAN, budget_s=60), machine._answer)
    assert not result.gone and released == [] and machine.leases[0].state is READY


def test_an_end_is_moved_by_labels_within_seven_days_and_the_budget_only() -> None:
    until = str(int(NOW + 30 * 86400))
    own = {names.LEASE_ID: NAME_ID, names.DEADLINE: until, names.CLAIMED_UNTIL: until}
    says = replace(view(SliceState.READY), labels=own)
    for more, latest in (({}, 7 * 86400.0), ({"usd_per_hour": 2.0, "budget_usd": 4.0}, 7200.0)):
        machine = Machine([lease(state=READY, deadline=NOW, **more)], says, locked={lease().id})
        assert machine.overdue() == []
        assert machine.leases[0].deadline == machine.leases[0].created_at + latest


def test_what_another_machine_made_is_not_released_because_of_the_time() -> None:
    made = {"purpose": Purpose.ELSEWHERE, "deadline": NOW - 5, "state": READY}
    assert Machine([lease(**made)], view(SliceState.READY)).overdue(look=True) == []
    assert Machine([lease(**made)], None).overdue(look=True)
    assert Machine([lease(**{**made, "state": LeaseState.DOWN, "down_at": NOW})]).overdue()


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The reasons of the releases that a recovery begins."""
    reasons: list[str] = []

    async def release_all(owed: list[tuple[Lease, str]], *_: Any, **__: Any) -> list[Any]:
        reasons.extend(reason for _, reason in owed)
        return []

    monkeypatch.setattr(recovery, "release_all", release_all)
    return reasons


def test_how_a_detached_job_ended_is_recorded_by_who_releases_its_slice(released: list[str]) -> None:
    mine = [Attempt(f"a-{n}", "a", lease_id=lease().id) for n in (1, 2)]
    machine = Machine([lease(**DETACHED)], view(SliceState.TOMBSTONE, error=LOST), [*mine, Attempt("b-1", "b")])
    machine.taken = {"a-2"}
    driven(recover("emulated", CAN, budget_s=60, look=True), machine._answer)
    assert released == [LOST.message]
    (event,) = machine.recorded
    assert (event.attempt_id, event.at, event.error, event.detail) == ("a-1", NOW, "SliceLost", LOST.message)
    locks = ["lock ID", "lock a-1", "unlock a-1", "lock a-2", "unlock ID"]
    assert machine.log == [each.replace("ID", NAME_ID) for each in locks]
    held_back = Machine([lease(**DETACHED)], None)
    driven(recover("emulated", CAN, budget_s=60), held_back._answer)
    assert held_back.asked == 0 and held_back.log == []


def test_a_lease_that_another_process_changed_or_works_on_is_left_to_it(
    released: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def changed(before: Lease) -> Lease:
        return replace(before, hold_until=NOW + 60)

    over = {"state": READY, "hold_until": NOW - 1}
    for taken, locks in (({NAME_ID}, ["lock ID"]), (set(), ["lock ID", "unlock ID"])):
        machine = Machine([lease(**over)], taken=taken)
        monkeypatch.setattr(recovery, "latest_lease", changed)
        driven(recover("emulated", CAN, budget_s=60), machine._answer)
        assert released == [] and machine.log == [each.replace("ID", NAME_ID) for each in locks]


@pytest.mark.parametrize(("lease_id", "fields", "at", "words"), [
    (None, {}, NOW, "the process that ran it was killed"), ("unknown", {}, NOW, "the process that ran it was killed"),
    (NAME_ID, {"cloud": "google"}, NOW + 1, "the process that ran it was killed"),
    (NAME_ID, {"state": LeaseState.DOWN}, NOW, "the process that ran it was killed"),
    (NAME_ID, {"state": LeaseState.DOWN, "detached_at": NOW - 50}, NOW, "its slice is gone, and its results were not"),
])  # fmt: skip
def test_an_attempt_whose_process_is_gone_is_closed_in_the_time_of_its_cloud(
    lease_id: str | None, fields: dict[str, Any], at: float, words: str
) -> None:
    machine = Machine([lease(**fields)], attempts=[Attempt("a-1", "a", lease_id=lease_id)])
    driven(close_attempts(), machine._answer)
    (event,) = machine.recorded
    assert (event.at, event.state.value) == (at, "interrupted") and words in event.detail
    assert machine.log == ["lock a-1", "unlock a-1"]


def test_a_recovery_keeps_no_lock_and_one_that_may_not_ask_leaves_it_at_once_to_one_that_may(
    world: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Crash):
        world.ran(killed_at=344)
    world.effects.clear()
    world.drive(close_attempts())
    expired, began = AuthError("Unauthorized"), world.time
    with monkeypatch.context() as denied:
        denied.setattr(CloudClient, "get", Mock(side_effect=expired))
        (left,) = world.drive(recover("emulated", CAN, budget_s=3600))
    assert (left.gone, left.refused, world.locked) == (False, True, set()) and world.time - began < 60
    assert (unchecked(left.lease, expired).refused, unchecked(left.lease, CloudUnavailable("x")).refused) == (
        True,
        False,
    )
    assert [each.gone for each in world.drive(recover("emulated", CAN, budget_s=600))] == [True]
    assert "Unlock" in world.names and world.locked == set() and world.nodes == {}


# -- what a program owes -------------------------------------------------------------------------------------------------


def slices(world: Bench, count: int) -> list[Lease]:
    return [created(world, lease_and_request(n, now=world.time), ready=True) for n in range(count)]


def test_the_slice_and_the_losers_are_released_and_only_losers_are_named(world: Bench) -> None:
    winner, loser = slices(world, 2)
    owed, began = Obligations(winner, [loser]), world.time
    world.drive(release_owed(owed, CAN, "test"))
    assert (owed.lease, owed.losers, owed.unproven, world.nodes) == (None, [], False, {})
    assert [line.split()[1] for line in world.told if line.startswith("race")] == [loser.name.node]
    assert owed.release_s == pytest.approx(world.time - began, abs=0.5) and owed.release_s > 1


def test_what_is_not_proven_gone_stays_owed_and_is_the_result(world: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    winner, loser = slices(world, 2)
    get = CloudClient.get

    def without_loser(client: CloudClient, name: Any) -> SliceView | None:
        if name == loser.name:
            raise CloudUnavailable("no answer")
        return get(client, name)

    monkeypatch.setattr(CloudClient, "get", without_loser)
    owed = Obligations(winner, [loser])
    world.drive(release_owed(owed, CAN, "test"))
    assert owed.unproven and owed.released is not None and owed.released.lease.id == loser.id
    assert (owed.lease, owed.losers) == (winner, [loser]) and not [
        line for line in world.told if line.startswith("race")
    ]
    assert 600 <= owed.release_s < 700, "then it is for the next command"


def test_a_lease_whose_intent_was_never_recorded_is_not_released(world: Bench) -> None:
    owed = Obligations(lease_and_request(now=world.time).lease)
    world.drive(release_owed(owed, CAN, "test"))
    assert (world.calls, owed.lease, owed.released) == ([], None, None)


def test_a_slice_that_reached_its_end_cannot_be_kept(world: Bench) -> None:
    owed = Obligations(held(world, for_s=60.0))
    with pytest.raises(DeadlineExceeded):
        world.drive(keep_slice(owed, world.time - 1.0, CAN))
    assert owed.lease is not None and owed.kept_until is None


# -- deletes that leave at once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answers", "at"), [
    ([[None, None]], [0.0]), ([[CloudUnavailable("x"), None], [None]], [0.0, 2.0]),
    ([[CloudError("refused"), CloudUnavailable("x")], [CloudUnavailable("x")], [None]], [0.0, 2.0, 5.0]),
])  # fmt: skip
def test_deletes_are_recorded_then_sent_and_only_those_without_a_reply_are_sent_again(
    answers: list[list[CloudError | None]], at: list[float]
) -> None:
    leases = [
        replace(lease(operation="o" if n else None), id=f"{n:010}", name=replace(NAME, node=f"n{n}")) for n in range(3)
    ]
    time, log, sent = [0.0], list[Any](), list[tuple[float, int]]()

    def answer(effect: Any) -> Any:
        match type(effect).__name__:
            case "Now":
                return NOW
            case "Sleep":
                time[0] += effect.seconds
            case "DeleteAll":
                sent.append((time[0], len(effect.names)))
                return tuple(answers[len(sent) - 1])
            case name:
                log.extend(effect.events if name == "Record" else [name])
        return None

    driven(send_deletes(leases, reason="down", again_s=(2.0, 3.0)), answer)
    assert log == ["MaskSignals", *(ReleaseBegan(each.id, NOW, "down") for each in leases)]
    assert sent == [(when, len(each)) for when, each in zip(at, answers, strict=True)]

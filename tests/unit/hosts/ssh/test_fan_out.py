"""Many workers at once: the order of tries, every result, the right error, heartbeats, and an end at any moment."""

from __future__ import annotations

import itertools
import math
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import CommandFailed, ConfigError, HostKeyMismatch, RemoteError, TunnelRefused, Unreachable
from orchestrator.hosts.fleet import follow
from orchestrator.hosts.fleet.connecting import Connecting
from orchestrator.hosts.fleet.crew import FleetStatus
from orchestrator.hosts.fleet.fleet import Fleet
from orchestrator.hosts.fleet.follow import Follower, Heartbeats, WorkerState
from orchestrator.hosts.ssh.connection import Connection, Credentials
from orchestrator.hosts.ssh.dial import Direct
from orchestrator.hosts.ssh.fan_out import (
    LIMIT,
    FanOutAbandoned,
    Patience,
    Rules,
    Wakeup,
    Waves,
    combined_error,
    fan_out,
    outcomes,
)
from orchestrator.hosts.ssh.known_hosts import KnownHosts
from orchestrator.hosts.ssh.proxy_command import Piped
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.system import open_files
from tests.waiting import HANG_S


def test_results_come_in_the_order_of_the_items() -> None:
    assert fan_out(range(100), lambda item: item * 2, Wakeup(), Rules(limit=7)) == [item * 2 for item in range(100)]


def test_one_failure_is_raised_itself_and_several_with_all_their_messages() -> None:
    def fail(item: int) -> None:
        raise (
            Unreachable(f"worker{item} is silent", hint="look")
            if item % 2
            else CommandFailed(["x"], 1, "", worker=item)
        )

    with pytest.raises(CommandFailed, match="worker0"):
        fan_out([0], fail, Wakeup())
    with pytest.raises(Unreachable) as raised:
        fan_out([1, 3], fail, Wakeup())
    assert raised.value.message == "worker1 is silent (2 alike: worker1 and worker3)" and raised.value.hint == "look"
    with pytest.raises(RemoteError, match=r"^worker0: x ended with code 1: \(no output\); worker1 is silent$"):
        fan_out([0, 1], fail, Wakeup())


def test_a_bug_is_not_hidden_among_failures() -> None:
    def fail(item: int) -> None:
        raise ZeroDivisionError if item == 1 else Unreachable("silent")

    with pytest.raises(ZeroDivisionError):
        fan_out([0, 1, 2], fail, Wakeup())


def test_a_wrong_host_key_is_raised_before_the_others_have_answered() -> None:
    never, answered = threading.Event(), []

    def work(item: int) -> None:
        if item == 0:
            never.wait(HANG_S)
            answered.append(item)
        raise HostKeyMismatch("worker1 is another machine")

    with pytest.raises(HostKeyMismatch):
        fan_out([0, 1], work, Wakeup())
    assert answered == []
    never.set()


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_ends_the_thread_of_an_item_ends_the_wait_and_is_raised(end: type[BaseException]) -> None:
    def work(item: int) -> None:
        if item == 1:
            raise end("of one")

    with pytest.raises(end, match="of one"):
        ended(lambda: fan_out([0, 1, 2], work, Wakeup()))


def test_a_bug_in_what_the_order_asks_ends_the_wait_and_is_raised() -> None:
    def until(_item: int) -> float:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ended(lambda: fan_out([0], _silent, Wakeup(), Rules(until=until)))


def test_canceling_ends_the_wait_at_once_though_the_work_hangs() -> None:
    wakeup, never = Wakeup(), threading.Event()

    def work(_: int) -> None:
        wakeup.cancel()
        never.wait(HANG_S)

    with pytest.raises(FanOutAbandoned):
        fan_out([0], work, wakeup)
    never.set()


def test_workers_that_are_all_refused_are_a_refusal_and_not_a_broken_worker() -> None:
    refused = [TunnelRefused("worker0: no role", hint="ask for it"), TunnelRefused("worker1: no role")]
    error = combined_error(refused)
    assert isinstance(error, TunnelRefused) and error.hint == "ask for it"
    assert type(combined_error([*refused, Unreachable("worker2: cut")])) is RemoteError


def test_retries_end_at_their_time_with_the_last_failure() -> None:
    with pytest.raises(Unreachable, match="worker0 is silent"):
        fan_out([0], _silent, Wakeup(), Rules(until=lambda _: time.monotonic() + 0.15))


def test_a_slow_item_is_told_with_why_its_last_try_failed() -> None:
    told: list[tuple[list[int], str]] = []
    tries: list[int] = []
    tried_again, named = threading.Event(), threading.Event()

    def on_slow(slow: Sequence[int], why: Unreachable | None) -> None:
        told.append((list(slow), why.message if why else ""))
        named.set()

    def work(item: int) -> int:
        if item == 7 and not named.is_set():
            if tries:
                tried_again.set()
            tries.append(item)
            raise Unreachable("worker7 is silent")
        assert item == 7 or tried_again.wait(HANG_S)  # then the failure is known
        return item

    quick = Patience(slow_s=(0.05,), quiet_s=0.0)
    rules: Rules[int] = Rules(until=lambda _: math.inf, on_slow=on_slow, patience=quick)
    assert fan_out([3, 7], work, Wakeup(), rules) == [3, 7]
    assert told == [([7], "worker7 is silent")]


def test_outcomes_have_the_errors_in_the_place_of_the_results() -> None:
    def work(item: int) -> int:
        return item if item else _silent(item)

    first, second = outcomes([0, 1], work, Wakeup())
    assert isinstance(first, Unreachable)
    assert second == 1


def ended(call: Callable[[], object]) -> None:
    """Make the call in a thread of its own, so that one without an end fails the test; raise what it raises."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
            raised.append(None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANG_S)
    assert raised, "it never ended"
    if raised[0] is not None:
        raise raised[0]


def _silent(item: int) -> int:
    raise Unreachable(f"worker{item} is silent")


SILENT = Unreachable("silent")


def never(_: int) -> float:
    return -math.inf


def waves(
    count: int, *, limit: int = 32, moved: Callable[[int], float] = never, retried: bool = True
) -> Waves[int, int]:
    until = (lambda _: math.inf) if retried else never
    return Waves(range(count), Rules(until, moved, limit=limit, patience=Patience()))


def begun(wave: Waves[int, int], now: float) -> list[int]:
    """Return the positions that begin now."""
    found = []
    while (position := wave.next(now)) is not None:
        found.append(position)
    return found


def test_fresh_items_come_before_those_that_are_tried_again() -> None:
    wave = waves(3, limit=1)
    assert wave.next(0.0) == 0
    wave.ended(0, SILENT, 0.0)
    assert wave.next(60.0) == 1
    wave.ended(1, 1, 60.0)
    assert wave.next(60.0) == 2
    wave.ended(2, 2, 60.0)
    assert wave.next(60.0) == 0


def test_an_item_is_tried_again_after_a_pause_that_grows_up_to_two_seconds() -> None:
    wave, now, pauses = waves(1), 0.0, []
    for _ in range(7):
        assert wave.next(now) == 0
        wave.ended(0, SILENT, now)
        pause_s = wave.pause_s(now)
        assert pause_s is not None
        assert wave.next(now + pause_s / 2) is None
        pauses.append(round(pause_s, 6))
        now += pause_s
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_without_retries_the_first_failure_is_the_outcome() -> None:
    wave = waves(1, retried=False)
    wave.next(0.0)
    wave.ended(0, SILENT, 0.0)
    assert wave.over
    assert wave.outcomes == {0: SILENT}


def test_a_wrong_host_key_ends_the_waves_at_once() -> None:
    wave, error = waves(3, limit=2), HostKeyMismatch("another one")
    begun(wave, 0.0)
    wave.ended(1, error, 0.0)
    assert wave.over
    assert wave.worst is error
    assert wave.next(0.0) is None


def test_no_more_than_the_limit_begin_until_one_has_ended() -> None:
    wave = waves(5, limit=2)
    assert begun(wave, 0.0) == [0, 1]
    wave.ended(0, 0, 1.0)
    assert begun(wave, 1.0) == [2]


def test_a_try_without_progress_gives_its_slot_to_another_after_three_seconds() -> None:
    wave = waves(64)
    assert begun(wave, 0.0) == list(range(32))
    assert begun(wave, 2.9) == []
    assert wave.pause_s(2.0) == 1.0
    assert begun(wave, 3.0) == list(range(32, 64))


def test_a_slot_that_becomes_free_is_news_where_an_item_waits_to_be_tried_again() -> None:
    wave = waves(3, limit=1)
    begun(wave, 0.0)
    wave.ended(0, 0, 0.0)
    begun(wave, 0.0)
    wave.ended(1, SILENT, 0.0)
    begun(wave, 0.0)
    assert wave.pause_s(0.0) == 3.0
    seen = wave.news
    wave.ended(2, 2, 0.05)
    assert wave.next(0.05) is None and wave.is_news(seen)
    assert round(wave.pause_s(0.05) or 0.0, 6) == 0.05


def test_a_try_with_progress_keeps_its_slot() -> None:
    at = {0: 0.0}
    wave = waves(2, limit=1, moved=lambda item: at.get(item, 0.0))
    assert begun(wave, 0.0) == [0]
    at[0] = 9.0
    assert begun(wave, 11.9) == []
    assert begun(wave, 12.0) == [1]


def test_slow_items_are_named_together_ten_seconds_after_the_others_and_again_at_thirty_and_sixty() -> None:
    wave = waves(4)
    begun(wave, 0.0)
    wave.ended(0, 0, 1.0)
    wave.ended(3, 3, 2.0)
    assert wave.slow(11.9) == []
    assert wave.pause_s(11.0) == 1.0
    assert [at for at in range(2, 200) if wave.slow(at) == [1, 2]] == [12, 32, 62]


def test_items_are_not_slow_while_none_is_done() -> None:
    wave = waves(2)
    begun(wave, 0.0)
    assert wave.slow(1000.0) == []
    assert wave.pause_s(1000.0) is None
    wave.ended(0, 0, 1000.0)
    assert wave.slow(1009.0) == []
    assert wave.slow(2010.0) == [1]


def test_an_item_that_fails_again_and_again_is_named_though_none_is_done_where_that_is_asked_for() -> None:
    wave: Waves[int, Any] = Waves(range(2), Rules(lambda _: math.inf, names_failed=True))
    begun(wave, 0.0)
    assert wave.slow(1000.0) == []
    wave.ended(1, SILENT, 1000.0)
    assert wave.slow(1000.0) == [1] and wave.failure(1) is SILENT


def test_an_item_with_progress_is_not_slow_but_large() -> None:
    at = {1: 58.0}
    wave = waves(2, moved=lambda item: at.get(item, 0.0))
    begun(wave, 0.0)
    wave.ended(0, 0, 0.0)
    assert wave.slow(60.0) == []
    assert wave.slow(63.0) == [1]


def test_an_item_of_a_later_wave_is_named_by_its_own_time() -> None:
    wave = waves(3, limit=2)
    begun(wave, 0.0)
    wave.ended(0, 0, 8.0)
    begun(wave, 8.0)
    assert wave.slow(18.0) == [1]
    assert wave.slow(25.9) == []
    assert wave.slow(26.0) == [1, 2]


def test_the_failure_of_a_slow_item_is_known_while_it_is_tried_again() -> None:
    wave = waves(2)
    begun(wave, 0.0)
    wave.ended(0, 0, 0.0)
    wave.ended(1, SILENT, 5.0)
    assert wave.slow(10.0) == [1]
    assert wave.failure(1) is SILENT


@pytest.mark.parametrize(("kind", "limit", "why"), [
    (resource.RLIMIT_NOFILE, 300, "256 workers needs 842 open files here, and this process may open 300"),
    (resource.RLIMIT_AS, 4 << 30, "256 workers needs 4608 MiB of memory here, and this process may use 4096"),
], ids=["open files", "memory"])  # fmt: skip
def test_too_low_a_limit_is_said_before_a_connection_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int, limit: int, why: str
) -> None:
    monkeypatch.setattr(open_files, "in_use", lambda: 10)
    monkeypatch.setattr(
        open_files, "allow", lambda wanted, asked=resource.RLIMIT_NOFILE: limit if asked == kind else wanted
    )
    workers = [WorkerAddress(index, "192.0.2.1", 22) for index in range(256)]
    fleet = Fleet(
        workers,
        user="ada",
        key_path=tmp_path / "key",
        known_hosts=tmp_path / "known_hosts",
        on_notice=print,
        dialer=Piped("ssh -W %h:%p bastion", "ada"),
    )
    with pytest.raises(ConfigError, match=why):
        fleet.connect(0.0)


class HalfDead(Direct):
    """The first workers answer nothing before all others were tried; those answer what ends a try for good."""

    def __init__(self, dead: int, alive: int) -> None:
        super().__init__()
        self.dead, self.missing, self.tried = dead, alive, threading.Event()
        self.lock = threading.Lock()

    def dial(self, worker: WorkerAddress) -> socket.socket:
        if worker.index < self.dead:
            assert self.tried.wait(HANG_S), f"the dead hold up {self.missing} others"
            raise Unreachable("no answer in time")
        with self.lock:
            self.missing -= 1
        if not self.missing:
            self.tried.set()
        raise RemoteError("alive")


def test_dead_workers_as_many_as_are_tried_at_once_hold_up_no_other(tmp_path: Path) -> None:
    fleet = Fleet(
        [WorkerAddress(index, "192.0.2.1", 22) for index in range(2 * LIMIT)],
        user="ada",
        key_path=tmp_path / "key",
        known_hosts=tmp_path / "known_hosts",
        on_notice=print,
        dialer=HalfDead(dead=LIMIT, alive=LIMIT),
        patience=Patience(idle_s=0.01),
    )
    with pytest.raises(RemoteError, match="alive"):
        fleet.connect(0.0)


UNTIL = 1_700_000_000.0  # 22:13 UTC


def test_the_last_failure_is_said_after_ten_seconds_and_again_when_it_changes() -> None:
    now, said = [0.0], []
    connecting = Connecting("by address", UNTIL, lambda text: said.append((now[0], text)), 10.0, lambda: now[0])
    for second in range(40):
        now[0] = float(second)
        why = "Connection refused" if second < 15 else "it does not accept our key (yet)"
        connecting.failed(0, Unreachable(f"worker0 (192.0.2.1:22): {why}"))
    assert said == [
        (10.0, "worker0 by address: Connection refused, trying until 22:13Z"),
        (20.0, "worker0 by address: it does not accept our key (yet), trying until 22:13Z"),
    ]


def test_workers_that_are_waited_for_are_one_line() -> None:
    said: list[str] = []
    connecting = Connecting("by address", UNTIL, said.append, 0.0, lambda: 0.0)
    for worker in (2, 0, 1):
        connecting.failed(worker, Unreachable(f"worker{worker}: the way to it failed: no bastion"))
    assert said[-1] == "worker0 to worker2 by address: no bastion, trying until 22:13Z"


def connection(directory: Path, wakeup: Wakeup, say: Callable[[str], None]) -> Connection:
    hosts = KnownHosts(directory / "known_hosts", (), say)
    return Connection(WorkerAddress(0, "127.0.0.1"), Credentials("user", directory / "key", hosts), wakeup)


class Beating:
    """Heartbeats whose calls fail as the test says."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, *failures: Exception) -> None:
        self.left = iter(failures)
        self.said: list[str] = []
        wakeup = Wakeup()
        monkeypatch.setattr(wakeup, "sleep", lambda _seconds: None)
        monkeypatch.setattr(follow, "WorkerCall", self.fail)
        steady = itertools.count(0.0, 10.0)
        monkeypatch.setattr(follow.time, "monotonic", lambda: next(steady))
        self.beats = Heartbeats(connection(directory, wakeup, self.said.append), 15.0, wakeup, self.said.append)

    def fail(self, *_: Any, **__: Any) -> None:
        raise next(self.left)


@pytest.mark.parametrize("failure", [RemoteError("worker0: a damaged frame"), TunnelRefused("no role")])
def test_they_go_on_after_a_failure_of_any_kind_and_it_is_said_once_when_it_lasts(
    failure: RemoteError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beating = Beating(tmp_path, monkeypatch, *[failure] * 9, FanOutAbandoned())
    beating.beats._run()
    assert beating.said == [f"worker0 accepts no heartbeat, and may delete the slice: {failure.message}"]


def test_a_wrong_host_key_ends_them_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beating = Beating(tmp_path, monkeypatch, HostKeyMismatch("another key"))
    beating.beats._run()
    assert beating.said == []


def follower(directory: Path) -> Follower:
    wakeup = Wakeup()
    way = connection(directory, wakeup, lambda _text: None)
    return Follower(way, "a1", "setup", opened=None, deliver=lambda _worker, _piece: None, wakeup=wakeup, now=time.time)


def test_servers_that_a_setup_does_not_reach_are_few_short_and_printable(tmp_path: Path) -> None:
    found = follower(tmp_path)
    found._take({"state": "exited", "rc": 1, "unreachable": ["index\x1b[2J", "x" * 10_000, *map(str, range(10_000))]})
    assert found.status.state is WorkerState.EXITED
    first, second, *others = found.status.unreachable
    assert first.isprintable() and len(second) == 200 and len(others) == 6
    other = follower(tmp_path)
    other._take({"state": "exited", "rc": 1, "unreachable": "index"})
    assert other.status.unreachable == (), "in another shape they are none"


@pytest.mark.parametrize(
    ("said", "ran_s"),
    [
        ({"started_at": 100.0, "ended_at": 107.5}, 7.5),
        ({"started_at": 100, "ended_at": 100}, 0.0),
        ({"started_at": 100.0, "ended_at": 90.0}, None),  # its clock was set back
        ({"started_at": "x", "ended_at": 1e999}, None),
        ({"started_at": 1.0, "ended_at": 1e999}, None),
        ({"ended_at": 107.5}, None),
        ({}, None),
    ],
)
def test_a_phase_ran_for_as_long_as_its_worker_says(tmp_path: Path, said: dict[str, Any], ran_s: float | None) -> None:
    found = follower(tmp_path)
    found._take({"state": "exited", "rc": 0, **said})
    assert found.status.ran_s == ran_s
    slowest = None if ran_s is None else max(ran_s, 1.0)
    assert FleetStatus((found.status, replace(found.status, ran_s=1.0))).ran_s == slowest, (
        "of all workers, if all say it"
    )


class Cut:
    """Stands for a call that sends these frames, and is cut. `verbs`: of all calls so far."""

    def __init__(self, verbs: list[tuple[str, ...]], streams: Iterator[list[tuple[bytes, bytes]]]) -> None:
        self._verbs, self._streams = verbs, streams

    def __call__(self, _connection: Connection, *verb: str, silence_s: float) -> Cut:
        self._verbs.append(verb)
        return self

    def __enter__(self) -> Cut:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def end_input(self) -> None:
        pass

    def answer(self) -> None:
        pass

    def frames(self) -> Iterator[tuple[bytes, bytes]]:
        found = next(self._streams)
        yield from found
        if found[-1][0] != b"S":
            raise Unreachable("cut")


def test_each_file_goes_on_with_its_next_byte_over_another_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [
        [(b"M", b""), (b"M", b"1\n"), (b"C", b""), (b"C", b"22\n"), (b"L", b"log")],
        [(b"H", b""), (b"H", b"333\n"), (b"C", b""), (b"C", b"4\n")],  # the file of the chips begins anew
        [(b"S", b'{"state": "exited", "rc": 0}')],
    ]
    verbs: list[tuple[str, ...]] = []
    got: list[tuple[str, bytes]] = []
    monkeypatch.setattr(follow, "WorkerCall", Cut(verbs, iter(streams)))
    wakeup = Wakeup()
    monkeypatch.setattr(wakeup, "sleep", lambda _seconds: None)
    Follower(
        connection(tmp_path, wakeup, lambda _text: None),
        "a1",
        "setup",  # without the log of another phase before it
        opened=None,
        deliver=lambda _worker, _piece: None,
        metrics=lambda _worker, piece: got.append((getattr(piece, "kind", "metrics"), bytes(piece))),
        wakeup=wakeup,
        now=time.time,
    )._follow()
    assert [verb[3:] for verb in verbs] == [("0", "0", "0", "0"), ("3", "2", "3", "0"), ("3", "2", "2", "4")]
    assert [each for each in got if each[1]] == [
        *(("metrics", b"1\n"), ("chips", b"22\n"), ("host", b"333\n"), ("chips", b"4\n")),
    ]

"""When the watchdog deletes its slice, and when it must not: its program under virtual time."""

import heapq
import json
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from orchestrator.promise import watchdog
from orchestrator.promise.lease.guest_reports import problem, read_watchdogs
from orchestrator.promise.lease.periods import GOOGLE
from tests.unit.vm.watchdog_world import EPOCH, HOUR, NODE, QUEUE, World, between, config, labels, until

TTL, GRACE, POLL, BEAT, LINGER, STAGGER = (
    *(GOOGLE.ttl_s, GOOGLE.grace_s, GOOGLE.poll_s, GOOGLE.heartbeat_s),
    *(GOOGLE.linger_s, GOOGLE.stagger_s),
)
DAY = 24 * HOUR
LONG = EPOCH + 20 * HOUR  # a lease that no test lives to see ended


def claimed(**changes: Any) -> dict[str, Any]:
    return config(claimed_until=LONG, **changes)


def ending(at: float, rc: int | None = 0, *, ago: bool = True) -> Any:
    return lambda now: ("running", None, None) if now < at else ("ended", now - at if ago else None, rc)


def always(now: float) -> tuple[str, None, None]:
    return "running", None, None


def refused_from(at: float) -> Callable[[float], int]:
    return lambda now: 200 if now < at else 403


def flaky(seed: int) -> Callable[[float], bool]:
    """Return that half of all calls are lost, at random."""
    chance = random.Random(seed)
    return lambda now: chance.random() < 0.5


def labelled(at: float, world: World, **labels: str | None) -> World:
    return world.at(at, lambda world: world.labels.update({f"tpujob-{key}": text for key, text in labels.items()}))


def hold(ends: float, **changes: Any) -> dict[str, Any]:
    return config(mode="hold", claimed_until=EPOCH + ends, **changes)


def held(**changes: Any) -> dict[str, Any]:
    return claimed(mode="hold", **changes)


def detached(**changes: Any) -> dict[str, Any]:
    return claimed(mode="detached", **changes)


def by_up(**changes: Any) -> dict[str, Any]:
    return claimed(heartbeats=False, **changes)


def creating(config: dict[str, Any], ready_at: float, **changes: Any) -> World:
    return World(config, state="CREATING", **changes).at(ready_at, lambda world: setattr(world, "state", "READY"))


PAUSE = [(1800.0, 3.0 * HOUR)]
WOKE_AT = 1800 + 3 * HOUR
OUTAGE = between(1.9 * HOUR, 3 * HOUR)
IN_5_H = EPOCH + 5 * HOUR

KEPT: dict[str, Callable[[], World]] = {
    "by the heartbeats of an attached client": lambda: World(claimed(), beats=until(DAY)),
    "by heartbeats alone, where the client has no API": lambda: World(config(), beats=until(DAY)),
    "by a heartbeat during the last read": lambda: World(
        claimed(), beats=lambda now: now < 1000 or now > 960 + TTL + 0.05
    ),
    "for a time to live after `run` took over what was held": lambda: World(
        held(), beats=between(5000 + TTL - 2 * POLL, DAY)
    ).set_labels(5000, mode="run"),
    "while it is created, though its first VMs run": lambda: creating(claimed(), 1800, beats=between(1850, DAY)),
    "by other workers, who do not judge heartbeats": lambda: World(claimed(), worker=1),
    "while held, without heartbeats": lambda: World(held(), job=always),
    "while its detached job runs, without heartbeats": lambda: World(detached(), job=always),
    "by a client that is back soon after a pause of the VM": lambda: World(
        claimed(), beats=lambda now: now < 1000 or now > WOKE_AT + 2 * BEAT, pauses=[*PAUSE]
    ),
    "without its labels": lambda: World(claimed(), beats=until(4900)).at(5000, lambda world: world.labels.clear()),
    "by a renewal within the grace": lambda: World(hold(2 * HOUR)).set_labels(2 * HOUR + GRACE, claimed_until=LONG),
    # Mutant `countoutage`: time in which no renewal was possible is not counted.
    "by a renewal soon after an outage": lambda: World(hold(2 * HOUR), down=OUTAGE).set_labels(
        3 * HOUR + 150, claimed_until=LONG
    ),
    "once it cannot be seen whether its lease was renewed": lambda: World(
        config(), worker=10, get_status=refused_from(3300 + GRACE + 2 * STAGGER)
    ),
    "by a next job that an attached client started after the linger time": lambda: World(
        detached(),
        job=lambda now: ("ended", now - 3600, 0) if 3600 <= now < 10_000 else always(now),
        beats=between(3700, 10_100),
    ),
    "by a next job in the linger time": lambda: World(
        detached(), job=lambda now: ("ended", now - 3600, 0) if 3600 <= now < 3900 else always(now)
    ),
    "by a worker that never had a job": lambda: World(detached(), worker=2),
    "by a worker on which the job succeeded": lambda: World(detached(), worker=2, job=ending(5 * HOUR, 0)),
    "while a job uses what is held": lambda: World(held(idle_s=1800), job=always),
    "while a user logs in now and then": lambda: World(held(idle_s=1800), busy=lambda now: now % 1700 < 120),
    "while idle, where no limit was set": lambda: World(held(idle_s=None), beats=until(DAY)),
    "while idle, where it is not held": lambda: World(claimed(idle_s=1800), beats=until(DAY)),
}


@pytest.mark.parametrize("world", KEPT.values(), ids=KEPT)
def test_a_slice_is_kept(world: Callable[[], World]) -> None:
    assert world().deleted_at(19 * HOUR) is None


Goes = tuple[Callable[[], World], float, float]  # the world, from when on, within how many seconds
GOES: dict[str, Goes] = {
    "ttl after the last heartbeat": (
        lambda: World(claimed(), beats=until(2 * HOUR)), 2 * HOUR + TTL - BEAT, 2 * BEAT + 1),
    "ttl after boot without any": (lambda: World(claimed()), TTL, 1),
    "ttl after boot where one is older": (lambda: World(claimed(), beats=lambda now: now == 0), TTL, 1),
    "ttl after READY": (lambda: creating(claimed(), 1800), 1800 + TTL - POLL, 2 * POLL + 1),
    "a grace after a pause of the VM": (
        lambda: World(claimed(), beats=until(1000), pauses=[*PAUSE]), WOKE_AT + GRACE, BEAT),
    # Each poll takes longer than a heartbeat period; heartbeats are also read after each call.
    "soon although calls hang": (
        lambda: World(claimed(), beats=until(2 * HOUR), call_s=2.5 * BEAT, down=until(2 * HOUR + 2 * TTL)),
        2 * HOUR + 2 * TTL, 4 * BEAT),
    "soon after the API answers again": (
        lambda: World(claimed(), beats=until(1000), down=between(500, 3 * HOUR)), 3 * HOUR, BEAT / 2 + 1),
    **{f"at its deadline in mode {mode}": (
        lambda mode=mode: World(claimed(mode=mode, deadline=IN_5_H), beats=until(DAY), job=always),
        5 * HOUR, BEAT / 12 + 2) for mode in ("run", "hold", "detached")},
    "at a deadline that was moved to later": (
        lambda: World(claimed(deadline=EPOCH + HOUR), beats=until(DAY)).set_labels(3000, deadline=EPOCH + 2 * HOUR),
        2 * HOUR, 10),
    "at a deadline that was moved to sooner": (
        lambda: World(claimed(deadline=EPOCH + 9 * HOUR), beats=until(DAY)).set_labels(3000, deadline=EPOCH + HOUR),
        HOUR, 10),
    **{f"at the turn of worker {worker}": (
        lambda worker=worker: World(claimed(deadline=IN_5_H), worker=worker),
        5 * HOUR + min(worker, 10) * STAGGER, 2 * POLL) for worker in (1, 3, 10, 63)},
    "at the turn of a worker whose calls fail": (
        lambda: World(claimed(deadline=IN_5_H), worker=10, down=flaky(5)), 5 * HOUR + 10 * STAGGER, 20 * POLL),
    "a grace after the lease of a hold": (lambda: World(hold(2 * HOUR)), 2 * HOUR + GRACE, 2 * POLL),
    "by others who cover for a dead first worker": (
        lambda: World(config(), worker=3), 3300 + GRACE + 3 * STAGGER, 7 * POLL),
    # Mutants `stretch` and `gap90`.
    **{f"soon although polls fail, {seed}": (
        lambda seed=seed: World(hold(2 * HOUR), down=flaky(seed)), 2 * HOUR + GRACE, 15 * POLL) for seed in range(40)},
    "a grace after an outage over the end of its lease": (
        lambda: World(hold(2 * HOUR), down=OUTAGE), 3 * HOUR + GRACE, 3 * POLL),
    "a grace after an outage in the middle of its grace": (
        lambda: World(hold(2 * HOUR), down=between(2 * HOUR + 130, 3 * HOUR + 130)), 3 * HOUR + 130 + GRACE, 3 * POLL),
    **{f"at its deadline with a lease until {text!r}": (
        lambda text=text: labelled(0, World(config(mode="hold", deadline=IN_5_H)), **{"claimed-until": text}), 5 * HOUR, 10)
        for text in ("", "9e99", "-1", "1795272270.5", "٣٣٣٣٣٣٣٣٣٣", "99999999999999", None)},
    "at the deadline of the create call where labels cannot be read": (
        lambda: labelled(0, World(held(deadline=IN_5_H)), deadline="soon", mode="forever"), 5 * HOUR, 10),
    "by heartbeats without the permission to read": (lambda: World(config(), get_status=refused_from(0)), TTL, 1),
    "at its deadline without the permission to read a lease": (
        lambda: World(config(mode="hold", deadline=IN_5_H), get_status=refused_from(0)), 5 * HOUR, 10),
    "ttl after READY where `up` did not mark it as held": (
        lambda: creating(by_up(), 600), 600 + TTL - POLL, 2 * POLL + 1),
    "at its deadline where `up` marked it as held": (
        lambda: World(by_up(deadline=IN_5_H)).set_labels(TTL - POLL - 5, mode="hold"), 5 * HOUR, 10),
    # The labels had mode `run` when last read; the VM may not read that the mode is now `hold`.
    "at its deadline where it was held after the last look": (
        lambda: World(by_up(deadline=IN_5_H), get_status=refused_from(30)).set_labels(40, mode="hold"), 5 * HOUR, 10),
    "at the deadline that was read before reads were refused": (
        lambda: World(config(), get_status=refused_from(2000), beats=until(1500)).set_labels(
            1000, mode="hold", claimed_until=LONG, deadline=IN_5_H), 5 * HOUR, 10),
    **{f"a linger time after a detached job with {rc}": (
        lambda rc=rc: World(detached(), job=ending(5 * HOUR, rc)), 5 * HOUR + LINGER, 1) for rc in (0, 1, None)},
    "a linger time after a job was seen to be lost": (
        lambda: World(detached(), job=ending(5 * HOUR, None, ago=False)), 5 * HOUR + LINGER, BEAT),
    "a linger time after a job was lost before it was seen": (
        lambda: World(detached(), job=lambda now: (("none", "ended")[now >= 500], None, None)), 500 + LINGER, 2 * BEAT),
    "after the rest of a linger time that began before it": (
        lambda: World(detached(), job=lambda now: ("ended", now + 300, 0)), LINGER - 300, 1),
    "a grace after boot where the job ended a day ago": (
        lambda: World(detached(), job=lambda now: ("ended", now + DAY, 0)), GRACE, 1),
    "a linger time below the grace after its job": (
        lambda: World(detached(linger_s=60.0), job=ending(HOUR)), HOUR + 60, BEAT),
    "ttl after boot, detached without a job": (lambda: World(detached()), TTL, 1),
    "a linger time after the job that was detached meanwhile": (
        lambda: World(claimed(), beats=until(1000), job=ending(5 * HOUR)).set_labels(990, mode="detached"),
        5 * HOUR + LINGER, 1),
    "once an attached client has collected": (
        lambda: World(detached(), job=ending(HOUR), beats=between(1.1 * HOUR, 2 * HOUR)), 2 * HOUR, GRACE + 2 * BEAT),
    "once a client has collected, on a worker where the job failed": (
        lambda: World(detached(), worker=2, job=ending(HOUR, 3), beats=between(1.1 * HOUR, 4 * HOUR)),
        4 * HOUR, 2 * GRACE + 2 * STAGGER + watchdog.SLOW_FACTOR * POLL),
    **{f"by a worker on which the job failed with {rc}": (
        lambda rc=rc: World(detached(), worker=2, job=ending(5 * HOUR, rc)),
        5 * HOUR + LINGER + 2 * STAGGER, 2 * POLL) for rc in (3, None)},
    "once a hold is idle for its limit": (
        lambda: World(held(idle_s=1800), busy=until(HOUR)), HOUR + 1800 - BEAT, 3 * BEAT),
}  # fmt: skip


@pytest.mark.parametrize(("world", "earliest", "within_s"), GOES.values(), ids=GOES)
def test_a_slice_goes(world: Callable[[], World], earliest: float, within_s: float) -> None:
    at = world().deleted_at()
    assert at is not None and earliest <= at <= earliest + within_s


def test_a_countdown_is_over_at_its_last_second_and_not_sooner() -> None:
    countdown = watchdog.Countdown(10.0, max_gap_s=60.0, grace_s=5.0)
    over = []
    for now in (100.0, 109.5, 110.0):
        countdown.watch(now)
        over.append(countdown.over)
    assert over == [False, False, True]


def test_a_deadline_at_any_second_is_met_within_a_few() -> None:
    late = [(World(claimed(deadline=EPOCH + at), beats=until(DAY)).deleted_at(500) or 500) - at for at in range(10, 70)]
    assert max(late) <= BEAT / 12 + 2


def test_a_worker_looks_and_proves_in_its_turn_also_where_it_booted_long_ago() -> None:
    many = World(claimed(), worker=100, now=1000.0).run(1000 + 3 * STAGGER)
    assert many.calls[0][0] >= 1000 + 100 * STAGGER / watchdog.FIRST_LOOK_DIVISOR
    assert probes(World(claimed(), worker=1, now=1000.0).run(1000 + STAGGER - 2)) == []


def test_a_renewal_in_the_turn_of_a_worker_ends_its_frequent_looks() -> None:
    gone = World(hold(HOUR), worker=3).deleted_at() or 0
    renewed = World(hold(HOUR), worker=3).set_labels(gone - STAGGER, claimed_until=LONG).run(5 * HOUR)
    assert not renewed.deletes
    assert sum(at > 2 * HOUR for at, *_ in renewed.calls) <= 3 * HOUR / (watchdog.SLOW_FACTOR * POLL) + 1


# -- an attached client shows signs of life, or does not --


def test_an_old_heartbeat_does_not_delay_a_watchdog_that_starts_late() -> None:
    world = World(config(mode="hold", claimed_until=EPOCH + 4000), beats=lambda now: now == 0)
    world.run(10)
    world.now = 5000
    assert 5000 + GRACE <= (world.deleted_at() or 0) <= 5000 + GRACE + POLL


def test_a_renewed_lease_replaces_heartbeats_when_ssh_is_cut() -> None:
    world = World(claimed(), beats=until(1000))
    for number in range(1, 20):
        world.set_labels(number * 800, claimed_until=LONG + number)
    assert 19 * 800 + TTL <= (world.deleted_at() or 0) <= 19 * 800 + TTL + 2 * POLL


def test_a_restart_of_the_watchdog_restarts_the_countdown_but_not_the_lease() -> None:
    world = World(config(mode="hold", claimed_until=EPOCH + 7000))
    for end in range(500, 10_000, 500):
        world.run(end)
    assert 7000 + GRACE <= world.deletes[0] <= 7000 + GRACE + 500 + POLL


# -- the API is asked before anything is deleted --


def test_every_delete_follows_a_fresh_look() -> None:
    world = World(claimed(), beats=until(1000), delete_status=lambda now: 503)
    world.run(3 * HOUR)
    assert len(world.deletes) > 50
    assert {look[1:] for look in world.looks_before_deletes()} == {("GET", f"/v2/{NODE}", 200)}
    assert all(at - look[0] < 1 for at, look in zip(world.deletes, world.looks_before_deletes(), strict=True))


@pytest.mark.parametrize("status", [0, 400, 401, 429, 500, 503])
def test_an_inconclusive_reply_deletes_nothing(status: int) -> None:
    world = World(claimed(deadline=EPOCH + 4000), get_status=lambda now: status)
    assert world.deleted_at(DAY) is None
    assert all(call[1] == "GET" for call in world.calls)


@pytest.mark.parametrize(
    "said", [None, [], "<html>", {}, {"name": f"{NODE}x", "labels": {}}, {"name": NODE, "labels": [1]}]
)
def test_a_reply_from_something_else_than_the_api_deletes_nothing(said: Any) -> None:
    world = World(claimed(), node=said)
    assert world.deleted_at(DAY) is None
    assert not world.guest_attributes[-1]["armed"]


def test_the_api_that_the_configuration_names_is_asked_by_its_paths_and_fields() -> None:
    api = {"url": "https://compute.googleapis.com", "base": "/compute/v1/", "state": "status", "booting": ["STAGING"]}
    short = NODE.rpartition("/")[2]
    other = config(api=api, node=f"projects/p/zones/z/instances/{short}")
    dog = watchdog.Watchdog(other, 0)
    look = dog.read_node()
    assert next(look) == ("call", "GET", f"/compute/v1/{other['node']}", None)
    effect = look.send((200, {"name": short, "labels": labels(other), "status": "STAGING"}, EPOCH + 5.0))
    with pytest.raises(StopIteration):
        while True:
            effect = look.send(5.0 if effect == ("clock",) else None)
    assert (dog.status, dog.state, dog.read) == (200, "STAGING", True)


def test_it_repeats_the_delete_until_the_vm_is_gone_and_does_not_spin() -> None:
    """An accepted delete may fail, and a 404 may be wrong: neither ends the repetition."""
    world = World(claimed(), beats=until(1000), delete_status=lambda now: 200 if int(now) % 2 else 404)
    world.run(1000 + TTL + 2 * HOUR)
    gaps = [later - sooner for sooner, later in zip(world.deletes, world.deletes[1:], strict=False)]
    assert max(gaps) <= BEAT / 2 + 1
    assert min(gaps) >= BEAT / 12
    assert len(world.calls) < 2 * 2 * HOUR / (BEAT / 2) + 100


def test_deletes_that_hang_are_no_outage_after_which_a_grace_begins() -> None:
    def refuses(now: float) -> int:
        return 503

    world = World(claimed(), call_s=2.5 * BEAT, queue=QUEUE, queue_status=refuses, delete_status=refuses).run(3 * HOUR)
    assert max(later - sooner for sooner, later in pairwise(world.deletes)) <= 3 * 2.5 * BEAT + BEAT / 2 + 1


def test_a_claim_that_is_renewed_meanwhile_ends_the_deleting() -> None:
    world = World(config(mode="hold", claimed_until=EPOCH + 4000), delete_status=lambda now: 503)
    world.set_labels(5000, claimed_until=LONG).run(10 * HOUR)
    assert world.deletes
    assert max(world.deletes) < 5000 + BEAT / 2 + 1


# -- whose slice it is --


def test_a_node_of_another_run_is_never_deleted() -> None:
    world = World(claimed(deadline=EPOCH + 5000))
    world.labels["tpujob-lease-id"] = "another000"
    assert world.deleted_at(10 * HOUR) is None
    assert not any(call[1] == "DELETE" for call in world.calls)
    assert not world.guest_attributes[-1]["armed"]


# -- what it may not see, or not do --


def test_a_slice_of_up_is_kept_by_a_watchdog_that_cannot_read_whether_it_is_held() -> None:
    """It never publishes that it is armed; gc, or the deadline, ends the slice."""
    blind = World(claimed(heartbeats=False, deadline=EPOCH + 5 * HOUR), get_status=lambda now: 403)
    assert 5 * HOUR < (blind.deleted_at() or 0) <= 5 * HOUR + 10
    assert not any(said["armed"] for said in blind.guest_attributes)


def test_armed_is_published_once_route_and_permission_are_proven() -> None:
    world = World(config(sha256="abc")).run(1)
    assert world.guest_attributes == [
        {
            **{"v": 1, "worker": 0, "armed": True, "route": True, "permission": True, "mode": "run"},
            **{"claimed_until": EPOCH + 3300, "deadline": EPOCH + DAY, "sha256": "abc"},
        }
    ]


@pytest.mark.parametrize("verb", ["get_status", "delete_status"])
def test_without_a_permission_it_reports_that_and_retries(verb: str) -> None:
    answers: dict[str, Any] = {verb: lambda now: 403 if now < 1000 else 200}
    world = World(claimed(), beats=until(DAY), **answers)
    world.run(900)
    assert [(said["route"], said["permission"], said["armed"]) for said in world.guest_attributes] == [
        (True, False, False)
    ]
    assert len(world.calls) < 2 * 900 / POLL + 20
    assert world.run(1000 + 2 * POLL).guest_attributes[-1]["armed"]


def test_without_a_route_it_reports_that_and_retries() -> None:
    world = World(claimed(), beats=until(DAY), down=until(1000))
    world.run(900)
    assert [(said["route"], said["permission"], said["armed"]) for said in world.guest_attributes] == [
        (False, None, False)
    ]
    assert world.run(1000 + 2 * POLL).guest_attributes[-1]["armed"]


def probes(world: World) -> list[float]:
    return [at for at, method, path, _ in world.calls if (method, path) == ("DELETE", f"/v2/{NODE}-probe")]


class Quota:
    """A limit of calls per minute over all clients; calls beyond it get 429."""

    def __init__(self, a_minute: int, *, from_s: float = 0.0) -> None:
        self.a_minute, self.from_s, self.taken = a_minute, from_s, dict[int, int]()

    def __call__(self, now: float) -> int:
        minute = int(now // 60)
        self.taken[minute] = self.taken.get(minute, 0) + 1
        return 200 if now >= self.from_s and self.taken[minute] <= self.a_minute else 429


def booted_together(workers: int, gets: Quota, deletes: Quota) -> tuple[list[World], Callable[[float], None]]:
    """The workers of one slice, under a common virtual time."""
    worlds = [World(claimed(), worker=worker, beats=until(DAY)) for worker in range(workers)]
    programs = [watchdog.program(world.config, world.worker) for world in worlds]
    answers: list[Any] = [None] * workers
    for world in worlds:
        world.get_status, world.delete_status = gets, deletes
    due = [(0.0, worker) for worker in range(workers)]

    def pass_to(end: float) -> None:
        while due[0][0] < end:
            _, worker = heapq.heappop(due)
            answers[worker] = worlds[worker]._perform(*programs[worker].send(answers[worker]))
            heapq.heappush(due, (worlds[worker].now, worker))

    return worlds, pass_to


def missing(worlds: list[World]) -> str | None:
    """Return what a client reads that waits for the slice to be armed."""
    said = [{"tpujob/watchdog": json.dumps(world.guest_attributes[-1])} for world in worlds if world.guest_attributes]
    return problem(read_watchdogs(said, len(worlds)))


def test_three_workers_prove_the_permission_each_in_its_turn_and_all_others_their_route() -> None:
    worlds, pass_to = booted_together(256, Quota(91), Quota(91))
    pass_to(300)
    assert missing(worlds) is None
    assert [len(probes(world)) for world in worlds] == [1, 1, 1] + 253 * [0]
    assert [round(probes(world)[0] / STAGGER) for world in worlds[:3]] == [0, 1, 2]
    assert all(world.guest_attributes[-1]["route"] for world in worlds)
    assert [world.guest_attributes[-1]["permission"] for world in worlds] == [True, True, True] + 253 * [None]
    pass_to(1200)
    calls = sorted(at for world in worlds for at, *_ in world.calls)
    assert max(sum(begin <= at < begin + 60 for at in calls) for begin in range(0, 1200, 10)) <= 70


@pytest.mark.parametrize("deletes_from_s", [0.0, 150.0])
def test_ten_deletes_a_minute_are_enough_for_a_slice_of_256_workers(deletes_from_s: float) -> None:
    """Also where others use them up at first."""
    worlds, pass_to = booted_together(256, Quota(91), Quota(10, from_s=deletes_from_s))
    pass_to(60)
    assert sum(len(probes(world)) for world in worlds) <= 6
    pass_to(300)
    assert missing(worlds) is None


def test_where_the_first_worker_never_starts_the_second_proves_after_a_stagger() -> None:
    second = World(claimed(), worker=1).run(STAGGER - 2)
    assert probes(second) == [] and second.guest_attributes[-1]["permission"] is None
    assert second.run(STAGGER + 5 * POLL) and len(probes(second)) == 1 and second.guest_attributes[-1]["armed"]


def test_a_worker_without_a_proof_reports_a_refused_read() -> None:
    other = World(claimed(), worker=9, get_status=lambda now: 403).run(60)
    assert (other.guest_attributes[-1]["route"], other.guest_attributes[-1]["permission"]) == (True, False)


def test_proving_backs_off_while_it_is_refused() -> None:
    first, second = (World(claimed(), worker=w, delete_status=lambda now: 429, beats=until(DAY)) for w in (0, 1))
    assert len(probes(first.run(HOUR))) <= 65 and len(probes(second.run(HOUR))) <= 18
    assert all(sum(begin <= at < begin + 60 for at in probes(first)) <= 5 for begin in range(0, HOUR, 20))


@pytest.mark.parametrize("worker", [0, 1, 7])
def test_reports_are_repeated_with_backoff_and_within_the_limits(worker: int) -> None:
    world = World(claimed(), worker=worker, beats=until(DAY)).run(2 * HOUR)
    first = [at - world.writes[0] for at in world.writes[:4]]
    assert first[1] <= BEAT / 2 and first[2] <= 2 * BEAT
    gaps = [later - sooner for sooner, later in zip(world.writes, world.writes[1:], strict=False)]
    assert max(gaps) <= 6 * POLL and len(world.guest_attributes) <= 2


@pytest.mark.parametrize("worker", [0, 2, 200])
def test_a_report_that_was_accepted_and_lost_is_repeated_in_time(worker: int) -> None:
    world = World(claimed(), worker=worker, beats=until(DAY), loses=until(250))
    assert world.run(GOOGLE.boot_s).guest_attributes[-1]["route"]


@pytest.mark.parametrize("publishes", [True, False])
def test_a_claim_that_changes_at_every_read_is_published_ten_times_a_minute_at_most(publishes: bool) -> None:
    world = World(claimed(), beats=until(DAY), publishes=lambda now: publishes)
    for second in range(0, 1200):
        world.set_labels(second, claimed_until=LONG + second)
    world.get_status = lambda now: 200 if now % 7 < 4 else 403
    world.run(1200)
    assert all(sum(begin <= at < begin + 60 for at in world.writes) <= 10 for begin in range(1200))


def test_news_soon_after_a_report_and_a_report_that_is_refused_wait_a_tenth_of_a_minute() -> None:
    news = World(claimed(), beats=until(DAY), delete_status=lambda now: 429 if now < 3 else 200).run(30)
    assert news.guest_attributes[-1]["armed"] and news.writes[1] - news.writes[0] >= BEAT / 10
    refused = World(claimed(), beats=until(DAY), publishes=lambda now: False).run(2 * BEAT)
    assert {round(later - sooner) for sooner, later in pairwise(refused.writes)} == {BEAT / 10}


def test_an_outage_later_disarms_nothing() -> None:
    world = World(claimed(), beats=until(DAY), down=between(1000, 3 * HOUR)).run(2 * HOUR)
    assert [said["armed"] for said in world.guest_attributes] == [True]


def test_every_change_of_the_claim_is_published_until_it_is_accepted() -> None:
    world = World(claimed(), beats=until(DAY), publishes=lambda now: not 1000 < now < 2000)
    world.set_labels(900, claimed_until=LONG + 1).set_labels(1100, mode="detached").set_labels(
        2500, deadline=EPOCH + 2 * DAY
    )
    world.job = lambda now: ("running", None, None)
    world.run(3000)
    assert [
        (said["mode"], said["claimed_until"] - LONG, said["deadline"] - EPOCH) for said in world.guest_attributes
    ] == [("run", 0, DAY), ("run", 1, DAY), ("detached", 1, DAY), ("detached", 1, 2 * DAY)]


# -- what becomes of a detached job --


@pytest.mark.parametrize("worker", [0, 2])
def test_a_detached_job_its_end_and_the_next_one_are_published_within_a_heartbeat(worker: int) -> None:
    world = World(
        detached(), worker=worker, job=lambda now: ("none", None, None) if now < 300 else ending(5000, 3)(now)
    )
    said = [world.run(at).guest_attributes[-1]["job"] for at in (299, 300 + BEAT + 10, 4990, 5000 + BEAT + 10)]
    ran = {"attempt": "run0000001-1", "state": "running", "rc": None}
    assert said == [None, ran, ran, {**ran, "state": "ended", "rc": 3}]
    world.attempt, world.job = (lambda now: "run0000002-1"), always
    assert world.run(5000 + 2 * BEAT + 20).guest_attributes[-1]["job"] == {**ran, "attempt": "run0000002-1"}
    assert not any("metrics" in said for said in world.guest_attributes)


def test_a_job_is_published_in_mode_detached_only_and_once_it_has_been_seen_in_it() -> None:
    world = World(claimed(), beats=until(DAY), job=ending(1500), metrics=lambda now: {"step": 1})
    world.set_labels(1000, mode="detached").set_labels(2000, mode="hold").set_labels(3000, mode="detached")
    said = [
        (said["mode"], said.get("job", {}).get("state"), "metrics" in said) for said in world.run(3500).guest_attributes
    ]
    assert said == [
        ("run", None, False),
        *[("detached", None, False), ("detached", "running", True), ("detached", "ended", True)],
        *[("hold", None, False), ("detached", None, False), ("detached", "ended", True)],
    ]


def test_a_job_of_which_nothing_can_be_read_is_as_it_was_and_no_news() -> None:
    world = World(detached(), job=always, reports=lambda now: not 1000 < now < 2000).run(HOUR)
    assert [said["job"]["state"] for said in world.guest_attributes] == ["running"]


@pytest.mark.parametrize("spot", [False, True])
def test_metrics_are_published_about_once_a_heartbeat_by_the_first_worker_alone(spot: bool) -> None:
    worlds = [World(detached(spot=spot), worker, job=always, metrics=lambda now: {"step": now}) for worker in (0, 1)]
    first, other = (world.run(HOUR) for world in worlds)
    gaps = [later - sooner for sooner, later in pairwise(first.writes)]
    assert min(gaps[2:]) >= BEAT and max(gaps) <= BEAT + BEAT / 12 + 1, "the first two repeat what is new"
    assert first.guest_attributes[-1]["metrics"]["step"] >= HOUR - 2 * BEAT
    assert sum("published" in line for line in first.logged) == 1, "metrics fill no log"
    assert not any("metrics" in said for said in other.guest_attributes)


def test_metrics_that_stay_are_repeated_as_seldom_as_any_report() -> None:
    world = World(detached(), job=always, metrics=lambda now: {"step": 1}).run(2 * HOUR)
    assert len(world.writes) <= 2 * HOUR / (watchdog.SLOW_FACTOR * POLL) + 6


def test_the_last_metrics_come_with_the_end_and_those_of_a_job_go_with_it() -> None:
    world = World(detached(), job=ending(1000), metrics=lambda now: {"step": min(now, 1000)})
    assert world.run(1000 + BEAT + 10).guest_attributes[-1]["metrics"] == {"step": 1000}
    world.attempt, world.job, world.metrics = (lambda now: "run0000002-1"), always, lambda now: {}
    assert "metrics" not in world.run(1000 + 2 * BEAT + 20).guest_attributes[-1]


@pytest.mark.parametrize("publishes", [True, False])
def test_jobs_and_metrics_that_change_with_every_look_are_published_ten_times_a_minute_at_most(publishes: bool) -> None:
    world = World(detached(spot=True), job=always, publishes=lambda now: publishes, beats=until(DAY))
    world.attempt, world.metrics = str, lambda now: {"step": now}
    world.run(1200)
    assert len(world.writes) >= 100
    assert all(sum(first <= at < first + 60 for at in world.writes) <= 10 for first in world.writes)


# -- a person holds it, and does nothing --


def test_labels_of_the_world_are_those_that_the_client_writes() -> None:
    from orchestrator.text import names

    written = names.labels(
        lease_id="run0000001", owner="aaaaaa", name="x", claimed_until=1.0, deadline=2.0, mode="run"
    )  # fmt: skip
    assert set(labels(config())) <= set(written)


# -- a node that came of a queued request --


def deletes(world: World) -> list[tuple[str, int]]:
    kinds = {f"/v2/{NODE}": "node", f"/v2/{QUEUE}?force=true": "request"}
    return [(kinds[path], status) for _, method, path, status in world.calls if method == "DELETE" and path in kinds]


def test_a_node_goes_with_the_request_of_which_it_came() -> None:
    world = World(claimed(), queue=QUEUE).run(TTL + 2)
    assert deletes(world) == [("request", 200)]


@pytest.mark.parametrize("status", [0, 400, 403, 404, 409, 503])
def test_where_the_request_cannot_be_deleted_the_node_goes_at_once(status: int) -> None:
    world = World(claimed(), queue=QUEUE, queue_status=lambda now: status)
    assert TTL <= (world.deleted_at() or 0) <= TTL + 2
    assert deletes(world) == [("request", status), ("node", 200)]


def test_a_deletion_of_the_request_that_was_accepted_and_failed_is_followed_by_one_of_the_node() -> None:
    world = World(claimed(), queue=QUEUE)
    assert TTL + BEAT / 12 <= (world.deleted_at() or 0) <= TTL + BEAT / 12 + 2
    assert deletes(world) == [("request", 200), ("request", 200), ("node", 200)]


@pytest.mark.parametrize(
    "queue", ["", f"{QUEUE}-other", f"{QUEUE}?x=/{QUEUE}", f"../{QUEUE}", f"/{QUEUE}", "projects/p/queuedResources/"]
)
def test_a_request_of_another_name_is_left_alone(queue: str) -> None:
    world = World(claimed(), queue=queue)
    assert world.deleted_at() is not None
    assert {kind for kind, _ in deletes(world)} == {"node"}


def test_neither_request_nor_node_of_another_run_is_touched() -> None:
    world = World(claimed(deadline=EPOCH + 5000), queue=QUEUE)
    world.labels["tpujob-lease-id"] = "another000"
    assert world.run(10 * HOUR).calls and not any(call[1] == "DELETE" for call in world.calls)


def test_the_permission_to_delete_nodes_arms_without_that_for_requests() -> None:
    world = World(claimed(deadline=EPOCH + 5 * HOUR), beats=until(DAY), queue=QUEUE, queue_status=lambda now: 403)
    world.deleted_at()
    assert all(said["armed"] for said in world.guest_attributes)


# -- the notice before a spot VM is taken away --


@pytest.mark.parametrize("worker", [0, 3])
@pytest.mark.parametrize("mode", ["run", "hold", "detached"])
def test_the_notice_reaches_the_job_in_seconds_and_then_the_guest_attribute(mode: str, worker: int) -> None:
    world = World(claimed(mode=mode, spot=True), worker=worker, beats=until(DAY), preempted=lambda now: now >= 5000)
    world.job = lambda now: ("running", None, None)
    world.run(9000)
    [(stopped_at, grace_s)] = world.stopped
    assert 5000 <= stopped_at <= 5000 + BEAT / 12 + 1 and grace_s == 30
    (noted_at, notice), *again = world.notices
    assert noted_at == stopped_at
    assert [said for _, said in again] == [notice, notice] and again[-1][0] <= noted_at + 30
    assert notice == {"v": 1, "preempted": True, "at": pytest.approx(EPOCH + stopped_at, abs=2)}


def test_only_a_spot_slice_polls_for_the_notice() -> None:
    world = World(claimed(), beats=until(DAY), preempted=lambda now: True).run(5000)
    assert (world.listened, world.stopped, world.notices) == ([], [], [])


def test_polling_for_the_notice_adds_no_api_calls() -> None:
    quiet = World(claimed(), beats=until(DAY)).run(5 * HOUR)
    spot = World(claimed(spot=True), beats=until(DAY)).run(5 * HOUR)
    assert len(spot.calls) <= len(quiet.calls) + 2
    gaps = [later - sooner for sooner, later in zip(spot.listened, spot.listened[1:], strict=False)]
    assert max(gaps) <= BEAT / 12 + 1


def test_a_failed_stop_or_report_is_repeated_and_the_stop_is_reported_once() -> None:
    world = World(claimed(spot=True), beats=until(DAY), preempted=lambda now: now >= 5000)
    world.stops, world.publishes = (lambda now: now >= 5008), (lambda now: not 4000 < now < 5020)
    world.run(9000)
    assert [at >= 5008 for at, _ in world.stopped][-1] and sum(at >= 5008 for at, _ in world.stopped) == 1
    assert len(world.notices) == 3 and world.notices[0][0] >= 5020


def test_a_failed_stop_is_repeated_before_the_next_report() -> None:
    world = World(claimed(spot=True), beats=until(DAY), preempted=lambda now: now >= 5000)
    world.stops = lambda now: now >= 5004
    world.run(9000)
    assert world.stopped[-1][0] <= 5004 + BEAT / 12 + 1 and len(world.notices) == 3


def test_a_notice_without_the_servers_clock_has_no_time() -> None:
    world = World(claimed(spot=True), down=lambda now: True, preempted=lambda now: now >= 20).run(100)
    assert [notice["at"] for _, notice in world.notices] == [None, None, None]


def test_the_claims_are_judged_on_spot_as_anywhere() -> None:
    usual = {"claimed_until": LONG, "deadline": EPOCH + 5 * HOUR}
    for changes in ({}, {"mode": "hold", "claimed_until": EPOCH + 2 * HOUR}):
        plain = World(config(**usual | changes)).deleted_at()
        spot = World(config(spot=True, **usual | changes)).deleted_at()
        assert plain is not None and spot == pytest.approx(plain, abs=POLL)


def test_the_notice_is_published_three_times_with_pauses() -> None:
    world = World(claimed(spot=True), preempted=lambda now: now >= 300, beats=lambda now: True).run(600)
    times = [at for at, _ in world.notices]
    assert len(times) == watchdog.NOTICE_REPEATS and all(b - a >= BEAT / 6 for a, b in pairwise(times))
    assert times[-1] < 300 + watchdog.NOTICE_S


@pytest.mark.parametrize(("job", "why"), [
    (lambda now: ("none", None, None), "no job was started"), (ending(600.0), "the job ended"),
])  # fmt: skip
def test_the_log_says_why_a_detached_slice_is_deleted(job: Any, why: str) -> None:
    world = World(detached(), job=job).run(2 * HOUR)
    assert world.deletes and any(why in line for line in world.logged)


def test_an_api_that_asks_for_patience_can_be_reached() -> None:
    world = World(claimed(), get_status=lambda now: 429, beats=lambda now: True).run(900)
    assert world.guest_attributes[-1]["route"] is True


@pytest.mark.parametrize("news", [False, True])
def test_a_guest_attribute_is_written_ten_times_a_minute_at_most(news: bool) -> None:
    """Also where writes are refused, and where what is said changes with every look."""
    world = World(claimed(), beats=lambda now: True, publishes=lambda now: news, call_s=1.0)
    for at in range(300, 900, 5):
        world.set_labels(at, mode="hold" if at % 2 else "run", deadline=EPOCH + 80_000 + at)
    world.run(1200)
    for first in world.writes:
        assert sum(first <= at < first + 60 for at in world.writes) <= watchdog.PUBLISHES_PER_MINUTE + 1
    assert len(world.writes) > 5


@pytest.mark.parametrize(("said", "queue"), [
    (QUEUE, QUEUE), (None, ""), (QUEUE.replace("/queuedResources/", "/nodes/"), ""), (f"{QUEUE}x", ""),
    (QUEUE.removeprefix("projects/"), ""), (f"{QUEUE}?force=false/queuedResources/{NODE.rpartition('/')[2]}", ""),
    (f"projects/../x/queuedResources/{NODE.rpartition('/')[2]}", ""), ("projects/p/locations/z/queuedResources/other", ""),
])  # fmt: skip
def test_only_a_queued_resource_of_the_nodes_name_is_deleted_with_it(said: str | None, queue: str) -> None:
    assert watchdog._queue({"queuedResource": said}, NODE) == queue


def test_a_time_label_has_nine_to_eleven_digits() -> None:
    assert [watchdog._seconds("1" * digits, 7.0) != 7.0 for digits in (8, 9, 11, 12)] == [False, True, True, False]
    assert [watchdog._seconds(text, 7.0) for text in (None, 1_800_000_000, "180000000x", "٣" * 10)] == [7.0] * 4

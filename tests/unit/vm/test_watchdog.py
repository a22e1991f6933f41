"""When the watchdog deletes its slice, and when it must not: its program under virtual time."""

import heapq
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.core.lease.timings import GOOGLE
from orchestrator.core.lease.watchdog_report import problem, read_watchdogs
from orchestrator.vm import watchdog
from tests.unit.vm.watchdog_world import EPOCH, HOUR, NODE, QUEUE, World, between, config, labels, until

TTL, GRACE, POLL, BEAT, LINGER, STAGGER = (
    *(GOOGLE.ttl_s, GOOGLE.grace_s, GOOGLE.poll_s, GOOGLE.heartbeat_s),
    *(GOOGLE.linger_s, GOOGLE.stagger_s),
)
DAY = 24 * HOUR
LONG = EPOCH + 20 * HOUR  # a lease that no test lives to see ended


def claimed(**changes: Any) -> dict[str, Any]:
    return config(claimed_until=LONG, **changes)


# -- an attached client shows signs of life, or does not --


def test_a_client_that_sends_heartbeats_keeps_its_slice() -> None:
    assert World(claimed(), beats=until(DAY)).deleted_at(19 * HOUR) is None


def test_a_slice_is_deleted_ttl_after_the_last_heartbeat() -> None:
    world = World(claimed(), beats=until(2 * HOUR))
    assert 2 * HOUR + TTL - BEAT <= (world.deleted_at() or 0) <= 2 * HOUR + TTL + BEAT + 1


def test_a_slice_without_any_heartbeat_is_deleted_ttl_after_boot() -> None:
    assert TTL <= (World(claimed()).deleted_at() or 0) <= TTL + 1


def test_a_heartbeat_older_than_the_watchdog_does_not_count() -> None:
    world = World(claimed(), beats=lambda now: now == 0)
    assert TTL <= (world.deleted_at() or 0) <= TTL + 1


def test_an_old_heartbeat_does_not_delay_a_watchdog_that_starts_late() -> None:
    world = World(config(mode="hold", claimed_until=EPOCH + 4000), beats=lambda now: now == 0)
    world.run(10)
    world.now = 5000
    assert 5000 + GRACE <= (world.deleted_at() or 0) <= 5000 + GRACE + POLL


def test_a_run_on_a_held_slice_has_ttl_for_the_first_heartbeat() -> None:
    world = World(claimed(mode="hold"), beats=between(5000 + TTL - 2 * POLL, DAY)).set_labels(5000, mode="run")
    assert world.deleted_at(19 * HOUR) is None


def test_heartbeats_are_expected_only_once_the_node_is_ready() -> None:
    """A large slice may be CREATING for longer than the time to live, while its first VMs run."""
    world = World(claimed(), state="CREATING", beats=between(1850, DAY))
    world.at(1800, lambda world: setattr(world, "state", "READY"))
    assert world.deleted_at(10 * HOUR) is None
    alone = World(claimed(), state="CREATING").at(1800, lambda world: setattr(world, "state", "READY"))
    assert 1800 + TTL - POLL <= (alone.deleted_at() or 0) <= 1800 + TTL + POLL + 1


def test_a_renewed_lease_replaces_heartbeats_when_ssh_is_cut() -> None:
    world = World(claimed(), beats=until(1000))
    for number in range(1, 20):
        world.set_labels(number * 800, claimed_until=LONG + number)
    assert 19 * 800 + TTL <= (world.deleted_at() or 0) <= 19 * 800 + TTL + 2 * POLL


def test_only_the_first_worker_judges_heartbeats() -> None:
    assert World(claimed(), worker=1).deleted_at(19 * HOUR) is None


@pytest.mark.parametrize("mode", ["hold", "detached"])
def test_heartbeats_matter_only_to_an_attached_run(mode: str) -> None:
    world = World(claimed(mode=mode), job=lambda now: ("running", None, None))
    assert world.deleted_at(19 * HOUR) is None


def test_a_paused_vm_does_not_count_the_pause_and_leaves_a_grace() -> None:
    world = World(claimed(), beats=until(1000), pauses=[(1800, 3 * HOUR)])
    woke_at = 1800 + 3 * HOUR
    assert woke_at + GRACE <= (world.deleted_at() or 0) <= woke_at + GRACE + BEAT
    back = World(claimed(), beats=lambda now: now < 1000 or now > woke_at + 2 * BEAT, pauses=[(1800, 3 * HOUR)])
    assert back.deleted_at(12 * HOUR) is None


def test_calls_that_hang_do_not_stretch_the_countdown() -> None:
    """Each poll takes longer than a heartbeat period; heartbeats are also read after each call."""
    world = World(claimed(), beats=until(2 * HOUR), call_s=2.5 * BEAT, down=until(2 * HOUR + 2 * TTL))
    assert (world.deleted_at() or 0) <= 2 * HOUR + 2 * TTL + 4 * BEAT


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


def test_nothing_is_deleted_while_the_api_is_silent_and_the_slice_goes_soon_after() -> None:
    world = World(claimed(), beats=until(1000), down=between(500, 3 * HOUR))
    assert 3 * HOUR <= (world.deleted_at() or 0) <= 3 * HOUR + BEAT / 2 + 1


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


def test_it_repeats_the_delete_until_the_vm_is_gone_and_does_not_spin() -> None:
    """An accepted delete may fail, and a 404 may be wrong: neither ends the repetition."""
    world = World(claimed(), beats=until(1000), delete_status=lambda now: 200 if int(now) % 2 else 404)
    world.run(1000 + TTL + 2 * HOUR)
    gaps = [later - sooner for sooner, later in zip(world.deletes, world.deletes[1:], strict=False)]
    assert max(gaps) <= BEAT / 2 + 1
    assert min(gaps) >= BEAT / 12
    assert len(world.calls) < 2 * 2 * HOUR / (BEAT / 2) + 100


def test_a_claim_that_is_renewed_meanwhile_ends_the_deleting() -> None:
    world = World(config(mode="hold", claimed_until=EPOCH + 4000), delete_status=lambda now: 503)
    world.set_labels(5000, claimed_until=LONG).run(10 * HOUR)
    assert world.deletes
    assert max(world.deletes) < 5000 + BEAT / 2 + 1


def test_a_heartbeat_during_the_last_read_keeps_the_slice() -> None:
    world = World(claimed(), beats=lambda now: now < 1000 or now > 960 + TTL + 0.05)
    assert world.deleted_at(5 * HOUR) is None


# -- whose slice it is --


def test_a_node_of_another_run_is_never_deleted() -> None:
    world = World(claimed(deadline=EPOCH + 5000))
    world.labels["tpujob-lease-id"] = "another000"
    assert world.deleted_at(10 * HOUR) is None
    assert not any(call[1] == "DELETE" for call in world.calls)
    assert not world.guest_attributes[-1]["armed"]


def test_a_node_without_its_labels_is_never_deleted() -> None:
    world = World(claimed()).at(5000, lambda world: world.labels.clear())
    world.beats = until(4900)
    assert world.deleted_at(10 * HOUR) is None


# -- the deadline --


@pytest.mark.parametrize("mode", ["run", "hold", "detached"])
def test_past_the_deadline_a_claim_does_not_keep_the_slice(mode: str) -> None:
    world = World(
        claimed(mode=mode, deadline=EPOCH + 5 * HOUR), beats=until(DAY), job=lambda now: ("running", None, None)
    )
    assert 5 * HOUR < (world.deleted_at() or 0) <= 5 * HOUR + BEAT / 12 + 2


def test_a_deadline_that_was_moved_counts_where_it_is_now() -> None:
    later = World(claimed(deadline=EPOCH + HOUR), beats=until(DAY)).set_labels(3000, deadline=EPOCH + 2 * HOUR)
    assert 2 * HOUR < (later.deleted_at() or 0) <= 2 * HOUR + 10
    sooner = World(claimed(deadline=EPOCH + 9 * HOUR), beats=until(DAY)).set_labels(3000, deadline=EPOCH + HOUR)
    assert HOUR < (sooner.deleted_at() or 0) <= HOUR + 10


@pytest.mark.parametrize("worker", [1, 3, 10, 63])
def test_other_workers_wait_their_turn_up_to_a_limit(worker: int) -> None:
    world = World(claimed(deadline=EPOCH + 5 * HOUR), worker=worker)
    expected = 5 * HOUR + min(worker, 10) * STAGGER
    assert expected < (world.deleted_at() or 0) <= expected + 2 * POLL


def test_waiting_for_its_turn_survives_calls_that_fail() -> None:
    flaky = random.Random(5)
    world = World(claimed(deadline=EPOCH + 5 * HOUR), worker=10, down=lambda now: flaky.random() < 0.5)
    assert (world.deleted_at() or 0) <= 5 * HOUR + 10 * STAGGER + 20 * POLL


# -- the lease that everybody can read --


def test_a_hold_ends_a_grace_after_its_lease() -> None:
    world = World(config(mode="hold", claimed_until=EPOCH + 2 * HOUR))
    assert 2 * HOUR + GRACE <= (world.deleted_at() or 0) <= 2 * HOUR + GRACE + 2 * POLL


def test_a_renewal_within_the_grace_is_in_time() -> None:
    world = World(config(mode="hold", claimed_until=EPOCH + 2 * HOUR)).set_labels(2 * HOUR + GRACE, claimed_until=LONG)
    assert world.deleted_at(19 * HOUR) is None


def test_an_attached_client_without_the_api_keeps_its_slice_by_heartbeats() -> None:
    assert World(config(), beats=until(10 * HOUR)).deleted_at(9 * HOUR) is None


def test_the_other_workers_go_by_the_lease_alone_and_cover_for_a_dead_first_one() -> None:
    world = World(config(), worker=3)
    expected = 3300 + GRACE + 3 * STAGGER
    assert expected <= (world.deleted_at() or 0) <= expected + 5 * POLL + 2 * POLL


def test_polls_that_fail_stretch_the_countdown_of_the_lease_by_less_than_a_few_polls() -> None:
    """Mutants `stretch` and `gap90`: half of all polls are lost, at random."""
    for seed in range(40):
        flaky = random.Random(seed)
        world = World(
            config(mode="hold", claimed_until=EPOCH + 2 * HOUR), down=lambda now, flaky=flaky: flaky.random() < 0.5
        )
        assert (world.deleted_at() or 0) <= 2 * HOUR + GRACE + 15 * POLL, seed


def test_an_outage_over_the_end_of_the_lease_leaves_time_to_renew_it() -> None:
    """Mutant `countoutage`: time in which no renewal was possible is not counted."""
    outage = between(1.9 * HOUR, 3 * HOUR)
    world = World(config(mode="hold", claimed_until=EPOCH + 2 * HOUR), down=outage).set_labels(
        3 * HOUR + 150, claimed_until=LONG
    )
    assert world.deleted_at(19 * HOUR) is None
    alone = World(config(mode="hold", claimed_until=EPOCH + 2 * HOUR), down=outage)
    assert 3 * HOUR + GRACE <= (alone.deleted_at() or 0) <= 3 * HOUR + GRACE + 3 * POLL


def test_an_outage_in_the_middle_of_the_grace_is_not_counted() -> None:
    begun = 2 * HOUR + 130
    world = World(config(mode="hold", claimed_until=EPOCH + 2 * HOUR), down=between(begun, begun + HOUR))
    assert (world.deleted_at() or 0) >= begun + HOUR + GRACE


@pytest.mark.parametrize("text", ["", "9e99", "-1", "1795272270.5", "٣٣٣٣٣٣٣٣٣٣", "99999999999999", None])
def test_an_unreadable_lease_leaves_the_deadline(text: str | None) -> None:
    world = World(config(mode="hold", deadline=EPOCH + 5 * HOUR))
    world.labels["tpujob-claimed-until"] = text  # type: ignore[assignment]
    assert 5 * HOUR < (world.deleted_at() or 0) <= 5 * HOUR + 10


def test_an_unreadable_deadline_or_mode_leaves_that_of_the_create_call() -> None:
    world = World(claimed(mode="hold", deadline=EPOCH + 5 * HOUR))
    world.labels.update({"tpujob-deadline": "soon", "tpujob-mode": "forever"})
    assert 5 * HOUR < (world.deleted_at() or 0) <= 5 * HOUR + 10


# -- what it may not see, or not do --


def test_without_the_permission_to_read_it_acts_on_heartbeats_and_the_deadline_but_not_on_an_old_lease() -> None:
    blind = {"get_status": lambda now: 403}
    assert TTL <= (World(config(), **blind).deleted_at() or 0) <= TTL + 1
    held = World(config(mode="hold", deadline=EPOCH + 5 * HOUR), **blind)
    assert 5 * HOUR < (held.deleted_at() or 0) <= 5 * HOUR + 10


def test_a_slice_of_up_is_deleted_ttl_after_boot_unless_its_labels_mark_it_as_held() -> None:
    alone = World(claimed(heartbeats=False), state="CREATING")
    alone.at(600, lambda world: setattr(world, "state", "READY"))
    assert 600 + TTL - POLL <= (alone.deleted_at() or 0) <= 600 + TTL + POLL + 1
    held = World(claimed(heartbeats=False, deadline=EPOCH + 5 * HOUR)).set_labels(TTL - POLL - 5, mode="hold")
    assert (held.deleted_at() or 0) > 5 * HOUR


def test_a_slice_of_up_is_kept_by_a_watchdog_that_cannot_read_whether_it_is_held() -> None:
    """It never publishes that it is armed; gc, or the deadline, ends the slice."""
    blind = World(claimed(heartbeats=False, deadline=EPOCH + 5 * HOUR), get_status=lambda now: 403)
    assert 5 * HOUR < (blind.deleted_at() or 0) <= 5 * HOUR + 10
    assert not any(said["armed"] for said in blind.guest_attributes)


def test_what_was_held_after_the_last_look_that_was_allowed_stays() -> None:
    """The labels had mode `run` when last read; the VM may not read that the mode is now `hold`."""
    held = World(claimed(heartbeats=False, deadline=EPOCH + 5 * HOUR), get_status=lambda now: 200 if now < 30 else 403)
    held.set_labels(40, mode="hold")
    assert 5 * HOUR < (held.deleted_at() or 0) <= 5 * HOUR + 10


def test_a_lease_is_not_judged_any_more_once_it_cannot_be_seen_whether_it_was_renewed() -> None:
    blind_from = 3300 + GRACE + 2 * STAGGER
    world = World(config(), worker=10, get_status=lambda now: 200 if now < blind_from else 403)
    assert world.deleted_at(19 * HOUR) is None


def test_after_a_first_look_that_was_refused_later_the_labels_are_remembered() -> None:
    world = World(config(), get_status=lambda now: 200 if now < 2000 else 403, beats=until(1500))
    world.set_labels(1000, mode="hold", claimed_until=LONG, deadline=EPOCH + 5 * HOUR)
    assert 5 * HOUR < (world.deleted_at() or 0) <= 5 * HOUR + 10


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
    world = World(claimed(), beats=until(DAY), **{verb: lambda now: 403 if now < 1000 else 200})
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


# -- the job has the claim --


def ending(at: float, rc: int | None = 0, *, ago: bool = True) -> Any:
    return lambda now: ("running", None, None) if now < at else ("ended", now - at if ago else None, rc)


@pytest.mark.parametrize("rc", [0, 1, None])
def test_a_detached_slice_goes_a_linger_time_after_its_job(rc: int | None) -> None:
    world = World(claimed(mode="detached"), job=ending(5 * HOUR, rc))
    assert 5 * HOUR + LINGER <= (world.deleted_at() or 0) <= 5 * HOUR + LINGER + 1


def test_a_job_that_was_lost_lingers_from_when_that_was_seen() -> None:
    world = World(claimed(mode="detached"), job=ending(5 * HOUR, None, ago=False))
    assert 5 * HOUR + LINGER <= (world.deleted_at() or 0) <= 5 * HOUR + LINGER + BEAT


def test_a_watchdog_that_starts_late_counts_the_linger_time_already_passed() -> None:
    world = World(claimed(mode="detached"), job=lambda now: ("ended", now + 300, 0))
    assert LINGER - 300 <= (world.deleted_at() or 0) <= LINGER - 300 + 1


def test_a_job_that_ended_a_day_ago_has_a_grace_all_the_same() -> None:
    world = World(claimed(mode="detached"), job=lambda now: ("ended", now + DAY, 0))
    assert GRACE <= (world.deleted_at() or 0) <= GRACE + 1


def test_a_linger_time_below_the_grace_is_not_stretched_to_it() -> None:
    world = World(claimed(mode="detached", linger_s=60.0), job=ending(HOUR))
    assert HOUR + 60 <= (world.deleted_at() or 0) <= HOUR + 60 + BEAT


def test_a_detached_slice_without_a_job_goes_after_ttl() -> None:
    assert TTL <= (World(claimed(mode="detached")).deleted_at() or 0) <= TTL + 1


def test_a_next_job_in_the_linger_time_keeps_the_slice() -> None:
    def job(now: float) -> tuple[str, float | None, int | None]:
        return ("ended", now - 3600, 0) if 3600 <= now < 3900 else ("running", None, None)

    assert World(claimed(mode="detached"), job=job).deleted_at(19 * HOUR) is None


def test_a_detach_is_noticed_and_ends_the_need_for_heartbeats() -> None:
    world = World(claimed(), beats=until(1000), job=ending(5 * HOUR)).set_labels(990, mode="detached")
    assert 5 * HOUR + LINGER <= (world.deleted_at() or 0) <= 5 * HOUR + LINGER + 1


def test_an_attached_client_may_finish_collecting() -> None:
    world = World(claimed(mode="detached"), job=ending(HOUR), beats=between(1.1 * HOUR, 2 * HOUR))
    assert 2 * HOUR <= (world.deleted_at() or 0) <= 2 * HOUR + GRACE + 2 * BEAT


def test_on_no_worker_does_a_failed_job_end_a_collection() -> None:
    world = World(claimed(mode="detached"), worker=2, job=ending(HOUR, 3), beats=between(1.1 * HOUR, 4 * HOUR))
    at = world.deleted_at()
    assert 4 * HOUR <= (at or 0) <= 4 * HOUR + 2 * GRACE + 2 * STAGGER + watchdog.SLOW_FACTOR * POLL


@pytest.mark.parametrize(("rc", "goes"), [(0, False), (3, True), (None, True)])
def test_another_worker_acts_only_on_a_job_that_failed_there(rc: int | None, goes: bool) -> None:
    world = World(claimed(mode="detached"), worker=2, job=ending(5 * HOUR, rc))
    at = world.deleted_at(19 * HOUR)
    assert (at is not None) == goes
    if at is not None:
        assert 5 * HOUR + LINGER + 2 * STAGGER <= at <= 5 * HOUR + LINGER + 2 * STAGGER + 2 * POLL


def test_another_worker_does_not_miss_a_job() -> None:
    assert World(claimed(mode="detached"), worker=2).deleted_at(19 * HOUR) is None


# -- a person holds it, and does nothing --


def test_an_idle_hold_goes_after_its_limit() -> None:
    world = World(claimed(mode="hold", idle_s=1800), busy=until(HOUR))
    assert HOUR + 1800 - BEAT <= (world.deleted_at() or 0) <= HOUR + 1800 + 2 * BEAT


def test_a_job_or_a_login_is_not_idle() -> None:
    job = World(claimed(mode="hold", idle_s=1800), job=lambda now: ("running", None, None))
    assert job.deleted_at(19 * HOUR) is None
    login = World(claimed(mode="hold", idle_s=1800), busy=lambda now: now % 1700 < 120)
    assert login.deleted_at(19 * HOUR) is None


@pytest.mark.parametrize("changes", [{"idle_s": None}, {"idle_s": 1800, "mode": "run"}])
def test_idling_matters_only_to_a_hold_with_a_limit(changes: dict[str, Any]) -> None:
    assert World(claimed(**({"mode": "hold"} | changes)), beats=until(DAY)).deleted_at(19 * HOUR) is None


def test_labels_of_the_world_are_those_that_the_client_writes() -> None:
    from orchestrator.core.text import names

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

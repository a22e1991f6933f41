"""The table of promises agrees with the periods of the code and with its page."""

import inspect
from dataclasses import replace

import pytest

from orchestrator import promises
from orchestrator.core.lease import timings as claim_timings
from orchestrator.core.lease.timings import GOOGLE, Timings
from orchestrator.core.text.durations import parse_duration
from orchestrator.drill.runner import formula, symbolic
from orchestrator.emulator.model.records import Settings
from orchestrator.promises import EMULATED_SPEED, PROMISES, Bound, Part, PromisedBound, PromiseWorld, bound
from orchestrator.vm.watchdog import FAST_FACTOR, SLOW_FACTOR

EMULATED = PromiseWorld(speed=EMULATED_SPEED, ready_s=Settings().provision_s)
HERE = PromiseWorld(speed=100, deletion_s=1.5, ready_s=6.0, gc_every_s=18.0)
EVERY = [promise for promise in PROMISES.values() if promise.formula]


def derived(timings: Timings) -> dict[str, float]:
    """Every period of the table, from the code."""
    return {
        "heartbeat": timings.heartbeat_s, "poll": timings.poll_s, "rare poll": SLOW_FACTOR * timings.poll_s,
        "ttl": timings.ttl_s, "grace": timings.grace_s, "boot": timings.boot_s, "linger": timings.linger_s,
        "margin": timings.margin_s, "stagger": timings.stagger_s, "renew": timings.renew_s,
        "label": timings.label_ttl_s, "provision": timings.provision_s,
        "claimed": max(timings.label_ttl_s, timings.provision_s + timings.boot_s),
    }  # fmt: skip


@pytest.mark.parametrize("name", derived(GOOGLE))
def test_every_period_of_the_table_is_that_of_the_code(name: str) -> None:
    assert promises.seconds(name) == derived(GOOGLE)[name]
    for speed in (1.0, EMULATED_SPEED, 300.0):
        assert promises.seconds(name, speed) == pytest.approx(derived(claim_timings.emulated(speed))[name])


def test_the_code_s_own_times_are_those_of_the_table() -> None:
    from orchestrator.cli.commands.guarantee.install_gc import install_gc
    from orchestrator.engine.runtime.retry import pauses

    every = inspect.signature(install_gc).parameters["every"].default
    assert promises.seconds("timer") == parse_duration(every)
    assert claim_timings.EMULATED_SPEED == EMULATED_SPEED
    assert promises.seconds("READY") == GOOGLE.provision_s and promises.seconds("D") == GOOGLE.absent_s
    longest = [pause for pause, _ in zip(pauses(first_s=0.05, growth=1.25), range(100), strict=False)][-1]
    assert longest == promises.LOOK_S
    # After its countdown the watchdog looks again within a heartbeat, asks the API, and deletes.
    assert GOOGLE.heartbeat_s / 12 + GOOGLE.poll_s / FAST_FACTOR <= promises.seconds("watchdog")


@pytest.mark.parametrize("promise", EVERY, ids=lambda promise: f"{promise.class_} {promise.event}")
def test_the_page_has_the_sum_of_each_formula(promise: PromisedBound) -> None:
    assert symbolic(bound(promise, PromiseWorld())) == promise.google
    assert symbolic(bound(promise, EMULATED)) == promise.emulated


@pytest.mark.parametrize(("name", "seconds"), [
    ("command", 10 + 1.5), ("guardian", 5 + 1.5), ("guardian of a create", 5 + 6 + 1.5 + 1.5),
    ("watchdog", 9 + 1.8 + 3.2 + 1.5), ("watchdog of a create", 6 + 6 + 9 + 1.8 + 3.2 + 1.5),
    ("watchdog of a detached run", 36 + 1.8 + 1.8 + 3.2 + 1.5),
    ("gc", 96 + 1.2 + 18 + 5 + 1.5),  # here the first label reaches furthest
    ("gc of a detached run", 1.2 + 18 + 5 + 1.5),  # from its deadline, to which its label reaches
])  # fmt: skip
def test_the_bounds_on_a_faster_emulator_are_these(name: str, seconds: float) -> None:
    assert bound(PROMISES[name], HERE).seconds == pytest.approx(seconds)


@pytest.mark.parametrize("promise", EVERY, ids=lambda promise: promise.formula)
def test_every_delete_without_effect_adds_one_deletion_and_one_read(promise: PromisedBound) -> None:
    unlucky = bound(promise, replace(HERE, failed_deletes=2))
    looks_s = 1.5 / 4 + 3.0 / 4
    assert unlucky.seconds == pytest.approx(bound(promise, HERE).seconds + 2 * HERE.deletion_s + looks_s)
    assert symbolic(unlucky).endswith(" + 3 D")


def test_on_google_cloud_the_next_read_is_at_most_half_a_minute_away() -> None:
    assert symbolic(bound(PROMISES["command"], PromiseWorld(failed_deletes=2))) == "1 m 10 s + 3 D"


def test_a_faster_emulator_does_not_shorten_the_work_of_processes() -> None:
    assert promises.seconds("watchdog", 1000) > 3.0
    assert promises.seconds("watchdog", 100) == pytest.approx(3.2)
    assert promises.seconds("watchdog") == 20.0


def test_a_slow_machine_stretches_its_own_work_and_no_period() -> None:
    for promise, own_s in (("command", 10), ("guardian", 5), ("watchdog", 3)):
        slow = bound(PROMISES[promise], replace(HERE, slowness=5.0)).seconds
        assert slow == pytest.approx(bound(PROMISES[promise], HERE).seconds + 4 * own_s)


def test_a_formula_names_every_part_with_its_length_and_adds_up() -> None:
    grace_and_deletions = Bound((Part("grace", 1.8), Part("3 deletions", 4.5, "3 D")))
    assert grace_and_deletions.seconds == pytest.approx(6.3)
    assert formula(grace_and_deletions) == "grace 1.8 s + 3 deletions 4.5 s"
    assert symbolic(grace_and_deletions) == "1.8 s + 3 D"


@pytest.mark.parametrize("promise", EVERY, ids=lambda promise: promise.formula)
def test_a_slower_cloud_never_tightens_a_bound(promise: PromisedBound) -> None:
    slower = replace(HERE, speed=50, deletion_s=3.0, ready_s=12.0, gc_every_s=36.0)
    assert bound(promise, slower).seconds >= bound(promise, HERE).seconds

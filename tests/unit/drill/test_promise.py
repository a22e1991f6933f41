"""The bounds, in Google's periods as the documentation states them, and in those of the emulated cloud."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core import pace as paces
from orchestrator.drill import promise
from orchestrator.drill.promise import Bound, Promise, Term, World

HERE = World(pace=paces.emulated(100), deletion_s=1.5, provision_s=6.0, sweep_every_s=18.0)
EVERY = [
    promise.owner,
    promise.guardian,
    promise.guardian_of_a_create,
    promise.timer,
    promise.switch,
    promise.switch_of_a_create,
    promise.switch_of_a_detached_run,
    promise.switch_of_a_held_slice,
    promise.sweeper,
]


@pytest.mark.parametrize(
    ("kept_by", "words"),
    [
        (promise.owner, "10 s + D"),
        (promise.guardian, "5 s + D"),
        (promise.guardian_of_a_create, "45 m 35 s + D"),  # 45 m until READY, and a look every half minute
        (promise.switch, "18 m 20 s + D"),  # 15 m of silence, 3 m of grace
        (
            promise.switch_of_a_detached_run,
            "16 m 20 s + D",
        ),  # 10 m for the artifacts, 3 m of grace, three looks at the labels
        (promise.sweeper, "1 h 17 m + S + D"),  # 75 m of label, 2 m of margin
    ],
)
def test_the_bounds_on_google_cloud_are_these(kept_by: Promise, words: str) -> None:
    assert kept_by(HERE.on_google).symbolic == words


@pytest.mark.parametrize(
    ("kept_by", "seconds"),
    [
        (promise.owner, 10 + 1.5),
        (promise.guardian, 5 + 1.5),
        (promise.guardian_of_a_create, 5 + 6 + 1.5 + 1.5),
        (promise.switch, 9 + 1.8 + 3.2 + 1.5),
        (promise.switch_of_a_detached_run, 6 + 1.8 + 1.8 + 3.2 + 1.5),
        (promise.sweeper, 96 + 1.2 + 18 + 5 + 1.5),  # here the first label reaches furthest
    ],
)
def test_the_bounds_on_the_emulator_are_these(kept_by: Promise, seconds: float) -> None:
    assert kept_by(HERE).seconds == pytest.approx(seconds)


@pytest.mark.parametrize("kept_by", EVERY)
def test_every_delete_that_comes_to_nothing_costs_one_deletion_and_one_look_more(kept_by: Promise) -> None:
    unlucky = kept_by(replace(HERE, failed_deletes=2))
    looks_s = 1.5 / 4 + 3.0 / 4
    assert unlucky.seconds == pytest.approx(kept_by(HERE).seconds + 2 * HERE.deletion_s + looks_s)
    assert unlucky.symbolic.endswith(" + 3 D")


def test_on_google_cloud_a_look_is_half_a_minute_away_at_most() -> None:
    assert promise.owner(World(failed_deletes=2)).symbolic == "1 m 10 s + 3 D"


def test_an_outage_is_added_to_what_the_switch_needs_and_a_grace_and_three_polls_more() -> None:
    cut_off = replace(HERE, outage_s=14.0)
    assert promise.switch(cut_off).seconds == pytest.approx(promise.switch(HERE).seconds + 14.0 + 1.8 + 1.8)
    assert promise.switch(cut_off.on_google).symbolic == "24 m 20 s + O + D"


def test_what_runs_in_processes_is_not_promised_faster_than_processes_are() -> None:
    def own_s(speed: float) -> float:
        return promise.switch(World(pace=paces.emulated(speed))).terms[2].seconds

    assert own_s(1000) > 3.0
    assert own_s(100) == pytest.approx(3.2)
    assert promise.switch(World()).terms[2].seconds == 20.0


def test_a_formula_names_every_part_with_its_length_and_adds_up() -> None:
    bound = Bound((Term("grace", 1.8), Term("3 deletions", 4.5, "3 D")))
    assert bound.seconds == pytest.approx(6.3)
    assert bound.formula == "grace 1.8 s + 3 deletions 4.5 s"
    assert bound.symbolic == "1.8 s + 3 D"


@pytest.mark.parametrize("kept_by", EVERY)
def test_a_slower_cloud_never_tightens_a_bound(kept_by: Promise) -> None:
    slower = replace(HERE, pace=paces.emulated(50), deletion_s=3.0, provision_s=12.0, sweep_every_s=36.0)
    assert kept_by(slower).seconds >= kept_by(HERE).seconds

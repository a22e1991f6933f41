"""A curve of any length in a bounded number of points, without losing an extreme."""

import random
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.report.files.curve import Curve


def curve_of(values: Sequence[float], *, points: int = 100, at_once: int = 1000) -> Curve:
    curve = Curve(points)
    for begin in range(0, len(values), at_once):
        part = values[begin : begin + at_once]
        curve.add(part, lambda index, begin=begin: begin + index + 1)
    return curve


def test_few_values_are_kept_as_they_are() -> None:
    assert curve_of([3.0, 1.0, 2.0]).points() == [(1, 3.0), (2, 1.0), (3, 2.0)]


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3000), st.integers(1, 700), st.sampled_from([16, 50, 100, 400])
)
def test_first_last_lowest_and_highest_stay_at_their_steps(values: list[float], at_once: int, most: int) -> None:
    points = curve_of(values, points=100, at_once=at_once).points(most)
    assert len(points) <= most + 2 and [x for x, _ in points] == sorted(x for x, _ in points)
    assert points[0] == (1, values[0]) and points[-1] == (len(values), values[-1])
    kept = [value for _, value in points]
    assert min(values) in kept and max(values) in kept
    assert all(values[int(x) - 1] == value for x, value in points), "each point is one of the values"


def test_every_stretch_of_a_long_curve_has_its_own_extremes() -> None:
    noise = random.Random(1)
    values = [noise.random() for _ in range(200_000)]
    for peak in range(5_000, 200_000, 20_000):
        values[peak] = 5.0 + peak
    kept = {value for _, value in curve_of(values, points=2_000).points()}
    assert {5.0 + peak for peak in range(5_000, 200_000, 20_000)} <= kept


def test_a_curve_is_the_same_however_few_values_come_at_once() -> None:
    noise = random.Random(1)
    values = [noise.random() for _ in range(30_000)]
    assert curve_of(values, at_once=1).points() == curve_of(values, at_once=30_000).points()


def test_what_is_no_number_is_a_hole_that_stays() -> None:
    curve = Curve(16)
    for step in range(1, 2001):
        if 900 <= step < 1000:
            curve.add_hole(step)
        else:
            curve.add([1.0], lambda _, step=step: step)
    assert any(value is None and 850 < x < 1050 for x, value in curve.points(16))


def test_a_job_that_repeats_steps_has_a_curve_in_the_order_of_its_steps() -> None:
    curve = Curve()
    for step in (1, 2, 3, 2, 3, 4):
        curve.add([float(step)], lambda _, step=step: step)
    assert [x for x, _ in curve.points()] == [1, 2, 3, 4], "what came out the same is one point"


def test_a_million_values_take_little_memory() -> None:
    curve, piece = Curve(), [float(number % 97) for number in range(10_000)]
    tracemalloc.start()
    for number in range(100):
        curve.add(piece, lambda index, number=number: number * 10_000 + index)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20 and len(curve.points()) <= 2_002


@pytest.mark.parametrize("count", [0, 1])
def test_a_curve_of_nothing_or_of_one_value(count: int) -> None:
    assert curve_of([7.0] * count).points() == [(1, 7.0)] * count

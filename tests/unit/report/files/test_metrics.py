"""The metrics of a run in a few numbers each, and a curve of any length in a bounded number of points."""

import json
import random
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.report.files import artifact_files, metrics
from orchestrator.report.files.metrics import Curve, Followed, Metric, MetricSums, summarize
from orchestrator.text.parsing import NAMES, line_of


def write(path: Path, *lines: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_a_metric_has_its_last_best_lowest_and_highest_value_with_their_steps(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m", {"step": 1, "loss": 3, "acc": 0.1}, {"step": 2, "loss": 1, "acc": 0.9}, {"step": 3, "loss": 2}
    )
    found = summarize(path)
    assert found["loss"] == Metric(last=2, last_step=3, best=1, best_step=2, low=1, high=3, count=3)
    assert found["acc"] == Metric(last=0.9, last_step=2, best=0.9, best_step=2, low=0.1, high=0.9, count=2)


def test_a_loss_that_diverged_has_no_last_value_and_keeps_its_best(tmp_path: Path) -> None:
    found = summarize(write(tmp_path / "m", {"step": 1, "loss": 2.5}, '{"step": 2, "loss": NaN}'))["loss"]
    assert (found.last, found.last_step, found.best, found.count) == (None, 2, 2.5, 2)


def test_lines_that_are_no_metrics_cost_only_themselves(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m", '{"loss": 1}', "{", "", '{"loss": "x"}', '{"loss": true}', "1],[2", "[[[[",
        '{"loss": 3}, 4', '{"loss": 2}',
    )  # fmt: skip
    with path.open("a") as file:
        file.write('{"loss": 99')
    assert summarize(path)["loss"] == Metric(2, None, 1, None, 1, 2, 2)


def test_a_file_that_is_not_there_has_no_metrics(tmp_path: Path) -> None:
    assert summarize(tmp_path / "none") == {} and metrics.read(tmp_path) == {}


def test_only_so_many_names_count(tmp_path: Path) -> None:
    path = write(tmp_path / "m", *({f"n{number}": 1} for number in range(3 * NAMES)))
    assert len(summarize(path)) == NAMES


def test_a_name_that_is_another_on_each_line_is_looked_for_on_its_line_only() -> None:
    class Name(str):
        __slots__ = ()
        looked_up = 0

        def __hash__(self) -> int:
            Name.looked_up += 1
            return super().__hash__()

    sums = MetricSums()
    sums.add([{Name(f"n{number}"): 1} for number in range(1000)])
    assert len(sums.metrics()) == NAMES and 1000 < Name.looked_up < 10_000


def test_the_collected_file_counts_before_the_followed_one_and_before_the_finds_of_patterns(tmp_path: Path) -> None:
    write(tmp_path / metrics.FOUND, {"loss": 1, "rate": 7})
    write(tmp_path / metrics.LIVE, {"loss": 2})
    assert {name: each.last for name, each in metrics.read(tmp_path).items()} == {"loss": 2, "rate": 7}
    write(tmp_path / metrics.COLLECTED, {"loss": 3})
    assert {name: each.last for name, each in metrics.read(tmp_path).items()} == {"loss": 3, "rate": 7}


def test_a_long_file_is_read_without_being_held(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_text("".join(f'{{"step": {step}, "loss": {1 / (step + 1)}}}\n' for step in range(100_000)))
    (tmp_path / "short").write_text('{"loss": 1}\n')
    summarize(tmp_path / "short")  # what is imported for it does not count
    tracemalloc.start()
    found = summarize(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found["loss"].count == 100_000 and found["loss"].last_step == 99_999
    assert peak < path.stat().st_size / 2


def test_the_newest_values_come_from_the_end_of_a_file_however_large_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / metrics.FOUND, {"rate": 7, "loss": 9})
    path = write(tmp_path / metrics.LIVE, {"first": 1}, *({"step": step, "loss": step, "acc": 1} for step in range(9)))
    with path.open("a") as file:
        file.write('{"loss": NaN}\n{"loss": 4')
    assert metrics.newest(tmp_path) == {"rate": 7, "first": 1, "step": 8, "loss": None, "acc": 1}
    monkeypatch.setattr(artifact_files, "LAST_BYTES", 100)
    assert metrics.newest(tmp_path) == {"rate": 7, "step": 8, "loss": None, "acc": 1}, "what is before that is not read"
    assert metrics.newest(tmp_path / "none") == {}


@pytest.mark.parametrize(("values", "main", "text"), [
    ({"loss": 0.5, "images_per_s": 2100.0, "test_accuracy": 0.974}, ("test_accuracy", 0.974), "test accuracy 97.4 %"),
    ({"acc": 0.9, "loss": 0.4123, "eval/loss": 0.5}, ("eval/loss", 0.5), "eval/loss 0.5"),
    ({"acc": 0.9, "loss": None, "step_s": 1}, ("loss", None), "loss is not finite"),
    ({"images_per_s": 2100, "test_accuracy": None, "lr": 1}, ("images_per_s", 2100), "2,100 images/s"),
    ({"reward": 10**400, "f1": "x", "schema": 1}, ("reward", None), "reward is not finite"),
])  # fmt: skip
def test_the_main_figure_says_how_good_a_run_is_before_how_fast(
    values: dict[str, object], main: tuple[str, float | None], text: str
) -> None:
    assert metrics.main_figure(values) == main and metrics.figure_text(*main) == text


@pytest.mark.parametrize(
    "values", [{}, {"schema": 1, "data_wait_s": 2.0, "lr": 0.1, "dataset": {}, "acc": [1], "f1": True}]
)
def test_what_cannot_be_better_or_worse_is_no_main_figure(values: dict[str, object]) -> None:
    assert metrics.main_figure(values) is None


HUGE = st.sampled_from([10**400, -(10**400)])  # no float holds them; together they are 0
VALUES = st.one_of(st.floats(), st.integers(), HUGE, st.booleans(), st.text(max_size=3), st.none(), st.just([1]))
ROWS = st.dictionaries(st.sampled_from(["loss", "acc", "step", "a\nb"]), VALUES, max_size=4)


@given(rows=st.lists(ROWS, max_size=20))
def test_many_lines_at_once_say_what_each_says_by_itself(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]
) -> None:
    found = summarize(write(tmp_path_factory.mktemp("m") / "m", *rows))
    lines = [line for row in rows if (line := line_of(json.loads(json.dumps(row)))) is not None]
    names = {name for line in lines for name in line.values}
    assert set(found) == names
    for name in names:
        values = [(line.values[name], line.step) for line in lines if name in line.values]
        finite = [value for value, _ in values if value is not None]
        each = found[name]
        assert (each.last, each.last_step, each.count) == (*values[-1], len(values))
        assert (each.low, each.high) == (min(finite, default=None), max(finite, default=None))


# -- a file that was followed -------------------------------------------------------------------------------------------


def lines(first: int, last: int) -> bytes:
    return b"".join(b'{"step": %d, "loss": %d}\n' % (step, 1000 - step) for step in range(first, last + 1))


def test_a_file_that_is_followed_says_what_it_says_as_a_whole(tmp_path: Path) -> None:
    followed, every = Followed(), lines(1, 50)
    for begin in range(0, len(every), 37):
        followed.feed(every[begin : begin + 37])
    (tmp_path / "m").write_bytes(every)
    assert followed.sums.metrics() == summarize(tmp_path / "m") == {"loss": Metric(950, 50, 950, 50, 950, 999, 50)}


def test_a_file_that_did_not_change_is_not_parsed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").write_bytes(lines(1, 50))
    before = summarize(tmp_path / "m")
    monkeypatch.setattr(artifact_files, "loads", None)
    assert summarize(tmp_path / "m") == before


def curve_of(values: Sequence[float], *, points: int = 100, at_once: int = 1000) -> Curve:
    curve = Curve(points)
    for begin in range(0, len(values), at_once):
        part = values[begin : begin + at_once]
        curve.add(part, lambda index, begin=begin: begin + index + 1)
    return curve


def test_a_curve_has_steps_once_a_value_has_one() -> None:
    sums = MetricSums()
    sums.add([{"loss": 1}, {"loss": 2, "acc": 1, "step": 3}, {"rate": 1, "step": "x"}])
    assert {name: curve.stepped for name, curve in sums.curves().items()} == {"loss": True, "acc": True, "rate": False}


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

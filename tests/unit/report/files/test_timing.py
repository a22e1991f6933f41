"""Times and the use of TPUs from the files of workers, however hostile, and how to open their profiles."""

import io
import itertools
import json
import os
import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from orchestrator.report.files import timing_file
from orchestrator.report.files.device import NAME, TpuUse, how_to_open, read_run
from orchestrator.report.files.timing import PIECES, Spread, StepTimes, Timing
from orchestrator.vm.agent import chips as sampler

HEADER: dict[str, Any] = {"schema": 1, "timing": "stamped", "device": "xla:cpu", "processes": 2, "batch_size": 64}


def read(*lines: Any, **kw: Any) -> Timing:
    raw = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
    return timing_file.read(io.BytesIO(raw), **kw)


def step(dt_s: float, *, compiled: bool = False) -> dict[str, Any]:
    return {"epoch": 1, "step": 1, "t_s": 11.0, "dt_s": dt_s} | ({"compile": True} if compiled else {})


def epoch(number: int, s: float, *, warm_steps: int = 4, steps: int = 4) -> dict[str, Any]:
    return {"epoch": number, "t_s": 50.0, "s": s, "compile_s": 0.0, "warm_steps": warm_steps, "steps": steps}


def test_the_mean_of_an_iteration_comes_from_the_drained_epochs_and_not_from_the_stamps() -> None:
    found = read(HEADER, step(9.0, compiled=True), *[step(0.1)] * 4, epoch(1, 2.0), epoch(2, 4.0))
    assert found.step_mean_s == pytest.approx(6.0 / 8)
    assert (found.warm_up_steps, found.warm_steps, found.train_s) == (1, 8, 6.0)


def test_a_step_that_compiled_is_in_no_spread() -> None:
    found = read({**HEADER, "timing": "drained"}, step(9.0, compiled=True), step(0.1), step(0.2), step(0.3))
    assert found.step_std_s == pytest.approx(statistics.stdev([0.1, 0.2, 0.3]))
    assert found.step_mean_s == pytest.approx(0.2), "no epoch has ended: the stamps are what there is"


def test_stamped_steps_have_no_spread_because_a_dispatch_is_not_a_step() -> None:
    assert read(HEADER, step(0.1), step(0.3), epoch(1, 1.0)).step_std_s is None


def test_an_epoch_with_warm_up_in_it_is_left_out_of_the_mean_of_epochs() -> None:
    found = read(HEADER, epoch(1, 1.5, warm_steps=2), epoch(2, 4.0), epoch(3, 6.0))
    spread, estimated = found.epoch_s
    assert (spread.mean, spread.count, estimated) == (5.0, 2, False)
    assert spread.std == pytest.approx(statistics.stdev([4.0, 6.0]))


def test_where_every_epoch_has_warm_up_the_mean_is_extrapolated_and_said_to_be() -> None:
    spread, estimated = read(HEADER, epoch(1, 1.5, warm_steps=3, steps=4)).epoch_s
    assert (spread.mean, spread.std, estimated) == (2.0, None, True)


def test_a_step_that_a_profiler_traced_is_in_no_spread_and_in_no_histogram() -> None:
    traced = {**step(9.0), "profile": True}
    found = read(
        {**HEADER, "timing": "drained"}, step(0.1), traced, traced, step(0.3), {"span": "profile", "t_s": 1, "s": 18.5}
    )
    assert (found.intervals.count, found.intervals.mean) == (2, pytest.approx(0.2))
    assert (found.warm_up_steps, found.profiled_steps, found.spans) == (0, 2, {"profile": 18.5})
    assert sum(each.steps for each in found.steps.histogram()) == 2
    assert [step for step, _ in found.steps.clock()] == [1, 4], "it counts as a step of the training all the same"


def test_an_epoch_in_which_every_step_compiled_says_nothing_about_speed() -> None:
    found = read(HEADER, epoch(1, 0.0, warm_steps=0, steps=2))
    assert (found.step_mean_s, found.epoch_s[0].count) == (None, 0)


def test_a_resumed_training_keeps_what_was_measured_before() -> None:
    found = read(
        HEADER, step(1.0), epoch(1, 4.0), {**HEADER, "resumed_after_step": 6}, step(2.0), epoch(2, 3.0, warm_steps=2)
    )
    assert (found.sessions, found.train_s, found.first_step_s) == (2, 7.0, 11.0)
    assert found.epoch_s[0].mean == 4.0, "the second epoch is not whole"


def test_resumed_in_another_mode_there_is_no_spread_any_more() -> None:
    found = read({**HEADER, "timing": "drained"}, step(1.0), step(2.0), HEADER, step(3.0))
    assert found.step_std_s is None and "resumed with another" in found.problems[0]


def test_spans_of_one_name_add_up() -> None:
    found = read(HEADER, {"span": "compile", "t_s": 1, "s": 2.5}, {"span": "compile", "t_s": 9, "s": 0.5})
    assert found.spans == {"compile": 3.0}


@pytest.mark.parametrize("line", [
    b"not json\n", b"[1, 2]\n", b"\xff\xfe\n", b"[" * 5000 + b"\n",
    b"x" * (timing_file.MAX_LINE_BYTES + 5) + b"\n", {"epoch": 1, "step": 1, "t_s": 1.0, "dt_s": "0.1"},
    {"epoch": 1, "step": 1, "t_s": 1.0, "dt_s": True}, b'{"epoch": 1, "step": 1, "t_s": 1.0, "dt_s": NaN}\n',
    b'{"epoch": 1, "step": 1, "t_s": 1.0, "dt_s": -1}\n',
    b'{"epoch": 1, "step": 1, "t_s": 1.0, "dt_s": 1e999}\n',
    b'{"epoch": 1, "step": 1, "t_s": 1.0, "dt_s": ' + b"9" * 5000 + b"}\n",
    {"epoch": 1, "s": 1.0, "warm_steps": 1.5, "steps": 2},
    {"epoch": None, "s": 1.0, "warm_steps": 1, "steps": 2}, {"span": "rm -rf", "s": 1.0},
    {"span": ["eval"], "s": 1.0}, {"span": "eval", "s": None}, {},
])  # fmt: skip
def test_a_line_that_makes_no_sense_is_counted_and_costs_no_other(line: Any) -> None:
    found = read(HEADER, line, step(0.5))
    assert found.intervals.mean == 0.5 and found.intervals.count == 1
    assert "make no sense" in found.problems[0]


def test_a_newer_schema_is_said_and_not_guessed_at() -> None:
    found = read({**HEADER, "schema": 2}, step(0.5), epoch(1, 1.0))
    assert found.problems == ["timing.jsonl has schema '2', and schema 1 is what this tpujob reads"]
    assert (found.step_mean_s, found.epochs) == (None, [])


def test_of_a_newer_schema_that_follows_an_older_one_nothing_is_read() -> None:
    found = read(HEADER, step(1.0), {**HEADER, "schema": 2}, step(2.0), {**HEADER, "schema": 3}, step(3.0))
    assert (found.intervals.count, len(found.problems)) == (1, 1)


def test_headers_without_end_are_so_many_sessions_and_one_sentence() -> None:
    other = {**HEADER, "timing": "drained"}
    found = read(*[HEADER, other] * timing_file.MAX_SESSIONS)
    assert found.sessions == len(found.began_s) == timing_file.MAX_SESSIONS
    assert found.problems == [
        timing_file.OTHER_MODE,
        f"{timing_file.MAX_SESSIONS:,} lines of timing.jsonl make no sense and were left out",
    ]


def test_without_a_header_nothing_is_believed() -> None:
    found = read(step(0.5), epoch(1, 1.0))
    assert found.step_mean_s is None and "2 lines" in found.problems[0]


def test_a_file_without_end_is_read_to_its_limit() -> None:
    found = read(HEADER, *[step(0.5)] * 100, max_bytes=1000)
    assert 0 < found.intervals.count < 20 and "larger than" in found.problems[0]


def test_text_from_a_worker_cannot_steer_a_terminal() -> None:
    assert read({**HEADER, "device": "\x1b[31mred\n" + "x" * 500}).device == "red" + "x" * 57


def test_the_file_of_the_first_worker_that_has_one_is_read(tmp_path: Path) -> None:
    for index in range(3):
        (tmp_path / f"worker{index}" / "artifacts").mkdir(parents=True)
    (tmp_path / "worker1" / "artifacts" / timing_file.NAME).write_text(json.dumps(HEADER) + "\n")
    found = timing_file.read_run(tmp_path)
    assert found is not None and found.processes == 2


@pytest.mark.parametrize("kind", ["fifo", "link", "directory", "nothing"])
def test_what_is_not_a_regular_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "worker0" / "artifacts" / timing_file.NAME
    path.parent.mkdir(parents=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "secret").write_text(json.dumps(HEADER) + "\n")
        path.symlink_to(tmp_path / "secret")
    elif kind == "directory":
        path.mkdir()
    assert timing_file.read_run(tmp_path) is None


def test_a_spread_of_small_differences_between_large_times_loses_no_digit() -> None:
    spread = Spread()
    for value in (1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16):
        spread.add([value])
    assert spread.std == pytest.approx(statistics.stdev([4, 7, 13, 16]))


def steps_of(seconds: list[float]) -> StepTimes:
    steps, at_s = StepTimes(), list(itertools.accumulate(seconds))
    for begin in range(0, len(seconds), 1000):
        steps.add(begin, seconds[begin : begin + 1000], at_s[begin : begin + 1000])
    return steps


def test_the_rates_of_a_long_training_are_those_of_its_pieces() -> None:
    steps = steps_of([0.01] * 50_000 + [0.02] * 50_000)
    assert len(steps.pieces) <= 2 * PIECES
    assert sum(piece.steps for piece in steps.pieces) == 100_000 and steps.pieces[-1].step == 100_000
    assert sum(piece.seconds for piece in steps.pieces) == pytest.approx(1500)
    rates = [piece.steps / piece.seconds for piece in steps.pieces]
    assert rates[0] == pytest.approx(100) and rates[-1] == pytest.approx(50)


def test_quantiles_are_within_a_fifth_of_a_percent() -> None:
    noise = random.Random(3)
    seconds = [noise.lognormvariate(-4, 0.3) for _ in range(20_000)]
    steps, exact = steps_of(seconds), statistics.quantiles(seconds, n=100)
    for share in (0.5, 0.95, 0.99):
        assert steps.quantile(share) == pytest.approx(exact[int(100 * share) - 1], rel=0.01)


def test_the_histogram_has_every_step_once_and_the_slowest_in_a_bin_of_their_own() -> None:
    found = steps_of([0.010, 0.011, 0.012] * 1000 + [3.0] * 3).histogram()
    assert sum(each.steps for each in found) == 3003
    assert (found[-1].high_s, found[-1].steps) == (None, 3)
    assert len(found) == 31 and all(each.low_s is not None for each in found)


@pytest.mark.parametrize("seconds", [[0.01] * 50, [0.01], [0.0, 0.0]])
def test_steps_that_are_all_alike_have_a_histogram_too(seconds: list[float]) -> None:
    found = steps_of(seconds).histogram()
    assert sum(each.steps for each in found) == sum(each > 0 for each in seconds)


def test_the_clock_knows_steps_that_compiled_too() -> None:
    steps = StepTimes()
    steps.add_compiled(1, 5.0, 5.0)
    steps.add(1, [0.1, 0.1], [5.1, 5.2])
    assert steps.clock() == [(1, 5.0), (2, 5.1), (3, 5.2)]


GB = 10**9


def write(directory: Path, *lines: Any, worker: int = 0) -> None:
    path = directory / f"worker{worker}" / "artifacts" / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))


def sample(used: Any, duty: Any, *, total: Any = None, every_s: float = 10.0) -> dict[str, Any]:
    total = [16 * GB] * len(used) if total is None else total
    return {"at": 1.0, "every_s": every_s, "hbm_used_bytes": used, "hbm_total_bytes": total, "duty_cycle_percent": duty}


def tpu_use(directory: Path) -> TpuUse:
    found = read_run(directory)
    assert found is not None
    return found


def test_the_reader_knows_the_name_that_the_sampler_writes() -> None:
    assert NAME == sampler.NAME


def test_the_peak_is_of_one_chip_and_the_mean_of_all(tmp_path: Path) -> None:
    write(tmp_path, {"schema": 1}, sample([1 * GB, 2 * GB], [10.0, 30.0]), sample([1 * GB, 5 * GB], [50.0, 70.0]))
    write(tmp_path, {"schema": 1}, sample([7 * GB, 3 * GB], [100.0, 100.0]), worker=1)
    found = tpu_use(tmp_path)
    assert (found.hbm_peak_bytes, found.hbm_total_bytes, found.chips, found.samples) == (7 * GB, 16 * GB, 4, 3)
    assert found.duty_cycle_percent == pytest.approx((10 + 30 + 50 + 70 + 200) / 6)


def test_a_sample_counts_for_the_time_that_it_stands_for(tmp_path: Path) -> None:
    write(tmp_path, sample([1], [100.0], every_s=10.0), sample([1], [0.0], every_s=30.0))
    assert tpu_use(tmp_path).duty_cycle_percent == pytest.approx(25.0)


def test_what_was_not_measured_is_none_and_never_zero(tmp_path: Path) -> None:
    assert read_run(tmp_path) is None
    write(tmp_path, {"schema": 1})
    found = tpu_use(tmp_path)
    assert (found.hbm_peak_bytes, found.duty_cycle_percent, found.samples, found.absent) == (None, None, 0, None)
    write(tmp_path, {"absent": "the job's python3 has no libtpu.sdk: \x1b[31mModuleNotFoundError"})
    assert tpu_use(tmp_path).absent is not None and "\x1b" not in str(tpu_use(tmp_path).absent)


@pytest.mark.parametrize("line", [
    "not json", "[]", "7", "null", sample(["1"], ["2"]), sample([-1], [-2.0]), sample([True], [False]),
    sample([1e300], [101.0]), sample([1, 2], [], total=[5]), sample([0], [], total=[0]),
    sample([3, 20], [], total=[16, 16]), sample({"a": 1}, "much", total=[]), sample([1] * 5000, [1.0] * 5000),
])  # fmt: skip
def test_a_line_that_makes_no_sense_is_left_out(tmp_path: Path, line: Any) -> None:
    write(tmp_path, line)
    found = tpu_use(tmp_path)
    assert (found.samples, found.hbm_peak_bytes, found.duty_cycle_percent) == (0, None, None)


PROFILE = "worker0/artifacts/profile"
HOST = f"{PROFILE}/plugins/profile/2026_11_23/vm"


def test_xprof_opens_each_directory_once_however_many_hosts_and_times_are_in_it() -> None:
    later = HOST.replace("_23", "_24")
    paths = [f"{path}.xplane.pb" for path in (HOST, f"{HOST}2", later, HOST.replace("profile/", "own/", 1))]
    assert how_to_open("/my runs/a", [*paths, f"{HOST}.trace.json.gz"]) == [
        f"xprof --logdir '/my runs/a/{PROFILE}'",
        "xprof --logdir '/my runs/a/worker0/artifacts/own'",
    ]


def test_where_xprof_has_nothing_to_open_perfetto_opens_the_trace_events() -> None:
    paths = [f"{PROFILE}/vm.trace.json.gz", "worker0/artifacts/vm.xplane.pb", "report.html", "trace.json"]
    assert how_to_open("/runs/a", paths) == [f"{PROFILE}/vm.trace.json.gz opens in ui.perfetto.dev"]


def test_a_run_without_a_trace_has_nothing_to_open() -> None:
    assert how_to_open("/runs/a", ["worker0/artifacts/metrics.json"]) == []

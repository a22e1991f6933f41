"""Metrics of a run while it goes on: the events, the times of steps, and the files that are read later."""

import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.jobs import metrics
from orchestrator.api.jobs.log_output import JobOutput
from orchestrator.api.jobs.metrics import RunMetrics, StepTimes
from orchestrator.api.session.events import Event, Metrics, Notice
from orchestrator.api.session.reporter import Reporter
from orchestrator.hosts.fleet.follow import Beside
from orchestrator.promise.lease.run_spec import RunSpec
from orchestrator.report.files import metrics as reports
from orchestrator.report.files.metrics import arrivals
from orchestrator.report.files.newest import BESIDE
from orchestrator.text.parsing import LINE_BYTES, NotFinite
from tests.fakes.clock import Clock
from tests.waiting import until


class Heard(list[Event]):
    def metrics(self) -> list[tuple[int | None, dict[str, float | None]]]:
        return [(event.step, dict(event.values)) for event in self if isinstance(event, Metrics)]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    monkeypatch.setattr(metrics, "EVERY_S", 0.0)
    return Heard()


def sink(directory: Path, heard: Heard, *, anew: bool = False, **patterns: str) -> RunMetrics:
    return RunMetrics(directory, Reporter(heard.append), patterns, anew=anew)


def last(directory: Path) -> dict[str, float | None]:
    return {name: each.last for name, each in reports.read(directory).items()}


def test_the_newest_values_are_reported_each_time_that_lines_come(tmp_path: Path, heard: Heard) -> None:
    run = sink(tmp_path, heard)
    for data in (b"", b'{"step": 1, "loss": 3}\n{"step": 2, "loss": 2}\n{"st', b'ep": 3, "loss": 1}\n', b"nothing\n"):
        run(0, data)
    assert heard.metrics() == [(2, {"loss": 2.0}), (3, {"loss": 1.0})]
    assert last(tmp_path) == {"loss": 1.0}


def test_values_of_one_step_belong_together(tmp_path: Path, heard: Heard) -> None:
    run = sink(tmp_path, heard)
    run(0, b'{"step": 1, "loss": 3}\n{"step": 1, "acc": 0.5}\n')
    run(0, b'{"step": 2, "loss": 2}\n')
    assert heard.metrics() == [(1, {"loss": 3.0, "acc": 0.5}), (2, {"loss": 2.0})]


def test_events_come_a_few_times_a_second_and_the_last_values_at_the_end(
    tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "EVERY_S", 3600.0)
    run = sink(tmp_path, heard)
    for step in range(100):
        run(0, b'{"step": %d, "loss": 1}\n' % step)
    run.close()
    assert heard.metrics() == [(0, {"loss": 1.0}), (99, {"loss": 1.0})]


def test_values_that_came_too_soon_after_others_are_reported_though_nothing_follows(
    tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "EVERY_S", 0.01)
    run = sink(tmp_path, heard)
    for step in range(20):
        run(0, b'{"step": %d, "loss": 1}\n' % step)
    until(lambda: heard.metrics()[-1] == (19, {"loss": 1.0}), "the last values")


@pytest.mark.parametrize("in_the_log", [False, True])
def test_a_value_that_is_no_number_any_more_says_since_which_step(
    tmp_path: Path, heard: Heard, in_the_log: bool
) -> None:
    run = sink(tmp_path, heard, step=r"step (\d+)", loss=r"loss (\S+)")
    for step, loss in enumerate(["1", "Infinity", "2", "NaN", "NaN", "-Infinity", "3"]):
        run.search(0, [f"step {step} loss {loss}"]) if in_the_log else run(
            0, b'{"step":%d,"loss":%s}\n' % (step, loss.encode())
        )
    found = [event.diverged.get("loss") for event in heard if isinstance(event, Metrics)]
    assert list(map(str, found)) == [
        *("None", "Infinity since step 1", "None", "NaN since step 3", "NaN since step 3"),
        *("-Infinity since step 5", "None"),
    ]


def test_a_file_that_begins_anew_replaces_what_was_followed(tmp_path: Path, heard: Heard) -> None:
    run = sink(tmp_path, heard)
    for data in (b"", b'{"step": 9, "old": 3}\n', b"", b'{"step": 1, "loss": 1}\n'):
        run(0, data)
    assert last(tmp_path) == {"loss": 1.0}


def test_a_line_without_end_neither_grows_nor_costs_the_next_line(tmp_path: Path, heard: Heard) -> None:
    run = sink(tmp_path, heard)
    for _ in range(50):
        run(0, b'{"loss": 1, "x": "' + b"x" * 65536)
    assert len(run._followed.rest) <= LINE_BYTES + 1
    run(0, b'"}\n{"loss": 2}\n')
    assert heard.metrics() == [(None, {"loss": 2.0})]


def test_the_followed_copy_goes_once_the_file_is_collected(tmp_path: Path, heard: Heard) -> None:
    run = sink(tmp_path, heard)
    run(0, b"")
    run(0, b'{"loss": 1}\n')
    collected = tmp_path / reports.COLLECTED
    collected.parent.mkdir(parents=True)
    collected.write_text('{"loss": 5}\n')
    run.close()
    assert last(tmp_path) == {"loss": 5.0} and not (tmp_path / reports.LIVE).exists()


CHIPS, HOST = (BESIDE[kind] for kind in ("chips", "host"))


def test_files_beside_the_metrics_are_copied_each_for_itself_and_report_no_figure(tmp_path: Path, heard: Heard) -> None:
    run = sink(tmp_path, heard)
    for kind in ("chips", "host"):
        for data in (b"", b'{"loss": 1}\n', kind.encode() + b"\n"):
            run(0, Beside(kind, data))
    assert (tmp_path / CHIPS.live).read_bytes() == b'{"loss": 1}\nchips\n'
    assert (tmp_path / HOST.live).read_bytes() == b'{"loss": 1}\nhost\n'
    assert heard.metrics() == [] and last(tmp_path) == {}


def test_a_copy_begins_anew_with_the_file_and_goes_on_without_an_empty_piece(tmp_path: Path, heard: Heard) -> None:
    run = sink(tmp_path, heard)
    for data in (b"", b"1\n", b"", b"2\n", b"3\n"):  # a connection that was cut continues with the next byte
        run(0, Beside("chips", data))
    assert (tmp_path / CHIPS.live).read_bytes() == b"2\n3\n"


def test_a_copy_has_no_secret_not_even_one_that_comes_in_two_pieces(tmp_path: Path, heard: Heard) -> None:
    run = sink(tmp_path, heard)
    run._reporter.secrets.add("hunter2hunter2")
    for data in (b"", b'{"text": "hunter2', b'hunter2"}\n'):
        run(0, Beside("chips", data))
    run.close()
    assert (tmp_path / CHIPS.live).read_bytes() == b'{"text": "[redacted]"}\n'


def test_a_copy_goes_once_its_file_is_collected_also_one_that_another_process_made(
    tmp_path: Path, heard: Heard
) -> None:
    run = sink(tmp_path, heard)
    run(0, Beside("chips", b""))
    for path in (CHIPS.collected, HOST.live, HOST.collected):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    run.close()
    assert [(tmp_path / each.live).exists() for each in (CHIPS, HOST)] == [False, False]


def test_a_copy_whose_file_is_not_collected_stays(tmp_path: Path, heard: Heard) -> None:
    run = sink(tmp_path, heard)
    run(0, Beside("host", b""))
    run.close()
    assert (tmp_path / HOST.live).exists()


def test_a_file_that_was_followed_has_all_of_its_lines_when_it_is_collected(tmp_path: Path, heard: Heard) -> None:
    run = sink(tmp_path, heard)
    lines = [b'{"step": %d, "loss": %d}\n' % (step, 50 - step) for step in range(50)]
    for data in (b"", *lines[:40]):
        run(0, data)
    collected = tmp_path / reports.COLLECTED
    collected.parent.mkdir(parents=True)
    collected.write_bytes(b"".join(lines))
    run.close()
    loss = reports.read(tmp_path)["loss"]
    assert (loss.last, loss.last_step, loss.count) == (1.0, 49, 50)


PATTERNS: dict[str, Any] = {"step": r"step (\d+)", "loss": r"loss[= ]+(\S+)", "rate": r"([\d,.]+) images/s"}


def test_patterns_find_figures_in_the_log(tmp_path: Path, heard: Heard) -> None:
    with_patterns = sink(tmp_path, heard, **PATTERNS)
    with_patterns.search(
        0, ["hello", "step 10 loss=0.5, lr=1", "no loss here", "step 20  loss 0.25  1,234.5 images/s", "loss nan"]
    )
    with_patterns.close()
    assert heard.metrics() == [(None, {"loss": None})]
    assert reports.read(tmp_path)["loss"].diverged == NotFinite("NaN", None)
    assert (tmp_path / reports.FOUND).read_text().splitlines() == [
        '{"step": 10, "loss": 0.5}',
        '{"step": 20, "loss": 0.25, "rate": 1234.5}',
        '{"loss": NaN}',
    ]


def test_of_several_workers_that_print_metrics_the_lowest_one_counts(tmp_path: Path, heard: Heard) -> None:
    run = sink(tmp_path, heard, **PATTERNS)
    for worker, loss in ((3, 9), (1, 5), (3, 8), (1, 4)):
        run.search(worker, ["hello", f"step 1 loss {loss}"])
    run.search(0, ["no figures here"])
    run.search(1, ["step 2 loss 3"])
    run.close()
    assert [event.worker for event in heard if isinstance(event, Metrics)] == [3, 1, 1, 1]
    found = [line.partition(" ")[2] for line in (tmp_path / reports.FOUND).read_text().splitlines()]
    assert found == ['1, "loss": 9.0}', '1, "loss": 5.0}', '1, "loss": 4.0}', '2, "loss": 3.0}']


def test_the_log_output_searches_its_lines_and_a_second_reading_of_the_log_changes_nothing(
    tmp_path: Path, heard: Heard
) -> None:
    for _ in range(2):
        output = JobOutput(tmp_path, Reporter(heard.append), RunSpec(metrics=PATTERNS), anew=True)
        output(0, b"step 1 loss 3\nstep 2 lo")
        output(0, b"ss 2\n")
        output.close()
    assert reports.read(tmp_path)["loss"].count == 2 and last(tmp_path) == {"loss": 2.0}


def test_a_pattern_that_would_take_for_ever_is_given_up_and_that_is_said(tmp_path: Path, heard: Heard) -> None:
    run = sink(tmp_path, heard, bad=r"(x+x+)+y", loss=r"loss (\d+)")
    endless = "x" * 4000 + " loss 1"
    run.search(0, [endless] * (metrics.SLOW_LINES - 1))
    assert not [event for event in heard if isinstance(event, Notice)], "on a line or two, the machine may be busy"
    run.search(0, [endless, "loss 2"])
    [warning] = [event for event in heard if isinstance(event, Notice)]
    assert warning.text.startswith("metrics.bad: ") and heard.metrics() == [(None, {"loss": 2.0})]


def test_only_the_beginning_of_a_line_is_searched(tmp_path: Path, heard: Heard) -> None:
    sink(tmp_path, heard, loss=r"loss (\d+)").search(0, [" " * metrics.LINE_CHARS + "loss 1"])
    assert heard.metrics() == []


def test_a_disk_that_takes_no_file_costs_the_file_and_not_the_job(tmp_path: Path, heard: Heard) -> None:
    (tmp_path / "logs").write_text("in the way")
    run = sink(tmp_path, heard)
    run(0, b"")
    run(0, b'{"loss": 1}\n')
    run.close()
    assert heard.metrics() == [(None, {"loss": 1.0})]


def test_when_which_step_came_is_kept_now_and_then_and_at_the_end(
    tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "LEAST_S", 3600.0)
    run = sink(tmp_path, heard)
    for step in (1, 2, 3):
        run(0, b'{"step": %d, "loss": 3}\n{"loss": 3}\n' % step)
    run.close()
    assert [step for step, _ in reports.arrivals(tmp_path)] == [1, 3]


def test_steps_that_a_restarted_job_repeats_keep_the_time_at_which_they_came_first(
    tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "LEAST_S", 0.0)
    monkeypatch.setattr(metrics, "SHARE", 0.0)
    first = sink(tmp_path, heard)
    for step in (10, 20, 10, 15, 30):
        first(0, b'{"step": %d, "loss": 3}\n' % step)
    first.close()
    before = reports.arrivals(tmp_path)
    again = sink(tmp_path, heard, anew=True)  # as of `attach`: everything comes once more, and then the rest
    for step in (10, 20, 30, 40):
        again(0, b'{"step": %d, "loss": 3}\n' % step)
    again.close()
    assert [step for step, _ in before] == [10, 20, 30]
    assert reports.arrivals(tmp_path)[:3] == before and reports.arrivals(tmp_path)[3][0] == 40


def test_a_job_without_steps_and_a_disk_without_room_cost_nothing(tmp_path: Path, heard: Heard) -> None:
    run = sink(tmp_path, heard)
    run(0, b'{"loss": 3}\n')
    run.close()
    assert reports.arrivals(tmp_path) == []
    (tmp_path / "logs").write_text("no directory")
    full = sink(tmp_path, heard)
    full(0, b'{"step": 1, "loss": 3}\n')
    full.close()
    assert reports.arrivals(tmp_path) == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(1000.0)
    for name in ("time", "monotonic"):
        monkeypatch.setattr(time, name, clock)
    return clock


def test_a_step_that_was_not_written_at_once_has_the_time_at_which_it_came(tmp_path: Path, clock: Clock) -> None:
    """The slice is lost after step 100; the next attempt repeats steps from 61 on, which is no sign that it is further."""
    times = StepTimes(tmp_path)
    times.note(90)
    clock.now += 0.1
    times.note(100)  # too soon after the last line
    clock.now += 600.0
    times.note(61)
    assert arrivals(tmp_path) == [(90, 1000.0), (100, 1000.1)]
    clock.now += 60.0
    times.note(101)
    clock.now += 0.1
    times.note(102)
    clock.now += 5.0
    times.close()
    assert arrivals(tmp_path)[2:] == [(101, 1660.1), (102, 1660.2)]

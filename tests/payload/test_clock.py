"""The clock under virtual time: compiling is counted separately, epochs are drained, the file is small and readable."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from payload.clock import Clock


@dataclass
class Device:
    """An asynchronous device: each dispatched step takes `busy_s`, and only a drain waits for it."""

    now: float = 100.0
    pending_s: float = 0.0
    programs: int = 0
    drains: int = 0

    def read(self) -> float:
        return self.now

    def send(self, *, dispatch_s: float, busy_s: float, compile_s: float = 0.0) -> None:
        self.now += dispatch_s + compile_s
        self.pending_s += busy_s
        self.programs += compile_s > 0

    def drain(self) -> None:
        self.drains += 1
        self.now += self.pending_s
        self.pending_s = 0.0


def clock_for(device: Device, path: Path | None = None, **options: Any) -> Clock:
    return Clock(
        100.0, path=path, compiles=lambda: device.programs, drain=device.drain, monotonic=device.read, **options
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_epoch_is_drained_and_its_compiling_steps_are_kept_apart() -> None:
    device = Device()
    printed: list[str] = []
    clock = clock_for(device, say=printed.append)
    clock.begin_epoch()
    for step in range(1, 11):
        device.send(dispatch_s=0.01, busy_s=1.0, compile_s=5.0 if step <= 2 else 0.0)
        clock.step(1, step)
    took = clock.end_epoch()
    assert took.warm_steps == 8
    assert took.compile_s == pytest.approx(2 * 6.01)
    assert took.seconds == pytest.approx(8 * 1.01), (
        "the work that was still pending at the last lap belongs to the epoch"
    )
    assert clock.spans["train"] == took.seconds and clock.spans["compile"] == took.compile_s
    assert printed == ["compile 12.0 s (not included in the times below)"]


def test_a_lap_never_waits_for_the_device_but_drained_timing_does() -> None:
    device = Device()
    clock = clock_for(device)
    clock.begin_epoch()
    drains = device.drains
    device.send(dispatch_s=0.01, busy_s=1.0)
    assert clock.lap() == (pytest.approx(0.01), False)
    assert device.drains == drains
    clock = clock_for(device, drained=True)
    clock.begin_epoch()
    device.send(dispatch_s=0.01, busy_s=1.0)
    assert clock.lap() == (pytest.approx(1.01), False)


def test_what_compiles_between_two_epochs_is_no_steps_warm_up() -> None:
    device = Device()
    clock = clock_for(device)
    device.send(dispatch_s=0, busy_s=0, compile_s=3.0)
    clock.begin_epoch()
    device.send(dispatch_s=0.1, busy_s=0)
    assert clock.lap() == (pytest.approx(0.1), False)


def test_a_span_waits_for_the_device_and_leaves_compiling_out() -> None:
    device = Device()
    clock = clock_for(device)
    with clock.span("eval"):
        device.send(dispatch_s=0.5, busy_s=2.0, compile_s=4.0)
        clock.lap()
        device.send(dispatch_s=0.5, busy_s=2.0)
    assert clock.spans["eval"] == pytest.approx(2.5)
    assert clock.spans["compile"] == pytest.approx(6.5)


def test_the_file_has_a_header_with_units_then_one_small_object_for_each_step(tmp_path: Path) -> None:
    device, path = Device(), tmp_path / "timing.jsonl"
    clock = clock_for(device, path, header={"timing": "stamped"})
    device.now = 98_765.0  # a day into the run, where the figures are longest
    clock.begin_epoch()
    for step in (999_998, 999_999):
        device.send(dispatch_s=12.345678, busy_s=0.0, compile_s=step % 2)
        clock.step(1000, step)
    took = clock.end_epoch()
    clock.epoch_line(1000, took, loss=0.5)
    clock.close()
    assert all(len(line) <= 100 for line in path.read_text().splitlines() if '"step":' in line)
    header, *rest = lines(path)
    assert header["schema"] == 1 and header["timing"] == "stamped" and "seconds" in header["fields"]["t_s"]
    assert rest[0] == {"epoch": 1000, "step": 999_998, "t_s": 98677.34568, "dt_s": 12.345678}
    assert rest[1]["compile"] is True
    assert rest[-1]["epoch"] == 1000 and rest[-1]["s"] == pytest.approx(12.3457) and rest[-1]["loss"] == 0.5


def test_the_file_can_be_read_during_the_run(tmp_path: Path) -> None:
    device, path = Device(), tmp_path / "timing.jsonl"
    clock = clock_for(device, path)
    clock.begin_epoch()
    for step in range(1, 6):
        device.send(dispatch_s=0.6, busy_s=0.0)
        clock.step(1, step)
    assert [line["step"] for line in lines(path)[1:]] == [1, 2, 3, 4], "never more than about a second behind"
    clock.close()


def test_a_progress_line_is_due_once_in_each_period() -> None:
    device = Device()
    clock = clock_for(device)
    due = []
    for _ in range(25):
        device.send(dispatch_s=1.0, busy_s=0.0)
        clock.lap()
        due.append(clock.every(10.0))
    assert [index for index, yes in enumerate(due, start=1) if yes] == [10, 20]


def test_no_progress_line_comes_before_the_compile_line() -> None:
    device = Device()
    printed: list[str] = []
    clock = clock_for(device, say=printed.append)
    clock.begin_epoch()
    device.send(dispatch_s=1.0, busy_s=0.0, compile_s=60.0)
    clock.step(1, 1)
    assert not clock.every(10.0) and printed == []
    device.send(dispatch_s=1.0, busy_s=0.0)
    clock.step(1, 2)
    assert clock.every(10.0) and printed == ["compile 61.0 s (not included in the times below)"]


def test_a_checkpoint_in_the_middle_of_an_epoch_is_not_part_of_its_time() -> None:
    device = Device()
    clock = clock_for(device)
    clock.begin_epoch()
    for step in range(1, 5):
        device.send(dispatch_s=0.1, busy_s=1.0)
        clock.step(1, step)
        if step == 2:
            with clock.span("checkpoint"):
                device.now += 30.0
    took = clock.end_epoch()
    assert took.seconds == pytest.approx(4 * 1.1) and clock.spans["checkpoint"] == pytest.approx(30.0)


def test_waiting_for_data_is_counted_and_stays_part_of_the_epoch() -> None:
    device = Device()
    clock = clock_for(device)

    def slow() -> Any:
        for number in range(3):
            device.now += 0.5
            yield number

    clock.begin_epoch()
    for number in clock.waits(slow()):
        device.send(dispatch_s=0.1, busy_s=0.0)
        clock.step(1, number)
    took = clock.end_epoch()
    assert took.wait_s == pytest.approx(1.5) and took.seconds == pytest.approx(1.8)
    assert clock.data_wait_s == pytest.approx(1.5)


def test_waiting_for_the_data_of_a_step_that_is_left_out_is_left_out_with_it() -> None:
    """The first batch is often the slowest, and the step that compiles takes it."""
    device = Device()
    clock = clock_for(device)

    def slow() -> Any:
        for number in range(1, 6):
            device.now += 60.0 if number == 1 else 0.5
            yield number

    clock.begin_epoch()
    for number in clock.waits(slow()):
        if number == 3:
            clock.profile(True)
        device.send(dispatch_s=0.1, busy_s=0.0, compile_s=5.0 if number == 1 else 0.0)
        clock.step(1, number)
        if number == 4:
            clock.profile(False)
    took = clock.end_epoch()
    assert took.seconds == pytest.approx(2 * 0.1 + 3 * 0.5), "steps 2 and 5, and the wait before the profiler started"
    assert took.wait_s == clock.data_wait_s == pytest.approx(3 * 0.5)


def test_the_spread_is_that_of_the_warm_steps() -> None:
    device = Device()
    clock = clock_for(device, drained=True)
    clock.begin_epoch()
    for step, (busy_s, compile_s) in enumerate([(1.0, 9.0), (1.0, 0.0), (2.0, 0.0), (3.0, 0.0)]):
        device.send(dispatch_s=0.0, busy_s=busy_s, compile_s=compile_s)
        clock.step(1, step)
    took = clock.end_epoch()
    assert took.step_std_s == pytest.approx(1.0) and took.described()["step_mean_s"] == pytest.approx(2.0)


def test_a_resumed_training_adds_to_the_file_and_mends_a_half_written_line(tmp_path: Path) -> None:
    path = tmp_path / "timing.jsonl"
    clock_for(Device(), path).close()
    with path.open("a") as file:
        file.write('{"epoch":1,"step":1,"t_s":1.0,"dt_s":0.1}\n{"epoch":1,"st')
    clock_for(Device(), path, append=True, header={"resumed_after_step": 1}).close()
    header, step, again = lines(path)
    assert (header["schema"], step["step"], again["resumed_after_step"]) == (1, 1, 1)


def test_traced_steps_are_marked_and_left_out_of_an_epoch_with_the_start_and_the_end_of_the_profiler(
    tmp_path: Path,
) -> None:
    device = Device()
    clock = clock_for(device, tmp_path / "timing.jsonl")
    clock.begin_epoch()
    for step in range(1, 9):
        if step == 3:
            clock.profile(True)
            device.now += 7.0  # the profiler starts
        device.send(dispatch_s=0.01, busy_s=1.5 if step in (3, 4) else 1.0)
        clock.step(1, step)
        if step == 4:
            device.now += 20.0  # it writes its trace
            clock.profile(False)
    took = clock.end_epoch()
    clock.close()
    assert took.warm_steps == 6
    assert took.seconds == pytest.approx(6 * 1.01)
    assert took.step_std_s == pytest.approx(0.0, abs=1e-9), "no step waits for what the profiler did"
    written = lines(tmp_path / "timing.jsonl")
    assert [line["step"] for line in written if line.get("profile")] == [3, 4]
    assert [line["s"] for line in written if line.get("span") == "profile"] == [pytest.approx(7 + 2 * 1.51 + 20)]
    assert clock.spans["profile"] == pytest.approx(30.02)


def test_a_profile_that_goes_on_in_the_next_epoch_is_left_out_of_both(tmp_path: Path) -> None:
    device = Device()
    clock = clock_for(device, tmp_path / "timing.jsonl")
    took = []
    for epoch in (1, 2):
        clock.begin_epoch()
        for step in range(1, 4):
            if (epoch, step) == (1, 3):
                clock.profile(True)
            device.send(dispatch_s=0.01, busy_s=1.0)
            clock.step(epoch, step)
            if (epoch, step) == (2, 1):
                clock.profile(False)
        took.append(clock.end_epoch())
        device.now += 50.0  # between epochs
    assert [each.warm_steps for each in took] == [2, 2]
    assert [each.seconds for each in took] == [pytest.approx(2.02)] * 2
    assert clock.spans["profile"] == pytest.approx(2.02)


def test_a_checkpoint_and_compiling_within_a_profile_are_counted_as_what_they_are() -> None:
    device = Device()
    clock = clock_for(device)
    clock.begin_epoch()
    clock.profile(True)
    device.send(dispatch_s=0.01, busy_s=1.0, compile_s=5.0)
    clock.step(1, 1)
    device.send(dispatch_s=0.01, busy_s=1.0)
    clock.step(1, 2)
    with clock.span("checkpoint"):
        device.now += 3.0
    clock.profile(False)
    device.send(dispatch_s=0.01, busy_s=1.0)
    clock.step(1, 3)
    took = clock.end_epoch()
    assert (clock.spans["compile"], clock.spans["checkpoint"]) == (pytest.approx(6.01), pytest.approx(3.0))
    assert clock.spans["profile"] == pytest.approx(1.01)
    assert (took.warm_steps, took.seconds) == (1, pytest.approx(1.01))

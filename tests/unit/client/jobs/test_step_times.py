"""When which step was reported, as it is kept for curves over time and for what the loss of a slice cost."""

import time
from pathlib import Path

import pytest

from orchestrator.client.jobs.step_times import StepTimes
from orchestrator.report.files.metrics import arrivals


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
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

"""Whose log is shown: all of a few workers, worker 0 of many, those that are asked for, and the end of one that fails."""

from pathlib import Path

import pytest

from orchestrator.client.events import LogLines, WorkerEnded, Workers
from orchestrator.client.shown_logs import (
    TAIL_CHARS,
    TAIL_LINES,
    Choice,
    Others,
    ShownLogs,
    announcement,
    check,
    choice,
    is_shown,
)
from orchestrator.errors import UserError

LOGS = Path("/runs/x/logs")


@pytest.mark.parametrize(
    ("text", "chosen"), [(None, None), ("all", "all"), ("0", (0,)), ("3,0", (0, 3)), ("2, 2", (2,))]
)
def test_a_choice_is_all_or_indexes(text: str | None, chosen: Choice) -> None:
    assert choice("--logs", text) == chosen


@pytest.mark.parametrize("text", ["", "none", "worker0", "-1", "0,,1", "1.5", "٣", "9" * 6])
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UserError) as raised:
        choice("--logs", text)
    assert raised.value.message == f"--logs {text}: expected `all`, or workers by their indexes such as 0 or 0,3"


def test_a_worker_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(UserError, match=r"^--logs: there is no worker16 or worker20; there are worker0 to worker15$"):
        check("--logs", (0, 16, 20), 16)
    with pytest.raises(UserError, match=r"^--logs: there is no worker1; the only one is worker0$"):
        check("--logs", (1,), 1)
    for fine in ((0, 15), "all", None):
        check("--logs", fine, 16)


@pytest.mark.parametrize(
    ("chosen", "count", "shown"),
    [(None, 7, 7), (None, 8, 1), (None, 64, 1), ("all", 64, 64), ((3, 5), 4, 1), (None, None, 8), ((3,), None, 1)],
)
def test_by_default_all_of_up_to_seven_workers_are_shown_and_worker0_of_more(
    chosen: Choice, count: int | None, shown: int
) -> None:
    assert sum(is_shown(chosen, worker, count) for worker in range(8 if count is None else count)) == shown


@pytest.mark.parametrize(("chosen", "count", "option", "text"), [
    (None, 7, "--logs", ""),
    (None, 64, "--logs", f"showing worker0; the logs of the other 63 are in {LOGS}; --logs all shows them"),
    (None, 64, "", f"showing worker0; the logs of the other 63 are in {LOGS}"),
    ((1,), 2, "--logs", f"showing worker1; the log of the other one is in {LOGS}; --logs all shows it"),
    ((9,), 4, "", f"showing no worker; the logs of the other 4 are in {LOGS}"),
])  # fmt: skip
def test_what_is_not_shown_is_said_with_its_place(chosen: Choice, count: int, option: str, text: str) -> None:
    assert announcement(chosen, count, LOGS, option) == text


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def followed(count: int = 16, chosen: Choice = None, clock: Clock | None = None) -> ShownLogs:
    logs = ShownLogs(chosen, now=clock or Clock())
    logs.begin(Workers(count, LOGS))
    return logs


def test_what_is_shown_is_said_once_and_again_when_another_slice_has_other_workers() -> None:
    logs = ShownLogs()
    assert logs.announce() == "", "before the workers are known"
    logs.begin(Workers(16, LOGS))
    assert "the other 15" in logs.announce() and logs.announce() == ""
    logs.begin(Workers(16, LOGS))
    assert logs.announce() == ""
    logs.begin(Workers(32, LOGS))
    assert "the other 31" in logs.announce()


def test_the_first_worker_that_fails_explains_it_once_by_the_end_of_its_log() -> None:
    logs = followed()
    assert not logs.takes(LogLines(5, (*map(str, range(TAIL_LINES)), "x" * 5000)))
    logs.end(WorkerEnded("main", 3, 143, stopped=True))
    logs.end(WorkerEnded("main", 4, 0))
    assert logs.explanation() is None
    logs.end(WorkerEnded("main", 5, 1))
    logs.end(WorkerEnded("main", 6, 1))
    tail = logs.explanation()
    assert tail is not None and tail.worker == 5
    assert tail.heading == f"worker5 ended with 1; the end of its log ({LOGS}/worker5.log):"
    assert tail.lines == (*map(str, range(1, TAIL_LINES)), "x" * TAIL_CHARS)
    assert logs.explanation() is None


def test_a_failure_that_the_shown_log_says_alike_needs_no_explanation() -> None:
    logs = followed()
    for worker in (5, 0, 6):
        logs.takes(LogLines(worker, (f"ValueError: shard {worker}", " ")))
        logs.end(WorkerEnded("main", worker, 1))
    assert logs.explanation() is None


def test_a_shown_worker_that_fails_as_a_consequence_does_not_hide_the_cause() -> None:
    logs = followed()
    logs.takes(LogLines(5, ("ValueError: shard 5",)))
    logs.takes(LogLines(0, ("connection reset by worker5",)))
    logs.end(WorkerEnded("main", 5, 1))
    logs.end(WorkerEnded("main", 0, 1))
    tail = logs.explanation()
    assert tail is not None and tail.lines == ("ValueError: shard 5",)


@pytest.mark.parametrize(
    ("code", "heading"),
    [(1, "worker9 ended with 1 and printed nothing"), (None, "worker9 was lost and printed nothing")],
)
def test_a_worker_that_failed_without_a_line_is_named(code: int | None, heading: str) -> None:
    logs = followed()
    logs.end(WorkerEnded("main", 9, code))
    tail = logs.explanation()
    assert tail is not None and (tail.heading, tail.lines) == (heading, ())


def test_where_everything_is_shown_nothing_is_explained() -> None:
    logs = followed(4)
    assert logs.takes(LogLines(3, ("ValueError",)))
    logs.end(WorkerEnded("main", 3, 1))
    assert logs.explanation() is None and logs.others() is None


def test_the_others_are_counted_by_what_they_do() -> None:
    clock = Clock()
    logs = followed(clock=clock)
    assert logs.others() == Others(15, 0, 0, None)
    logs.takes(LogLines(0, ("shown",)))
    assert logs.others() == Others(15, 0, 0, None)
    logs.takes(LogLines(7, ("hidden",)))
    clock.now += 12
    for worker, code in ((0, 0), (1, 0), (2, 1)):
        logs.end(WorkerEnded("main", worker, code))
    assert logs.others() == Others(15, 1, 1, 12.0)


def test_the_next_phase_begins_with_running_workers() -> None:
    logs = followed()
    for worker in range(16):
        logs.end(WorkerEnded("setup", worker, 0))
    logs.end(WorkerEnded("main", 1, 1))
    assert logs.others() == Others(15, 0, 1, None)

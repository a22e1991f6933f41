"""The output of a job: every byte but its secrets is in the log file, and which workers' lines are shown."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.api.jobs import log_output, metrics
from orchestrator.api.jobs.log_output import JobOutput
from orchestrator.api.jobs.metrics import Paced
from orchestrator.api.results.logs import stored_lines
from orchestrator.api.session.events import Bar, Event, LogLines, Metrics, WorkerEnded, Workers
from orchestrator.api.session.reporter import Reporter
from orchestrator.api.session.shown_logs import (
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
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.promise.lease.run_spec import LimitsRecord, RunSpec
from orchestrator.text.redaction import Redactor
from orchestrator.text.terminal import LeftOut
from tests.fakes.clock import Clock

SECRET = "hunter2-and-more"
LOG = (
    b"plain\r\n\x1b[1mbold\x1b[0m\n\xff\x00\n"
    + f"token {SECRET}, again {SECRET}\n".encode()
    + b"10%\r20%\r\n"
    + b"x" * 200_000
    + f" {SECRET} ".encode()
    + b"\nhunter2-\x1b[0mand-more\nno newline"
)


@pytest.mark.parametrize("size", [1, 7, 4096, 65536, 10**6])
def test_the_file_is_the_log_byte_by_byte_but_for_secrets(tmp_path: Path, size: int) -> None:
    events: list[Event] = []
    with closing(JobOutput(tmp_path, Reporter(events.append, Redactor([SECRET])))) as output:
        for at in range(0, len(LOG), size):
            output(0, LOG[at : at + size])
    stored = LOG.replace(SECRET.encode(), b"[redacted]").replace(b"hunter2-\x1b[0mand-more", b"[redacted]")
    assert (tmp_path / "logs" / "worker0.log").read_bytes() == stored
    lines = [line for event in events if isinstance(event, LogLines) for line in event.lines]
    assert lines[:5] == ["plain", "bold", "�", "token [redacted], again [redacted]", "20%"]
    assert lines[6:] == ["[redacted]", "no newline"], "what was torn by an escape sequence is hidden, too"
    for sent, kept in ((LOG[:9], stored), (LOG + b"\nmore\n", stored + b"\nmore\n"), (b"plain, but", b"plain, but")):
        with closing(JobOutput(tmp_path, Reporter(events.append, Redactor([SECRET])), anew=True)) as output:
            output(0, sent)
        assert (tmp_path / "logs" / "worker0.log").read_bytes() == kept, "what comes again stays, what differs goes"


KEY = "-----BEGIN PRIVATE KEY-----\n" + f"{'Zm9v' * 16}\n" * 9 + "-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize("cut", [f"token {SECRET}\n", KEY], ids=["value", "key"])
def test_a_gap_is_said_where_it_is_and_no_half_of_a_secret_is_shown_beside_it(tmp_path: Path, cut: str) -> None:
    """The worker leaves out bytes, wherever they are in a line."""
    end = "".join(f"line {number}\n" for number in range(9000))
    for at in range(0, len(cut) + 1, 7):
        events = list[Event]()
        with closing(JobOutput(tmp_path / str(at), Reporter(events.append, Redactor([SECRET])))) as output:
            for piece in ("first\n" + cut[:at], LeftOut(5_900_000_000), cut[at:] + end[:100], end[100:]):
                output(0, piece if isinstance(piece, LeftOut) else piece.encode())
        stored = (tmp_path / str(at) / "logs" / "worker0.log").read_text().splitlines()
        assert (stored[0], stored[-1]) == ("first", "line 8999")
        assert stored.count("tpujob: 5.9 GB of the log left out here (limits.max_log)") == 1
        assert all(re.fullmatch(r"first|tpujob.*|line \d+|(token )?\[redacted\]", line) for line in stored)
        assert [line for event in events if isinstance(event, LogLines) for line in event.lines] == stored


def test_a_log_file_keeps_its_beginning_its_end_and_one_line_about_what_is_between(tmp_path: Path) -> None:
    path, shown, events = tmp_path / "logs" / "worker0.log", "", list[Event]()
    with closing(JobOutput(tmp_path, Reporter(events.append), RunSpec(limits=LimitsRecord(max_log=100_000)))) as output:
        for number in range(30_000):
            output(0, f"line {number}\n".encode())
            shown += f"line {number}\n"
            if number == 20_000:
                output(0, LeftOut(7_000_000))  # and as much of what follows as may be half of a key
            assert path.stat().st_size <= 100_100
    beginning, gap, end = re.split(r"\n?tpujob: (.*) of the log left out here \(limits.max_log\)\n", path.read_text())
    assert shown[:49_999] == beginning and shown.endswith(end) and len(end) > 25_000 and gap == "7.2 MB"
    assert sum(len(event.lines) for event in events if isinstance(event, LogLines)) > 27_000, (
        "the screen has all that came"
    )


def test_workers_do_not_mix(tmp_path: Path) -> None:
    events: list[Event] = []
    with closing(JobOutput(tmp_path, Reporter(events.append))) as output:
        for worker, data in ((0, b"a"), (1, b"1\n2"), (0, b"b\n"), (1, b"3\n")):
            output(worker, data)
    assert [(event.worker, event.lines) for event in events if isinstance(event, LogLines)] == [
        (1, ("1",)),
        (0, ("ab",)),
        (1, ("23",)),
    ]


def bar(step: int) -> bytes:
    return b"\r %d%% loss %d" % (step, 100 - step)


@pytest.mark.parametrize(("every_s", "seen"), [(0.0, [*range(9)]), (3600.0, [0, 8])])
def test_a_progress_bar_is_heard_while_it_goes_on_and_its_states_are_searched_for_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_s: float, seen: list[int]
) -> None:
    monkeypatch.setattr(log_output, "BAR_S", every_s)
    events: list[Event] = []
    with closing(
        JobOutput(tmp_path, Reporter(events.append, Redactor([SECRET])), RunSpec(metrics={"loss": r"loss (\d+)"}))
    ) as output:
        for step in range(9):
            output(0, bar(step) + b" " + SECRET.encode() * (step == 0))
        output(0, b"\r")
        assert all(isinstance(event, Bar | Metrics) for event in events), "no line has ended"
    bars = [event.line.strip() for event in events if isinstance(event, Bar)]
    assert bars == [f"{step}% loss {100 - step}" + " [redacted]" * (step == 0) for step in seen]
    found = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert found == [f'{{"loss": {100 - step}.0}}' for step in seen], (
        "and the last one once, though it is a line at the end"
    )
    assert [event.lines for event in events if isinstance(event, LogLines)] == [(" 8% loss 92 ",)]


def test_after_the_end_nothing_is_shown_also_by_a_timer_that_waits_for_the_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown, lock, now = list[int](), threading.Lock(), iter([0.0, 1.0, 99.0, 99.0])
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: next(now)))
    states = Paced(30.0, shown.append, lock)
    with lock:
        states.change(7), states.change(7)
        timer = states._timer
        assert timer is not None
        states.close()
        states.change(7)
    timer.function()
    assert shown == [7, 7] and states._timer in (timer, None)


def test_a_line_end_of_windows_is_no_bar(tmp_path: Path) -> None:
    events: list[Event] = []
    with closing(JobOutput(tmp_path, Reporter(events.append))) as output:
        for piece in (b"one\r", b"\ntwo\r\n", b"three\r", b"\n"):
            output(0, piece)
    assert [type(event) for event in events] == [LogLines] * len(events)


def stored(directory: Path, text: bytes, events: list[Event], is_written: Callable[[], bool]) -> Iterator[LogLines]:
    """Follow a log file with this text for as long as it is written."""
    (directory / "logs").mkdir()
    (directory / "logs" / "worker0.log").write_bytes(text)
    run, attempt = RunRecord("r1", "job", "job.yaml", "google", 0.0, str(directory)), Attempt("r1-1", "r1")
    session: Any = SimpleNamespace(
        reporter=Reporter(events.append),
        locks=SimpleNamespace(is_locked=lambda _: is_written()),
        ledger=SimpleNamespace(run=lambda _: (run, attempt)),
    )
    return stored_lines(session, run, attempt, follow=True)


@pytest.mark.parametrize("kept", [5000, 0])
def test_who_follows_a_stored_log_that_is_shortened_hears_its_last_lines(tmp_path: Path, kept: int) -> None:
    lines, heard = [b"line %d\n" % number for number in range(30_000)], list[LogLines]()
    following = stored(tmp_path, b"".join(lines), [], lambda: len(heard) < 2)
    heard.append(next(following))
    (tmp_path / "logs" / "worker0.log").write_bytes(b"".join(lines[:kept] + lines[28_000 - 2 * kept :]) + b"last\n")
    heard.extend(following)
    assert "the log was shortened here (limits.max_log)" in heard[1].lines[0]
    assert heard[2].lines[-2:] == ("line 29999", "last") and len(heard[2].lines) < 9000


def test_who_follows_the_stored_log_hears_the_bar_too(tmp_path: Path) -> None:
    events: list[Event] = []
    lines = list(stored(tmp_path, b"begun\n" + bar(1) + bar(2) + b"\r", events, lambda: not events))
    assert events == [Bar(0, " 2% loss 98")] and [line.lines for line in lines] == [("begun",), (" 2% loss 98",)]


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

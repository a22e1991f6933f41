"""What goes on: lines in place on a terminal, calm plain lines elsewhere, and nothing that a job measures steers it."""

import contextlib
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.api.session.events import (
    Bar,
    Failure,
    LogLines,
    Metrics,
    Notice,
    Progress,
    Running,
    WorkerEnded,
    Workers,
)
from orchestrator.api.session.job_line import JobLine
from orchestrator.api.session.shown_logs import TAIL_LINES, Choice, Others
from orchestrator.cli.console import live_view
from orchestrator.cli.console.console import ACTION, Console
from orchestrator.cli.console.live_view import LiveView, others_text
from orchestrator.places.google.fetch import CALL_LOG
from orchestrator.text.parsing import NotFinite
from orchestrator.text.terminal import COLORS
from tests import ROOT
from tests.fakes.clock import Clock
from tests.waiting import HANG_S, until

# With --quiet untold: how it goes on, and what was asked for.
UNTOLD = """access again api asked attach bounds bucket check cloud connect cost create detach drill emulator export found gc
gke guardian larger lease logs next nodes notify plan ports queue race ready release released report request restart
restore result save ship smoke ssh state sweep top wait watchdog workers wrote"""
STARTED = Running("x6qn33t5b8", "main", "google", 0.0, 1800.0, 0.10, 9.6)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def line(clock: Clock) -> JobLine:
    made = JobLine(clock)
    made.begin(STARTED)
    return made


def test_a_job_without_figures_shows_its_time_its_cost_and_what_is_left(line: JobLine, clock: Clock) -> None:
    clock.now += 375
    assert line.text() == "train    6 m 15 s  $1.10  at most 24 m left"


def test_a_job_with_figures_shows_them_and_a_rate_of_its_own(line: JobLine) -> None:
    line.measure(Metrics(0, 1200, {"images_per_s": 671.4, "acc": 0.9, "loss": 0.41234}))
    whole = "train    step 1,200  loss 0.4123  acc 0.9  671 images/s  0 s  $0.10  at most 30 m left"
    assert line.text() == whole
    assert line.text(len(whole) - 1) == whole.replace("0 s  ", ""), "the time that passed is the first to go"


def test_a_value_that_is_no_number_is_shown_as_it_is_with_the_step_since_when(line: JobLine) -> None:
    line.measure(Metrics(0, 1300, {"acc": 0.5, "loss": None}, {"loss": NotFinite("NaN", 1200)}))
    assert "step 1,300  loss NaN since step 1,200  acc 0.5  " in line.text()


def test_a_job_that_measures_no_rate_shows_that_of_its_steps(line: JobLine, clock: Clock) -> None:
    line.measure(Metrics(0, 10, {"loss": 2.0}))
    clock.now += 4
    line.measure(Metrics(0, 30, {"loss": 1.5}))
    assert "step 30  loss 1.5  5 steps/s" in line.text()
    clock.now += 1000
    line.measure(Metrics(0, 31, {"loss": 1.5}))
    assert "16 m 40 s a step" in line.text()


@pytest.mark.parametrize(
    ("cloud", "shown"), [("emulated", "$0.10 emulated"), ("local", "train    0 s  at most 30 m left")]
)
def test_the_cost_says_what_it_is(clock: Clock, cloud: str, shown: str) -> None:
    line = JobLine(clock)
    line.begin(Running("r", "main", cloud, 0.0, 1800.0, None if cloud == "local" else 0.1, 0.0))
    assert shown in line.text()


def test_a_narrow_line_leaves_out_the_least_important_figures_and_keeps_the_money(line: JobLine) -> None:
    line.measure(Metrics(0, 1200, {"loss": 0.4, "accuracy_of_the_first_head": 0.9, "images_per_s": 671.4}))
    text = line.text(60)
    assert len(text) <= 60 and "step 1,200" in text and "$0.10" in text and "left" in text


def test_the_next_phase_begins_without_the_figures_of_the_last_one(line: JobLine) -> None:
    line.measure(Metrics(0, 3, {"loss": 0.4}))
    line.begin(Running("r", "setup", "google", 0.0, 60.0, 0.1, 9.6))
    assert line.text() == "setup    0 s  $0.10  at most 1 m left"


def test_of_several_jobs_each_is_shown_in_brief(capsys: pytest.CaptureFixture[str]) -> None:
    view = LiveView(threading.RLock(), str, print, on_terminal=False)
    view.job_runs(replace(STARTED, variant="lr=1"))
    view.job_runs(replace(STARTED, variant="lr=2"))
    view.job_reports(Metrics(0, 1200, {"loss": 0.5, "acc": 0.9}, variant="lr=1"))
    assert view._now() == "sweep    lr=1 step 1,200 loss 0.5 · lr=2 0 s"
    view.progress(Progress("collect", "collecting the results", variant="lr=1"))
    assert view._now() == "sweep    lr=2 0 s"
    view.job_ends("lr=2")
    assert view._now() == ""


def test_the_failure_of_one_job_of_a_sweep_leaves_the_lines_of_the_others(console: Console) -> None:
    for variant in ("lr=1", "lr=2"):
        console.show(replace(STARTED, variant=variant))
    console.show(Failure("the job failed", "", 1, variant="lr=1"))
    console.show(Metrics(0, 7, {"loss": 0.5}, variant="lr=2"))
    assert console._live()._now() == "sweep    lr=2 step 7 loss 0.5"
    console.show(Failure("the sweep failed", "", 70))
    assert console._live()._now() == ""


def test_a_step_beside_the_job_gives_the_line_back_though_nothing_says_that_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    view = LiveView(threading.RLock(), str, print, on_terminal=False)
    view.job_runs(STARTED)
    saving = Progress("save", "the work was not saved this time: no connection")
    view.progress(saving)
    assert view._now() == "save     the work was not saved this time: no connection"
    monkeypatch.setattr(live_view, "BESIDE_S", 0.0)
    view.progress(saving)
    assert view._now().startswith("train    0 s")


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    monkeypatch.setattr(live_view, "CALM_S", 0.0)
    made = Console()
    yield made
    made.quiet()


def test_without_a_terminal_what_goes_on_is_a_plain_line(console: Console, capsys: pytest.CaptureFixture[str]) -> None:
    console.show(STARTED)
    console.show(Running("x6qn33t5b8", "main", "google", 0.0, 3600.0, 0.10, 9.6))
    assert "train    0 s  $0.10  at most 1 h left\n" in capsys.readouterr().err


def test_without_a_terminal_a_progress_bar_is_a_plain_line_every_few_seconds(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_view, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    printed: list[str] = []
    view = LiveView(threading.RLock(), str, printed.append, on_terminal=False)
    for second in range(12):
        view.bar("worker0 | ", f"{second}%")
        clock.now += 1
    view.bar("worker0 | ", "")
    view.bar("worker0 | ", "the next one")
    clock.now += 4
    view._say()
    view.forget()
    assert printed == ["worker0 | 5%", "worker0 | 10%"], "a short one is worth none"


def test_a_bar_is_that_of_a_worker_whose_log_is_shown_and_ends_with_its_line(console: Console, tmp_path: Path) -> None:
    console.show(many(tmp_path))
    for event in (Bar(0, "10%"), Bar(5, "20%"), Bar(0, "50%"), Bar(0, "60%", variant="lr=1")):
        console.show(event)
    bars = console._live()._bars
    assert bars == {"worker0 | ": "worker0 | 50%", "lr=1 worker0 | ": "lr=1 worker0 | 60%"}
    console.show(LogLines(0, ("100%",)))
    assert list(bars) == ["lr=1 worker0 | "]
    console.show(Notice("lost", "the slice", variant="lr=1"))
    assert not bars


def test_a_step_that_says_the_same_is_a_plain_line_once_a_minute(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    printed: list[str] = []
    view = LiveView(threading.RLock(), str, printed.append, on_terminal=False)
    for second in range(150):
        why = "refused" if second < 125 else "no answer"
        view.progress(Progress("connect", why))
        clock.now += 1
    view.forget()
    assert printed == ["connect  refused", "connect  refused", "connect  no answer"]


def test_a_short_step_is_worth_no_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.show(Progress("ship", "1 of 2 MB"))
    console.show(Progress("ship", "2 of 2 MB"))
    console.quiet()
    assert capsys.readouterr().err == ""


def test_quiet_leaves_what_needs_action(console: Console, capsys: pytest.CaptureFixture[str]) -> None:
    console.be_quiet()
    console.show(Notice("plan", "v5litepod-8"))
    console.show(STARTED)
    console.show(LogLines(0, ("step 1",)))
    console.show(Notice("warning", "the disk is full"))
    console.alert("!! NOT VERIFIED GONE")
    assert capsys.readouterr() == ("", "warning  the disk is full\n!! NOT VERIFIED GONE\n")


def test_of_every_stage_it_is_decided_whether_quiet_prints_it() -> None:
    text = "".join(path.read_text() for path in (ROOT / "orchestrator").rglob("*.py"))
    named = re.findall(r'\b(?:notice|Report|say)\(\s*"([a-z]+)",', text)
    assert {*named, "renamed", "missing"} == ACTION | set(UNTOLD.split())


def test_timestamps_stand_before_every_line_of_stderr_and_of_the_log(
    console: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    console.print_times()
    console.show(Notice("plan", "one\ntwo"))
    console.show(LogLines(0, ("step 1",)))
    out, err = capsys.readouterr()
    at = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d "
    assert re.fullmatch(f"{at}plan     one\n{at}two\n", err) and re.fullmatch(f"{at}worker0 \\| step 1\n", out)


def test_verbose_prints_every_step_and_every_call_to_the_api(
    console: Console, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CALL_LOG, "handlers", [])
    monkeypatch.setattr(CALL_LOG, "level", CALL_LOG.level)
    console.be_verbose()
    console.show(Progress("ship", "1 of 2 MB"))
    CALL_LOG.debug("GET /v2/projects/p/locations/-/nodes 200 in 0.10 s")
    first, call = capsys.readouterr().err.splitlines()
    assert first == "ship     1 of 2 MB" and call.startswith("api      GET /v2/projects/p/locations/-/nodes 200 in ")


def many(logs: Path) -> Workers:
    return Workers(16, logs / "runs/x/logs")


@pytest.mark.parametrize(("chosen", "shown"), [("all", 16), ((3, 5), 2)])
def test_the_logs_that_are_asked_for_are_shown(
    console: Console, capsys: pytest.CaptureFixture[str], tmp_path: Path, chosen: Choice, shown: int
) -> None:
    console.choose_logs(chosen)
    console.show(many(tmp_path))
    for worker in range(16):
        console.show(LogLines(worker, ("x",)))
    assert len(capsys.readouterr().out.splitlines()) == shown


def test_a_hidden_worker_that_fails_shows_the_end_of_its_log_before_the_next_step(
    console: Console, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    console.show(many(tmp_path))
    console.show(LogLines(0, ("step 1",)))
    console.show(LogLines(5, tuple(f"line {number}" for number in range(50))))
    console.show(WorkerEnded("main", 5, 7))
    console.show(WorkerEnded("main", 6, 8))
    assert capsys.readouterr().out == "worker0 | step 1\n"
    console.show(Progress("stop", "stopping"))
    console.show(Failure("the job failed", "", 7))
    out, err = capsys.readouterr()
    assert out == "".join(f"worker5 | line {number}\n" for number in range(50 - TAIL_LINES, 50))
    heading, failure = err.splitlines()
    assert heading == "failed   worker5 ended with 7; the end of its log (runs/x/logs/worker5.log):"
    assert failure == "the job failed", "and nothing twice"


def test_a_stream_of_json_has_the_lines_of_every_worker_and_no_explanations(
    console: Console, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    console.streams_json = True
    console.show(many(tmp_path))
    for worker in range(16):
        console.show(LogLines(worker, ("x",)))
    console.show(WorkerEnded("main", 5, 7))
    console.show(Failure("the job failed", "", 7))
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["event"] for row in rows] == ["workers", *["log"] * 16, "worker_ended", "failure"]
    assert rows[0] == {"event": "workers", "count": 16, "logs": str(tmp_path / "runs/x/logs")}
    assert err == "the job failed\n"


def test_each_job_of_a_sweep_has_workers_of_its_own(
    console: Console, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    console.show(replace(many(tmp_path), variant="lr=1"))
    console.show(Workers(4, tmp_path, variant="lr=2"))
    for variant in ("lr=1", "lr=2"):
        console.show(LogLines(3, ("x",), variant=variant))
    out, err = capsys.readouterr()
    assert out == "lr=2 worker3 | x\n" and err.startswith("lr=1 logs     showing worker0; ")


@pytest.mark.parametrize(("others", "text"), [
    (Others(63, 0, 0, 2.2), "63 others: running, last output 2 s ago"),
    (Others(63, 0, 0, None), "63 others: running, no output yet"),
    (Others(63, 3, 1, 75.0), "63 others: 59 running, 3 ended, 1 failed, last output 1 m 15 s ago"),
    (Others(1, 1, 0, 0.0), "1 other: ended, last output 0 s ago"),
])  # fmt: skip
def test_the_others_are_one_line(others: Others, text: str) -> None:
    assert others_text(others, 80) == f"         {text}"
    assert others_text(others, len(text)) == text
    assert others_text(others, len(text) - 1) == text.rpartition(", ")[0]


PROGRAM = """
import time
from orchestrator.cli.console.output import console
from orchestrator.api.session.events import *
c = console()
c.show(Running("x6qn33t5b8", "main", "google", 0.0, 1800.0, 0.10, 9.6))
c.show(LogLines(0, ("first",)))
c.show(Notice("watchdog", "armed"))
input()
c.show(Bar(0, "45% of \\x1b[2Jit"))
input()
c.show(Progress("collect", "[bold]1[/bold] of 2\\x1b]0;pwned\\x07"))
input()
c.quiet()
"""


class Terminal:
    """A program on a terminal of its own; it goes on after each `press`."""

    def __init__(self, program: str, columns: int) -> None:
        self._ours, terminal = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT), "COLUMNS": str(columns)}
        streams = {"stdin": subprocess.PIPE, "stdout": terminal, "stderr": terminal}
        self._process = subprocess.Popen([sys.executable, "-c", program], env=env, **streams)  # type: ignore[call-overload]
        os.close(terminal)
        self.seen = b""

    def read(self, word: bytes) -> None:
        while word not in self.seen:
            assert select.select([self._ours], [], [], HANG_S)[0], f"{word!r} never came: {self.seen!r}"
            self.seen += os.read(self._ours, 4096)

    def press(self) -> None:
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self.press()
        until(lambda: self._process.poll() is not None, "the end")
        with contextlib.suppress(OSError):  # there is nothing more
            while data := os.read(self._ours, 4096):
                self.seen += data
        os.close(self._ours)


LONG = """
import sys
from orchestrator.cli.console.output import console, emit_wrapped
from orchestrator.api.session.events import LogLines, Notice
console().show(LogLines(10, (
    "loss is 0.25 and the accuracy   of the " + "word " * 9, "    indented", "/a path/" + "long" * 9 + "er" * 30)))
console().show(Notice("hint", "type `tpujob collect x6qn33t5b8 --all`, and it is this which " + "comes home " * 3))
emit_wrapped(["live command                it deletes what it made on every way out: end, error, Ctrl-C, SIGTERM"], 28)
sys.stdin.readline()
"""


@pytest.mark.parametrize("columns", [80, 40, 1])
def test_on_a_terminal_lines_end_between_words_and_go_on_below_their_text(columns: int) -> None:
    shown = Terminal(LONG, columns)
    shown.end()
    text = shown.seen.decode().replace("\r\n", "\n")
    assert columns < 80 or text.startswith(
        "worker10 | loss is 0.25 and the accuracy   of the word word word word word word\n"
        "           word word word\nworker10 |     indented\nworker10 | /a\n           path/longlong"
    ), text
    assert "`tpujob collect x6qn33t5b8 --all`" in text, "a command can be copied"
    assert columns == 1 or "\n                            " in text
    kept = [line for line in text.split("\n") if len(line) > columns]
    assert all(" " not in line.strip().replace("`tpujob collect x6qn33t5b8 --all`,", "") for line in kept), kept
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(columns)}
    piped = subprocess.check_output([sys.executable, "-c", LONG], env=env, stdin=-3, stderr=-2, text=True)
    assert piped.count("\n") == 5 and " ".join(piped.split()) == " ".join(text.split()), (
        "elsewhere they stay as they are"
    )


COMMANDS = """
import sys
from types import SimpleNamespace
from orchestrator.cli.commands.guarantee import drill
from orchestrator.cli.commands.slices import status
from orchestrator.drill.runner import DISASTERS, Finding
asked = SimpleNamespace(summary="emulated cloud · asked the API at 10:00:00Z · all zones, " + "complete " * 9, error=None)
found = SimpleNamespace(projects=[asked], google_not_asked="no project is configured", slices=[], waiting=[], left=[],
    sweeps=[SimpleNamespace(name="lr", counts="2 succeeded, 3 running, 4 waiting, 5 failed", variants=[])], exit_code=75)
status.open_client = lambda *_: SimpleNamespace(status=lambda: found, announce=lambda: None)
status.status()
drill.run_all = lambda *_: (Finding(each, "watchdog", 9.44, None) for each in DISASTERS)
drill.drill()
sys.stdin.readline()
"""


@pytest.mark.parametrize("columns", [80, 40])
def test_no_line_of_status_and_drill_is_cut_within_a_word(columns: int) -> None:
    shown = Terminal(COMMANDS, columns)
    shown.end()
    lines = COLORS.sub("", shown.seen.decode()).splitlines()
    assert lines[-1].endswith("docs/guarantee.md") and [line for line in lines if len(line) > columns] == []


def test_on_a_terminal_the_line_is_below_the_log_and_leaves_nothing_behind() -> None:
    shown = Terminal(PROGRAM, 80)
    shown.read(b"armed\r\n\r\x1b[Ktrain    ")
    assert shown.seen.index(b"worker0 | first\r\n") < shown.seen.index(b"watchdog armed\r\n")
    shown.press()
    shown.read(b"\r\x1b[Kworker0 | 45% of it\r\ntrain    ")
    shown.press()
    shown.read(b"collect  [bold]1[/bold] of 2")
    shown.end()
    assert shown.seen.endswith(b"\r\x1b[K") and b"pwned" not in shown.seen and b"\x1b[?25l" not in shown.seen


MANY = """
from pathlib import Path
from orchestrator.cli.console.output import console
from orchestrator.api.session.events import *
c = console()
c.show(Workers(64, Path("logs")))
c.show(Running("x6qn33t5b8", "main", "google", 0.0, 1800.0, 0.10, 9.6))
input()
c.show(LogLines(0, ("first",)))
input()
c.quiet()
"""


@pytest.mark.parametrize(("columns", "others"), [(80, b"         63 others: running, no output yet"), (20, b"")])
def test_on_a_terminal_the_others_have_a_line_of_their_own_that_goes_with_the_first(
    columns: int, others: bytes
) -> None:
    shown = Terminal(MANY, columns)
    shown.read(others or b"train")
    shown.press()
    gone = b"\r\x1b[K\x1b[A\r\x1b[K" if others else b"\r\x1b[K"
    shown.read(gone + b"worker0 | first\r\n\r\x1b[Ktrain")
    shown.read(others or b"first")
    shown.end()
    assert shown.seen.endswith(gone) and (b"others" in shown.seen) == bool(others)

"""In a notebook a call shows in place what goes on; without a kernel nothing changes, and a display that fails costs no run."""

import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.api.functions import outcome
from orchestrator.api.session import notebook
from orchestrator.api.session.events import (
    Alert,
    Bar,
    Failure,
    LogLines,
    Metrics,
    Notice,
    Progress,
    Running,
    RunResult,
    SweepResult,
    WorkerEnded,
    Workers,
)
from orchestrator.api.session.notebook import InPlace
from orchestrator.api.session.reporter import listening
from tests.waiting import HANG_S

RUNNING = Running("abc", "main", "emulated", 0.0, 600.0, 1.5, 4.8)
RESULT = RunResult(
    "abc", "fit", "succeeded", 0, Path("/runs/x"), 0.0, 9.0, lines=("result   succeeded", "cost     $0.10")
)


class Publisher:
    """The `display_pub` of a kernel. `drawn` is set by each drawing."""

    def __init__(self) -> None:
        self.shown: list[dict[str, Any]] = []
        self.drawn = threading.Semaphore(0)

    def publish(self, **message: Any) -> None:
        self.shown.append(message)
        self.drawn.release()

    @property
    def page(self) -> str:
        return str(self.shown[-1]["data"]["text/html"])

    @property
    def text(self) -> str:
        return str(self.shown[-1]["data"]["text/plain"])


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """That of the kernel in which this test runs."""
    made = Publisher()
    monkeypatch.setattr(notebook, "EVERY_S", 0.001)
    monkeypatch.setattr(notebook, "CLOSE_S", HANG_S)  # the last drawing is there
    shell = SimpleNamespace(kernel=object(), display_pub=made)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    return made


def told(*events: Any, on_event: Any = None) -> None:
    with listening(on_event) as reporter:
        for event in events:
            reporter.emit(event)


SHELLS = """
import sys
from orchestrator.api.session.reporter import kernel
assert kernel() is None and "IPython" not in sys.modules
from IPython.core.interactiveshell import InteractiveShell
from IPython.terminal.interactiveshell import TerminalInteractiveShell
assert kernel() is None
TerminalInteractiveShell.instance()
assert kernel() is None
TerminalInteractiveShell.clear_instance()
shell = type("Shell", (InteractiveShell,), {"kernel": object()}).instance()
assert kernel() is shell
"""


def test_a_kernel_is_found_in_a_notebook_only(tmp_path: Path) -> None:
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SHELLS], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_run_has_one_display_which_ends_with_its_result(publisher: Publisher) -> None:
    with listening(None) as reporter:
        reporter.emit(Notice("create", "asking for v5litepod-8"))
        assert publisher.drawn.acquire(timeout=HANG_S)
        assert publisher.text == "create   asking for v5litepod-8"
        reporter.emit(RUNNING)
        reporter.emit(Metrics(0, 1200, {"loss": 0.25}))
        reporter.emit(LogLines(0, tuple(f"line {number}" for number in range(20))))
        reporter.emit(Bar(0, "50 %"))
        while "50 %" not in publisher.text:
            assert publisher.drawn.acquire(timeout=HANG_S)
        job, *lines = publisher.text.splitlines()
        assert re.fullmatch(r"train    step 1,200  loss 0\.25  .* \$1\.50 emulated  at most 10 m left", job)
        assert lines == [*(f"worker0 | line {number}" for number in range(12, 20)), "worker0 | 50 %"]
        reporter.emit(RESULT)
    assert publisher.text.splitlines()[-2:] == ["result   succeeded", "cost     $0.10"]
    assert "train" not in publisher.text and "50 %" not in publisher.text and notebook.GOOD in publisher.page
    ids = {each["transient"]["display_id"] for each in publisher.shown}
    assert len(ids) == 1 and [each["update"] for each in publisher.shown] == [False] + [True] * (
        len(publisher.shown) - 1
    )


def test_a_call_without_events_and_one_with_a_listener_of_its_own_have_no_display(publisher: Publisher) -> None:
    told()
    heard: list[Any] = []
    told(Notice("create", "x"), on_event=heard.append)
    assert len(heard) == 1 and publisher.shown == []


def test_a_step_that_was_passing_does_not_stay(publisher: Publisher) -> None:
    told(Progress("status", "asking the API"))
    assert not publisher.shown or publisher.text == ""
    told(Notice("release", "absent"))
    assert publisher.text == "release  absent"


def test_a_step_beside_a_job_is_shown_for_a_while(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "BESIDE_S", math.inf)
    with listening(None) as reporter:
        reporter.emit(RUNNING)
        reporter.emit(Notice("watchdog", "armed"))
        while publisher.drawn.acquire(timeout=HANG_S) and "watchdog armed\ntrain" not in publisher.text:
            pass
        monkeypatch.setattr(notebook, "BESIDE_S", 0.0)
        while publisher.drawn.acquire(timeout=HANG_S) and not publisher.text.startswith("train"):
            pass


def test_text_of_a_job_is_inert_and_without_secrets(publisher: Publisher) -> None:
    evil = "<script>alert(1)</script>\x1b[2J\x1b]52;c;eA==\x07</pre><img src=x onerror=alert(1)>"
    with listening(None) as reporter:
        reporter.secrets.add("open sesame")
        reporter.emit(LogLines(0, (evil, f"{evil} open se\u200bsame", "x" * 5000)))
        reporter.emit(RUNNING)
        reporter.emit(Metrics(0, 1, {"<b>loss": 0.25}))
        while "loss" not in (publisher.page if publisher.shown else ""):
            assert publisher.drawn.acquire(timeout=HANG_S)
        reporter.emit(Alert(evil))
        reporter.emit(Failure(evil, evil, 1))
    for each in publisher.shown:
        found = each["data"]["text/html"]
        assert not re.search(r"<(?!/?(div|pre)\b)|[\x00-\x08\x0b-\x1f]", found) and "sesame" not in found
        assert len(found) < 10_000
    assert "&lt;script&gt;alert(1)" in publisher.page


def test_jobs_of_a_sweep_have_a_line_each(publisher: Publisher) -> None:
    with listening(None) as reporter:
        for variant in ("lr=1", "lr=2"):
            reporter.variant = variant
            reporter.emit(RUNNING)
            reporter.emit(LogLines(0, ("hello",)))
        while publisher.drawn.acquire(timeout=HANG_S) and "lr=2 train" not in publisher.text:
            pass
        assert [line[:10] for line in publisher.text.splitlines()[:2]] == ["lr=1 train", "lr=2 train"]
        reporter.emit(RESULT)
        reporter.variant = ""
        reporter.emit(SweepResult("s", "lr-sweep", (), 1))
    assert publisher.text.splitlines()[-2:] == [
        "lr=2 succeeded · 9 s · tpujob show abc", "lr-sweep: 0 of 0 succeeded",
    ]  # fmt: skip
    assert notebook.BAD in publisher.page


def test_of_a_hidden_worker_that_fails_the_end_of_its_log_is_shown(publisher: Publisher) -> None:
    lines = [LogLines(worker, (f"no {worker}",)) for worker in range(16)]
    told(Workers(16, Path("/runs/x/logs")), *lines, WorkerEnded("main", 5, 1), Failure("it failed", "look", 1))
    shown = publisher.text.splitlines()
    assert shown[-4:] == [
        "worker5 ended with 1; the end of its log (/runs/x/logs/worker5.log):",
        "worker5 | no 5",
        "it failed",
        "hint: look",
    ]


def test_a_display_that_fails_says_so_once_and_the_work_goes_on(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def publish(**message: Any) -> None:
        publisher.drawn.release()
        raise OSError("no kernel")

    monkeypatch.setattr(publisher, "publish", publish)
    with listening(None) as reporter:
        reporter.emit(Notice("create", "x"))
        assert publisher.drawn.acquire(timeout=HANG_S)
        reporter.emit(Notice("create", "y"))
        reporter.emit(SimpleNamespace())  # type: ignore[arg-type]  # an event that it does not understand
    assert capsys.readouterr().err == "tpujob: the display has ended, the work goes on: OSError('no kernel')\n"


def test_a_slow_notebook_keeps_no_event_waiting(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, monkey = threading.Event(), publisher.publish

    def publish(**message: Any) -> None:
        monkey(**message)
        assert go_on.wait(HANG_S)

    monkeypatch.setattr(publisher, "publish", publish)
    display = InPlace(publisher, lambda text: text)
    display(Notice("create", "first"))
    assert publisher.drawn.acquire(timeout=HANG_S)
    for number in range(1000):
        display(LogLines(0, (f"line {number}",)))  # returns, while the notebook hangs
    go_on.set()
    display.close()
    assert publisher.text.splitlines()[-1] == "worker0 | line 999"


def test_a_function_that_is_called_in_a_notebook_prints_nothing(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert outcome.printer() is None
    monkeypatch.delitem(sys.modules, "IPython")
    assert isinstance(outcome.printer(), outcome.Printer)

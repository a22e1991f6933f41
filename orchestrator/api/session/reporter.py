"""What makes events, and passes them on: to a console, or `on_event` of a call.

The events themselves are loaded with the first one, so that a command that only prints does without them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import TpujobError
from orchestrator.system.lazy import Later
from orchestrator.text.redaction import Redactor

if TYPE_CHECKING:
    from orchestrator.api.session import events, notebook
    from orchestrator.promise.effects import base as effects
    from orchestrator.promise.lease import run_and_attempt
    from orchestrator.report.files import artifact_files
else:
    artifact_files = Later("orchestrator.report.files.artifact_files")
    effects = Later("orchestrator.promise.effects.base")
    events = Later("orchestrator.api.session.events")
    notebook = Later("orchestrator.api.session.notebook")
    run_and_attempt = Later("orchestrator.promise.lease.run_and_attempt")


class Reporter:
    """Makes events and passes them on. Called from any thread; one event at a time reaches `on_event`.

    `secrets` hides values in every text before it leaves. An exception in `on_event` propagates to the caller. `variant`: of
    all events from now on.
    """

    def __init__(
        self, on_event: Callable[[events.Event], object] = lambda event: None, secrets: Redactor | None = None
    ) -> None:
        self.secrets = secrets if secrets is not None else Redactor()
        self.variant = ""
        self._on_event = on_event
        self._lock = threading.RLock()

    def report(self, told: effects.Report) -> None:
        """A line of a program."""
        match told.about:
            case None | effects.MoneyNear():
                (self.progress if told.passing else self.notice)(told.stage, told.text)
            case effects.JobClock() as job:
                self.emit(
                    events.Running(
                        job.run, job.phase, job.cloud, job.elapsed_s, job.left_s, job.usd_so_far, job.usd_per_hour
                    )
                )
            case effects.SliceWorkers(count=count, directory=directory):
                self.emit(events.Workers(count, artifact_files.log_directory(Path(directory))))
            case run_and_attempt.WorkerEnd(worker=worker, exit_code=code, stopped=stopped):
                self.emit(events.WorkerEnded(told.stage, worker, code, stopped))

    def notice(self, stage: str, text: str) -> None:
        self.emit(events.Notice(stage, self.secrets.hide(text)))

    def progress(self, stage: str, text: str) -> None:
        self.emit(events.Progress(stage, self.secrets.hide(text)))

    def alert(self, text: str) -> None:
        self.emit(events.Alert(self.secrets.hide(text)))

    def fail(self, error: TpujobError) -> None:
        self.emit(
            events.Failure(self.secrets.hide(error.message), self.secrets.hide(error.hint or ""), error.exit_code)
        )

    def log(self, worker: int, lines: tuple[str, ...]) -> None:
        """Lines whose secrets are hidden already."""
        self.emit(events.LogLines(worker, lines))

    def emit(self, event: events.Event) -> None:
        with self._lock:
            self._on_event(replace(event, variant=self.variant) if self.variant else event)


def kernel() -> Any:
    """Return the shell of the notebook whose cell this is; None in a program, and in IPython on a terminal. Imports nothing."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = None if get_ipython is None else get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


@contextmanager
def listening(on_event: events.OnEvent | None) -> Iterator[Reporter]:
    """Yield what reports to `on_event` until that raises; raise its error at the end. None: in place, in a notebook.

    No error in `on_event` may keep a slice from being released.
    """
    if on_event is None and (shell := kernel()) is not None:
        secrets = Redactor()
        display = notebook.InPlace(shell.display_pub, secrets.hide)
        try:
            yield Reporter(display, secrets)
        finally:
            display.close()
        return
    raised: list[BaseException] = []

    def tell(event: events.Event) -> None:
        if on_event is not None and not raised:
            try:
                on_event(event)
            except BaseException as error:
                raised.append(error)

    try:
        yield Reporter(tell)
    except BaseException as error:
        for each in raised:
            error.add_note(f"on_event raised {each!r}")
        raise
    if raised:
        raise raised[0]

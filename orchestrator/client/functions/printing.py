"""What a call shows where the client has no `on_event`: the steps and the log, on stderr. stdout stays the program's."""

from __future__ import annotations

import sys
from contextlib import suppress

from orchestrator.client.events import Alert, Event, LogLines, Notice, RunResult


def show(event: Event) -> None:
    """Print a step, an alert, or the lines of a worker; nothing for other events. An error is raised by the call itself."""
    match event:
        case Notice(stage=stage, text=text):
            lines = [f"{stage:<8} {text}"]
        case Alert(text=text):
            lines = [text]
        case LogLines(worker=worker, lines=logged):
            lines = [f"worker{worker} | {line}" for line in logged]
        case RunResult(variant=""):
            lines = list(event.lines)
        case RunResult():
            lines = [f"{'result':<8} {event.in_short}"]
        case _:
            return
    begin = f"{event.variant} " if event.variant else ""
    with suppress(OSError, ValueError):  # a reader that left must not stop a teardown
        print(*(f"{begin}{line}" for line in lines), sep="\n", file=sys.stderr, flush=True)

"""What a call shows where the client has no `on_event`: the steps and the log, on stderr. stdout stays the program's."""

import sys
from collections.abc import Iterator
from contextlib import suppress

from orchestrator.client.events import Alert, Event, Failure, LogLines, Notice, RunResult, WorkerEnded, Workers
from orchestrator.client.shown_logs import ShownLogs


class Printer:
    """Prints the events of a call, or of the calls of a map. An error is raised by the call itself."""

    def __init__(self) -> None:
        self._logs: dict[str, ShownLogs] = {}  # by the label of a call of a map

    def __call__(self, event: Event) -> None:
        begin = f"{event.variant} " if event.variant else ""
        lines = [f"{begin}{line}" for line in self._lines(event)]
        with suppress(OSError, ValueError):  # a reader that left must not stop a teardown
            if lines:
                print(*lines, sep="\n", file=sys.stderr, flush=True)

    def _lines(self, event: Event) -> Iterator[str]:
        logs = self._logs.setdefault(event.variant, ShownLogs())
        if isinstance(event, Notice | Failure | RunResult) and (tail := logs.explanation()) is not None:
            yield f"{'failed':<8} {tail.heading}"
            yield from (f"worker{tail.worker} | {line}" for line in tail.lines)
        match event:
            case Notice(stage=stage, text=text):
                yield f"{stage:<8} {text}"
            case Alert(text=text):
                yield text
            case Workers():
                logs.begin(event)
                if text := logs.announce():
                    yield f"{'logs':<8} {text}"
            case WorkerEnded():
                logs.end(event)
            case LogLines(worker=worker, lines=logged) if logs.takes(event):
                yield from (f"worker{worker} | {line}" for line in logged)
            case RunResult(variant=""):
                yield from event.lines
            case RunResult():
                yield f"{'result':<8} {event.in_short}"

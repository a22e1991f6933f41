"""Events: everything that the client reports while it works. The CLI renders them; `run --json` writes each as a line.

An event is a frozen value. `Reporter` makes them: it hides secrets and calls one function with each event, from whichever
thread it happens in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.core.text.redaction import Redactor
from orchestrator.errors import TpujobError

if TYPE_CHECKING:
    from orchestrator.engine.effects.base import Report


@dataclass(frozen=True, slots=True)
class Event:
    """The base of all events. `kind` names the event in JSON."""

    kind: ClassVar[str] = "event"

    def as_json(self) -> dict[str, Any]:
        """A flat object: `event` (the kind) and the fields, as JSON values."""
        return {"event": self.kind, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """One step of the work. `stage` is a word such as `cloud`, `plan`, `create`, `ship`; `text` is one or more lines."""

    kind: ClassVar[str] = "notice"
    stage: str
    text: str


@dataclass(frozen=True, slots=True)
class Progress(Event):
    """How far a step is. The next event of any kind replaces it on a terminal."""

    kind: ClassVar[str] = "progress"
    stage: str
    text: str


@dataclass(frozen=True, slots=True)
class Alert(Event):
    """A message that must not be overlooked: a slice that is not proven gone."""

    kind: ClassVar[str] = "alert"
    text: str


@dataclass(frozen=True, slots=True)
class Failure(Event):
    """An error that was handled: the work goes on to its end. `exit_code` is the one of the error's type."""

    kind: ClassVar[str] = "failure"
    message: str
    hint: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class LogLines(Event):
    """Lines that a worker printed, in order, without newlines, control characters and secrets."""

    kind: ClassVar[str] = "log"
    worker: int
    lines: tuple[str, ...]


class Reporter:
    """Makes events and passes them on. Called from any thread; one event at a time reaches `on_event`.

    `secrets` hides values in every text before it leaves. An exception in `on_event` propagates to the caller.
    """

    def __init__(self, on_event: Callable[[Event], None], secrets: Redactor | None = None) -> None:
        self.secrets = secrets if secrets is not None else Redactor()
        self._on_event = on_event
        self._lock = threading.RLock()

    def report(self, told: Report) -> None:
        """A line of the engine."""
        make = Progress if told.passing else Notice
        self.emit(make(told.stage, self.secrets.hide(told.text)))

    def say(self, stage: str, text: str) -> None:
        self.emit(Notice(stage, self.secrets.hide(text)))

    def progress(self, stage: str, text: str) -> None:
        self.emit(Progress(stage, self.secrets.hide(text)))

    def loud(self, text: str) -> None:
        self.emit(Alert(self.secrets.hide(text)))

    def fail(self, error: TpujobError) -> None:
        self.emit(Failure(self.secrets.hide(error.message), self.secrets.hide(error.hint or ""), error.exit_code))

    def log(self, worker: int, lines: tuple[str, ...]) -> None:
        """Lines whose secrets are hidden already."""
        self.emit(LogLines(worker, lines))

    def emit(self, event: Event) -> None:
        with self._lock:
            self._on_event(event)

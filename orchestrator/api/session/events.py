"""Events: everything that the client reports while it works. The CLI renders them; `run --json` writes each as a line.

An event is a frozen value. `Reporter` (`reporter.py`) makes them: it hides secrets and calls one function with each event,
from whichever thread it happens in.

(No `slots`: they double the time to create a class, and every command with one line for the user creates them all.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.errors import TpujobError
from orchestrator.system.lazy import Later
from orchestrator.text.units import format_duration, format_usd

if TYPE_CHECKING:
    from orchestrator.report.page import card
    from orchestrator.report.rows.collected import ResultRemark
    from orchestrator.report.rows.worker_ends import WorkerReport
    from orchestrator.text.parsing import NotFinite
else:
    card = Later("orchestrator.report.page.card")  # Jinja2, only in a notebook


@dataclass(frozen=True)
class Event:
    """The base of all events. `kind` names the event in JSON. `variant`: of which job of a sweep it is; empty for any other."""

    kind: ClassVar[str] = "event"
    variant: str = field(default="", kw_only=True)

    def as_json(self) -> dict[str, Any]:
        """An object of `event` (the kind) and the fields, as JSON values; `variant` only for a job of a sweep.

        A path is text, an error its type, message, hint and exit code.
        """
        shape = {each.name: _as_json(getattr(self, each.name)) for each in fields(self)}
        return {"event": self.kind, **{key: value for key, value in shape.items() if key != "variant" or value}}


def _as_json(value: Any) -> Any:
    match value:
        case Path():
            return str(value)
        case TpujobError():
            told = {"message": value.message, "hint": value.hint, "exit_code": value.exit_code}
            return {"type": type(value).__name__, **told}
        case tuple():
            return [_as_json(each) for each in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


@dataclass(frozen=True)
class Notice(Event):
    """One step of the work. `stage` is a word such as `cloud`, `plan`, `create`, `ship`; `text` is one or more lines."""

    kind: ClassVar[str] = "notice"
    stage: str
    text: str


@dataclass(frozen=True)
class Progress(Event):
    """How far a step is. The next event of any kind replaces it on a terminal."""

    kind: ClassVar[str] = "progress"
    stage: str
    text: str


@dataclass(frozen=True)
class Running(Event):
    """A phase of the job has begun, or its end was moved. Time and dollars go on from these figures.

    `left_s`: until the job is stopped at the latest. Dollars are those of the run so far, and of its slice per hour, by the
    price table; None: unknown, or a job on this machine.
    """

    kind: ClassVar[str] = "running"
    run: str
    phase: str  #: setup or main
    cloud: str
    elapsed_s: float  #: of the phase
    left_s: float
    usd_so_far: float | None = None
    usd_per_hour: float | None = None

    @property
    def billed(self) -> bool:
        """Whether it costs dollars."""
        from orchestrator.traits import traits_of  # an event costs nothing to import

        return traits_of(self.cloud).billed


@dataclass(frozen=True)
class Workers(Event):
    """How many workers the job gets, before any of them prints. `logs`: the directory of their log files."""

    kind: ClassVar[str] = "workers"
    count: int
    logs: Path


@dataclass(frozen=True)
class WorkerEnded(Event):
    """A phase of the job has ended on a worker, after its last line."""

    kind: ClassVar[str] = "worker_ended"
    phase: str  #: setup or main
    worker: int
    exit_code: int | None  #: None: its supervisor is gone, and the code is unknown
    stopped: bool = False  #: it ended because it was asked to, such as after the failure of another worker


@dataclass(frozen=True)
class Alert(Event):
    """A message that must not be overlooked: a slice that is not proven gone."""

    kind: ClassVar[str] = "alert"
    text: str


@dataclass(frozen=True)
class Failure(Event):
    """An error that was handled: the work goes on to its end. `exit_code` is the one of the error's type."""

    kind: ClassVar[str] = "failure"
    message: str
    hint: str
    exit_code: int


@dataclass(frozen=True)
class LogLines(Event):
    """Lines that a worker printed, in order, without newlines, control characters and secrets."""

    kind: ClassVar[str] = "log"
    worker: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Bar(Event):
    """The line that a worker redraws by carriage returns, such as a progress bar, as it is now; once a second at most.

    Clean, as the lines of `LogLines`, with which it ends.
    """

    kind: ClassVar[str] = "bar"
    worker: int
    line: str


@dataclass(frozen=True)
class Metrics(Event):
    """The newest values that a job reported, a few times a second at most; the files of the run have all of them.

    `values`: of the same step, by name; None for NaN and infinities, of which `diverged` says what they are and since which
    step. `step`: None where the job names none.
    """

    kind: ClassVar[str] = "metrics"
    worker: int
    step: int | None
    values: Mapping[str, float | None]
    diverged: Mapping[str, NotFinite] = field(default_factory=dict)


@dataclass(frozen=True)
class RunResult(Event):
    """How a run ended, or how it was left; also the last event of a run. Times are unix seconds, by the ledger's clock.

    `exit_code` and `ended_at` are None while the run goes on. A notebook shows it as a card, with a picture of its curves.
    """

    kind: ClassVar[str] = "result"
    run: str
    name: str
    state: str
    exit_code: int | None  #: of `tpujob`: the job's own, the error's, or 75 while a slice is not proven absent
    directory: Path
    started_at: float
    ended_at: float | None
    attempt_count: int = 1
    restarts: int = 0  #: after a lost slice
    emulated: bool = False  #: it ran on an emulated TPU: its seconds and dollars are not those of a real one
    accelerator: str | None = None  #: of its last slice; None: it had none
    zone: str | None = None  #: of that slice
    job_s: float | None = None  #: seconds that the job ran, in all attempts, without waiting, setup and collecting
    cost_usd: float | None = None  #: of all attempts; None: unknown, or a run on this machine
    metrics: dict[str, Any] = field(default_factory=dict)  #: the last value of each, and what metrics.json holds
    artifacts: tuple[Path, ...] = ()
    results: tuple[ResultRemark, ...] = ()  #: results that have another name here, or are not here
    workers: tuple[WorkerReport, ...] = ()  #: how a job that failed ended on each of them
    report: Path | None = None  #: its page; None: it could not be written
    released: bool = True  #: every slice of the run is proven absent
    release: str = "nothing was created"
    detached: bool = False  #: the job goes on without this process
    error: TpujobError | None = None
    lines: tuple[str, ...] = ()  #: for a terminal

    @property
    def in_short(self) -> str:
        """Return one line for a run of a sweep, which the table at its end describes."""
        took = format_duration((self.ended_at or self.started_at) - self.started_at)
        return f"{self.state} · {took} · tpujob show {self.run}"

    def as_json(self) -> dict[str, Any]:
        """Return the fields without `lines`."""
        return {key: value for key, value in Event.as_json(self).items() if key != "lines"}

    def _repr_html_(self) -> str | None:
        """Return a card for a notebook, with a picture of the first curves; None: it cannot be made, and the text is shown."""
        with suppress(Exception):
            goes_on = self.exit_code is None or self.ended_at is None
            kind = "open" if goes_on else "bad" if self.exit_code else "good"
            took = [] if self.ended_at is None else [format_duration(self.ended_at - self.started_at)]
            place = [self.accelerator, self.zone] if self.accelerator else []
            cost = format_usd(self.cost_usd) + (" emulated" if self.emulated else "") if place else "no cost"
            facts = [self.run, *filter(None, place), *took, *([] if goes_on else [cost])]
            state = f"{self.state}, goes on" if goes_on else self.state
            why, released = (
                self.error.message if self.error else "",
                "" if self.released or goes_on else f"not released: {self.release}",
            )
            return card.card(
                self.name, state, kind, facts, self.directory, self.metrics,
                why="; ".join(filter(None, [why, released])), emulated=self.emulated, page=self.report,
            )  # fmt: skip
        return None


@dataclass(frozen=True)
class VariantResult:
    """What became of one job of a sweep. `state`: that of its newest run, or `queued`: it was not run."""

    number: int  #: from 1, in the order of the file
    variant: str  #: what it is called in the sweep, such as `lr=1e-4`; that of its events
    name: str  #: of its runs
    params: Mapping[str, str | int | float | bool]
    state: str = "queued"
    run: str | None = None
    exit_code: int | None = None  #: None: it was not run
    done_before: bool = False  #: an earlier run with the same job, code and cloud succeeded; it was not run again
    result: RunResult | None = None

    @property
    def succeeded(self) -> bool:
        return self.state == "succeeded"


@dataclass(frozen=True)
class SweepResult(Event):
    """How a sweep ended; also its last event. `variants` are in the order of the file."""

    kind: ClassVar[str] = "sweep"
    sweep: str
    name: str
    variants: tuple[VariantResult, ...]
    exit_code: int  #: 0: all succeeded; else that of what stopped it, or of the first one that failed; 75 before all
    stopped: bool = False  #: before every variant had its run; the same call goes on there
    error: TpujobError | None = None  #: what stopped it, where that was not the end of a variant
    report: Path | None = None  #: the page that compares its runs; None: there was none, or it could not be written

    @property
    def succeeded(self) -> tuple[VariantResult, ...]:
        return tuple(each for each in self.variants if each.succeeded)

    @property
    def failed(self) -> tuple[VariantResult, ...]:
        """Those that were run without success."""
        return tuple(each for each in self.variants if each.run is not None and not each.succeeded)

    def as_json(self) -> dict[str, Any]:
        """Return the fields, each variant without its `result`, which is an event of its own."""
        rows = [
            {each.name: getattr(row, each.name) for each in fields(row) if each.name != "result"}
            | {"params": dict(row.params)}
            for row in self.variants
        ]
        told = None if self.error is None else {"type": type(self.error).__name__, "message": self.error.message}
        shape = {"sweep": self.sweep, "name": self.name, "variants": rows, "exit_code": self.exit_code}
        report = None if self.report is None else str(self.report)
        return {"event": self.kind, **shape, "stopped": self.stopped, "error": told, "report": report}


def relative(path: Path) -> Path:
    """Return the path as seen from the working directory, if it lies below it."""
    try:
        return path.relative_to(Path.cwd())
    except (ValueError, FileNotFoundError):  # somewhere else; or the working directory was deleted
        return path


@dataclass(frozen=True)
class LogLine:
    """A line that a worker wrote, without its newline, control characters and secrets."""

    worker: int
    text: str


OnEvent = Callable[[Event], object]

"""What a run left, read from the ledger and from its artifact files: `tpujob show`, and the result line of `run`.

Measurements stay in the files that the payload wrote; nothing is stored twice. Artifacts come from a worker, so no shape of
theirs is relied on.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator import traits
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord, end_text
from orchestrator.promise.lease.run_spec import NO_TRAINING, RunSpec
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.report.comparison import compare
from orchestrator.report.comparison.figures import FUNCTION_ENTRY, RunFigures, figures
from orchestrator.report.files import device, host, made
from orchestrator.report.files.artifact_files import read_object, section, short_text
from orchestrator.report.files.host import HostUse
from orchestrator.report.files.made import Made
from orchestrator.report.files.metrics import RATE, figure_text, main_figure
from orchestrator.report.files.metrics import read as read_metrics
from orchestrator.report.rows import collected, costs, worker_ends
from orchestrator.report.rows.collected import ResultRemark
from orchestrator.report.rows.layout import format_cost
from orchestrator.report.rows.whole_run import (
    AttemptReport,
    RunSummary,
    attempt_lines,
    attempt_reports,
    summary,
    whole_run,
)
from orchestrator.report.rows.worker_ends import WorkerReport
from orchestrator.text.artifacts import takes_all
from orchestrator.text.terminal import Table
from orchestrator.text.units import day_clock, format_duration, format_size
from orchestrator.vm.buckets.manifest import MEASURED

EVENTS = {  # what a kind of event says, with the fields of its data
    "began": "run began",
    "tried": "{where}: {why}; proven gone",
    "leased": "uses lease {lease_id}",
    "moved": "{state}",
    "continued": "{text}",
    "nodes_used": "runs on {nodes}",
    "attempt_ended": "{end}",
    "intent": "name written down, before anything was asked of the cloud",
    "sent": "create sent",
    "login_granted": "OS Login has the key, for the user {user}",
    "login_refused": "OS Login refused the key: {why}",
    "create_refused": "create refused: {why}",
    "created": "create accepted",
    "settled": "create settled",
    "ready": "slice READY",
    "held": "kept until {until}",
    "passed": "goes to run {run}",
    "detached": "goes on without its command",
    "extended": "its end is moved to {until}",
    "relabeled": "its labels, which another machine writes, say something new",
    "results_collected": "results are collected from its slice: {state}",
    "down": "delete: {reason}",
    "gone": "proven gone: {evidence}",
    "forgotten": "forgotten: {why}",
}
# What tpujob itself measures beside a job: none of its results.
OF_TPUJOB = {tuple(each.split("/")) for each in MEASURED}
REPEATED = ("attempt_ended", "down", "nodes_used")  # by each process that notices it


@dataclass(frozen=True, slots=True)
class LeaseReport:
    """The slice of the last attempt. Times are unix seconds of the ledger; `usd` is its cost so far."""

    id: str
    node: str
    zone: str
    project: str
    accelerator_type: str
    spot: bool
    state: str
    ready_at: float | None
    gone_at: float | None
    usd: float | None
    emulated: bool


@dataclass(frozen=True, slots=True)
class RunEvent:
    """A line of the run's history. `at`: unix seconds of the ledger."""

    at: float
    what: str


@dataclass(frozen=True, slots=True)
class RunFile:
    """A file in the directory of a run."""

    path: str  # below the run's directory
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport(RunSummary):
    """Everything about one run: its `RunSummary` and more, named as in `run --json`.

    `workers`: how a job that failed ended on each of them.
    """

    detail: str
    hint: str  #: what to do about it; empty: nothing special
    spec: dict[str, Any]
    lease: LeaseReport | None
    attempts: tuple[AttemptReport, ...]
    workers: tuple[WorkerReport, ...]
    events: tuple[RunEvent, ...]
    figures: RunFigures
    metrics: dict[str, Any]
    files: tuple[RunFile, ...]
    results: tuple[ResultRemark, ...]  #: those that have another name here, or are not here
    made: Made | None = None  #: what it was made with; None: not recorded
    host: HostUse | None = None  #: what the workers' processors and memory did; None: not sampled


def describe(run: RunRecord, state: AttemptState, detail: str, where: Path, checked: str = "") -> str:
    """Return the result of a run in one line. `where`: its directory, as the user sees it; `checked`: said of its files."""
    directory = Path(run.directory)
    if state is AttemptState.SUCCEEDED:
        diverged = [f"{name} {each.diverged}" for name, each in read_metrics(directory).items() if each.diverged]
        parts = ["succeeded", *diverged, *_describe_metrics(metrics(directory))]
    else:
        parts = [end_text(state, detail)]
    files = _describe_files(directory, where, checked)
    if not files and state is AttemptState.SUCCEEDED and not takes_all(run.spec.artifacts):
        files = ["no artifacts"]
    return " · ".join([*parts, *files])


def metrics(directory: Path) -> dict[str, Any]:
    """Return the last value of each metric, and over them what is in metrics.json of worker 0; empty without either."""
    last = {name: each.last for name, each in read_metrics(directory).items()}
    return last | read_object(directory / "worker0" / "artifacts" / "metrics.json")


def payload_spans(directory: Path) -> dict[str, float]:
    """Return the seconds of the payload's spans (train, compile, …), without their total, which is the job's span."""
    seconds = section(metrics(directory), "seconds")
    order = ("train", "compile", "eval", "data", "import", "checkpoint")
    found = {name: seconds.get(f"{name}_s") for name in (*order, *(["profile"] if seconds.get("profile_s") else []))}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def _describe_metrics(found: dict[str, Any]) -> list[str]:
    main, value = main_figure(found) or (None, None)
    parts = [] if main is None or value is None else [figure_text(main, value)]
    dataset = section(found, "dataset")
    if dataset.get("synthetic"):
        parts.append("on generated digits, not real images")
    elif dataset.get("name") == "mnist-sample":
        parts.append("on the mnist sample, 6,000 real images at most")
    rate = found.get(RATE)
    if main != RATE and isinstance(rate, int | float):
        parts.append(figure_text(RATE, rate))
    return parts


def _describe_files(directory: Path, shown: Path, checked: str) -> list[str]:
    parts, places = [], [(file.path.split("/"), file.size_bytes) for file in _files(directory)]
    came = [
        (place[0], place[1], size)
        for place, size in places
        if place[0].startswith("worker") and len(place) > 2 and tuple(place[1:]) not in OF_TPUJOB
    ]
    for beside, what in ((False, "artifact"), (True, "file")):
        if files := [(top, size) for _, top, size in came if (top != "artifacts") is beside]:
            where = " and ".join(sorted({f"{top}/" for top, _ in files})) if beside else ""
            count = f"{len(files):,} {what}{'s'[: len(files) != 1]}{f' in {where}' if where else ''}"
            parts.append(f"{count}, {format_size(sum(size for _, size in files))}")
    if parts:
        workers = {worker for worker, _, _ in came}
        parts[-1] += f"{checked}, in {shown}/{workers.pop() if len(workers) == 1 else 'worker*'}/"
    return parts


def report(ledger: Ledger, run: RunRecord, attempt: Attempt, now: float) -> RunReport:
    """Return everything about a run, of which this is the last attempt. `now`: the ledger's time of the run's cloud."""
    whole = whole_run(ledger, run, now)
    lease = ledger.lease(attempt.lease_id) if attempt.lease_id else None
    directory = Path(run.directory)
    return RunReport(
        **asdict(summary(run, attempt, lease, whole.cost_usd)),
        detail=attempt.detail,
        hint=attempt.hint,
        spec=run.spec.values,
        lease=_lease_report(lease, now) if lease is not None else None,
        attempts=attempt_reports(ledger, run, now),
        workers=worker_ends.recorded(ledger, attempt, directory),
        events=_events(ledger, run),
        figures=figures(run, attempt, lease, whole),
        metrics=metrics(directory),
        files=tuple(_files(directory)),
        results=collected.read(directory, lease),
        made=made.read(directory),
        host=host.read_run(directory),
    )


def _files(directory: Path) -> Iterator[RunFile]:
    """Yield the files there, in order, but for those that another process renames or removes meanwhile."""
    for path in sorted(Path(parent, name) for parent, _, names in os.walk(directory) for name in names):
        with suppress(OSError):
            found = path.stat(follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) and path != directory / ".gitignore":
                yield RunFile(str(path.relative_to(directory)), found.st_size)


def _lease_report(lease: Lease, now: float) -> LeaseReport:
    return LeaseReport(
        id=lease.id, node=lease.name.node, zone=lease.name.zone, project=lease.name.project,
        accelerator_type=lease.accelerator_type, spot=lease.spot, state=str(lease.state), ready_at=lease.ready_at,
        gone_at=lease.gone_at, usd=costs.of_lease(lease, now), emulated=traits.is_emulated(lease.cloud),
    )  # fmt: skip


def _events(ledger: Ledger, run: RunRecord) -> tuple[RunEvent, ...]:
    """The events of its attempts and their leases, in order of time. What several processes recorded is shown once."""
    shown: dict[object, RunEvent] = {}
    for of in dict.fromkeys(each for attempt in ledger.attempts_of(run.id) for each in (attempt.id, attempt.lease_id)):
        for number, (at, kind, data) in enumerate(ledger.events(of) if of is not None else ()):
            what = _describe(kind, data)
            shown.setdefault((of, what if kind in REPEATED else number), RunEvent(at, what))
    return tuple(sorted(shown.values(), key=lambda event: event.at))


def _describe(kind: str, data: dict[str, Any]) -> str:
    end = end_text(data.get("state", ""), data.get("detail", ""))
    said = data | {"end": end, "until": day_clock(data.get("until"))}
    return EVENTS.get(kind, "{kind}").format_map(defaultdict(lambda: "?", said, kind=kind))  # of whichever tpujob


def head_lines(found: RunReport) -> list[str]:
    """Return which run it is, how it ended, on which slice, what it cost, and its attempts."""
    took = format_duration(found.ended_at - found.started_at) if found.ended_at else "not ended"
    head = [f"run      {found.run} · {found.name} · {found.state} · {took} · {found.cloud}", f"job      {_job(found)}"]
    if found.sweep:
        head.append(f"sweep    {found.sweep} · {found.variant}")
    if found.detail:
        head += [f"why      {found.detail}", *([f"hint     {found.hint}"] if found.hint else [])]
    head += [f"workers  {line}" for line in worker_ends.lines(found.workers)]
    lease = found.lease
    if lease is not None:
        head.append(f"slice    {lease.node} · {lease.accelerator_type} · {lease.zone} · {lease.state}")
    several = f" · all {len(found.attempts)} attempts" if len(found.attempts) > 1 else ""
    head.append(f"cost     {format_cost(found.cost_usd, found.cloud)}{several}")
    return [*head, *attempt_lines(found.attempts, found.cloud)]


def _job(found: RunReport) -> str:
    """Return the job file; for a job without one, what it runs."""
    if found.job is not None:
        return found.job
    spec = RunSpec.of(found.spec)
    train = spec.train or NO_TRAINING
    function = short_text(train.options.function) if train.entry == FUNCTION_ENTRY else None
    entry = short_text(train.entry) or "the built-in training"
    return short_text(spec.command) or (f"function {function}" if function else entry)


def figure_lines(found: RunReport) -> list[str]:
    """Return what the run measured, and what it was made with."""
    emulated = found.lease is not None and found.lease.emulated
    hosts = [f"host     {host.line(found.host, emulated=emulated)}"] if found.host is not None else []
    return [
        *(f"result   {part}" for part in _describe_metrics(found.metrics)),
        *compare.one(found.figures),
        *hosts,
        *(f"{kind:<8} {text}" for kind, text in made.lines(found.made)),
    ]


def profile_lines(found: RunReport) -> list[str]:
    """Return how to look at the traces of profilers among the files, and where those are."""
    how = device.how_to_open(found.directory, [file.path for file in found.files])
    gone = "" if Path(found.directory).is_dir() else ", which is not there any more, with its files"
    return [*(f"profile  {each}" for each in how), f"in       {found.directory}{gone}"]


def remark_lines(found: RunReport) -> list[str]:
    """Return what is to be said of results beside the table of files."""
    return [f"{kind:<8} {text}" for kind, text in remarks(found)]


def remarks(found: RunReport) -> list[tuple[str, str]]:
    """Return a kind and a sentence for each thing to be said of the results, also of what was saved of a run that was lost."""
    said = saved_text(Path(found.directory), Path()) if found.ended_at is not None else ""
    return [*collected.lines(found.results), *([("saved", said)] if said else [])]


def saved_text(directory: Path, where: Path) -> str:
    """Return what was copied while the job ran and is here, and when; empty without it. `where`: as the user sees it."""
    copies: dict[Path, float] = {}
    for copy in directory.glob("saved/worker*"):
        with suppress(FileNotFoundError):  # another process replaces or removes it
            copies[copy] = copy.stat().st_mtime
    files = [file for copy in copies for file in _files(copy) if tuple(Path(file.path).parts) not in OF_TPUJOB]
    if not files:
        return ""
    at, size = day_clock(min(copies.values())), format_size(sum(f.size_bytes for f in files))
    count = f"{len(files):,} file{'s'[: len(files) != 1]}, {size}"
    return f"what the job had written when it was copied last, at {at}: {count} in {where / 'saved'}/"


def event_table(found: RunReport) -> Table:
    """Return what happened, in order."""
    return Table(("AT", "EVENT"), tuple((day_clock(event.at), event.what) for event in found.events))


def file_table(found: RunReport) -> Table:
    """Return the files in the run's directory."""
    rows = tuple((file.path, f"{file.size_bytes:,}") for file in found.files)
    return Table(("FILE", "BYTES"), rows, right=(1,))


def lines(found: RunReport) -> list[str]:
    """Return everything of `tpujob show` as lines, for where there is no terminal."""
    return [
        *head_lines(found),
        *(f"event    {at}  {what}" for at, what in event_table(found).rows),
        *figure_lines(found),
        *(f"file     {path}  {size} bytes" for path, size in file_table(found).rows),
        *remark_lines(found),
        *profile_lines(found),
    ]

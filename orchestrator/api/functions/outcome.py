"""What a caller gets of a function, or of a `map` of its calls: steps and log on stderr, then values, or exceptions.

Nothing in them is unpickled or evaluated. They are read up to a size, as strict JSON of one shape, and every text that is shown
loses its control characters and its secrets.
"""

import inspect
import math
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from orchestrator.api.functions.values import Call
from orchestrator.api.jobs.job import Job, spec_of
from orchestrator.api.session.events import (
    Alert,
    Event,
    Failure,
    LogLines,
    Notice,
    OnEvent,
    RunResult,
    SweepResult,
    VariantResult,
    WorkerEnded,
    Workers,
)
from orchestrator.api.session.reporter import kernel
from orchestrator.api.session.shown_logs import ShownLogs
from orchestrator.errors import ArtifactError, PayloadFailed, RemoteFunctionError, TpujobError, UserError
from orchestrator.job.source import params
from orchestrator.job.sweep import MAX_PARALLEL, MAX_VARIANTS, Sweep, Variant, labels
from orchestrator.text import parsing
from orchestrator.text.names import MAX_JOB_NAME_CHARS
from orchestrator.text.terminal import harmless, printable

RESULT, ERROR = "function-result.json", "function-error.json"  # in the artifacts, by payload/functions
MAX_RESULT_BYTES = 10_000_100  # what the payload writes at most, with its frame
MAX_ERROR_BYTES = 1_000_000
MAX_LINES, MAX_NAME_CHARS = 2_000, 200
_TYPE = re.compile(r"[^\W\d]\w*(\.([^\W\d]\w*|<locals>))*")


def value_of(result: RunResult) -> Any:
    """Return what the function of this run returned. Raises ArtifactError if it left no result that can be read."""
    for path in _files(result.directory, RESULT):
        found = _read(path, MAX_RESULT_BYTES)
        if isinstance(found, dict) and found.get("schema") == 1 and "value" in found:
            return found["value"]
        raise ArtifactError(
            f"{path} is not the result of a function", hint=f"`tpujob logs {result.run}` prints the log"
        )
    raise ArtifactError(
        f"run {result.run} left no result of a function: it ended before it returned, or the run is of another job",
        hint=f"`tpujob logs {result.run}` prints the log",
    )


def remote_error(result: RunResult, error: PayloadFailed, hide: Callable[[str], str]) -> RemoteFunctionError | None:
    """Return the exception that ended the function of this run; None if no worker left one that can be read."""
    for path in _files(result.directory, ERROR):
        try:
            found = _read(path, MAX_ERROR_BYTES)
        except ArtifactError:
            continue  # the log has the traceback, too
        if isinstance(found, dict) and found.get("schema") == 1:
            return _error(found, path, error, hide)
    return None


def _error(found: dict[str, Any], path: Path, error: PayloadFailed, hide: Callable[[str], str]) -> RemoteFunctionError:
    def text(name: str) -> str:
        value = found.get(name)
        return hide(value) if isinstance(value, str) else ""

    kind, file, line = text("type"), printable(text("file")), found.get("line")
    if len(kind) > MAX_NAME_CHARS or not _TYPE.fullmatch(kind):
        kind = "Exception"
    line = line if isinstance(line, int) and not isinstance(line, bool) and 0 < line < 1 << 31 else None
    lines = text("traceback").splitlines()[:MAX_LINES]
    worker = path.parent.parent.name
    where = ", ".join(filter(None, (f"{Path(file).name}:{line}" if file and line else "", worker)))
    message = printable(text("message").replace("\n", " "))
    hint = error.hint
    if kind == "ModuleNotFoundError":
        hint = "requirements=[…] of tpujob.function installs packages on the workers"
    made = RemoteFunctionError(
        f"{kind}: {message} ({where})" if message else f"{kind} ({where})", rc=error.rc, hint=hint
    )
    made.type_name, made.file, made.line = kind, file, line
    made.traceback = "\n".join(harmless(each) for each in lines)
    made.worker = int(worker.removeprefix("worker"))
    if made.traceback:
        made.add_note(f"the traceback on {worker}:\n{made.traceback}")
    return made


def _files(directory: Path, name: str) -> Iterator[Path]:
    """Yield the file of every worker that has one, in the order of the workers."""
    workers = [path for path in directory.glob("worker*") if path.name.removeprefix("worker").isdecimal()]
    for worker in sorted(workers, key=lambda path: int(path.name.removeprefix("worker"))):
        path = worker / "artifacts" / name
        if path.is_symlink() or path.exists():
            yield path


def _read(path: Path, most_bytes: int) -> Any:
    """Return the strict JSON in a regular file. Raises ArtifactError for anything else."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
            raise ValueError("is not a file of that size")
        return parsing.loads(path.read_bytes(), parse_constant=_refuse, parse_float=_finite)
    except (OSError, ValueError):
        raise ArtifactError(f"{path} is not JSON that a function leaves") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a number of JSON")
    return value


def printer() -> OnEvent | None:
    """Return what shows the events of a call that has no `on_event`; None: its client does, in a notebook."""
    return None if kernel() else Printer()


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


MAX_SHOWN = 5


def sweep_of_calls(jobs: Sequence[Job], columns: Sequence[Mapping[str, params.Value]], parallel: int) -> Sweep:
    """Return the sweep of these jobs, one for each call. Raises UserError for too many, or too many slices."""
    if not 1 <= parallel <= MAX_PARALLEL:
        raise UserError(f"parallel={parallel}: a number of slices from 1 to {MAX_PARALLEL}")
    if len(jobs) > MAX_VARIANTS:
        raise UserError(
            f"the grid has {len(jobs):,} calls, and {MAX_VARIANTS} are the most", hint="make several calls of map"
        )
    name = jobs[0].name
    stem = name[: MAX_JOB_NAME_CHARS - 1 - len(str(len(jobs)))].rstrip("-")
    called = labels(("", shown) for shown in columns)
    variants = (
        Variant(number, label, spec_of(replace(job, name=f"{stem}-{number}", params=shown)), shown)
        for number, (job, label, shown) in enumerate(zip(jobs, called, columns, strict=True), 1)
    )
    return Sweep(name, tuple(variants), parallel)


def columns_of(signature: inspect.Signature, call: Call) -> dict[str, params.Value]:
    """Return the arguments of a call that can be columns of a table: single values, by name. Raises TypeError."""
    args, kwargs = call
    return {
        name: value
        for name, value in signature.bind(*args, **kwargs).arguments.items()
        if isinstance(value, str | int | float) and not params.name_problem(name) and not params.value_problem(value)
    }


def values_of(result: SweepResult, hide: Callable[[str], str], *, return_exceptions: bool) -> list[Any]:
    """Return the value of each call, in their order; the error of one that failed, or raise the first of them."""
    found = [_value(each, hide) for each in result.variants]
    failed = [
        each.variant for each, value in zip(result.variants, found, strict=True) if isinstance(value, TpujobError)
    ]
    if failed and not return_exceptions:
        error = next(value for value in found if isinstance(value, TpujobError))
        more = f" and {len(failed) - MAX_SHOWN} more" if len(failed) > MAX_SHOWN else ""
        error.add_note(
            f"{len(failed)} of {len(found)} calls failed: {', '.join(failed[:MAX_SHOWN])}{more}; what the others returned is "
            "kept: the same map returns it without running them again, with return_exceptions=True beside the errors"
        )
        raise error
    return found


def _value(each: VariantResult, hide: Callable[[str], str]) -> Any:
    result = each.result
    if result is None:
        return TpujobError(f"{each.variant} was not run", exit_code=each.exit_code)
    if each.succeeded:
        try:
            return value_of(result)
        except ArtifactError as missing:
            return missing
    error: TpujobError = result.error or TpujobError(f"{each.variant}: {each.state}", exit_code=each.exit_code)
    if isinstance(error, PayloadFailed):
        error = remote_error(result, error, hide) or error
    error.result = result
    return error

"""What a function left on a worker: its value, or its exception as text. Both are files that a worker wrote.

Nothing in them is unpickled or evaluated. They are read up to a size, as strict JSON of one shape, and every text that is shown
loses its control characters and its secrets.
"""

import math
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from orchestrator.client.events import RunResult
from orchestrator.core.text import json_text
from orchestrator.core.text.terminal import harmless, printable
from orchestrator.errors import ArtifactError, PayloadFailed, RemoteFunctionError

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
        return json_text.loads(path.read_bytes(), parse_constant=_refuse, parse_float=_finite)
    except (OSError, ValueError):
        raise ArtifactError(f"{path} is not JSON that a function leaves") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a number of JSON")
    return value

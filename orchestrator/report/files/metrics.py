"""The metrics that a run left, each in a few numbers (last, best, lowest, highest) and as a curve.

They come from worker 0's `metrics.jsonl`, and from what the patterns of the job found in its log. Nothing is kept of a line but
what `metric_sums` makes of it. A run that is attached follows the file while the job writes it, and does not read it again.
"""

import hashlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from orchestrator.core.text.metric_lines import LINE_BYTES, step_of
from orchestrator.report.files.artifact_files import measured, open_regular, read_object
from orchestrator.report.files.curve import Curve
from orchestrator.report.files.json_lines import loads, pieces
from orchestrator.report.files.metric_sums import Metric, MetricSums

MOST_KNOWN = 16  # files
_T = TypeVar("_T")


def collected_path(directory: Path) -> Path:
    """Return where the collected file of a run is."""
    return directory / "worker0" / "artifacts" / "metrics.jsonl"


def live_path(directory: Path) -> Path:
    """Return where the file is as far as it came while the job ran, until it is collected."""
    return directory / "logs" / "worker0.metrics.jsonl"


def found_path(directory: Path) -> Path:
    """Return where the finds of the `metrics:` patterns are."""
    return directory / "metrics.jsonl"


def steps_path(directory: Path) -> Path:
    """Return where it is written when which step of the job was reported here."""
    return directory / "logs" / "steps.jsonl"


def names_path(directory: Path) -> Path:
    """Return where it is written which names hold a secret of the job: their hashes, and what is shown instead."""
    return directory / "logs" / "names.json"


def name_hash(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def _shown(directory: Path, found: Mapping[str, _T]) -> dict[str, _T]:
    """Return what was found under these names, without secrets: a command that comes later does not know them."""
    names = read_object(names_path(directory))
    return {str(names.get(name_hash(name), name)) if names else name: each for name, each in found.items()}


def arrivals(directory: Path) -> list[tuple[int, float]]:
    """Return when which step was first reported here, in unix seconds of this machine, by step; empty where that is unknown.

    A job that repeats steps after the loss of its slice reports them once more; that does not count.
    """
    found: list[tuple[int, float]] = []
    with suppress(OSError):
        for row in chain.from_iterable(_rows(steps_path(directory))):
            step = step_of(row.get("step")) if isinstance(row, dict) else None
            at = measured(row.get("at")) if step is not None else None
            if step is not None and at is not None and (not found or (step > found[-1][0] and at >= found[-1][1])):
                found.append((step, at))
    return found


def read(directory: Path) -> dict[str, Metric]:
    """Return the metrics of the run in this directory, by name; empty where it has none."""
    return _shown(directory, {name: metric for path in _paths(directory) for name, metric in summarize(path).items()})


def curves(directory: Path) -> dict[str, Curve]:
    """Return the same metrics as curves. The x of a value is its step, or its number where the job names no step."""
    return _shown(
        directory, {name: curve for path in _paths(directory) for name, curve in _of_file(path).curves().items()}
    )


def _paths(directory: Path) -> tuple[Path, Path]:
    """Return the files of a run; of a name that is in both, the second one counts."""
    collected = collected_path(directory)
    return found_path(directory), collected if collected.exists() else live_path(directory)


def short(value: float | None) -> str:
    """Return a value with four digits: `0.4123`, `1,234`, `1.2e-05`; `-` for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def last_text(metric: Metric) -> str:
    """Return the last value: `0.4123`, or `NaN since step 1,200`."""
    return short(metric.last) if metric.diverged is None else str(metric.diverged)


def summarize(path: Path) -> Mapping[str, Metric]:
    """Return the metrics of one file; empty if it cannot be read."""
    return _of_file(path).metrics()


class Followed:
    """The metrics of worker 0's file while a job writes it: what came of it so far, from its first byte on."""

    def __init__(self) -> None:
        self.sums = MetricSums()
        self.rest = b""  # the beginning of the next line; of one that is too long, so much that this is seen
        self._size_bytes = 0
        self._hash = hashlib.sha256()

    def feed(self, data: bytes) -> list[Any]:
        """Take the next bytes, and return what the lines hold that they complete."""
        self._size_bytes += len(data)
        self._hash.update(data)
        *lines, rest = (self.rest + data).split(b"\n")
        self.rest = rest[: LINE_BYTES + 1]
        found = loads(lines, LINE_BYTES)
        self.sums.add(found)
        return found

    def read_on(self, directory: Path) -> None:
        """Read what the collected file has beyond these bytes, so that it need not be read as a whole.

        A file that does not begin with them, or cannot be read, is left alone.
        """
        path = collected_path(directory)
        with suppress(OSError):
            file = open_regular(path)
            if file is None:
                return
            with file:
                key = _key(path, os.fstat(file.fileno()))
                if _hash_of(file, self._size_bytes) == self._hash.digest():
                    for found, _ in pieces(file, LINE_BYTES, rest=self.rest):
                        self.sums.add(found)
                    _remember(key, self.sums)


def _hash_of(file: BinaryIO, size_bytes: int) -> bytes:
    found = hashlib.sha256()
    while size_bytes > 0 and (piece := file.read(min(size_bytes, 1 << 20))):
        found.update(piece)
        size_bytes -= len(piece)
    return found.digest()


# -- a file that did not change is not read again ----------------------------------------------------------------------

_Key = tuple[Path, int, int]
_known: dict[_Key, MetricSums] = {}
_known_lock = threading.Lock()  # the runs of a sweep end in threads


def _of_file(path: Path) -> MetricSums:
    try:
        key = _key(path, path.stat())
    except OSError:
        return MetricSums()
    found = _known.get(key)
    if found is None:
        found = MetricSums()
        with suppress(OSError):
            for rows in _rows(path):
                found.add(rows)
        _remember(key, found)
    return found


def _key(path: Path, found: os.stat_result) -> _Key:
    return path, found.st_size, found.st_mtime_ns


def _remember(key: _Key, sums: MetricSums) -> None:
    with _known_lock:
        while len(_known) >= MOST_KNOWN:
            del _known[next(iter(_known))]
        _known[key] = sums


def _rows(path: Path) -> Iterator[list[Any]]:
    """Yield what the complete lines hold, some at a time. Raises OSError."""
    if (opened := open_regular(path)) is not None:
        with opened as file:
            yield from (found for found, _ in pieces(file, LINE_BYTES))

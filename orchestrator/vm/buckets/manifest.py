"""What is saved of a run in a bucket: its copies, their parts and files, as values. No request, no file, no clock.

    PREFIX/RUN/saved/manifest.json                                which attempt writes here, and its last complete copies
    PREFIX/RUN/saved/<attempt>-<node>/worker<i>/<number>.json     a part: the files of one worker at one moment
    PREFIX/RUN/saved/<attempt>-<node>/worker<i>/<number>/<k>      a piece of a file
    PREFIX/RUN/saved/<attempt>-<node>/worker<i>/<number>.last.json    the last part of a worker, whose job was stopped

A name is used once, so nothing but the manifest ever changes. It is written last and names each part with its hash, and a part
each file with its own: what is half written is in no copy. Each write of the manifest expects the generation that was read, and
an attempt writes only while the manifest is its own (`written`): one that was superseded changes nothing any more.
`saved` reads and writes them on a worker, and the client reads the manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

SCHEMA = 1
NAME = "manifest.json"
LAST = ".last.json"
KEPT = 2  # copies: the last one may turn out to be damaged
# What tpujob itself measures beside a job: none of the work from which another attempt can go on.
MEASURED = frozenset("artifacts/" + name for name in ("tpu-metrics.jsonl", "host.jsonl", "packages.json"))
CHECKPOINT = "artifacts/checkpoint.pt"  # of the built-in training


def url_of(bucket: str, run: str) -> str:
    """Return below which URL the work of a run is saved. `bucket`: gs://BUCKET/PREFIX, as in the job file."""
    return f"{bucket}/{run}/saved"


class Superseded(Exception):
    """Another attempt of the run writes here."""


class File(NamedTuple):
    """A file of a part. `pieces`: the objects that have its content, one after the other."""

    path: str
    size_bytes: int
    sha256: str
    pieces: tuple[str, ...]


class Part(NamedTuple):
    """The files of one worker at one moment. `step`: of its checkpoint, `metrics_step`: of its metrics, None where unknown."""

    number: int
    at: float
    step: int | None
    metrics_step: int | None
    files: tuple[File, ...]

    def text(self) -> bytes:
        """Return the content of its object."""
        return json.dumps(dict(self._asdict(), files=[list(file) for file in self.files])).encode()

    @classmethod
    def of_text(cls, text: bytes) -> Part:
        """Return it from the content of its object. Raises ValueError."""
        try:
            found = json.loads(text)
            files = [
                File(str(path), int(size), str(sha256), tuple(map(str, pieces)))
                for path, size, sha256, pieces in found["files"]
            ]
            step, metrics_step = (_step(found[name]) for name in ("step", "metrics_step"))
            return cls(int(found["number"]), float(found["at"]), step, metrics_step, tuple(files))
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"it is no part of a copy: {error}") from error


class Copy(NamedTuple):
    """A complete copy. `parts`: name and SHA-256 of the part of each worker; the rest describes all of them together."""

    at: float
    step: int | None
    metrics_step: int | None
    files: int
    size_bytes: int
    has_checkpoint: bool
    parts: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, parts: Sequence[tuple[str, Part]]) -> Copy:
        """Return the copy of these parts, one of each worker, with the names of their objects."""
        files = [file for _, part in parts for file in part.files if file.path not in MEASURED]
        first = parts[0][1]
        return cls(
            min(part.at for _, part in parts),
            first.step,
            first.metrics_step,
            len(files),
            sum(file.size_bytes for file in files),
            any(file.path == CHECKPOINT for file in first.files),
            tuple((name, hashlib.sha256(part.text()).hexdigest()) for name, part in parts),
        )


class Manifest(NamedTuple):
    """Which attempt writes, on which node, and the last complete copies, the newest first."""

    attempt: int
    node: str
    copies: tuple[Copy, ...] = ()

    def text(self) -> bytes:
        """Return the content of its object."""
        copies = [copy._asdict() for copy in self.copies]
        return json.dumps({"schema": SCHEMA, "attempt": self.attempt, "node": self.node, "copies": copies}).encode()

    @classmethod
    def of_text(cls, text: bytes) -> Manifest:
        """Return it from the content of its object. Raises ValueError."""
        try:
            found = json.loads(text)
            if found["schema"] != SCHEMA:
                raise ValueError(f"it has schema {found['schema']!r}, which this tpujob does not know")
            return cls(int(found["attempt"]), str(found["node"]), tuple(map(_copy, found["copies"])))
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"it is no manifest: {error}") from error


def _copy(found: Mapping[str, Any]) -> Copy:
    return Copy(
        float(found["at"]),
        _step(found["step"]),
        _step(found["metrics_step"]),
        int(found["files"]),
        int(found["size_bytes"]),
        bool(found["has_checkpoint"]),
        tuple((str(name), str(sha256)) for name, sha256 in found["parts"]),
    )


def _step(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def written(
    before: Manifest | None, attempt: int, node: str, copy: Copy | None = None, damaged: Copy | None = None
) -> Manifest:
    """Return the manifest once this attempt has taken it over. Raises Superseded.

    `copy`: a new one, unless another worker has joined newer parts. `damaged`: one that cannot be used.
    """
    if before is not None and (before.attempt, before.node) != (attempt, node) and before.attempt >= attempt:
        raise Superseded(f"attempt {before.attempt} of this run has begun, on {before.node}")
    copies = tuple(each for each in before.copies if each != damaged) if before is not None else ()
    if copy is not None and copies and _place(copies[0]) == _place(copy) and copies[0].parts > copy.parts:
        return Manifest(attempt, node, copies)
    return Manifest(attempt, node, (copy, *copies)[:KEPT] if copy is not None else copies)


def _place(copy: Copy) -> str:
    """Return what the names of its parts begin with: they are in order only within an attempt."""
    return copy.parts[0][0].rpartition("/")[0] if copy.parts else ""


def matching(parts: Sequence[Mapping[int, Part]]) -> list[Part] | None:
    """Return the newest parts, by worker, that belong together: of one step, as far as they know it. None: there are none.

    `parts`: of each worker, by number.
    """
    for _, first in sorted(parts[0].items(), reverse=True):
        found = [first]
        for others in parts[1:]:
            fitting = [
                number for number, part in others.items() if None in (part.step, first.step) or part.step == first.step
            ]
            if not fitting:
                break
            found.append(others[max(fitting)])
        else:
            return found
    return None


def step_of(described: bytes, files: Mapping[str, File]) -> int | None:
    """Return the step in a checkpoint.json; None if it has none, or is about another file than the one that is saved."""
    try:
        told = json.loads(described)
        step, name = _step(told["step"]), told.get("file")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if name is not None:
        file = files.get(f"artifacts/{name}")
        if file is None or told.get("sha256", file.sha256) != file.sha256:
            return None
    return step


def last_step_of(metrics: bytes) -> int | None:
    """Return the step of the last complete line of a metrics.jsonl that has one."""
    for line in reversed(metrics.split(b"\n")[:-1]):
        try:
            step = _step(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if step is not None:
            return step
    return None


def unneeded(names: Iterable[str], kept: Mapping[str, Part], parts: Mapping[str, Part], place: str) -> list[str]:
    """Return which of these objects are neither of a copy that is kept, nor of one that is being made.

    All by name. `kept`: the parts of the copies. `parts`: those of this attempt, which are below `place`, that are not older
    than the ones in the last copy; what has a higher number than that of its worker is still being written.
    """
    needed = kept.keys() | parts.keys()
    needed |= {piece for part in [*kept.values(), *parts.values()] for file in part.files for piece in file.pieces}
    newest: dict[str, int] = {}
    for name, part in parts.items():
        worker = name[len(place) :].partition("/")[0]
        newest[worker] = max(newest.get(worker, 0), part.number)

    def is_being_made(name: str) -> bool:
        if not name.startswith(place):
            return False
        worker, _, rest = name[len(place) :].partition("/")
        number = rest.partition("/")[0].partition(".")[0]
        return number.isdigit() and int(number) > newest.get(worker, 0)

    return [name for name in names if name not in needed and not is_being_made(name) and not name.endswith(NAME)]

"""Collects the results of one worker: asks its packer, extracts defensively, checks against the manifest.

A file that arrived and matches the index lies in its place in `worker<i>/` (`hosts.transfer.places`), however the collection
ends; the next one asks only for the rest. Only the disk limits the size (`hosts.transfer.places`): memory holds only the
index, and files are written once. A refused or damaged file never costs the other files.
"""

import errno
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.errors import RemoteError
from orchestrator.hosts.transfer.collect import (
    EVERYTHING,
    THE_REST,
    WRITTEN_TO,
    Beside,
    CollectedFile,
    CollectRequest,
    CollectResult,
    Problem,
)
from orchestrator.hosts.transfer.extract import (
    Extracted,
    IndexEntry,
    Read,
    check_manifest,
    extract,
    is_there,
    link,
    open_root,
)
from orchestrator.hosts.transfer.places import DiskSpace, Places, RefusedFile, too_much
from orchestrator.system import private_files
from orchestrator.text.terminal import printable
from orchestrator.text.units import format_size

INDEX_BYTES = 256 << 20  # of one worker: more than a million files
ROW_COST_BYTES = 128  # memory of a row besides its path
Answer = Callable[[], Mapping[str, Any]]  # the packer's next line


class CollectionStopped(RemoteError):
    """The collection was stopped; the message says why."""


class TooManyFiles(RemoteError):
    """More files than an index may list."""


@dataclass(slots=True)
class ArchivePart:
    """The state of one worker's collection, over all tries of this process."""

    worker: int
    result: Extracted = field(default_factory=Extracted)  # of the last try
    total_files: int = 0
    total_bytes: int = 0
    size_bytes: int = 0
    hashed_bytes: int = 0
    activity: int = 0
    passes: int = 0  # complete ones
    # Monotonic. Time in the queue, before the first try and between two, does not count as time without progress.
    progressed_at: float = field(default_factory=time.monotonic)
    left_at: float = field(default_factory=time.monotonic)  # when the last try ended
    stopped: str = ""  # why
    beside: dict[str, int] = field(default_factory=dict)  # of the index: sizes of files beside the artifacts
    unmatched: tuple[str, ...] = ()
    has_promised: bool = False  # nothing is missing but what lies beside the artifacts
    broken: Sequence[tuple[str, str]] = ()  # of what was promised, then
    beside_until: float | None = None  # monotonic; set when what lies beside the artifacts begins to come

    def progressed(self) -> None:
        """Note that data arrived. Raises CollectionStopped after `Collection.stop`."""
        if self.stopped:
            raise CollectionStopped(self.stopped)
        self.progressed_at = time.monotonic()
        self.activity += 1

    def hashed(self, size_bytes: int) -> None:
        self.hashed_bytes += size_bytes
        self.progressed()

    def summary(self, *waiting: Problem, broken: Sequence[tuple[str, str]] = ()) -> CollectResult:
        """Return the result so far. Callable from another thread."""
        found, index, beside = self.result, self.worker, self.beside
        return CollectResult(
            tuple(
                CollectedFile(
                    index, path, file.size_bytes, file.sha256, file.place if file.place != path else "", path in beside
                )
                for path, file in sorted({**found.files}.items())
            ),
            tuple(Problem(index, path, why) for path, why in found.refused),
            tuple(Problem(index, path, why) for path, why in broken),
            (*(Problem(index, path, why) for path, why in found.missing if path not in beside), *waiting),
            tuple(Problem(index, path, why, beside.get(path, 0)) for path, why in found.notes),
            tuple(Problem(index, path, why, beside[path]) for path, why in found.missing if path in beside),
            self.unmatched,
        )

    def incomplete(self, why: str) -> CollectResult:
        """Return the result so far; what did not come is listed as waiting, or left, with this reason."""
        rest = Problem(self.worker, THE_REST if self.result.files or self.has_promised else EVERYTHING, why)
        found = self.summary(*([] if self.has_promised else [rest]), broken=self.broken if self.has_promised else ())
        return replace(found, left=(*found.left, rest)) if self.has_promised else found


class Collector:
    """Collects from one worker after another, or from several at once."""

    def __init__(self, request: CollectRequest) -> None:
        self.request = request
        self.beside = request.beside or Beside()
        self.space = DiskSpace(request.destination, request.most_bytes, self.beside.most_bytes)
        self._owners: dict[tuple[str, str], list[int]] = {}  # by path and hash: workers, the one that sends it first
        self._lock = threading.Lock()

    def collect(self, part: ArchivePart, fetch: Callable[[], None]) -> CollectResult:
        """Run `fetch`, check the manifest, and return the result of this worker."""
        part.result, earlier = Extracted(), part.result
        part.has_promised = False
        self.space.begin(part.worker)
        try:
            private_files.make_directory(self._directory(part))
            part.result.files |= earlier.files  # written by this very process: `_choose` need not read them again
            fetch()
        finally:
            self.space.end(part.worker)
        return part.summary(broken=check_manifest(self._directory(part), part.result))

    def receive(self, part: ArchivePart, answer: Answer, send: Callable[[bytes], None], read: Read) -> None:
        """Answer the packer: name the run, read the index, name the wanted files, read their contents."""
        request = self.request
        question: dict[str, Any] = {"attempt": request.attempt, "patterns": request.patterns, "runs": request.runs}
        if request.read_bytes is not None:
            question["most_bytes"] = request.read_bytes
        if request.beside is not None:
            question["beside"] = {"most_bytes": self.beside.most_bytes, "only": self.beside.only}
        send(json.dumps(question).encode() + b"\n")
        index = self._index(part, answer)
        places = Places(self._directory(part))
        wanted = self._choose(part, index, places)
        numbers = [number for number, path in enumerate(index) if path in wanted]
        if numbers:  # else the packer may have ended, and the end of its input says the same
            send(json.dumps(list(_ranges(numbers))).encode() + b"\n")

        def read_on(size: int) -> bytes:
            data = read(size)
            part.progressed()
            return data

        def arrived(size: int) -> None:
            part.size_bytes += size
            self.space.arrived(part.worker, size)

        def read_in_time(size: int) -> bytes:
            if part.beside_until is not None and time.monotonic() > part.beside_until:
                raise OSError(errno.ETIME, f"there was no more time for it than {self.beside.most_s:.0f} s")
            return read_on(size)

        result = part.result
        last = dict(reversed([*itertools.takewhile(lambda item: item[0] in part.beside, reversed(wanted.items()))]))
        wanted = {path: entry for path, entry in wanted.items() if path not in last}
        may_change = request.passes > 1
        try:
            extract(read_on, self._directory(part), wanted, places, result, arrived, may_change=may_change)
            part.has_promised = all(path in part.beside for path, _ in result.missing)
            part.broken = check_manifest(self._directory(part), result)
            if last and part.beside_until is None and self.beside.most_s is not None:
                part.beside_until = time.monotonic() + self.beside.most_s
            extract(read_in_time, self._directory(part), last, places, result, arrived, may_change=may_change)
        except OSError as error:
            here = "" if error.errno == errno.ETIME else f" ({self.request.destination})"
            why = f"{error.strerror}{here}"
            named = {path for path, _ in [*result.refused, *result.missing]}
            result.missing += [
                (path, why) for path in (wanted | last) if path not in result.files and path not in named
            ]

    def _directory(self, part: ArchivePart) -> Path:
        return self.request.destination / f"worker{part.worker}"

    def _index(self, part: ArchivePart, answer: Answer) -> dict[str, IndexEntry]:
        """Read the packer's index; untrusted, as all data from a worker. Raises RemoteError and TooManyFiles."""
        index: dict[str, IndexEntry] = {}
        part.hashed_bytes = size_bytes = 0
        part.beside.clear()
        while True:
            row = answer()
            part.progressed()
            try:
                if "end" in row:
                    part.unmatched = tuple(map(str, row.get("unmatched", ())))
                    return index
                if "hashed" in row:
                    part.hashed_bytes += int(row["hashed"])
                    continue
                path = str(row["path"])
                if row.get("beside") is True:
                    if (part.worker, path) in self.request.elsewhere and "sha256" not in row:
                        continue
                    part.beside[path] = min(max(int(row.get("size_bytes", 0)), 0), 1 << 63)
                    if "why" not in row and "sha256" not in row:
                        row = {"why": self._why_left(row, part.beside[path]), "harmless": "files" in row}
                if "why" in row:
                    _kind_of_rest(part.result, row).append((path, printable(str(row["why"]))))
                else:
                    # The file is compared with this entry when it arrives.
                    index.setdefault(path, IndexEntry(int(row["size_bytes"]), str(row["sha256"])))
                    if row.get("changing") is True:
                        part.result.notes.append((path, WRITTEN_TO))
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                shown = printable(repr(error))[:200]
                raise RemoteError(f"the index of the artifacts makes no sense: {shown}") from error
            size_bytes += len(path) + ROW_COST_BYTES
            if size_bytes > INDEX_BYTES:
                why = f"more than {len(index):,} files: have the job put small ones into one archive (tar)"
                raise TooManyFiles(why)

    def _choose(self, part: ArchivePart, index: Mapping[str, IndexEntry], places: Places) -> dict[str, IndexEntry]:
        """Return the entries to request: without the files that exist already and those that do not fit on the disk."""
        earlier, part.result.files = part.result.files, {}
        part.total_files, part.total_bytes = len(index), sum(max(entry.size_bytes, 0) for entry in index.values())
        part.size_bytes = 0
        wanted: dict[str, IndexEntry] = {}
        with open_root(self._directory(part)) as root:
            for path, listed in index.items():
                beside = path in part.beside
                elsewhere = (part.worker, path) in self.request.elsewhere
                if elsewhere or (beside and not self._is_ours(part.worker, path, listed)):
                    continue
                try:
                    if listed.size_bytes < 0:
                        raise RefusedFile("a negative size")
                    place = places.of(path)
                except RefusedFile as refusal:
                    part.result.refused.append((path, str(refusal)))
                    continue
                known = earlier.get(path)
                if known is not None and known.place != place and known.place == places.plain(path):
                    place = known.place  # the other one could not be had
                entry = replace(listed, place=place)
                if known == entry or is_there(root, place, entry, part.hashed) or self._link(root, part, path, entry):
                    part.result.files[path] = entry
                    part.size_bytes += entry.size_bytes
                    self.space.has(part.worker, entry.size_bytes, beside=beside)
                elif (why := self.space.take(part.worker, entry.size_bytes, beside=beside)) is not None:
                    part.result.missing.append((path, why))
                else:
                    wanted[path] = entry
        return wanted

    def _why_left(self, row: Mapping[str, Any], size_bytes: int) -> str:
        if "files" not in row:
            return too_much(size_bytes, self.beside.most_bytes or 0)
        count = f" in {int(row['files']):,} files" if int(row["files"]) > 1 else ""
        return f"{format_size(size_bytes)}{count}, new while the job ran, and not collected"

    def _is_ours(self, worker: int, path: str, entry: IndexEntry) -> bool:
        """Return whether this worker sends the file: the first of those that have it."""
        if not self.beside.once:
            return True
        with self._lock:
            owners = self._owners.setdefault((path, entry.sha256), [])
            if worker not in owners:
                owners.append(worker)
            return owners[0] == worker

    def _link(self, root: int, part: ArchivePart, path: str, entry: IndexEntry) -> bool:
        """Give a file that lies here already its place, and return whether there is one."""
        source, known = self.request.at_hand.get(part.worker, {}).get(path, (None, None))
        return source is not None and known is not None and known.sha256 == entry.sha256 and link(root, source, entry)

    def settled(self, result: CollectResult) -> CollectResult:
        """Move each file that several workers have to the first of them; return the result as it is then."""
        files, equal, came = [], set(), {(file.path, file.sha256) for file in result.files}
        why = "it was equal to that of another worker, which did not come"
        named = {(each.worker, each.path) for each in result.uncollected + result.refused}
        left = [
            Problem(worker, path, why)
            for (path, sha256), owners in self._owners.items()
            if (path, sha256) not in came and (owners[0], path) not in named
            for worker in owners[1:]
        ]
        for file in result.files:
            owners = self._owners.get((file.path, file.sha256), []) if file.beside else []
            worker = min([*owners, file.worker])
            equal |= {(owner, file.path) for owner in owners}
            if worker != file.worker and not file.place:
                source, target = (
                    self.request.destination / f"worker{each}" / file.path for each in (file.worker, worker)
                )
                try:
                    private_files.make_directory(target.parent)
                    source.rename(target)
                    file = replace(file, worker=worker)  # noqa: PLW2901
                except OSError:
                    pass  # it stays where it came
            files.append(file)
        return replace(result, files=tuple(files), equal=equal, left=(*result.left, *left))


def _kind_of_rest(found: Extracted, row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the list for what is not sent. What stays on a worker may be had in another way, as long as its slice is there."""
    return found.notes if row.get("harmless") is True else found.refused if row.get("lost") is True else found.missing


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """[1, 2, 3, 7] → (1, 4), (7, 8)."""
    for _, neighbours in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in neighbours]
        yield members[0], members[-1] + 1

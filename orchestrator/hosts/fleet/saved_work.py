"""Saved work: what a job has written so far, copied here while it runs and restored for its next attempt.

A slice that is lost takes its disks with it. So the files of an attached run are copied again and again. The files of a
worker belong together: a checkpoint may have many, and none may be newer than those that refer to it. So the copy is renewed
as a whole, once all files of that moment are here. What arrived of a copy that was cut off stays in the draft, and the next
one asks for the rest.
"""

import os
import shutil
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.errors import ArtifactError
from orchestrator.hosts.fleet.crew import Crew
from orchestrator.hosts.shipping.shipment import OnProgress, Shipment, shipment_in_place
from orchestrator.hosts.shipping.tree import Source, survey
from orchestrator.hosts.transfer import collect
from orchestrator.hosts.transfer.collection import Collection
from orchestrator.hosts.transfer.extract import IndexEntry
from orchestrator.promise.lease.run_and_attempt import SavedState
from orchestrator.system import private_files
from orchestrator.text import parsing
from orchestrator.text.units import format_size
from orchestrator.vm.buckets.manifest import MEASURED

MAX_BYTES = 64 << 30
CHECKPOINT = "checkpoint.json"  # {"step": 80, "file": "checkpoint.pt", "sha256": "…"}; the last two are not required
PAYLOAD_CHECKPOINT = "checkpoint.pt"
METRICS = "metrics.jsonl"
LOOK_BYTES = 64 << 10


@dataclass(slots=True)
class SavedWork:
    """`directory/worker<i>/{artifacts,work}/…`: the last complete copy of each worker, with the time when it was begun."""

    directory: Path
    artifacts: tuple[str, ...]  # as in the job file
    most_bytes: int | None = None  # of all workers together; None: all that is to be collected, for another attempt
    # What lies in each worker's draft, written by this process: it is neither requested nor read again.
    _in_draft: dict[int, dict[str, IndexEntry]] = field(default_factory=dict)
    _kept: dict[int, dict[str, IndexEntry]] = field(default_factory=dict)  # of the last complete copies
    left: tuple[collect.Problem, ...] = ()  # what the last copy has not, or not whole
    # What the workers saved to the bucket of the job by themselves; None for a job without.
    look_in_bucket: Callable[[], SavedState] | None = None
    is_in_bucket: bool = False  # what `state` described last: the workers fetch that by themselves
    _began_at: float = 0.0  # the last copy, by the clock of this machine's files

    @property
    def _drafts(self) -> Path:
        return self.directory / ".draft"

    def start(self, fleet: Crew) -> Collection:
        """Start to copy the work of all workers, in the background. One copy at a time; `keep` ends it."""
        self._began_at = time.time()
        for worker in fleet.workers:
            self._begin_draft(worker.index)
        request = collect.CollectRequest.of_job(self.artifacts, "", self._drafts, self.most_bytes, known=self._in_draft)
        # Each worker goes on with its own.
        beside = request.beside and collect.Beside(collect.MOST_BESIDE, None, once=False)
        return fleet.collect(replace(request, beside=beside, read_bytes=self.most_bytes))

    def at_hand(self) -> dict[int, dict[str, tuple[Path, IndexEntry]]]:
        """Return by worker and path where each file of the last complete copies lies, and what it is."""
        return {
            worker: {path: (self.of(worker) / entry.place, entry) for path, entry in files.items()}
            for worker, files in self._kept.items()
        }

    def keep(self, copied: collect.CollectResult) -> tuple[int, ...]:
        """Renew the copies of the workers from which everything came; return those workers. The others keep the last copy.

        A file that changed while it was read, or that was refused, stays as it was in the last copy; where it is not in the
        draft, that copy stays. Raises ArtifactError if this machine's disk refuses.
        """
        try:
            return self._keep(copied)
        except OSError as error:
            raise ArtifactError(f"{self.directory}: {error.strerror or error}") from error

    def _keep(self, copied: collect.CollectResult) -> tuple[int, ...]:
        came: dict[int, dict[str, IndexEntry]] = {worker: {} for worker in self._in_draft}
        for file in copied.files:
            entry = IndexEntry(file.size_bytes, file.sha256, file.place or file.path)
            came.setdefault(file.worker, {})[file.path] = entry
        others = copied.refused + copied.uncollected
        left = {worker: {p.path for p in others if p.worker == worker} for worker in came}
        renewed = []
        for worker, files in came.items():
            draft = self._drafts / f"worker{worker}"
            if not draft.is_dir():
                continue
            before, kept = self._in_draft[worker], self._kept.get(worker, {})
            if left[worker] & {collect.EVERYTHING, collect.THE_REST} or left[worker] & kept.keys() - before.keys():
                self._in_draft[worker] = before | files
            else:
                files |= {path: before[path] for path in left[worker] & before.keys()}
                self._in_draft[worker] = files
                _remove_others(draft, {entry.place for entry in files.values()})
                self._put_in_place(worker, draft)
                self._kept[worker] = files
                renewed.append(worker)
        torn = [note for note in copied.notes if note.why == collect.WRITTEN_TO and note.path not in left[note.worker]]
        self.left = (*map(self._with_older, others), *torn)
        return tuple(renewed)

    def _with_older(self, problem: collect.Problem) -> collect.Problem:
        """Add what an earlier copy has of a file that did not come: one that was being written then may be a part."""
        if (older := self._kept.get(problem.worker, {}).get(problem.path)) is None:
            return problem
        of = f"an earlier state of it ({format_size(older.size_bytes)}), which may be incomplete"
        return replace(problem, why=f"{problem.why}; saved is {of}")

    def state(self) -> SavedState:
        """Return what is saved, here or in the bucket, whichever is newer."""
        here = self._state_here()
        there = self.look_in_bucket() if self.look_in_bucket is not None else SavedState()
        self.is_in_bucket = self._is_newer(there, here)
        return there if self.is_in_bucket or (there.url and not here.files) else here

    def _is_newer(self, there: SavedState, here: SavedState) -> bool:
        """Return whether the bucket has more than this machine: a later step, or without steps a later copy."""
        if not here.files or not there.files:
            return there.files > 0
        if there.step is not None and here.step is not None:
            return there.step >= here.step
        return there.at is not None and there.at >= self.of(0).stat().st_mtime

    def _state_here(self) -> SavedState:
        """Return what is here, and the step at which it was, from worker 0. Content of a worker: nothing of it is trusted."""
        files = [entry for worker in self._kept.values() for path, entry in worker.items() if _is_work(path)]
        size_bytes = sum(entry.size_bytes for entry in files)
        there = f"artifacts/{PAYLOAD_CHECKPOINT}" in self._kept.get(0, {})
        return SavedState(len(files), size_bytes, there, self._checkpoint_step(), self._metrics_step())

    def _checkpoint_step(self) -> int | None:
        """The job may write it beside its checkpoint. With a hash it counts only for the very file that is saved."""
        try:
            told = parsing.loads(self._read(CHECKPOINT))
            step, name = told["step"], told.get("file")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        if name is not None:
            entry = self._kept.get(0, {}).get(f"artifacts/{name}")
            if entry is None or told.get("sha256", entry.sha256) != entry.sha256:
                return None
        return parsing.step_of(step)

    def _metrics_step(self) -> int | None:
        """Return the step of the last complete line of metrics.jsonl that has one."""
        try:
            lines = self._read(METRICS).split(b"\n")[:-1]
        except OSError:
            return None
        for line in reversed(lines):
            try:
                step = parsing.step_of(parsing.loads(line)["step"])
            except (ValueError, KeyError, TypeError):
                continue
            if step is not None:
                return step
        return None

    def _read(self, name: str) -> bytes:
        """Return the end of an artifact of worker 0. Raises OSError."""
        with (self.of(0) / "artifacts" / name).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOOK_BYTES))
            return file.read(LOOK_BYTES)

    def shipments(self, workers: int, on_progress: OnProgress) -> tuple[Shipment | None, ...]:
        """Return one shipment for each worker of the next attempt; None where nothing was saved. Reads all of it, to hash it.

        What lay above the job's directory and in the home is put aside to `earlier/`: no attempt finds it there.
        """
        for worker, files in self._kept.items():
            for path in [path for path in files if path.startswith(("above/", "home/"))]:
                place = files.pop(path).place
                aside = self.directory.with_name("earlier") / f"worker{worker}" / place
                private_files.make_directory(aside.parent)
                (self.of(worker) / place).replace(aside)
        if self._kept and not self._state_here().files:  # nothing goes on from what tpujob measured
            return (None,) * workers
        return tuple(self._shipment(index, on_progress) for index in range(workers))

    def of(self, worker: int) -> Path:
        """Return the directory of the last complete copy of this worker; it may not exist."""
        last, before = self.directory / f"worker{worker}", self._before(worker)
        return before if before.is_dir() and not last.exists() else last

    def _before(self, worker: int) -> Path:
        return self.directory / f".worker{worker}.before"

    def _begin_draft(self, worker: int) -> None:
        """The draft is what a cut copy left, or else the last copy, file by file as hard links."""
        draft, last = self._drafts / f"worker{worker}", self.of(worker)
        if draft.is_dir() and worker in self._in_draft:
            return
        shutil.rmtree(draft, ignore_errors=True)
        try:
            if worker in self._in_draft and last.is_dir():
                shutil.copytree(last, draft, copy_function=os.link)
                return
        except (OSError, shutil.Error):  # a disk without hard links: everything comes again
            shutil.rmtree(draft, ignore_errors=True)
        self._in_draft[worker] = {}

    def _put_in_place(self, worker: int, draft: Path) -> None:
        """At every moment one complete copy has its place."""
        last, before = self.directory / f"worker{worker}", self._before(worker)
        if last.exists():
            shutil.rmtree(before, ignore_errors=True)
            last.rename(before)
        os.utime(draft, (self._began_at, self._began_at))
        draft.rename(last)
        shutil.rmtree(before, ignore_errors=True)

    def _shipment(self, worker: int, on_progress: OnProgress) -> Shipment | None:
        directory = self.of(worker)
        parts = {
            name: Source(directory / name, everything=True)
            for name in ("artifacts", "work")
            if (directory / name).is_dir()
        }
        if not parts:
            return None
        found = survey(parts, max_bytes=MAX_BYTES)
        for path, entry in self._kept.get(worker, {}).items():
            if entry.place != path and entry.place in found.entries:
                found.entries[path] = replace(found.entries.pop(entry.place), path=path)
        return shipment_in_place(found, on_progress)


def _is_work(path: str) -> bool:
    """Return whether another attempt gets this file, and may go on from it."""
    return path.startswith(("artifacts/", "work/")) and path not in MEASURED


def _remove_others(directory: Path, paths: Set[str]) -> None:
    """Remove the files below `directory` that are not in `paths`, and the directories that are empty then."""
    for parent, _, names in os.walk(directory, topdown=False):
        for name in names:
            path = Path(parent, name)
            if path.relative_to(directory).as_posix() not in paths:
                path.unlink()
        if Path(parent) != directory and not any(Path(parent).iterdir()):
            Path(parent).rmdir()

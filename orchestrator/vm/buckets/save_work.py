"""Saves the work of a job from each worker to the bucket of the job while it runs, though nobody follows it.

The script of a job with `bucket:` and `on_preemption: restart` runs this verb beside the job. It copies what changed, as often
as `run` would copy it to its machine, and once more when the job is stopped. Worker 0 joins the parts of all workers to a copy.
A cluster may stop workers one after the other, and worker 0 first: in the end, the one that is the last to save joins them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..files import pack, phases
from ..files.phases import PhaseFiles
from . import manifest
from .data_objects import Source, check
from .manifest import LAST, Copy, File, Part, Superseded
from .saved import RESTORED_PART, Damaged, Saved, explained, number_of, phase_of_job, say

PIECE_BYTES = 32 << 20  # what one request sends, and what a broken one sends again
CHECKPOINT, METRICS = "artifacts/checkpoint.json", "artifacts/metrics.jsonl"
LOOK_BYTES = 64 << 10
QUICK = 10  # a copy is made so many times as often as a large one
SHARE = 20  # it takes at most one part in so many of the time
MOST_TORN = 3  # copies in a row that are given up because the job wrote to their files
LAST_S = 20.0  # a job that is stopped with less time than that is not saved once more
LOOK_S = 0.5  # for the last parts of others
LEAST_S, SPARE_S = 5.0, 2.0  # of that time: for the last copy at least, and after it


class Stopped(Exception):
    """The job has been asked to stop."""


def save_work(node: str, url: str, patterns: str, every: str) -> None:
    """Save every so many seconds, or more often if that is quick, until the job has ended. `patterns`: JSON, with "beside"."""
    os.nice(19)
    phase, worker = phase_of_job(), int(os.environ["TPUJOB_WORKER"])
    saved = Saved(url, number_of(phase), node, worker, int(os.environ["TPUJOB_WORKERS"]), Source())
    saver = Saver(saved, phase, json.loads(patterns))
    saved.source = Source(left_s=saver.left_s)
    signal.signal(signal.SIGTERM, lambda *_: saver.stop())
    with contextlib.suppress(Superseded):
        saver.run(float(every))


class Saver:
    """Copies what one worker wrote, again and again."""

    def __init__(self, saved: Saved, phase: PhaseFiles, wanted: dict[str, Any]) -> None:
        self.saved, self.phase, self.wanted, self.run_directory = saved, phase, wanted, phase.run
        self.stopping = threading.Event()
        self.ends_at: float | None = None  # of the last copy
        self.torn = 0  # copies in a row
        self.told = ""
        self.last = Part(0, 0.0, None, None, ())
        with contextlib.suppress(OSError, ValueError):
            self.last = Part.of_text((Path(self.run_directory) / RESTORED_PART).read_bytes())._replace(number=0)
        # Pieces of the part that is being made, by the hash of their file and their index in it.
        self.sent: dict[tuple[str, int], str] = {}
        self.parts: dict[str, Part] = {}  # of this attempt, by name
        self.joined: list[tuple[str, Part]] = []  # in the last copy
        self.kept: dict[str, Part] = {}  # of the copies in the manifest, by name

    def run(self, every_s: float) -> None:
        """Save until the job is stopped, and then once more. Raises Superseded."""
        pause_s = every_s / QUICK
        while not self.stopping.wait(pause_s):
            began = time.monotonic()
            with contextlib.suppress(Stopped):
                self._try(self.save)
            pause_s = min(max(SHARE * (time.monotonic() - began), every_s / QUICK), every_s)
        deadline = time.monotonic() + (self.phase.read("stop.json") or {}).get("grace_s", 0.0) - SPARE_S
        while phases.members(self.phase.dir) and time.monotonic() < deadline - LEAST_S:
            time.sleep(0.05)  # the job writes its last checkpoint
        self.ends_at, self.torn = deadline, MOST_TORN
        with contextlib.suppress(Stopped):
            self._try(self.save)
            self._try(self._join_last)

    def stop(self) -> None:
        """End at once, unless the job was asked to stop and has time for another checkpoint."""
        request = self.phase.read("stop.json")
        if request is None or request["grace_s"] < LAST_S:
            os._exit(0)
        self.stopping.set()

    def left_s(self) -> float:
        """Return the seconds that what is being done may take."""
        if self.ends_at is not None:
            return self.ends_at - time.monotonic()
        return 0.0 if self.stopping.is_set() else float("inf")

    def _try(self, save: Callable[[], None]) -> None:
        """Save once; say what keeps it from that, and when that has passed. Raises Superseded and Stopped."""
        try:
            save()
        except Superseded as error:
            say(f"the work is not saved any more: {error}")
            raise
        except Stopped:
            raise
        except Exception as error:  # whatever it is, the job goes on, and so does this
            if self.left_s() <= 0:
                raise Stopped from error
            self._tell(f"the work is not saved to {self.saved.url}: {explained(self.saved, error)}")

    def _tell(self, text: str) -> None:
        """Say it, unless it was said last. What worker 0 says of requests that fail is true of all."""
        if text != self.told and not self.saved.worker:
            say(text)
        self.told = text

    def save(self) -> None:
        """Publish a part if anything has changed; on worker 0, write the manifest if parts of all workers belong together."""
        part = self._part()
        if part is not None:
            name = self._name() + (".json" if self.ends_at is None else LAST)
            check(self.saved.source.put(self.saved.bucket, name, part.text()))
            self.last, self.sent = part, {}
            self.parts[name] = part
        if not self.saved.worker:
            self._join()

    def _number(self) -> int:
        """Return the number of the next part. That before the last one may be there, though its answer never came."""
        return self.last.number + (1 if self.ends_at is None else 2)

    def _name(self) -> str:
        return f"{self.saved.place}worker{self.saved.worker}/{self._number():06d}"

    def _look(self, count: int) -> None:
        if self.left_s() <= 0:
            raise Stopped

    def _part(self) -> Part | None:
        """Return what is there now, once its files are in the bucket; None if nothing has changed, or too much just now."""
        before = {file.path: file for file in self.last.files}
        at, files, torn = time.time(), {}, []
        links = Path(self.run_directory) / ".draft.saved"
        shutil.rmtree(links, ignore_errors=True)
        links.mkdir()
        wanted = self.wanted["beside"] and {"most_bytes": self.wanted["beside"], "only": None}
        found: list[tuple[File, Path]] = []
        for row in pack.rows(self.run_directory, self.wanted["patterns"], self._look, wanted=wanted):
            path = row["path"]
            if "sha256" not in row or not path.startswith(("artifacts/", "work/")):
                continue
            file = File(path, row["size_bytes"], row["sha256"], ())
            if row.get("changing"):
                torn.append(path)
            elif path in before and before[path][:3] == file[:3]:
                files[path] = before[path]
            else:
                found.append((file, _linked(pack.place_of(self.run_directory, path), links / str(len(found)))))
        for file, place in found:
            pieces = self._send(file, place)
            if pieces is None:
                torn.append(file.path)
            else:
                files[file.path] = file._replace(pieces=pieces)
        if torn and self.torn < MOST_TORN:
            self.torn += 1
            return None
        self.torn = 0
        files.update({path: before[path] for path in torn if path in before})  # a part of the new one may be missing
        ordered = tuple(files[path] for path in sorted(files))
        if self.last.number and ordered == self.last.files and self.ends_at is None:
            return None
        return Part(self._number(), at, self._step(files), self._metrics_step(files), ordered)

    def _send(self, file: File, place: Path) -> tuple[str, ...] | None:
        """Send the content of a file, without what an earlier try has sent. None: it is not what was hashed."""
        digest, pieces = hashlib.sha256(), []
        content = pack.content(str(place), file.size_bytes)
        for index, piece in enumerate(_of_size(content, PIECE_BYTES)):
            self._look(0)
            digest.update(piece)
            key = (file.sha256, index)
            if key not in self.sent:
                name = f"{self._name()}/{file.sha256}.{index}"
                check(self.saved.source.put(self.saved.bucket, name, piece))
                self.sent[key] = name
            pieces.append(self.sent[key])
        if digest.hexdigest() == file.sha256:
            return tuple(pieces)
        for index in range(len(pieces)):
            self.sent.pop((file.sha256, index), None)
        return None

    def _step(self, files: dict[str, File]) -> int | None:
        return manifest.step_of(self._end_of(CHECKPOINT, files), files)

    def _metrics_step(self, files: dict[str, File]) -> int | None:
        return manifest.last_step_of(self._end_of(METRICS, files))

    def _end_of(self, path: str, files: dict[str, File]) -> bytes:
        """Return the end of what is saved of a file."""
        file = files.get(path)
        try:
            with Path(self.run_directory, path).open("rb") as opened:
                opened.seek(max(0, file.size_bytes - LOOK_BYTES) if file is not None else 0)
                return opened.read(min(LOOK_BYTES, file.size_bytes)) if file is not None else b""
        except OSError:
            return b""

    def _join(self) -> None:
        """Write a copy of the newest parts that belong together into the manifest, and delete what no copy needs.

        Only worker 0 knows which other parts are still there, so another one joins nothing but last parts.
        """
        saved = self.saved
        if saved.worker:
            self.parts = {name: part for name, part in self.parts.items() if name.endswith(LAST)}
        if saved.workers > 1:
            for row in saved.source.rows(saved.bucket, saved.place):
                name, end = row["name"], LAST if saved.worker else ".json"
                if name.endswith(end) and name not in self.parts and name not in self.kept:
                    with contextlib.suppress(Damaged):  # gone, once newer ones were joined
                        self.parts[name] = saved.part(name)
        of_workers: list[dict[int, Part]] = [{} for _ in range(saved.workers)]
        names = {}
        for name, part in self.parts.items():
            worker = self._worker_of(name)
            of_workers[worker][part.number] = part
            names[worker, part.number] = name
        parts = manifest.matching(of_workers)
        if parts is None:
            return
        named = [(names[worker, part.number], part) for worker, part in enumerate(parts)]
        if named == self.joined:
            return
        after = saved.write(Copy.of(named))
        self.joined = named
        if saved.worker:
            return
        self._tell(f"the work is saved to {saved.url} from now on")
        self.kept = {name: self._known(name, sha256) for each in after.copies for name, sha256 in each.parts}
        self._tidy(parts)

    def _join_last(self) -> None:
        """Join the last parts of all workers, if this is the last one to save, or worker 0, which waits a little for others."""
        if self.saved.workers == 1:
            return
        waits_until = time.monotonic() + (0.0 if self.saved.worker else min(LEAST_S, self.left_s() - SPARE_S))
        while not (complete := self._are_all_last()) and time.monotonic() < waits_until:
            time.sleep(LOOK_S)
        if complete or not self.saved.worker:
            self._join()

    def _are_all_last(self) -> bool:
        names = [row["name"] for row in self.saved.source.rows(self.saved.bucket, self.saved.place)]
        return len({self._worker_of(name) for name in names if name.endswith(LAST)}) == self.saved.workers

    def _worker_of(self, name: str) -> int:
        return int(name[len(self.saved.place) :].partition("/")[0][len("worker") :])

    def _known(self, name: str, sha256: str) -> Part:
        return self.kept.get(name) or self.parts.get(name) or self.saved.part(name, sha256)

    def _tidy(self, joined: list[Part]) -> None:
        """Delete what no copy needs. What cannot be deleted now is deleted later."""
        saved = self.saved
        for name in list(self.parts):
            if self.parts[name].number < joined[self._worker_of(name)].number:
                del self.parts[name]
        names = [row["name"] for row in saved.source.rows(saved.bucket, saved.top)]
        for name in manifest.unneeded(names, self.kept, self.parts, saved.place):
            if saved.source.delete(saved.bucket, name) is not None:
                return


def _linked(path: str, link: Path) -> Path:
    """Return another name of the file: what takes its place is another file, and this one stays until it is sent."""
    try:
        os.link(os.path.realpath(path), link)
        return link
    except OSError:  # on another disk
        return Path(path)


def _of_size(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes in larger pieces; one empty piece for none."""
    held = bytearray()
    any_sent = False
    for piece in pieces:
        held += piece
        if len(held) >= size:
            yield bytes(held)
            held.clear()
            any_sent = True
    if held or not any_sent:
        yield bytes(held)

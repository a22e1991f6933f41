"""Saves the work of a job from its workers to the bucket of the job while it runs, and fetches it there for another attempt.

The scripts of a job with `bucket:` and `on_preemption: restart` run both verbs, so that nobody has to follow the job. The
layout is in `manifest`. `restore_work` comes before the setup: it takes the manifest over, which shows at once whether this
worker may write there, and then fetches what is saved. `save_work` runs beside the job: it copies what changed, as often as
`run` would copy it to its machine, and once more when the job is stopped. Worker 0 joins the parts of all workers to a copy.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..files import beside, pack, phases
from ..files.phases import PhaseFiles
from . import manifest
from .cloud_storage import split
from .data_objects import Changed, Failed, Source, check
from .manifest import Copy, File, Manifest, Part, Superseded

PIECE_BYTES = 32 << 20  # what one request sends, and what a broken one sends again
CHECKPOINT, METRICS = "artifacts/checkpoint.json", "artifacts/metrics.jsonl"
LOOK_BYTES = 64 << 10
RESTORED_PART = ".draft.part.json"  # in the directory of the attempt: what came from the bucket
QUICK, SHARE = (
    10,
    20,
)  # a copy is made so many times as often as a large one, and takes at most one part in so many of the time
MOST_TORN = 3  # copies in a row that are given up because the job wrote to their files
CONFLICTS = 100  # of writes of the manifest: every worker may be one
LAST_S = 20.0  # a job that is stopped with less time than that is not saved once more
LEAST_S, SPARE_S = 5.0, 2.0  # of that time: for the last copy at least, and after it
LOG = 3  # the descriptor of the job's log


class Stopped(Exception):
    """The job has been asked to stop."""


class Damaged(Exception):
    """Why a copy cannot be used."""


class Saved:
    """What is saved of a run, for one attempt on one node. `url`: gs://BUCKET/PREFIX/RUN/saved."""

    def __init__(self, url: str, attempt: int, node: str, worker: int, workers: int, source: Source) -> None:
        self.url, self.attempt, self.node, self.worker, self.workers = url, attempt, node, worker, workers
        self.source = source
        self.bucket, prefix = split(url)
        self.top = f"{prefix}/"
        self.place = f"{self.top}{attempt}-{node}/"  # of this attempt

    def read(self) -> tuple[Manifest | None, str]:
        """Return the manifest, None if there is none, and its generation. Raises Failed."""
        name = self.top + manifest.NAME
        for _ in range(CONFLICTS):
            row = self.source.row(self.bucket, name)
            if row is None:
                return None, "0"
            try:
                return Manifest.of_text(self.source.content(self.bucket, name, row["generation"])), row["generation"]
            except Changed:  # by another worker, in between
                continue
            except ValueError as error:
                raise Failed(f"{self.url}/{manifest.NAME}: {error}") from error
        raise Failed(f"{self.url}/{manifest.NAME} changes all the time")

    def write(self, copy: Copy | None = None, damaged: Copy | None = None) -> Manifest:
        """Take the manifest over, add a copy, or leave one out; return it. Raises Superseded and Failed."""
        for _ in range(CONFLICTS):
            before, generation = self.read()
            if before is not None and copy is not None and before.copies[:1] == (copy,):
                return before  # the answer to an earlier try was lost
            after = manifest.written(before, self.attempt, self.node, copy, damaged)
            if after == before:
                return after
            try:
                check(self.source.put(self.bucket, self.top + manifest.NAME, after.text(), generation))
                return after
            except Changed:
                continue
        raise Failed(f"{self.url}/{manifest.NAME} changes all the time")

    def part(self, name: str, sha256: str | None = None) -> Part:
        """Return the part of this name. Raises Damaged if it is gone, or is another one than that with this hash; Failed."""
        try:
            text = self.source.content(self.bucket, name)
            if sha256 is not None and hashlib.sha256(text).hexdigest() != sha256:
                raise Damaged(f"{name} has another content than it had")
            return Part.of_text(text)
        except Changed:
            raise Damaged(f"{name} is gone") from None
        except ValueError as error:
            raise Damaged(f"{name}: {error}") from error

    def usable(self, copies: Sequence[Copy]) -> Iterator[tuple[Copy, Part | None]]:
        """Yield each copy of which every part of every worker is there, with that of this worker, if it has one.

        All workers look at all parts, so all of them choose the same copy.
        """
        sizes = {row["name"]: int(row["size"]) for row in self.source.rows(self.bucket, self.top)}
        for copy in copies:
            try:
                parts = [self.part(*each) for each in copy.parts]
                for file in (file for part in parts for file in part.files):
                    if sum(sizes.get(piece, -1) for piece in file.pieces) != file.size_bytes:
                        raise Damaged(f"not all of {file.path} is there")
                yield copy, (parts[self.worker] if self.worker < len(parts) else None)
            except Damaged as error:
                say(f"a copy of the saved work cannot be used: {error}")

    def fetch(self, part: Part, draft: Path) -> None:
        """Write the files of a part below `draft`. Raises Damaged, Failed, and OSError for this disk."""
        for file in part.files:
            names = file.path.split("/")
            if names[0] not in ("artifacts", "work") or len(names) < 2 or {"", ".", ".."} & set(names):
                raise Damaged(f"{file.path!r} is no path of saved work")
            target = draft / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256()
            with target.open("wb") as out:
                for piece in file.pieces:
                    try:
                        content = self.source.content(self.bucket, piece)
                    except Changed:
                        raise Damaged(f"{piece} is gone") from None
                    digest.update(content)
                    out.write(content)
            if digest.hexdigest() != file.sha256:
                raise Damaged(f"{file.path} has another content than its hash says")


def restore_work(attempt: str, node: str, url: str) -> None:
    """Take over the manifest, and fetch what is saved, unless TPUJOB_SAVED_WORK says that the client has sent it.

    Exits with 1 if that would begin anew what is saved.
    """
    number, worker = int(attempt.rpartition("-")[2]), int(os.environ["TPUJOB_WORKER"])
    comes_from = os.environ.get("TPUJOB_SAVED_WORK", "")
    saved = Saved(url, number, node, worker, int(os.environ["TPUJOB_WORKERS"]), Source())
    run = Path(PhaseFiles(attempt, "main").run)
    try:
        found = saved.write()
        if comes_from != "client" and found.copies:
            _restore(saved, found, run)
        elif comes_from == "bucket":
            raise Failed("nothing is saved there")
    except Superseded as error:
        say(f"{error}: this one ends")
        sys.exit(1)
    except (Failed, Changed, OSError) as error:
        why = explained(saved, error)
        if comes_from == "bucket":
            say(f"the saved work in {url} cannot be fetched: {why}")
            sys.exit(1)
        if not worker:
            say(f"the work is not saved to {url}: {why}")


def _restore(saved: Saved, found: Manifest, run: Path) -> None:
    draft, began = run / ".draft.restored", time.monotonic()
    for copy, part in saved.usable(found.copies):
        shutil.rmtree(draft, ignore_errors=True)
        try:
            if part is not None:
                saved.fetch(part, draft)
        except Damaged as error:
            say(f"a copy of the saved work cannot be used: {error}")
            if saved.workers > 1:  # the others may have begun with it; the next attempt takes the one before
                saved.write(damaged=copy)
                sys.exit(1)
            continue
        _put_in_place(part, draft, run)
        if not saved.worker:
            step = "" if copy.step is None else f" of step {copy.step:,}"
            size = f"{copy.files:,} files, {copy.size_bytes / 1e6:,.1f} MB"
            say(f"saved work{step} from {saved.url}: {size}, in {time.monotonic() - began:.1f} s")
        return
    say("no copy of the saved work can be used: the job begins anew")


def _put_in_place(part: Part | None, draft: Path, run: Path) -> None:
    """Move the files to where the job wrote them, over those of its code, and note which they are."""
    files = part.files if part is not None else ()
    for file in files:
        target = run / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        (draft / file.path).replace(target)
    shutil.rmtree(draft, ignore_errors=True)
    (run / beside.RESTORED).write_text(json.dumps([file.path[5:] for file in files if file.path.startswith("work/")]))
    if part is not None:
        (run / RESTORED_PART).write_bytes(part.text())


def explained(saved: Saved, error: Exception) -> str:
    """Return why it failed, with what the user can do."""
    why = f"{error.strerror} ({error.filename})" if isinstance(error, OSError) else str(error)
    if not why.startswith(("HTTP 401", "HTTP 403")):
        return why
    account = saved.source.account()
    grant = f"gcloud storage buckets add-iam-policy-binding gs://{saved.bucket} --member=serviceAccount:{account}"
    hint = f"; `{grant} --role=roles/storage.objectUser` lets it" if "@" in account else ""
    return f"{account or 'the account of this worker'} may not read and write there{hint} ({why})"


def say(text: str) -> None:
    """Say it in the log of the job."""
    line = f"tpujob: {text}\n".encode(errors="backslashreplace")
    try:
        os.write(LOG, line)
    except OSError:
        os.write(1, line)


def save_work(attempt: str, node: str, url: str, patterns: str, every: str) -> None:
    """Save every so many seconds, or more often if that is quick, until the job has ended. `patterns`: JSON, with "beside"."""
    os.nice(19)
    number, worker = int(attempt.rpartition("-")[2]), int(os.environ["TPUJOB_WORKER"])
    saved = Saved(url, number, node, worker, int(os.environ["TPUJOB_WORKERS"]), Source())
    saver = Saver(saved, PhaseFiles(attempt, "main"), json.loads(patterns))
    signal.signal(signal.SIGTERM, lambda *_: saver.stop())
    with contextlib.suppress(Superseded):
        saver.run(float(every))


class Saver:
    """Copies what one worker wrote, again and again."""

    def __init__(self, saved: Saved, phase: PhaseFiles, wanted: dict[str, Any]) -> None:
        self.saved, self.phase, self.wanted, self.run_directory = saved, phase, wanted, phase.run
        self.stopping = threading.Event()
        self.ends_at: float | None = None  # of the last copy
        saved.source = Source(left_s=self.left_s)
        self.torn = 0  # copies in a row
        self.told = ""
        self.last = Part(0, 0.0, None, None, ())
        with contextlib.suppress(OSError, ValueError):
            self.last = Part.of_text((Path(self.run_directory) / RESTORED_PART).read_bytes())._replace(number=0)
        self.sent: dict[
            tuple[str, int], str
        ] = {}  # pieces of the part that is being made: by hash of the file, and index
        self.parts: dict[str, Part] = {}  # of this attempt, by name
        self.joined: list[tuple[str, Part]] = []  # in the last copy
        self.kept: dict[str, Part] = {}  # of the copies in the manifest, by name

    def run(self, every_s: float) -> None:
        """Save until the job is stopped, and then once more. Raises Superseded."""
        pause_s = every_s / QUICK
        while not self.stopping.wait(pause_s):
            began = time.monotonic()
            with contextlib.suppress(Stopped):
                self._try()
            pause_s = min(max(SHARE * (time.monotonic() - began), every_s / QUICK), every_s)
        deadline = time.monotonic() + (self.phase.read("stop.json") or {}).get("grace_s", 0.0) - SPARE_S
        while phases.members(self.phase.dir) and time.monotonic() < deadline - LEAST_S:
            time.sleep(0.05)  # the job writes its last checkpoint
        self.ends_at, self.torn = deadline, MOST_TORN
        with contextlib.suppress(Stopped):
            self._try()

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

    def _try(self) -> None:
        """Save once; say what keeps it from that, and when that has passed. Raises Superseded and Stopped."""
        try:
            self.save()
        except Superseded as error:
            say(f"the work is not saved any more: {error}")
            raise
        except (Failed, Changed, Damaged, OSError) as error:
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
            name = self._name(part.number)
            check(self.saved.source.put(self.saved.bucket, f"{name}.json", part.text()))
            self.last, self.sent = part, {}
            self.parts[f"{name}.json"] = part
        if not self.saved.worker:
            self._join()

    def _name(self, number: int) -> str:
        return f"{self.saved.place}worker{self.saved.worker}/{number:06d}"

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
        if self.last.number and ordered == self.last.files:
            return None
        return Part(self.last.number + 1, at, self._step(files), self._metrics_step(files), ordered)

    def _send(self, file: File, place: Path) -> tuple[str, ...] | None:
        """Send the content of a file, without what an earlier try has sent. None: it is not what was hashed."""
        digest, pieces = hashlib.sha256(), []
        content = pack.content(str(place), file.size_bytes)
        for index, piece in enumerate(_of_size(content, PIECE_BYTES)):
            self._look(0)
            digest.update(piece)
            key = (file.sha256, index)
            if key not in self.sent:
                name = f"{self._name(self.last.number + 1)}/{file.sha256}.{index}"
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
        """Write a copy of the newest parts that belong together into the manifest, and delete what no copy needs."""
        saved = self.saved
        if saved.workers > 1:
            for row in saved.source.rows(saved.bucket, saved.place):
                name = row["name"]
                if name.endswith(".json") and name not in self.parts and name not in self.kept:
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
        self._tell(f"the work is saved to {saved.url} from now on")
        self.kept = {name: self._known(name, sha256) for each in after.copies for name, sha256 in each.parts}
        self._tidy(parts)

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

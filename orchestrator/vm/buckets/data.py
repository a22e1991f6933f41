"""Fetches `data:` of a job from Cloud Storage into its directory, on every worker, before its setup.

The script of the job runs this verb, with a request on stdin. Each place has a directory in the cache, which a held slice
keeps: `files/` has what is complete, `drafts/` what is not, with the parts that are there in `*.parts`. A file is complete when
its size and CRC32C are those of the object. Its time is then the generation of the object, and it is read-only; the job gets a
hard link to it. One that has another time or size is not as it came, and is fetched again: no run reads what another wrote.
The cache is of one boot, since a crash leaves files of which nothing proves that they are whole.

Processes fetch, since one computes no more than 200 MB/s of CRC32C, and since a small object is mostly waiting.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from ..files.phases import boot_id
from . import data_objects
from .cloud_storage import split
from .crc32c import combined
from .data_objects import Changed, Failed, Source

PART_BYTES = 16 << 20
PROCESSES, AHEAD = min(32, 4 * (os.cpu_count() or 1)), 4  # tasks that wait, for each process
SAY_S = 5.0
MOST_TIMES = 5  # that an object may change, or arrive with another content, while it is fetched
SPARE_BYTES = 64 << 20  # that stay free
IS_FIRST = os.environ.get("TPUJOB_WORKER", "0") == "0"  # the others would say the same


def data() -> None:
    """Fetch what stdin asks for: {"data": {directory: URL}, "root": of the cache}. Exits with 1 where that is impossible."""
    request = json.loads(sys.stdin.buffer.read())
    os.umask(0o022)
    root = Path(request["root"]).expanduser()
    for at, url in request["data"].items():
        place = Place(os.path.normpath(at), url, root / f"boot-{boot_id()[:8]}")
        try:
            place.bring()
        except (Failed, data_objects.Unfit, OSError) as error:
            place.say(f"{url} cannot be fetched: {place.explained(error)}")
            for process in multiprocessing.active_children():
                process.kill()
            os._exit(1)


class Object:
    """One object, and how far it has come. `times`: how often it was begun."""

    def __init__(self, path: str, row: dict[str, Any], times: int = 1) -> None:
        self.path, self.name, self.size, self.times = path, str(row["name"]), int(row["size"]), times
        self.generation, self.crc = str(row.get("generation") or 0), row.get("crc32c")
        self.time_ns = int(self.generation) * 1000 % (1 << 62)  # of its file: a generation is a time, in microseconds
        self.draft = hashlib.sha256(f"{path}\0{self.generation}".encode()).hexdigest()[:32]
        self.parts: dict[int, int | None] = dict.fromkeys(range(0, self.size or 1, PART_BYTES))  # CRC by their begin

    def end(self, begin: int) -> int:
        """Return where a part ends."""
        return min(begin + PART_BYTES, self.size)

    def is_at(self, file: Path) -> bool:
        """Return whether a file is the object, as it came."""
        with contextlib.suppress(OSError):
            return (file.lstat().st_size, file.lstat().st_mtime_ns) == (self.size, self.time_ns)
        return False

    def is_right(self) -> bool:
        """Return whether all parts together have the CRC32C of the object."""
        crc = 0
        for begin, part in self.parts.items():
            crc = combined(crc, part or 0, self.end(begin) - begin)
        return self.crc in (None, base64.b64encode(crc.to_bytes(4, "big")).decode())


class Place:
    """One directory of the job, and the objects that it gets. `root`: of the cache of this boot."""

    def __init__(self, at: str, url: str, root: Path) -> None:
        self.at, self.url, self.source, self.began = at, url, Source(), time.monotonic()
        self.bucket, self.path = split(url)
        self.cache = root / hashlib.sha256(url.encode()).hexdigest()[:16]
        self.files, self.drafts = self.cache / "files", self.cache / "drafts"
        self.wanted: dict[str, Object] = {}
        self.tasks: deque[tuple[Object, int]] = deque()  # parts that are to be fetched
        self.fetched_bytes = 0

    def bring(self) -> None:
        """Fetch it. Raises Failed, Unfit and OSError."""
        self.drafts.mkdir(parents=True, exist_ok=True)
        for other in self.cache.parent.parent.iterdir():
            if other != self.cache.parent:  # of an earlier boot
                shutil.rmtree(other, ignore_errors=True)
        with Path(f"{self.cache}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another job may fetch it
            directories = self._look()
            missing = [each for each in self.wanted.values() if not each.is_at(self.files / each.path)]
            self._fetch(sorted(missing, key=lambda each: -each.size))
            for path in directories:
                Path(self.at, path).mkdir(parents=True, exist_ok=True)
            for each in self.wanted.values():
                self._give(each)
        size, took_s = sum(each.size for each in self.wanted.values()), time.monotonic() - self.began
        rate = f"{_size(self.fetched_bytes)} fetched in {took_s:.1f} s, {_size(self.fetched_bytes / took_s)}/s"
        if IS_FIRST:
            self.say(f"{_files(len(self.wanted))}, {_size(size)} of {self.url}: {rate}")

    def _look(self) -> set[str]:
        """Find out which objects are wanted, and delete all else. Return directories that only exist."""
        prefix = self.path if self.path[-1:] in ("", "/") else f"{self.path}/"
        try:
            one = self.source.row(self.bucket, self.path) if prefix != self.path else None
            rows = self.source.rows(self.bucket, prefix) if one is None or one["size"] == "0" else []
        except Changed:
            raise Failed(f"there is no bucket gs://{self.bucket}") from None
        if one is not None and not rows:
            rows, prefix = [one], self.path[: self.path.rfind("/") + 1]
        if not rows:
            raise Failed(f"gs://{self.bucket} has no object {self.path!r}, and none below it")
        by_name = {str(row["name"]): row for row in rows}
        paths, directories = data_objects.files({name: int(row["size"]) for name, row in by_name.items()}, prefix)
        self.wanted = {path: Object(path, by_name[name]) for path, name in paths.items()}
        right = {str(self.files / path) for path in paths} | {
            str(self.drafts / one.draft) for one in self.wanted.values()
        }
        for directory, _, names in os.walk(self.cache, topdown=False):
            for path in (Path(directory, name) for name in names):
                if str(path) not in right and str(path.with_suffix("")) not in right:
                    path.unlink()
            with contextlib.suppress(OSError):  # not empty
                Path(directory).rmdir()
        self.drafts.mkdir(parents=True, exist_ok=True)
        return directories

    def _fetch(self, missing: list[Object]) -> None:
        """Fetch these objects; those that are deleted meanwhile are no longer wanted. Raises Failed for a disk without room."""
        there = sum(each.lstat().st_blocks * 512 for each in self.drafts.iterdir())
        total, free, said = sum(each.size for each in missing), _free(self.cache), time.monotonic()
        if missing and total - there + SPARE_BYTES > free:
            raise Failed(
                f"{_size(total - there)} are still to come, and {_size(free)} are free on the disk of this worker"
            )
        for one in missing:
            self._begin(one)
        there = total - sum(one.end(begin) - begin for one, begin in self.tasks)
        running: dict[Future[int], tuple[Object, int]] = {}
        pool = ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("fork"))  # after a failure, `data` kills it
        while self.tasks or running:
            while self.tasks and len(running) < PROCESSES * AHEAD:
                one, begin = self.tasks.popleft()
                object_, draft = (self.bucket, one.name, one.generation), str(self.drafts / one.draft)
                running[pool.submit(fetch_part, object_, draft, one.size, begin, one.end(begin))] = one, begin
            for future in wait(running, SAY_S, FIRST_COMPLETED).done:
                self._take(future, *running.pop(future))
            if IS_FIRST and time.monotonic() - said >= SAY_S:
                said = time.monotonic()
                rate = _size(self.fetched_bytes / (said - self.began))
                self.say(f"{_size(there + self.fetched_bytes)} of {_size(total)} in {_files(len(missing))}, {rate}/s")
        pool.shutdown()

    def _begin(self, one: Object) -> None:
        """Add what is to be fetched of an object."""
        parts = self.drafts / f"{one.draft}.parts"
        for line in parts.read_text().splitlines() if parts.exists() else ():
            words = line.split()  # a torn line, of a disk that was full, tells nothing
            if len(words) == 2 and all(map(str.isdigit, words)) and int(words[0]) in one.parts:
                one.parts[int(words[0])] = int(words[1])
        if None not in one.parts.values():
            one.parts[0] = None  # so that the end of a part completes it
        self.tasks.extend((one, begin) for begin, crc in one.parts.items() if crc is None)

    def _take(self, future: Future[int], one: Object, begin: int) -> None:
        """Take the end of the fetching of a part. The last one gives the file its name."""
        draft, target = self.drafts / one.draft, self.files / one.path
        try:
            one.parts[begin] = future.result()
        except Changed:
            if self.wanted.get(one.path) is one:  # no other part has said so
                self._again(one)
            return
        except BrokenExecutor:
            raise Failed("a process of the fetch was killed; the memory of this worker may be full") from None
        self.fetched_bytes += one.end(begin) - begin
        if None in one.parts.values():
            return
        for path in self.drafts.glob(f"{one.draft}.parts"):
            path.unlink()
        if not one.is_right():
            draft.unlink()
            self._again(one)
            return
        draft.chmod(0o444)
        os.utime(draft, ns=(one.time_ns, one.time_ns))
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.replace(target)

    def _again(self, one: Object) -> None:
        """Fetch the newest content of an object that has changed, or that came with another one than its CRC32C says."""
        row = self.source.row(self.bucket, one.name)
        if row is None:
            self.say(f"gs://{self.bucket}/{one.name} was deleted meanwhile: it is left out")
            del self.wanted[one.path]
        elif one.times == MOST_TIMES:
            raise Failed(f"{one.name} changed, or came with another content than its CRC32C says, {MOST_TIMES} times")
        else:
            self.wanted[one.path] = Object(one.path, row, one.times + 1)
            self._begin(self.wanted[one.path])

    def _give(self, one: Object) -> None:
        """Link the file into the directory of the job, in place of one of that name."""
        target = Path(self.at, one.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            target.unlink()
        try:
            os.link(self.files / one.path, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            shutil.copy2(self.files / one.path, target)  # the job's directory leads to another disk

    def explained(self, error: Exception) -> str:
        """Return why it failed, with what the user can do."""
        why = f"{error.strerror} ({error.filename})" if isinstance(error, OSError) else str(error)
        if why.startswith(("HTTP 401", "HTTP 403")):
            account = self.source.account()
            grant = (
                f"gcloud storage buckets add-iam-policy-binding gs://{self.bucket} --member=serviceAccount:{account}"
            )
            hint = f"; `{grant} --role=roles/storage.objectViewer` lets it" if "@" in account else ""
            return f"{account or 'the account of this worker'} may not read gs://{self.bucket}{hint} ({why})"
        return f"{why}; {_size(_free(self.cache))} are free on this disk" if "No space left" in why else why

    def say(self, text: str) -> None:
        """Say it in the log."""
        print(f"data: {self.at}: {text}".encode(errors="backslashreplace").decode(), flush=True)


def fetch_part(of: tuple[str, str, str], draft: str, size: int, begin: int, end: int) -> int:
    """Fetch a part into the draft, in a process; return its CRC32C. Of several, it is noted which are there."""
    file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(file).st_size != size:
            os.ftruncate(file, size)
        crc = Source().part(*of, file, begin, end)
    finally:
        os.close(file)
    if size > PART_BYTES:
        with Path(f"{draft}.parts").open("ab", buffering=0) as parts:
            parts.write(f"{begin} {crc}\n".encode())
    return crc


def _free(path: Path) -> int:
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def _files(count: int) -> str:
    return f"{count:,} file{'s'[: count != 1]}"


def _size(size_bytes: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:,.1f} {unit}"
    return f"{size_bytes:.0f} B"

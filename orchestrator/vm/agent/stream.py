"""The log, the metrics and the state of a phase as a stream, from any byte on, while the job writes them.

`follow` sends frames `L <n>\\n<n bytes of log>` and `S <n>\\n<status>`; an empty `L` keeps the connection alive.
`G <n>\\n<number>`: so many bytes of the log are left out before the next `L`. Where it is asked to, also
`M <n>\\n<n bytes of metrics.jsonl>`; an empty `M` says that this file begins anew. `C` and `H` are the same for
tpu-metrics.jsonl and host.jsonl. The last frame is a final status. A stream that ends without one was cut and says nothing
about the phase: `hosts.fleet.follow` continues from the next byte.

Of the log, the beginning and the end are kept: half of `limits.max_log` each. The job appends to the file itself, so its log
needs no living process of ours. The supervisor punches a hole into the middle as the file grows: its size and every offset stay
as they are, and the disk has the two ends only. Readers leave out the same bytes, which follow from the size alone. So what
travels is bounded also where a file system has no holes; only its disk is not.

`metrics.jsonl` belongs to the job, which may truncate, replace or never write it, or put anything in its place. So it is read
as bytes from an offset, whole lines at a time, and only a regular file; the client reads the lines.
"""

# ruff: noqa: PTH123
from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from itertools import islice

from ..files.frames import frame, reply
from ..files.phases import PhaseFiles

BLOCK_BYTES = 1 << 16  # of a file system, at most: holes are whole blocks
PIECE_BYTES = 1 << 16
# TPUs are billed: a log with a gap is read for so long after its end, and then its last part.
DRAIN_S, LAST_BYTES = 20.0, 1 << 20
KEEP_SIZE, PUNCH_HOLE = 1, 2  # of Linux


class BoundedLog:
    """The log at `path`, without a bound if `most_bytes` is None."""

    def __init__(self, path: str, most_bytes: int | None) -> None:
        self.path = path
        # Without a bound: more than any file has.
        self.part = 1 << 62 if most_bytes is None else max(most_bytes // 2 // BLOCK_BYTES, 1) * BLOCK_BYTES
        self._hole_end = self.part

    def punch(self, file: int) -> None:
        """Free what is left out of the open file by now, where the file system can do that."""
        end = (os.fstat(file).st_size - self.part) // BLOCK_BYTES * BLOCK_BYTES
        if end > self._hole_end and sys.platform == "linux":
            import ctypes  # only for a log that is full

            hole = (ctypes.c_long(self._hole_end), ctypes.c_long(end - self._hole_end))
            if ctypes.CDLL(None).fallocate(file, KEEP_SIZE | PUNCH_HOLE, *hole) == 0:
                self._hole_end = end

    def pieces(self, offset: int, limit: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield what comes after `offset`: how many bytes are left out, and the piece that follows them.

        `limit`: the size of a log that is complete. Of one with a gap, what comes in DRAIN_S is read, and the last part.
        While the log grows, a reader that was overtaken gets some room ahead.
        """
        late_at = time.monotonic() + DRAIN_S
        try:
            file = open(self.path, "rb", buffering=0)  # noqa: SIM115 - closed below
        except FileNotFoundError:
            return
        with file:
            while True:
                end = os.fstat(file.fileno()).st_size if limit is None else limit
                kept = end - self.part  # from here on
                left_out, hurries = 0, limit is not None and kept > self.part and time.monotonic() > late_at
                if hurries:
                    kept = max(kept, end - LAST_BYTES)
                if offset < kept and (offset >= self.part or hurries):
                    left_out = (kept if limit is not None else end - self.part // 2) - offset
                start = offset + left_out
                most = min(PIECE_BYTES, end - start, self.part - start if start < self.part else PIECE_BYTES)
                file.seek(start)
                piece = file.read(max(most, 0))
                if not piece:
                    return
                if limit is None and self.part <= start < os.fstat(file.fileno()).st_size - self.part:
                    continue  # a hole may have been there already
                yield left_out, piece
                offset = start + len(piece)


FOLLOWED = {b"M": "metrics.jsonl", b"C": "tpu-metrics.jsonl", b"H": "host.jsonl"}  # by frame; artifacts of the job
METRICS_LOOK_S = 0.25  # between two looks
LOOK_BYTES = 4 * PIECE_BYTES  # in one look: the log must not wait
MOST_BYTES = 64 << 20  # in all, so that a file that is replaced all the time does not fill the connection
FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC  # a FIFO would block, a link may lead anywhere


class MetricsTail:
    """Reads on from `offset`. A file that was replaced or got shorter begins anew."""

    def __init__(self, path: str, offset: int) -> None:
        self.path, self.offset = path, offset
        self.inode = self.sent_bytes = 0
        self.looked_at = 0.0

    def pieces(self, last: bool = False) -> Iterator[bytes]:
        """Yield what is new: whole lines, or a piece without a line end; b"" says that the file begins anew.

        `last`: the job has ended, so look now, and read to the end of the file.
        """
        now = time.monotonic()
        if not last and now - self.looked_at < METRICS_LOOK_S:
            return
        self.looked_at = now
        try:
            fd = os.open(self.path, FLAGS)
        except OSError:
            return
        try:
            yield from self._read(fd, MOST_BYTES if last else LOOK_BYTES)
        except OSError:
            return
        finally:
            os.close(fd)

    def _read(self, fd: int, most_bytes: int) -> Iterator[bytes]:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return
        if found.st_size < self.offset or self.inode not in (0, found.st_ino) or not (self.inode or self.offset):
            self.offset = 0
            yield b""
        self.inode = found.st_ino
        while most_bytes > 0 and self.sent_bytes < MOST_BYTES:
            piece = os.pread(fd, PIECE_BYTES, self.offset)
            whole = piece[: piece.rfind(b"\n") + 1] or (piece if len(piece) == PIECE_BYTES else b"")
            if not whole:
                return
            yield whole
            self.offset += len(whole)
            self.sent_bytes += len(whole)
            most_bytes -= len(whole)


HEARTBEAT_S = 2.0
LOOK_S = 0.04  # between two looks at the log
LOOK_IDLE_S = 0.2  # after ten seconds of silence
TURN_PIECES = 256


def status(attempt: str, name: str) -> None:
    reply(PhaseFiles(attempt, name).status())


def follow(attempt: str, name: str, offset_text: str, *offsets: str) -> None:
    """`offsets`: from which byte on of each file of FOLLOWED; without any, none is followed."""
    phase, offset = PhaseFiles(attempt, name), int(offset_text)
    tails = [
        (kind, MetricsTail(f"{phase.run}/artifacts/{file}", int(begin)))
        for (kind, file), begin in zip(FOLLOWED.items(), offsets)
    ]
    reply({"stream": "log"})
    told, log = "", None
    spoke_at = moved_at = time.monotonic()
    while True:
        now = phase.status()  # read before the log: once final, the log is complete
        limit = now["log_size"] if now["state"] == "exited" else None
        if log is None and (request := phase.read("request.json")) is not None:
            log = BoundedLog(phase.path("log"), request.get("max_log"))
        # What comes while the job prints faster than it is read has no end: metrics wait for a turn at most.
        pieces = iter(()) if log is None else log.pieces(offset, limit)
        for left_out, piece in islice(pieces, TURN_PIECES if limit is None else None):
            if left_out:
                frame(b"G", b"%d" % left_out)
            frame(b"L", piece)
            offset += left_out + len(piece)
            spoke_at = moved_at = time.monotonic()
        for kind, tail in tails:
            for piece in tail.pieces(last=limit is not None):
                frame(kind, piece)
                spoke_at = time.monotonic()
        if limit is not None and offset != limit:
            now = {"state": "lost", "why": f"the log on the worker ends at byte {limit}, before byte {offset}"}
        if now["state"] != told:
            frame(b"S", json.dumps(now).encode())
            told = now["state"]
        if told in ("exited", "lost", "none"):
            return
        if time.monotonic() - spoke_at >= HEARTBEAT_S:
            frame(b"L", b"")
            spoke_at = time.monotonic()
        time.sleep(LOOK_S if time.monotonic() - moved_at < 10 else LOOK_IDLE_S)

"""New lines of a job's `metrics.jsonl`, while the job writes it.

The file belongs to the job, which may truncate, replace or never write it, or put anything in its place. So it is read as
bytes from an offset, whole lines at a time, and only a regular file; `remote.fleet.follow` asks, the client reads the lines.
"""

from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False  # typing itself takes 5 ms to import, on each of many short calls
if TYPE_CHECKING:
    from collections.abc import Iterator

LOOK_S = 0.25  # between two looks
PIECE_BYTES = 65536
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
        if not last and now - self.looked_at < LOOK_S:
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

"""The log of a phase, of which the beginning and the end are kept: half of `limits.max_log` each.

The job appends to the file itself, so its log needs no living process of ours. The supervisor punches a hole into the middle
as the file grows: its size and every offset stay as they are, and the disk has the two ends only. Readers leave out the same
bytes, which follow from the size alone. So what travels is bounded also where a file system has no holes; only its disk is not.
"""

# ruff: noqa: PTH123
from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # typing itself takes 5 ms to import, on each of many short calls
if TYPE_CHECKING:
    from collections.abc import Iterator

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
            import ctypes

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

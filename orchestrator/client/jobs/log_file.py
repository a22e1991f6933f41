"""The log file of a worker on this machine: its beginning, its end, and a line that says how much is left out between them."""

import os
from pathlib import Path

from orchestrator import private_files
from orchestrator.core.text.gaps import gap_line

LINE_BYTES = 1 << 16  # in which the end of a line is looked for
PIECE_BYTES = 1 << 20


class LogFile:
    """A file that grows to `most_bytes`; then its middle goes, so that half is the beginning and a quarter the end.

    Raises OSError, as every method. `anew`: what is written comes from the first byte again. What is there already stays as far
    as it is the same: others read along, and this process may be killed before it has fetched it all.
    """

    def __init__(self, path: Path, most_bytes: int | None, *, anew: bool) -> None:
        self._path, self._most_bytes = path, most_bytes
        self._file = private_files.open_file(path, "a+b", buffering=0)
        # What is behind this was there before, and may come again.
        self._size = 0 if anew else os.fstat(self._file.fileno()).st_size
        self._beginning: int | None = None  # its size, once something is left out
        self._end_at = self._left_out_bytes = 0  # where the end begins

    def write(self, data: bytes) -> None:
        if not data.startswith(there := os.pread(self._file.fileno(), len(data), self._size)):
            self._file.truncate(self._size)
            there = b""
        self._size += len(there) + self._file.write(data[len(there) :])
        if self._most_bytes is not None and self._size > self._most_bytes:
            self._leave_out(self._size - self._most_bytes // 4)

    def skip(self, size_bytes: int) -> None:
        """Leave out what does not come, and what came since the beginning: a file has one gap."""
        self._left_out_bytes += size_bytes
        self._leave_out(self._size)

    def close(self) -> None:
        self._file.close()

    def _leave_out(self, end_at: int) -> None:
        """Leave out what is between the beginning and `end_at`, to the end of a line."""
        self._file.truncate(self._size)
        with self._path.open("r+b", buffering=0) as opened:
            file, size = opened.fileno(), self._size
            if self._beginning is None:
                self._beginning = self._end_at = min(end_at, (self._most_bytes or 2 * end_at) // 2)
            end_at += os.pread(file, LINE_BYTES, end_at).find(b"\n") + 1
            self._left_out_bytes += end_at - self._end_at
            said = f"{gap_line(self._left_out_bytes)}\n".encode()
            if os.pread(file, 1, max(self._beginning - 1, 0)) not in (b"\n", b""):
                said = b"\n" + said
            self._end_at = at = self._beginning + os.pwrite(file, said, self._beginning)
            while piece := os.pread(file, min(PIECE_BYTES, size - end_at), end_at):
                written = os.pwrite(file, piece, at)
                at, end_at = at + written, end_at + written
            self._size = opened.truncate(at)

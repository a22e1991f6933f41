"""How much more may be brought home: what the destination's disk has free, and the most that the job wants.

All workers of a collection share one: what is on its way to the disk counts as taken, so that together they do not promise
themselves more than there is. `remote.transfer.collect` asks it before each file.
"""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from pathlib import Path

from orchestrator.core.text.sizes import format_size

RESERVED_BYTES = 16 << 20  # stays free: the ledger, logs and other programs write there, too


class DiskSpace:
    """`most_bytes`: of all results of the run together; None: as many as the disk takes."""

    def __init__(self, directory: Path, most_bytes: int | None = None) -> None:
        self._directory, self._most_bytes = directory, most_bytes
        self._lock = threading.Lock()
        self._used: Counter[int] = Counter()  # by worker: of the files that are here, or on their way
        self._coming: Counter[int] = Counter()  # of those that are on their way, what is not on the disk yet

    def begin(self, worker: int) -> None:
        """Its files are counted anew."""
        with self._lock:
            self._used[worker] = self._coming[worker] = 0

    def end(self, worker: int) -> None:
        """Nothing more comes from it now."""
        with self._lock:
            self._coming[worker] = 0

    def has(self, worker: int, size_bytes: int) -> None:
        """A file is there already."""
        with self._lock:
            self._used[worker] += size_bytes

    def take(self, worker: int, size_bytes: int) -> str | None:
        """Room for a file that is to come; or why there is none."""
        with self._lock:
            if self._most_bytes is not None and self._used.total() + size_bytes > self._most_bytes:
                most = format_size(self._most_bytes)
                return (
                    f"{format_size(size_bytes)} more than the {most} of limits.max_results (`--max-results` lifts it)"
                )
            free_bytes = shutil.disk_usage(self._directory).free - RESERVED_BYTES - self._coming.total()
            if size_bytes > max(free_bytes, 0):
                return f"no room for {format_size(size_bytes)}: {self._directory} has {format_size(max(free_bytes, 0))}"
            self._used[worker] += size_bytes
            self._coming[worker] += size_bytes
            return None

    def arrived(self, worker: int, size_bytes: int) -> None:
        """So much of what is to come is on the disk."""
        with self._lock:
            self._coming[worker] -= size_bytes

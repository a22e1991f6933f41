"""How much more a collection may store: the free space of the destination's disk, and the job's own limit.

All workers of a collection share one instance: files in transit count as stored, so that together the workers do not
reserve more than is free. `remote.transfer.collect` asks before each file.
"""

import shutil
import threading
from collections import Counter
from pathlib import Path

from orchestrator.core.text.sizes import format_size

RESERVED_BYTES = 16 << 20  # stays free: the ledger, logs and other programs write there, too


class DiskSpace:
    """`most_bytes` limits all results of the run, `most_beside` those beside its artifacts; None: only the disk limits them."""

    def __init__(self, directory: Path, most_bytes: int | None = None, most_beside: int | None = None) -> None:
        self._directory, self._most_bytes, self._most_beside = directory, most_bytes, most_beside
        self._lock = threading.Lock()
        self._used: Counter[int] = Counter()  # by worker: stored or in transit
        self._coming: Counter[int] = Counter()  # by worker: in transit, not on the disk yet
        self._beside: Counter[int] = Counter()  # by worker: what of the first is beside the artifacts

    def begin(self, worker: int) -> None:
        """Start counting the files of a worker."""
        with self._lock:
            self._used[worker] = self._coming[worker] = self._beside[worker] = 0

    def end(self, worker: int) -> None:
        """Release what was reserved for files of a worker that did not arrive."""
        with self._lock:
            self._coming[worker] = 0

    def has(self, worker: int, size_bytes: int, *, beside: bool = False) -> None:
        """Count a file that exists already."""
        with self._lock:
            self._used[worker] += size_bytes
            self._beside[worker] += size_bytes * beside

    def take(self, worker: int, size_bytes: int, *, beside: bool = False) -> str | None:
        """Reserve space for a file; return None, or the reason why it does not fit."""
        with self._lock:
            size = format_size(size_bytes)
            if self._most_bytes is not None and self._used.total() + size_bytes > self._most_bytes:
                most = format_size(self._most_bytes)
                return f"{size} more than the {most} of limits.max_results (`--max-results` lifts it)"
            if beside and self._most_beside is not None and self._beside.total() + size_bytes > self._most_beside:
                return too_much(size_bytes, self._most_beside)
            free_bytes = shutil.disk_usage(self._directory).free - self._coming.total()
            if size_bytes > max(free_bytes - RESERVED_BYTES, 0):
                free, stays = format_size(max(free_bytes, 0)), format_size(RESERVED_BYTES)
                return f"no room for {size}: {self._directory} has {free}, of which {stays} must stay free"
            self._used[worker] += size_bytes
            self._beside[worker] += size_bytes * beside
            self._coming[worker] += size_bytes
            return None

    def arrived(self, worker: int, size_bytes: int) -> None:
        """Note that so many reserved bytes are on the disk."""
        with self._lock:
            self._coming[worker] -= size_bytes


def too_much(size_bytes: int, most_bytes: int) -> str:
    """Return why a file beside the artifacts is not collected by itself."""
    most = format_size(most_bytes)
    return f"{format_size(size_bytes)}; of what lies beside the artifacts, {most} of a run come by themselves"

"""The keys that the hosts of a slice must present.

There is one file of host keys per node, mode 0600. A key that the cloud published is pinned before the first connection.
Without a published key, the first one presented is accepted once, reported, and pinned. A different key is never accepted.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.errors import HostKeyMismatch, UnexpectedReply
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.system import private_files, whole_file


def alias(index: int) -> str:
    """Return the worker's name in the file. Addresses change and are reused; the worker's index does not change."""
    return f"worker{index}"


class KnownHosts:
    def __init__(self, path: Path, workers: Sequence[WorkerAddress], on_notice: Callable[[str], None]) -> None:
        self.path = path
        self._on_notice = on_notice
        self._lock = threading.Lock()
        lines = path.read_text().splitlines() if path.exists() else []
        rows = (line.split(" ", 1) for line in lines if line)
        self._keys = {name: _key_part(key) for name, key in rows}
        for worker in workers:
            if worker.host_key is not None:
                self._pin(worker.index, _key_part(worker.host_key))
        self._write()

    def key(self, index: int) -> str | None:
        """Return the pinned key (`ssh-ed25519 AAAA…`), or None when none is pinned yet."""
        return self._keys.get(alias(index))

    def check(self, index: int, shown: str) -> None:
        """Check the key that a worker presents, and pin the first one. Raises HostKeyMismatch."""
        with self._lock:
            first = alias(index) not in self._keys
            self._pin(index, _key_part(shown))
            if first:
                self._write()
        if first:
            self._on_notice(f"{alias(index)} published no host key; trusting the first one it showed: {shown}")

    def _pin(self, index: int, key: str) -> None:
        known = self._keys.setdefault(alias(index), key)
        if known != key:
            raise HostKeyMismatch(
                f"{alias(index)} shows another host key than it must ({key[:40]}… instead of {known[:40]}…)",
                hint="another machine may answer at its address; delete the node and run again",
            )

    def _write(self) -> None:
        private_files.make_directory(self.path.parent)
        whole_file.replace(self.path, "".join(f"{name} {key}\n" for name, key in sorted(self._keys.items())))


def _key_part(line: str) -> str:
    """Return type and key of a public key line, without its comment."""
    parts = line.split()
    if len(parts) < 2:
        raise UnexpectedReply(f"not a host key: {line!r}")
    return f"{parts[0]} {parts[1]}"

"""How attempts ended, kept beside a ledger that could not be written, until a later command records it.

Without that, recovery would call a run whose process is gone interrupted, also one that succeeded. Room for it is taken when
the attempt begins: the disk may be full when it ends.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from orchestrator.core.lease.run_and_attempt import AttemptEnded, Began, ResultsCollected
from orchestrator.core.lease.run_spec import read

End = AttemptEnded | ResultsCollected
ROOM_BYTES = 16384
_KINDS: dict[str, type[End]] = {kind.__name__: kind for kind in (AttemptEnded, ResultsCollected)}


class KeptEnds:
    """One file for each attempt that has not ended in the ledger: a line for each end, then blanks. It raises nothing.

    `directory` has nothing else in it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def follow(self, *events: object) -> None:
        """Take room for the ends of attempts that began, and drop those of attempts that ended: the ledger has these events."""
        for event in events:
            if isinstance(event, Began):
                with contextlib.suppress(OSError):
                    self._directory.mkdir(mode=0o700, exist_ok=True)
                    self._write(event.attempt.id, b" " * ROOM_BYTES, 0)
            elif isinstance(event, End):
                self.drop(event.attempt_id)

    def keep(self, *events: object) -> None:
        """Keep the ends among the events, after those that are kept: the ledger decides which one counts."""
        for end in (event for event in events if isinstance(event, End)):
            line = json.dumps({"kind": type(end).__name__, **asdict(end)}).encode() + b"\n"
            with contextlib.suppress(OSError):
                used = len(self._read(end.attempt_id).rstrip(b" "))
                if used + len(line) <= ROOM_BYTES:  # a ledger that stays full has one more end with every command
                    self._write(end.attempt_id, line, used)

    def every(self) -> Iterator[tuple[str, list[End]]]:
        """Yield each attempt with its ends in their order; with none, while it goes on or if it was killed."""
        with contextlib.suppress(OSError):
            for path in sorted(self._directory.iterdir()):
                lines = self._read(path.name).splitlines()
                yield path.name, [end for line in lines if (end := _end(line)) is not None]

    def drop(self, attempt_id: str) -> None:
        """Forget the attempt: its end is in the ledger."""
        with contextlib.suppress(OSError):
            (self._directory / attempt_id).unlink()

    def _read(self, attempt_id: str) -> bytes:
        try:
            return (self._directory / attempt_id).read_bytes()
        except FileNotFoundError:
            return b""

    def _write(self, attempt_id: str, data: bytes, at: int) -> None:
        file = os.open(self._directory / attempt_id, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(file, data, at)
            os.fsync(file)
        finally:
            os.close(file)


def _end(line: bytes) -> End | None:
    try:
        values = json.loads(line)
        return read(_KINDS[values["kind"]], values)
    except (ValueError, KeyError, TypeError):  # blanks, or written by halves
        return None

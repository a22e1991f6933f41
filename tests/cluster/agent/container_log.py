"""The log of a container as containerd writes it and the kubelet reads it.

Each line has the time of its end in nanoseconds. A line of more than 16 KiB is stored in parts, each with its own time; it is
served as one line with the time of its first part. A file may be rotated away: the kubelet serves the newest file.
"""

import asyncio
import datetime
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

PART_BYTES = 16384


@dataclass(frozen=True, slots=True)
class Entry:
    at_ns: int
    data: bytes
    ends_line: bool


class ContainerLog:
    """What one container printed, stdout and stderr as they came."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._ended, self._changed = False, asyncio.Event()
        self._last_ns = 0

    def write(self, data: bytes, ends_line: bool) -> None:
        """Append a line without its newline, or a part of one."""
        self._last_ns = max(time.time_ns(), self._last_ns + 1)
        self._entries.append(Entry(self._last_ns, data, ends_line))
        self._tell()

    def rotate(self) -> None:
        """Begin a new file; what was written so far cannot be read any more, except by who follows already."""
        self._entries = []
        self._tell()

    def end(self) -> None:
        self._ended = True
        self._tell()

    async def read(self, follow: bool, timestamps: bool, since_ns: int | None) -> AsyncIterator[bytes]:
        """Yield it as the kubelet serves it; with `follow`, until the container ends."""
        entries, at_start, position = self._entries, True, 0
        while True:
            if position < len(entries):
                entry = entries[position]
                position += 1
                head = _written(entry.at_ns) + b" " if timestamps and at_start else b""
                # Also of what is left out: the rest of a long line then comes without a time.
                at_start = entry.ends_line
                if since_ns is not None and entry.at_ns < since_ns:
                    continue
                yield head + entry.data + (b"\n" if entry.ends_line else b"")
            elif entries is not self._entries:  # rotated: what follows is in the new file
                entries, position = self._entries, 0
            elif self._ended or not follow:
                return
            else:
                await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def capture(stream: asyncio.StreamReader, log: ContainerLog) -> None:
    """Write what comes on a pipe to the log, until the pipe ends. A last line without its newline counts as a line."""
    rest = b""
    while data := await stream.read(65536):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            log.write(_last_part(log, line), ends_line=True)
        rest = _last_part(log, rest)
    if rest:
        log.write(rest, ends_line=True)
    log.end()


def _last_part(log: ContainerLog, line: bytes) -> bytes:
    """Write the parts of a line but for the last one, and return that."""
    while len(line) > PART_BYTES:
        log.write(line[:PART_BYTES], ends_line=False)
        line = line[PART_BYTES:]
    return line


def _written(at_ns: int) -> bytes:
    seconds, rest = divmod(at_ns, 10**9)
    text = datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{rest:09d}Z".encode()


def parse_time(text: str) -> int:
    """Return an RFC 3339 time as nanoseconds."""
    at = datetime.datetime.fromisoformat(text)
    return int(at.timestamp()) * 10**9 + at.microsecond * 1000

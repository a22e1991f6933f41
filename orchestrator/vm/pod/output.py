"""What a pod says on its stdout: the log of the job as it is, and lines of its own between those lines.

`kubectl logs` shows it, `places.gke.pods.stream` reads it. Every line can be read by itself:

- `::tpujob {"n": 7, "of": "main", …}` is a control line: the seventh of this pod, of that phase. What it says is in its other
  keys (`pod` lists them). One without other keys is a mark: it says of which phase the lines before it are.
- `::tpujob|TEXT|` is the line TEXT of the job, which would be misread otherwise: it begins with `::tpujob`, or it ends with a
  carriage return, which some container runtimes drop.
- `::tpujob|TEXT\\` is a piece of a line of the job: its end has not come yet, or the line is long. Container runtimes split
  lines at 16 KiB, and a reader that continues by time could begin between two parts.
- Every other line is a line of the job.

A reader that lost its connection asks for everything from the time of the last line on. At the end of a phase it learns how
many bytes its log has, and so how much it missed: a node keeps the last part of a log only.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

WORD = b"::tpujob"
LINE_BYTES = 8192  # of the text of a line
CONTROL_BYTES = 15000  # with what is around them, less than the 16 KiB of a runtime
MARK_BYTES, MARK_S = 256 << 10, 60.0  # of log after a control line
HALF_LINE_S = 1.0  # so long the end of a line is waited for


class Output:
    """Writes to `fd`. Once that is closed or broken, everything is dropped: the job goes on without a reader."""

    def __init__(self, fd: int = 1) -> None:
        self.fd = fd
        self.broken = False
        self.of: str | None = None  # the phase
        self.at = 0  # bytes of its log that are written
        self._number = 0  # of the next control line
        self._half = b""  # of a line of the job
        self._half_since = 0.0
        self._marked_at, self._marked_s = 0, time.monotonic()

    def begin(self, phase: str) -> None:
        """Count the bytes of this phase's log from now on."""
        self.flush()
        self.of, self.at = phase, 0
        self._marked_at = 0

    def control(self, **said: Any) -> None:
        """Write a control line. One that is too long for a line of a container's log is a bug."""
        self.flush()
        line = json.dumps(dict({"n": self._number, "of": self.of}, **said)).encode()
        assert len(line) <= CONTROL_BYTES, "a control line that is too long"
        self._write(WORD + b" " + line + b"\n")
        self._number += 1
        self._marked_at, self._marked_s = self.at, time.monotonic()

    def log(self, data: bytes) -> None:
        """Write the next bytes of the job's log. The beginning of a line waits for its end."""
        data, self._half = self._half + data, b""
        end = data.rfind(b"\n") + 1
        if end:
            self._lines(data[:end])
        rest = data[end:]
        if full := len(rest) // LINE_BYTES * LINE_BYTES:
            self._text(rest[:full], ended=False)
            rest = rest[full:]
        if rest and (end or not self._half_since):
            self._half_since = time.monotonic()
        self._half = rest
        if self.at - self._marked_at >= MARK_BYTES:
            self.control()

    def skip(self, size_bytes: int, **said: Any) -> None:
        """Leave out the next bytes of the log, and say what is to be said of that."""
        self.flush()
        self.at += size_bytes
        self.control(**said)

    def tick(self) -> None:
        """Write what has waited for too long: the beginning of a line, and a mark."""
        now = time.monotonic()
        if self._half and now - self._half_since >= HALF_LINE_S:
            self.flush()
        if self.at > self._marked_at and now - self._marked_s >= MARK_S:
            self.control()

    def flush(self) -> None:
        """Write the beginning of a line without waiting for its end."""
        half, self._half, self._half_since = self._half, b"", 0.0
        if half:
            self._text(half, ended=False)

    def _lines(self, data: bytes) -> None:
        """Write whole lines: all at once where none is special."""
        lines = data[:-1].split(b"\n")
        if WORD not in data and b"\r\n" not in data and max(map(len, lines)) <= LINE_BYTES:
            self._write(data)
            self.at += len(data)
            return
        for line in lines:
            self._text(line, ended=True)

    def _text(self, text: bytes, *, ended: bool) -> None:
        while len(text) > LINE_BYTES:
            self._text(text[:LINE_BYTES], ended=False)
            text = text[LINE_BYTES:]
        if not ended:
            self._write(b"%s|%s\\\n" % (WORD, text))
        elif text.startswith(WORD) or text.endswith(b"\r"):
            self._write(b"%s|%s|\n" % (WORD, text))
        else:
            self._write(text + b"\n")
        self.at += len(text) + ended

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self.broken:
            try:
                rest = rest[os.write(self.fd, rest) :]
            except OSError:
                self.broken = True

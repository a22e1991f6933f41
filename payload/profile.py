"""A trace of some steps of the training, by the profiler of the backend, for XProf and TensorBoard.

Process 0 of worker 0 traces its own device: all processes do the same, and a trace of each would be as many times as large. A
profiler slows the steps that it traces, so the clock keeps them apart. Whatever fails here is printed in one line, and the
training goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from payload.artifacts import PROFILE, PROFILE_DRAFT
from payload.config import ProfileConfig

if TYPE_CHECKING:
    from payload.backends import Backend
    from payload.backends.traces import Trace
    from payload.clock import Clock

MOST_BYTES = 256 << 20


class Profile:
    """Call `before` and `after` around each step, and `end` after the last one. Does nothing where `wanted` is None."""

    def __init__(
        self,
        wanted: ProfileConfig | None,
        backend: Backend,
        clock: Clock,
        artifacts: Path,
        say: Callable[[str], None],
        *,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._wanted, self._backend, self._clock, self._say = wanted, backend, clock, say
        self._directory, self._draft = artifacts / PROFILE, artifacts / PROFILE_DRAFT
        self._most_bytes = most_bytes
        self._found: dict[str, Any] = {}
        self._trace: Trace | None = None
        self._began = 0  # completed steps when the trace began
        self._warm = False  # the step before, of this process, compiled nothing
        self._resumed: bool | None = None  # the training began in an earlier process; None: no step has begun here
        self._waits = wanted is not None
        if self._waits and self._directory.is_dir():
            self._waits = False
            self._found = {"size_bytes": _size(self._directory), "problem": None}
            say("profile: an earlier attempt of this run has written it")

    def before(self, done: int) -> None:
        """Begin the trace if it is due, and the step in it. `done`: completed steps of the whole training."""
        if self._trace is None and not self._is_due(done):
            return
        try:
            if self._trace is None:
                self._waits, self._began = False, done
                self._clock.profile(True)
                trace = self._backend.trace(self._draft)
                trace.start()
                self._trace = trace
            self._trace.begin_step(done + 1)
        except Exception as error:  # any of the profiler's: it is not worth a training
            self._fail(error)

    def _is_due(self, done: int) -> bool:
        if not self._waits or self._wanted is None:
            return False
        # A training that is resumed at `start` or later compiles anew first; that is not what was asked for.
        if self._resumed is None:
            self._resumed = done > 0
        return done + 1 >= self._wanted.start and (self._warm or not self._resumed)

    def after(self, done: int, compiled: bool) -> None:
        """End the step in the trace, and the trace with its last step."""
        self._warm = not compiled
        if self._trace is None or self._wanted is None:
            return
        try:
            self._trace.end_step()
        except Exception as error:
            self._fail(error)
            return
        if done - self._began == self._wanted.steps:
            self._finish(done)

    def end(self, done: int) -> None:
        """The training has ended after `done` steps: end the trace, or report that it never began."""
        if self._trace is not None:
            self._finish(done)
        elif self._waits and self._wanted is not None:
            self._waits = False
            self._absent(f"the training ended after step {done:,}, and `start` is {self._wanted.start:,}")

    def described(self) -> dict[str, Any]:
        """Return the field of metrics.json; {} where no profile was asked for, or on other processes than the first."""
        return {"profile": self._found} if self._found else {}

    def _finish(self, done: int) -> None:
        """Write the trace and keep it, if it is not too large."""
        trace, self._trace = self._trace, None
        assert trace is not None
        self._backend.drain()  # what the last step dispatched belongs to the trace
        try:
            trace.stop()
            size_bytes = _size(self._draft)
            if size_bytes == 0:
                raise OSError("the profiler wrote no file")
            if size_bytes > self._most_bytes:
                raise OSError(f"{_short(size_bytes)} are more than {_short(self._most_bytes)}; trace fewer steps")
            self._draft.rename(self._directory)
        except Exception as error:
            self._fail(error)
            return
        self._clock.profile(False)
        self._found = {"first_step": self._began + 1, "last_step": done, "size_bytes": size_bytes, "problem": None}
        self._say(f"profile: steps {self._began + 1:,} to {done:,}, {_short(size_bytes)} in {PROFILE}/")

    def _fail(self, error: Exception) -> None:
        trace, self._trace = self._trace, None
        if trace is not None:
            with suppress(Exception):  # a profiler that runs on would slow the training
                trace.stop()
        shutil.rmtree(self._draft, ignore_errors=True)
        self._clock.profile(False)
        self._absent((str(error).splitlines() or [type(error).__name__])[0][:200])

    def _absent(self, problem: str) -> None:
        self._found = {"size_bytes": 0, "problem": problem}
        self._say(f"profile: not written: {problem}")


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _short(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:,.0f} KB"

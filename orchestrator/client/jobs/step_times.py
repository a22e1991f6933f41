"""When which step of a job was reported: `logs/steps.jsonl`, from which curves are drawn over time. `report.files` reads it."""

import json
import time
from pathlib import Path
from typing import IO

from orchestrator import private_files
from orchestrator.report.files.metrics import steps_path

LEAST_S = 0.5  # between two lines
SHARE = 0.002  # of the time so far: a day has some thousand lines


class StepTimes:
    """Writes a line now and then: a step that is higher than all before, and when it came. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._path = steps_path(directory)
        self._file: IO[bytes] | None = None
        self._broken = False
        self._began = self._not_before = time.monotonic()
        self._highest = self._written = -1
        self._came_at = 0.0  # the highest one, in unix seconds

    def note(self, step: int | None, *, now: bool = False) -> None:
        """Take the step that the job is at; None is no step. `now`: write it, however soon after the last one."""
        if step is not None and step > self._highest:
            self._highest, self._came_at = step, time.time()
        at = time.monotonic()
        if self._highest > self._written and (now or at >= self._not_before):
            self._written = self._highest
            self._not_before = at + max(LEAST_S, SHARE * (at - self._began))
            # When it came, not now: the next attempt, which is not as far yet, may be what is noted now.
            self._write({"at": round(self._came_at, 3), "step": self._highest})

    def close(self) -> None:
        """Write the last step, and close the file."""
        self.note(None, now=True)
        if self._file is not None:
            self._file.close()

    def _write(self, line: dict[str, float]) -> None:
        """A disk that takes no file costs the file, not the job."""
        try:
            if self._file is None and not self._broken:
                private_files.make_directory(self._path.parent)
                self._file = private_files.open_file(self._path, "ab", buffering=0)
            if self._file is not None:
                self._file.write(json.dumps(line).encode() + b"\n")
        except OSError:
            self._broken = True

"""The clock of the emulated cloud: it goes on at its own pace, whatever is done to the wall clock of this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator import boot_clock

FILE = "clock.json"


@dataclass(frozen=True)
class SteadyClock:
    """Unix seconds. `zero` is what it says when the boot clock of this machine says 0."""

    zero: float

    def __call__(self) -> float:
        return self.zero + boot_clock.boot_s()


def steady_clock(directory: Path, not_before: float, wall: Callable[[], float] = time.time) -> SteadyClock:
    """The clock of the last daemon, if this machine has not restarted since; else one that begins with the wall clock's time.

    `not_before`: what has happened by then stays in the past.
    """
    path, boot = directory / FILE, boot_clock.boot_id()
    try:
        saved = json.loads(path.read_text())
        if saved["boot"] == boot:
            return SteadyClock(float(saved["zero"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # there is none, or none that can be read: as after a restart
    clock = SteadyClock(max(wall(), not_before) - boot_clock.boot_s())
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({"boot": boot, "zero": clock.zero}))
    draft.replace(path)
    return clock

"""The clock of the emulated cloud: steady, whatever is done to the wall clock of this machine."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator import boot_clock

FILE = "clock.json"


@dataclass(frozen=True)
class SteadyClock:
    """Returns Unix seconds. `zero` is its time at zero of this machine's boot clock."""

    zero: float

    def __call__(self) -> float:
        return self.zero + boot_clock.boot_s()


def steady_clock(directory: Path, not_before: float, wall: Callable[[], float] = time.time) -> SteadyClock:
    """Return the clock of the last daemon, or, after a restart of this machine, one that begins with the wall clock's time.

    It begins at `not_before` or later, so that recorded events stay in the past.
    """
    path, boot = directory / FILE, boot_clock.boot_id()
    try:
        saved = json.loads(path.read_text())
        if saved["boot"] == boot:
            return SteadyClock(float(saved["zero"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # missing or damaged: as after a restart
    clock = SteadyClock(max(wall(), not_before) - boot_clock.boot_s())
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({"boot": boot, "zero": clock.zero}))
    draft.replace(path)
    return clock

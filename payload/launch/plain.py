"""`backend: none`: the `entry` in one plain process for each worker, without PyTorch.

For JAX, NumPy and anything else that brings its own way to the accelerator. Standard library only.
"""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from payload import artifacts
from payload.config import Config
from payload.failures import PayloadError
from payload.launch.entry import check_found, load_entry, own_frames
from payload.launch.placement import Placement
from payload.metrics import MetricsFile


@dataclass(frozen=True)
class PlainRun:
    """The `run` argument of an entry with `backend: none`: that of `payload.run`, as far as it needs no PyTorch."""

    config: Config
    placement: Placement

    @property
    def rank(self) -> int:
        """Return the index of this worker."""
        return self.placement.worker

    @property
    def world(self) -> int:
        """Return the number of workers, of which each is one process."""
        return self.placement.workers

    @property
    def options(self) -> dict[str, Any]:
        return self.config.options or {}

    @property
    def artifacts(self) -> Path:
        return Path(self.placement.artifacts)

    def report(self, step: int | None = None, **values: float | None) -> None:
        """Append figures to metrics.jsonl, on worker 0 only: `run.report(step=1200, loss=0.41)`. Raises OSError."""
        if self.rank == 0:
            self._metrics.write(step, values)

    @cached_property
    def _metrics(self) -> MetricsFile:
        return MetricsFile(self.artifacts / artifacts.METRICS, after=None)

    def say(self, line: str) -> None:
        """Print a line to the log, on worker 0 only."""
        if self.rank == 0:
            print(line, flush=True)


def run(config: Config, placement: Placement, started: float) -> int:
    """Call the entry and write the artifacts. Returns the exit code of this worker; raises PayloadError."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)  # as of any program; an entry may set its own handlers
    plain = PlainRun(config, placement)
    artifacts.write_json(plain.artifacts / "provenance.json", _provenance(config, placement))
    try:
        entry: Callable[[None, PlainRun], Any] = load_entry(config.entry_point)
        found = check_found(entry(None, plain), config.entry, is_first=plain.rank == 0)
    except PayloadError:
        raise
    except BaseException as error:
        traceback.print_exception(type(error), error, own_frames(error.__traceback__) or error.__traceback__)
        return 1
    if plain.rank == 0:
        artifacts.write_json(plain.artifacts / "metrics.json", _metrics(placement, found, time.monotonic() - started))
    artifacts.write_manifest(plain.artifacts)
    return 0


def _metrics(placement: Placement, found: dict[str, Any], total_s: float) -> dict[str, Any]:
    world = {"processes": placement.workers, "workers": placement.workers, "emulated": placement.emulated}
    return {
        **found,
        "schema": artifacts.SCHEMA,
        "seconds": {"total_s": total_s},
        "world": {**world, "notes": list(placement.notes)},
    }


def _provenance(config: Config, placement: Placement) -> dict[str, Any]:
    return artifacts.provenance(
        config=asdict(config), placement=asdict(placement), emulated=placement.emulated, processes=placement.workers
    )

"""How a run ended: the frozen result that `run`, `attach` and `collect` return."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.errors import TpujobError


@dataclass(frozen=True, slots=True)
class RunResult:
    """`error` is None after a success, and in a detached run. Times are unix seconds, by the ledger's clock."""

    run: str
    name: str
    state: str
    exit_code: int  # of the command: the job's own, or 75 while a slice is not proven gone
    directory: Path
    started_at: float
    ended_at: float
    attempts: int = 1
    cost_usd: float | None = None  # of all attempts; None: unknown, or a run on this machine
    metrics: dict[str, Any] = field(default_factory=dict)
    artifacts: tuple[Path, ...] = ()
    released: bool = True  # every slice of the run is proven absent
    release: str = "nothing was created"
    detached: bool = False  # the job goes on without this process
    error: TpujobError | None = None
    lines: tuple[str, ...] = ()  # what `tpujob` prints on stdout

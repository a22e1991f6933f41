"""Names the workers from which nothing comes while a job runs: pure. Their jobs may well go on, and so do all the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.core.text.alike import worker_names
from orchestrator.core.text.durations import format_duration

if TYPE_CHECKING:
    from orchestrator.remote.fleet.follow import WorkerStatus

# Seconds without a byte: named within ten seconds, as a worker sends something every two, and again later.
NAMED_S = (8.0, 30.0, 60.0, 300.0)
TOGETHER_S = 2.0  # workers that become silent within this time are named together


@dataclass(slots=True)
class Silence:
    """The workers of one phase that are named as silent."""

    _named: dict[int, int] = field(default_factory=dict)  # how often, by worker

    def news(self, workers: Sequence[WorkerStatus], now: float) -> list[str]:
        """Return what is new at `now` (unix seconds): all silent workers if one of them is to be named, those that are back."""
        silent_s = {worker.index: worker.silent_s(now) for worker in workers if not worker.final}
        told: list[str] = []
        if back := [index for index in self._named if silent_s.get(index, 0.0) < NAMED_S[0]]:
            told.append(f"{worker_names(back)} {'answers' if len(back) == 1 else 'answer'} again")
            for index in back:
                del self._named[index]
        if any(self._is_due(index, seconds) for index, seconds in silent_s.items()):
            for index, seconds in silent_s.items():
                while self._is_due(index, seconds + TOGETHER_S):
                    self._named[index] = self._named.get(index, 0) + 1
            told.append(self._line(silent_s, len(workers)))
        return told

    def _is_due(self, index: int, seconds: float) -> bool:
        count = self._named.get(index, 0)
        return count < len(NAMED_S) and seconds >= NAMED_S[count]

    def _line(self, silent_s: dict[int, float], workers: int) -> str:
        longest = format_duration(round(max(silent_s[index] for index in self._named)))
        names = f"{worker_names(self._named)} ({len(self._named)} of {workers})"
        return f"waiting for {names}: nothing came for {longest}; the job may go on there"

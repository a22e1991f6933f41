"""The starts of a job that its cluster may start again, as its pods count them in the bucket (`vm/pod/starts.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.errors import ArtifactError, CloudError
from orchestrator.promise.lease.run_and_attempt import RunRecord, SavedState
from orchestrator.text import parsing

MOST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Start:
    """`pod`: its worker 0; `at`: when that began, unix seconds; `used_s`: of the time of the job, as far as it said so."""

    pod: str
    at: float
    used_s: float


@dataclass(frozen=True, slots=True)
class Starts:
    """`most`: how many there may be. `read`: yields the count of one; CloudError, absent for one that is not there yet."""

    most: int
    read: Callable[[int], Iterator[bytes]]
    saved: Callable[[], SavedState]

    def __call__(self) -> tuple[Start, ...]:
        """Return those that are counted, one more than there may be at most. Raises CloudError, ArtifactError."""
        found: list[Start] = []
        for number in range(1, self.most + 2):
            try:
                content = b"".join(self.read(number))
            except CloudError as error:
                if error.reason == "absent":
                    break
                raise
            found.append(_start(content))
        return tuple(found)


def _start(content: bytes) -> Start:
    try:
        said = parsing.loads(content[:MOST_BYTES].decode())
        pod, at, used_s = said["pod"], float(said["at"]), float(said.get("used_s") or 0.0)
        if isinstance(pod, str) and math.isfinite(at + used_s):
            return Start(pod, at, max(used_s, 0.0))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise ArtifactError("the bucket of the job has a count of its starts that makes no sense")


def shown(starts: Sequence[Start], hosts: Sequence[str], *, over: bool) -> Sequence[Start]:
    """Return the starts up to that of these pods; once the job is over, all; nothing while that is not counted."""
    number = next((number for number in range(len(starts), 0, -1) if starts[number - 1].pod in hosts), 0)
    return starts if over else starts[:number]


def restarts_of(run: RunRecord) -> int:
    """Return how often the cluster may start the job of a run again."""
    most = run.spec.values.get("max_restarts") if run.spec.values.get("on_preemption") == "restart" else 0
    return most if isinstance(most, int) else 0

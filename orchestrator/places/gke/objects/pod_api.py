"""The values between programs and the pods of a JobSet, and the `PodApi` protocol.

Nothing here mentions HTTP or the fields of a Pod. `places.gke.api` translates the API of Kubernetes into these values;
`places.gke.pods` follows the pods through them.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class PodPhase(StrEnum):
    """The phase of a pod, as Kubernetes defines it."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"

    @property
    def ended(self) -> bool:
        """Whether no container of the pod runs any more."""
        return self in (PodPhase.SUCCEEDED, PodPhase.FAILED)


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of a job as the API describes it. Times: unix seconds, the server's clock."""

    name: str
    worker: int  # its slice × the hosts of a slice + its host
    phase: PodPhase
    node: str = ""  # empty: not scheduled yet
    rc: int | None = None  # of its container; None: it has not ended, or the code is unknown
    # Why it waits or how it ended: `Unschedulable`, `ImagePullBackOff`, `Evicted`, `DeadlineExceeded`, …
    reason: str = ""
    message: str = ""  # the same in a sentence
    note: str = ""  # the termination message that the program in the pod left
    started_at: float | None = None  # of its container
    ended_at: float | None = None


class LogStream(Protocol):
    """The log of one container. Iterating blocks until data arrives, and ends with the container or the connection.

    Each line begins with its time in RFC 3339 and a space. Raises CloudError.
    """

    def __iter__(self) -> Iterator[bytes]:
        """Yield pieces of the log as they arrive."""

    def close(self) -> None:
        """End the stream at once, from any thread."""


class PodApi(Protocol):
    """The calls on the pods of one JobSet. Each has a timeout and raises `CloudError`s; none decides anything."""

    def pods(self) -> tuple[PodView, ...]:
        """Return every pod of the JobSet, ordered by worker. Pods that were replaced or do not exist yet are left out."""

    def log(self, pod: str, since: float | None = None) -> LogStream:
        """Follow the log of the pod's container from `since` on (unix seconds, rounded down); None: from its first line."""

    def close(self) -> None:
        """End every call and stream at once, from any thread."""


FRESH_S = 1.0


class PodViews:
    """The pods as the API shows them, asked at most once a second for all followers together."""

    def __init__(self, api: PodApi) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._views: Mapping[int, PodView] = {}
        self._asked_at = -FRESH_S

    def now(self, worker: int) -> PodView | None:
        """Return the pod of a worker, None if it has none. The list began less than FRESH_S before. Raises CloudError."""
        return self.every().get(worker)

    def every(self) -> Mapping[int, PodView]:
        """Return all pods, by worker. Raises CloudError."""
        with self._lock:
            asked_at = time.monotonic()
            if asked_at - self._asked_at >= FRESH_S:
                self._views = {view.worker: view for view in self._api.pods()}
                self._asked_at = asked_at
            return self._views

"""The way to the workers of a place that has none by a connection, and no keys: a `ReachPort` that is never asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.hosts.fleet.crew import Crew
    from orchestrator.promise.lease.cloud_api import WorkerAddress
    from orchestrator.promise.lease.lease import Lease


class NoReach:
    __slots__ = ()

    def fleet(
        self, lease: Lease, workers: Sequence[WorkerAddress], notice: Callable[[str], None], now: Callable[[], float]
    ) -> Crew:
        raise AssertionError("its workers are not connected to")

    def grant_login(self, lease: Lease, expires_at: float) -> str:
        raise AssertionError("no lease of this place has an SSH key")

    def extend_login(self, lease: Lease, expires_at: float) -> None:
        raise AssertionError("no lease of this place has an SSH key")

    def revoke_login(self, lease: Lease) -> None:
        raise AssertionError("no lease of this place has an SSH key")

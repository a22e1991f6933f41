"""How this machine gets to the pods of a job: through the API server of their cluster, and by no connection of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.places.gke import bucket
from orchestrator.places.no_reach import NoReach

if TYPE_CHECKING:
    from orchestrator.core.lease.cloud_api import WorkerAddress
    from orchestrator.core.lease.lease import Lease
    from orchestrator.core.lease.run_and_attempt import RunRecord
    from orchestrator.places.gke.api.client import ClusterCloud
    from orchestrator.places.gke.pods.fleet import PodFleet


@dataclass(frozen=True, slots=True)
class PodReach(NoReach):
    """`cloud`: opens the connection to the cluster, if there is none yet."""

    cloud: Callable[[], ClusterCloud]
    run_of: Callable[[Lease], RunRecord | None]  # whose bucket may have the results

    def fleet(
        self, lease: Lease, workers: Sequence[WorkerAddress], notice: Callable[[str], None], now: Callable[[], float]
    ) -> PodFleet:
        """Return the pods of a lease as its workers. Raises Vanished if its JobSet does not exist any more."""
        from orchestrator.places.gke.pods.fleet import PodFleet

        run = self.run_of(lease)
        results = None if run is None else bucket.results(run)
        return PodFleet(self.cloud().pods(lease.name), workers, on_notice=notice, now=now, results=results)

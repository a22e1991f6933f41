"""The pods of a job as the API shows them, asked at most once a second for all followers together."""

import threading
import time
from collections.abc import Mapping

from orchestrator.places.gke.objects.pod_api import PodApi, PodView

FRESH_S = 1.0


class PodViews:
    """`now` answers from one list of all pods."""

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

"""The pods of a JobSet as the crew of a job.

Nothing can be sent to a pod: what it runs is in its manifest, it keeps its own limits, and its results are in its log or in
Cloud Storage. Calls raise only errors of `orchestrator.errors`; `cancel` ends them at once.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.errors import CloudError, Unreachable
from orchestrator.hosts.fleet.crew import FleetStatus, Following, FoundAttempt, Sink, locked
from orchestrator.hosts.ssh.fan_out import FanOutAbandoned, Wakeup
from orchestrator.hosts.transfer.collect import CollectRequest
from orchestrator.hosts.transfer.collection import Collection
from orchestrator.places.gke.objects.pod_api import PodApi, PodViews
from orchestrator.places.gke.pods.collection import collected
from orchestrator.places.gke.pods.follower import Follower
from orchestrator.places.gke.pods.index import ReadResult
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.text.terminal import worker_names

CONNECT_LOOK_S = 1.0
WATCH_S = 3.0
SETTLE_S = 10.0  # for the last of a log after its pod has ended, before the connection is closed
SILENT_S = 300.0  # without a word: the connection is made again, in case it is dead


class PodFleet:
    def __init__(
        self,
        api: PodApi,
        workers: Sequence[WorkerAddress],
        *,
        on_notice: Callable[[str], None],
        now: Callable[[], float] = time.time,
        results: ReadResult | None = None,
        record: Callable[[], list[FoundAttempt]] = list,
    ) -> None:
        """`on_notice` receives messages for the user. `results`: where those in Cloud Storage are read, if anywhere.

        `record`: reads what the objects of the job say of its attempt.
        """
        self.workers = tuple(workers)
        self._record = record
        self._api, self._on_notice, self._now, self._results = api, on_notice, now, results
        self._wakeup = Wakeup()
        self._views = PodViews(api)
        self._attempt = self._phase = ""
        self._following = Following[Follower]()
        self._callback_lock = threading.Lock()
        self._watching = False

    def connect(self, deadline_s: float, on_wait: Callable[[str], None] = lambda _text: None) -> None:
        """Wait until every worker has its pod, `deadline_s` at most; `on_wait` receives which have none. Raises Unreachable.

        Those without a host are not waited for: their pods may be gone.
        """
        give_up_at = self._now() + deadline_s
        while True:
            why = "no pod is there"
            missing = awaited = [worker.index for worker in self.workers if worker.host]
            try:
                views = self._views.every()
                missing = [index for index in awaited if index not in views]
            except CloudError as error:
                why = error.message
            if not missing:
                return
            text = f"{worker_names(missing)} of {len(self.workers)}: {why}"
            if self._now() >= give_up_at:
                raise Unreachable(f"{text}, for {deadline_s:.0f} s")
            on_wait(f"waiting for {text}")
            self._wakeup.sleep(CONNECT_LOOK_S)

    def attempts(self, run: str) -> list[FoundAttempt]:
        """Return the attempts of a run of which the objects of its job have a record. Raises CloudError."""
        return self._record()

    def log_sizes(self, attempt: str) -> dict[int, int]:
        """Return that no pod says how much it has printed, by worker."""
        return dict.fromkeys((each.index for each in self.workers), sys.maxsize)

    def attach(self, attempt: str, phase: str) -> None:
        """Select the phase that later calls act on."""
        self._attempt, self._phase = attempt, phase

    def follow(self, sink: Sink, metrics: Sink | None = None) -> None:
        """Fetch every pod's log of the phase from its first byte, in the background. `sink` is called with one piece at a time.

        `metrics` receives what worker 0 writes to metrics.jsonl in phase `main`; b"" says that the file begins anew. Phases
        that are attached one after the other come from the same connections.
        """
        deliver = locked(self._callback_lock, sink)
        figures = locked(self._callback_lock, metrics) if metrics is not None and self._phase == "main" else None
        followers = self._following.followers
        fresh = not followers or not all(each.can_attach(self._phase) for each in followers)
        if fresh:
            for old in followers:
                old.close()
            followers = [self._follower(worker) for worker in self.workers]
        self._following = Following(followers)
        for each in followers:
            each.attach(self._attempt, self._phase, deliver, figures if each.index == 0 else None)
            if fresh:
                each.thread.start()
        if not self._watching:
            self._watching = True
            threading.Thread(target=self._watch, name="watch-pods", daemon=True).start()

    def _follower(self, worker: WorkerAddress) -> Follower:
        return Follower(self._api, worker, self._views, self._results, self._wakeup, self._on_notice, self._now)

    def wait(self, timeout_s: float) -> FleetStatus:
        """Wait until a worker's state changes, `timeout_s` at most; return all states. Returns at once when all ended."""
        return self._following.wait(self._wakeup, timeout_s)

    def stop(self, grace_s: float) -> None:
        """Wait for the ends of the pods, `grace_s` at most: deleting the JobSet is what stops them."""
        followers = self._following.followers
        with self._wakeup.changed:
            self._wakeup.wait_for(lambda: all(follower.done for follower in followers), grace_s)

    def collect(self, order: CollectRequest) -> Collection:
        """Start collecting every pod's results into `order.destination/worker<i>/`; return the running collection.

        They come after the log: a phase must be followed first.
        """
        assert self._following.followers, "follow comes before collect"
        order = replace(order, attempt=order.attempt or self._attempt)
        return collected(self._following.followers, self._wakeup, self._results, order)

    def cancel(self) -> None:
        """End every running call, in any thread, with FanOutAbandoned; every later call, too. The pods go on."""
        self._wakeup.cancel()
        self._api.close()

    def canceled(self, timeout_s: float) -> bool:
        """Wait until `cancel`, `timeout_s` at most; return whether it was called."""
        return self._wakeup.canceled.wait(timeout_s)

    def _watch(self) -> None:
        """Note which pods live, however silent; close connections that can bring nothing more, though nothing ended them."""
        try:
            while True:
                self._wakeup.sleep(WATCH_S)
                try:
                    views = self._views.every()
                except CloudError:
                    continue
                for follower in self._following.followers:
                    view = views.get(follower.index)
                    over = view is None or view.phase.ended
                    if not over:
                        follower.seen_alive()
                    if follower.silent_s > (SETTLE_S if over else SILENT_S):
                        follower.close_stream()
        except FanOutAbandoned:
            return

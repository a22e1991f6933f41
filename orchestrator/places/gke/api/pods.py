"""The pods of a JobSet: what the control plane says of them, and their logs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from orchestrator.errors import CloudUnavailable, Vanished
from orchestrator.hosts.fleet.crew import FoundAttempt, found_attempts
from orchestrator.places.gke.api import views
from orchestrator.places.gke.api.kube_api import KubeApi, NotFound, path_of, translated
from orchestrator.places.gke.objects.manifest import REQUEST
from orchestrator.places.gke.objects.pod_api import PodView
from orchestrator.promise.lease.lease import SliceName
from orchestrator.text import parsing

if TYPE_CHECKING:
    import httpx2


class JobSetPods:
    """The `PodApi` of one JobSet. `hosts`: of a slice. `labels`: the selector of its pods."""

    def __init__(self, api: KubeApi, name: SliceName, hosts: int, labels: str) -> None:
        self._api, self._name, self._hosts, self._labels = api, name, hosts, labels
        self._lock = threading.Lock()
        self._open: set[PodLog] = set()
        self._closed = False

    def pods(self) -> tuple[PodView, ...]:
        rows = self._api.list(path_of("pods", self._name.zone), labels=self._labels).items
        newest: dict[int, tuple[str, PodView]] = {}
        for row in rows:
            view, made = views.pod_view(row, self._hosts), str(row["metadata"].get("creationTimestamp") or "")
            if view.worker not in newest or made > newest[view.worker][0]:
                newest[view.worker] = (made, view)
        return tuple(view for _, (_, view) in sorted(newest.items()))

    def log(self, pod: str, since: float | None = None) -> PodLog:
        query = {"follow": "true", "timestamps": "true", "container": "job"}
        if since is not None:
            query["sinceTime"] = datetime.fromtimestamp(int(since), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            response = self._api.stream(f"{path_of('pods', self._name.zone, pod)}/log", query)
        except NotFound as error:
            raise Vanished(f"pod {pod} does not exist any more") from error
        stream = PodLog(response, self._api.server, self)
        with self._lock:
            self._open.add(stream)
            closed = self._closed
        if closed:
            stream.close()
        return stream

    def record(self) -> list[FoundAttempt]:
        """Return the attempt of which the ConfigMap has a record, if it is there and has one."""
        try:
            found = self._api.get(path_of("configmaps", self._name.zone, self._name.node))
            record = parsing.loads(found["data"][REQUEST])["record"]
            attempt = record["attempt"]
        except (NotFound, KeyError, TypeError, ValueError, RecursionError):  # an older tpujob, or a person, made it
            return []
        return found_attempts([{"attempt": attempt, "record": record, "status": {}}])

    def forget(self, stream: PodLog) -> None:
        with self._lock:
            self._open.discard(stream)

    def close(self) -> None:
        with self._lock:
            self._closed, streams = True, list(self._open)
        for stream in streams:
            stream.close()


class PodLog:
    """The log of one pod, as it grows."""

    def __init__(self, response: httpx2.Response, server: str, pods: JobSetPods) -> None:
        self._response, self._server, self._pods = response, server, pods
        self._closed = False

    def __iter__(self) -> Iterator[bytes]:
        try:
            with translated(self._server):
                yield from self._response.iter_bytes()
        except Exception as error:
            if self._closed:  # from another thread
                raise CloudUnavailable("the log was closed") from error
            raise
        finally:
            self.close()

    def close(self) -> None:
        """End the stream at once, from any thread: shut its socket, on which another thread may be waiting."""
        self._closed = True
        self._pods.forget(self)
        stream = self._response.extensions.get("network_stream")
        sock = stream.get_extra_info("socket") if stream is not None else None
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(2)
        self._response.close()

"""Follows one pod to its end: its log phase by phase, its metrics, its results, and what became of it."""

import base64
import contextlib
import time
from collections.abc import Callable, Iterator

from orchestrator.errors import ArtifactError, CloudError, CloudUnavailable
from orchestrator.hosts.fleet.follow import TEXT_CHARS, WorkerFollower, WorkerState, WorkerStatus
from orchestrator.hosts.ssh.fan_out import FanOutAbandoned, Wakeup
from orchestrator.places.gke.objects.pod_api import LogStream, PodApi, PodPhase, PodView, PodViews
from orchestrator.places.gke.pods import phase_ends
from orchestrator.places.gke.pods.index import ReadResult, read_index
from orchestrator.places.gke.pods.phase_ends import Said
from orchestrator.places.gke.pods.stream import PHASES, Control, Event, NodeSays, PodLog, metrics_in
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.text.terminal import LeftOut, printable

RETRY_FIRST_S, RETRY_MOST_S = 0.2, 3.0
OUTAGE_S = 600.0  # without anything new of a pod that has ended, while the API server or its node is away
LAST_TRIES = 4  # for its log, where the cluster answers that there is none, or a part of it as all
FATE_S = 15.0  # for the API to say why a pod was stopped
RESULTS_BYTES = 4 << 20  # of results in a log: more than a pod writes there
NOTICES = 20  # of one pod

Deliver = Callable[[int, bytes], None]


class Follower(WorkerFollower):
    """Of a pod."""

    def __init__(
        self,
        api: PodApi,
        worker: WorkerAddress,
        views: PodViews,
        results: ReadResult | None,
        wakeup: Wakeup,
        on_notice: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        """`results`: where those in the bucket of the job are read, if it has one.

        A worker without a host is one whose pod may be gone already.
        """
        super().__init__(worker.index, wakeup, now)
        self._may_be_gone, self._results = not worker.host, results
        self.results = bytearray()  # those in the log
        self.finished = False  # nothing comes any more
        self.has_sent_all = False  # its last line has come
        self.unread = ""  # why its log could not be read to its end
        self.is_gone = False  # it does not exist any more
        self._api, self._views, self._on_notice = api, views, on_notice
        self._log = PodLog()
        self._pod = ""
        self._stream: LogStream | None = None
        self._moved_at = time.monotonic()  # when something came, or was done with
        self._is_busy = False  # with what came: the connection is not read
        self.news = 0  # how often something came that was new
        self._notices = NOTICES
        self._attempt = self._phase = ""  # which are attached
        self._begun: set[str] = set()  # the phases of which something came, or that were left out
        self._deliver: Deliver = _nothing
        self._metrics: Deliver | None = None
        self.note: Said = {}  # what the pod said last of all
        self._closed = False
        self._last_view: PodView | None = None
        self._earlier: tuple[int | None, Said] | None = None  # how a phase before the attached one failed

    # -- for the fleet --

    def seen_alive(self) -> None:
        """The control plane says that the pod runs: its job is silent, and nothing is wrong with it."""
        self._heard_at = self._now()

    @property
    def silent_s(self) -> float:
        """Return for how long the connection has brought nothing, though it is read."""
        return 0.0 if self._is_busy else time.monotonic() - self._moved_at  # in this order: see `_take`

    def can_attach(self, phase: str) -> bool:
        """Return whether nothing of the phase has been passed over."""
        return phase not in self._begun and self.error is None

    def attach(self, attempt: str, phase: str, deliver: Deliver, metrics: Deliver | None) -> None:
        """Pass on this phase of an attempt from its first byte on. Phases before it are left out, those after it wait."""
        with self._wakeup.changed:
            self._attempt, self._phase, self._deliver, self._metrics = attempt, phase, deliver, metrics
            self._log_bytes = 0
            self._status = WorkerStatus(self.index, WorkerState.RUNNING, self._now(), 0)
            if self.finished:  # without having begun this phase
                self._end_phase(self.note, self._last_view)
            self._wakeup.changed.notify_all()

    def close(self) -> None:
        """End the thread; nothing is passed on any more."""
        with self._wakeup.changed:
            self._closed = True
            self._deliver, self._metrics = _nothing, None
            self._wakeup.changed.notify_all()
        self.close_stream()

    def close_stream(self) -> None:
        """End the connection. The next one continues where this one was."""
        self._moved_at = time.monotonic()
        stream = self._stream  # its own thread may forget it meanwhile
        if stream is not None:
            stream.close()

    # -- the thread --

    def _finish(self) -> None:
        with self._wakeup.changed:
            self.finished = True
            self._wakeup.changed.notify_all()

    def _follow(self) -> None:
        pause_s, new_at, refusals = RETRY_FIRST_S, time.monotonic(), 0
        view: PodView | None = None
        while True:
            news = self.news
            failed: CloudError | None = None
            try:
                self._wait(lambda: True)  # unless it is closed
                view = self._view()
                if view is not None and view.phase is not PodPhase.PENDING:
                    self._read(view.name)
            except CloudError as error:
                self._move(WorkerState.UNREACHABLE, detail=error.message)
                failed = error
            if self.note:
                break
            ended, moved = view is not None and view.phase.ended, self.news > news
            if ended and failed is None and self._log.since is not None:
                self._log.from_the_first()  # a clock that went back hides lines: the last look is at all of them
                continue
            self.unread = "" if failed is None else failed.message
            if ended and failed is None and view is not None and phase_ends.message_of(view).get("rc") is not None:
                # Of a phase: the log has its end, or had it. It broke between node and API server, which looks like the end.
                failed = CloudError("its log broke off")
            self.is_gone = failed is None and view is None and (self._pod != "" or self._may_be_gone)
            if self.is_gone:
                try:
                    self.note = self._indexed()
                    break
                except CloudError as error:  # only the bucket knows how it has ended
                    failed = error
            if not (ended or self.is_gone) or moved:
                new_at, refusals = time.monotonic(), 0
            is_away = isinstance(failed, CloudUnavailable)
            refusals += not is_away
            given_up = time.monotonic() - new_at >= OUTAGE_S if is_away else refusals >= LAST_TRIES
            if self.is_gone and failed is not None and given_up:
                raise failed
            if ended and (failed is None or given_up):
                break
            pause_s = RETRY_FIRST_S if moved else min(2 * pause_s, RETRY_MOST_S)
            self._wakeup.sleep(pause_s)
        self._conclude(view)

    def _view(self) -> PodView | None:
        """Return the pod as the API shows it now. Raises CloudError."""
        view = self._views.now(self.index)
        if view is not None and self._pod and view.name != self._pod:
            return None  # another pod in its place
        return view

    def _read(self, pod: str) -> None:
        """Read one connection to its end. Raises CloudError."""
        self._pod = pod
        stream = self._api.log(pod, self._log.since)
        self._moved_at = time.monotonic()
        self._stream = stream
        try:
            if self._closed or self._wakeup.canceled.is_set():
                raise FanOutAbandoned
            self._heard_at = self._now()
            self._move(WorkerState.RUNNING)
            for event in self._log.read(self._pieces(stream)):
                self._take(event)
                if self.note:
                    return
        finally:
            self._stream = None
            with contextlib.suppress(CloudError):
                stream.close()

    def _pieces(self, stream: LogStream) -> Iterator[bytes]:
        for piece in stream:
            self._moved_at = time.monotonic()
            yield piece

    def _take(self, event: Event) -> None:
        """Take what came. That may wait, such as for a collection: a connection that no one reads is not silent."""
        self._is_busy = True
        try:
            self._heard_at = self._now()
            self.news += not isinstance(event, NodeSays)  # which may say the same on each connection
            if isinstance(event, NodeSays):
                self._say(f"the node says: {event.text[:TEXT_CHARS].decode(errors='replace')}")
            elif isinstance(event, Control):
                self._control(event)
            elif self._is_attached(event.of):
                self._log_bytes += len(event.data)
                self._deliver(self.index, event.data)
        finally:
            self._moved_at = time.monotonic()
            self._is_busy = False

    def _is_attached(self, of: str | None) -> bool:
        """Wait while `of` comes after the attached phase; return whether it is the attached one. None stands for any.

        A phase begins only after the one before has succeeded, whose end may be gone from the log.
        """
        if of is None:
            return True

        def may_pass() -> bool:
            return PHASES.index(self._phase) >= PHASES.index(of)

        with self._wakeup.changed:
            if not may_pass():
                self._move(**phase_ends.exited(0, {}))
        self._wait(may_pass)
        self._begun.add(of)
        return self._phase == of

    def _control(self, line: Control) -> None:
        said, is_attached = line.said, self._is_attached(line.of)
        if (left_out := line.count("left_out")) and is_attached:
            self._log_bytes += left_out
            self._deliver(self.index, LeftOut(left_out))
        elif "say" in said:
            self._say(str(said["say"])[:TEXT_CHARS])
        elif "ended" in said and line.of is not None:
            self._phase_ended(line, is_attached=is_attached)
        elif "metrics" in said and is_attached and self._metrics is not None:
            for piece in metrics_in(said["metrics"]):
                self._metrics(self.index, piece)
        elif "results" in said:
            with contextlib.suppress(ValueError):  # what is damaged is missing, and so noticed
                self.results += base64.b64decode(str(said["results"]), validate=True)
            del self.results[RESULTS_BYTES:]
        elif isinstance(said.get("end"), dict):
            self.note, self.has_sent_all = {"schema": 1, **said["end"]}, True

    def _wait(self, happened: Callable[[], bool]) -> None:
        """Wait until it has happened. Raises FanOutAbandoned after `close`."""
        with self._wakeup.changed:
            self._wakeup.wait_for(lambda: self._closed or happened())
        if self._closed:
            raise FanOutAbandoned

    def _phase_ended(self, line: Control, *, is_attached: bool) -> None:
        said, rc = line.said, phase_ends.code_of(line.said)
        if not is_attached:
            if rc != 0:
                self._earlier = rc, said
            return
        if (gone := line.count("log_bytes") - self._log_bytes) > 0:
            self._log_bytes += gone
            self._say(f"{gone:,} bytes of its log are gone: the node keeps the last part only")
        if said.get("why") in (phase_ends.STOPPED, "failed", "lost", "stalled", phase_ends.DEADLINE):
            self._end_phase(said, self._fate() if said["why"] == phase_ends.STOPPED else None)
        else:
            self._move(**phase_ends.exited(rc, said))

    def _fate(self) -> PodView | None:
        """Return the pod once the API says why it was stopped, or FATE_S later."""
        until, view = time.monotonic() + FATE_S, None
        while time.monotonic() < until:
            with contextlib.suppress(CloudError):
                view = self._view()
                if view is None or view.reason not in phase_ends.NO_REASONS or view.phase.ended:
                    break
            self._wakeup.sleep(1.0)
        return view

    # -- the end --

    def _conclude(self, view: PodView | None) -> None:
        """Nothing comes any more: decide how the attached phase has ended, if the pod has not said it."""
        self._last_view = view
        for event in self._log.rest():
            self._take(event)
        if not self.note:
            self.note = {} if view is None else phase_ends.message_of(view)
        if self.note.get("why") == phase_ends.STOPPED and not self._status.final:
            view = self._last_view = self._fate()
        with self._wakeup.changed:
            if not self._status.final:
                self._end_phase(self.note, view)
            self._finish()  # under the same lock: a phase that is attached later is concluded by `attach`

    def _indexed(self) -> Said:
        """Return how a pod that is gone has ended, by what it has left in the bucket. Raises CloudError."""
        note = None
        try:
            if self._results is not None:
                note = read_index(self._results, self.index, self._attempt).get("note")
        except (ArtifactError, CloudError) as error:
            if isinstance(error, CloudError) and error.reason != "absent":
                raise
        return note if isinstance(note, dict) else {}

    def _end_phase(self, said: Said, view: PodView | None) -> None:
        """Move to the end of a phase that has not ended by itself."""
        self._move(**phase_ends.end_of(self._phase, said, view, self._earlier))

    def _say(self, text: str) -> None:
        if self._notices > 0:
            self._notices -= 1
            self._on_notice(f"worker{self.index}: {printable(text)}")


def _nothing(index: int, data: bytes) -> None:
    """Receive what is passed on to nothing."""

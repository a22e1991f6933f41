"""A TPU VM and a Cloud TPU API for one watchdog, under virtual time. Whatever a test does not change works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.places.tpu.place import PLACE as CLOUD_TPU
from orchestrator.promise import watchdog
from orchestrator.promise.lease.periods import GOOGLE

EPOCH = 1_800_000_000
NODE = "projects/p/locations/us-central1-a/nodes/tpujob-aaaaaa-run0000001"
QUEUE = NODE.replace("/nodes/", "/queuedResources/")
LEASE_ID = "run0000001"
HOUR = 3600
PERIODS = ("heartbeat_s", "ttl_s", "grace_s", "poll_s", "linger_s", "margin_s", "stagger_s")

Job = tuple[str, float | None, int | None]


def config(**changes: Any) -> dict[str, Any]:
    return {
        "v": 1,
        "api": asdict(CLOUD_TPU.watched),
        "node": NODE,
        "lease_id": LEASE_ID,
        "mode": "run",
        "claimed_until": EPOCH + 3300,
        "deadline": EPOCH + 24 * HOUR,
        "idle_s": None,
        "user": "tpujob",
        **{period: getattr(GOOGLE, period) for period in PERIODS},
        **changes,
    }


def labels(config: dict[str, Any], **changes: Any) -> dict[str, str]:
    times = {"claimed_until": config["claimed_until"], "deadline": config["deadline"]}
    chosen = {"lease_id": config["lease_id"], "mode": config["mode"]} | times | changes
    return {"tpujob": "1"} | _labels(chosen)


def _labels(chosen: dict[str, Any]) -> dict[str, str]:
    return {f"tpujob-{key.replace('_', '-')}": str(value) for key, value in chosen.items()}


@dataclass
class World:
    """`now` is seconds since boot; boot was at EPOCH. What may change over time is a function of it."""

    config: dict[str, Any] = field(default_factory=config)
    worker: int = 0
    now: float = 0.0
    beats: Callable[[float], bool] = lambda now: False  # does an attached client live?
    job: Callable[[float], Job] = lambda now: ("none", None, None)
    attempt: Callable[[float], str] = lambda now: "run0000001-1"
    metrics: Callable[[float], dict[str, Any]] = lambda now: {}
    reports: Callable[[float], bool] = lambda now: True  # can it be read what becomes of the job?
    busy: Callable[[float], bool] = lambda now: False
    down: Callable[[float], bool] = lambda now: False  # does no call get an answer?
    get_status: Callable[[float], int] = lambda now: 200
    delete_status: Callable[[float], int] = lambda now: 200
    publishes: Callable[[float], bool] = lambda now: True
    loses: Callable[[float], bool] = lambda now: False  # is what was published lost, though it was accepted?
    queue: str | None = None  # of which the node came, if it did
    queue_status: Callable[[float], int] = lambda now: 200
    preempted: Callable[[float], bool] = lambda now: False
    stops: Callable[[float], bool] = lambda now: True
    call_s: float = 0.1
    state: str = "READY"
    node: Any = "ours"  # or what the API says instead
    changes: list[tuple[float, Callable[[World], None]]] = field(default_factory=list)  # what happens when
    pauses: list[tuple[float, float]] = field(default_factory=list)  # (when, for how long) the VM stands still
    calls: list[tuple[float, str, str, int]] = field(default_factory=list)
    guest_attributes: list[dict[str, Any]] = field(default_factory=list)  # each change of what it says
    writes: list[float] = field(default_factory=list)  # of guest attributes: when
    notices: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    stopped: list[tuple[float, float]] = field(
        default_factory=list
    )  # (when, with which grace) the job was told to stop
    listened: list[float] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.labels: dict[str, str] = labels(self.config)

    def at(self, when: float, change: Callable[[World], None]) -> World:
        self.changes.append((when, change))
        self.changes.sort(key=lambda change: change[0])
        return self

    def set_labels(self, when: float, **changes: Any) -> World:
        return self.at(when, lambda world: world.labels.update(_labels(changes)))

    def run(self, until: float, *, until_deleted: bool = False) -> World:
        """One process of the watchdog, from boot or from a restart."""
        effects = watchdog.program(self.config, self.worker)
        answer = None
        while self.now < until and not (until_deleted and self._deleted):
            answer = self._perform(*effects.send(answer))
        return self

    def deleted_at(self, until: float = 48 * HOUR) -> float | None:
        self.run(until, until_deleted=True)
        return self.deletes[0] if self.deletes else None

    @property
    def deletes(self) -> list[float]:
        return [at for at, method, path, _ in self.calls if (method, path) == ("DELETE", f"/v2/{NODE}")]

    def looks_before_deletes(self) -> Iterator[tuple[float, str, str, int]]:
        for before, call in zip(self.calls, self.calls[1:], strict=False):
            if call[1:3] == ("DELETE", f"/v2/{NODE}"):
                yield before

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        for pause in [pause for pause in self.pauses if pause[0] <= self.now]:
            self.pauses.remove(pause)
            self.now += pause[1]
        while self.changes and self.changes[0][0] <= self.now:
            self.changes.pop(0)[1](self)

    def _perform(self, name: str, *arguments: Any) -> Any:
        match name:
            case "clock":
                return self.now
            case "heartbeat":
                self._last_beat = (
                    int(self.now // self.config["heartbeat_s"]) if self.beats(self.now) else self._last_beat
                )
                return None if self._last_beat is None else str(self._last_beat)
            case "job" | "busy":
                return getattr(self, name)(self.now)
            case "report":
                state, _, rc = self.job(self.now)
                job = None if state == "none" else {"attempt": self.attempt(self.now), "state": state, "rc": rc}
                return (job, self.metrics(self.now) if arguments[0] else {}) if self.reports(self.now) else None
            case "publish":
                self.writes.append(self.now)
                if self.loses(self.now):
                    return True
                if self.publishes(self.now) and arguments[0] == "notice":
                    self.notices.append((self.now, arguments[1]))
                elif self.publishes(self.now) and arguments[1] not in self.guest_attributes[-1:]:
                    self.guest_attributes.append(arguments[1])
                return self.publishes(self.now)
            case "preempted":
                self.listened.append(self.now)
                return self.preempted(self.now)
            case "stop":
                self.stopped.append((self.now, arguments[0]))
                return self.stops(self.now)
            case "log":
                return self.logged.append(arguments[0])
            case "sleep":
                assert arguments[0] > 0
                return self._pass(arguments[0])
            case "call":
                return self._call(*arguments)
        raise AssertionError(name)

    _last_beat: int | None = None
    _deleted: bool = False

    def _call(self, method: str, path: str, body: Any) -> tuple[int, Any, float | None]:
        assert body is None
        self._pass(self.call_s)
        if self.down(self.now):
            self.calls.append((self.now, method, path, 0))
            return 0, None, None
        own = path == f"/v2/{NODE}"
        queue = method == "DELETE" and self.queue is not None and path == f"/v2/{self.queue}?force=true"
        self._deleted = self._deleted or (own and method == "DELETE")
        assert own or queue or (method, path) == ("DELETE", f"/v2/{NODE}-probe"), (method, path)
        status = self.get_status(self.now) if method == "GET" else self.delete_status(self.now)
        if queue:
            status = self.queue_status(self.now)
        said: Any = {}
        if method == "GET" and status == 200:
            described = {"name": NODE, "state": self.state, "labels": dict(self.labels)}
            described |= {} if self.queue is None else {"queuedResource": self.queue}
            said = described if self.node == "ours" else self.node
        if not own and not queue and status == 200:
            status = 404
        self.calls.append((self.now, method, path, status))
        return status, said, float(int(EPOCH + self.now))


def until(end: float) -> Callable[[float], bool]:
    return lambda now: now < end


def between(start: float, end: float) -> Callable[[float], bool]:
    return lambda now: start <= now < end

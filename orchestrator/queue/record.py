"""The record of a queue: its jobs, in which turn they are, and what was refused. Pure: JSON in and out, steps in between.

All runners share one record, an object of the store, which each of them replaces conditionally. A step takes the record and the
store's time, and returns the record after it: the same one if it was done before, None if it does not apply (any more).

A *turn* is one attempt of a job, with every slice that may exist for it. It belongs to the runner that made or took it last, by
its token; another one takes it once its time is over. A job gets its next turn only after every slice of the one before is
proven gone.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.promise.lease.run_spec import SweepPart, read
from orchestrator.text import names, parsing

VERSIONS = (1, 2)  # a runner that knows 1 only cannot unpack the archive of a job that this one has added
NO_SWEEP = SweepPart()
NAME = "queue.json"
KEPT_S, MOST_ENDED = 30 * 86400.0, 500  # how long a job that has ended stays in the record, and how many at least


class Stage(StrEnum):
    """How far a turn is."""

    STARTING = "starting"  # a runner asks for a slice, or prepares it
    RUNNING = "running"  # the job has its slice, and needs no runner
    COLLECTING = "collecting"  # the job has ended; a runner collects its results
    UNDOING = "undoing"  # its slices are to be proven gone


@dataclass(frozen=True)
class End:
    """How a job ended. `state`: as that of its run, or `removed`. `exit_code`: None for one that was removed."""

    state: str
    at: float
    exit_code: int | None = None
    text: str = ""


@dataclass(frozen=True)
class Turn:
    """One attempt of a job. Times are of the store. `until`: the end of the runner's claim on it; 0: no runner has it."""

    token: str
    runner: str
    attempt: int = 0
    stage: Stage = Stage.STARTING
    until: float = 0.0
    began_at: float = 0.0
    most_usd: float | None = 0.0
    leases: tuple[Any, ...] = ()  # rows of the ledger, of slices that may exist
    lost: str = ""  # how its slice was taken away
    then: End | None = None  # how the job ends once the slices are gone; None: it waits again
    metrics: dict[str, Any] = field(default_factory=dict)  # the newest of the job
    seen_at: float = 0.0
    runs: bool = False  # its workers have said so
    succeeded: bool = False  # and that it has ended so
    problem: str = ""  # the last one


@dataclass(frozen=True)
class QueuedJob:
    """A job of the queue. Its id is that of its run. `request`: jobs with the same can use the same slice."""

    id: str
    name: str
    added_at: float = 0.0
    request: str = ""
    asks: str = ""  # for people: type and zones
    cloud: str = ""
    project: str = ""
    owner: str = ""
    needs: tuple[str, ...] = ()  # variables of the runner
    sweep: SweepPart = NO_SWEEP
    most_usd: float | None = None  # what one attempt costs at most; None: unknown
    restarts: int = 0
    saves: bool = False  # its workers save its work to a bucket
    runs: str = ""  # below which its results go, on a machine that has that directory
    priority: int = 0
    order: float = 0.0  # among jobs of one priority
    held: bool = False
    removed: bool = False
    attempts: int = 0  # that got a slice
    losses: int = 0
    stumbles: int = 0  # starts that were not finished, since the last one that was
    why: str = ""  # it waits
    not_before: float = 0.0
    turn: Turn | None = None
    metrics: dict[str, Any] = field(default_factory=dict)  # the newest of turns that are over
    spent: tuple[Any, ...] = ()  # [time, dollars] of each turn that is over
    end: End | None = None

    @property
    def state(self) -> str:
        """waiting, held, the stage of its turn, or how it ended."""
        if self.end is not None:
            return self.end.state
        return str(self.turn.stage) if self.turn is not None else "held" if self.held else "waiting"

    @property
    def usd(self) -> float:
        """What the turns that are over cost."""
        return float(sum(usd for _, usd in self.spent))


@dataclass(frozen=True)
class Refusal:
    """What no place had room for: `why` in its words, until when it is not asked again, and how often it was asked."""

    why: str = ""
    until: float = 0.0
    tries: int = 0


@dataclass(frozen=True)
class Bounds:
    """How many slices there may be at once, and how many dollars in how many seconds. None: no bound."""

    slots: int = 1
    max_cost: float | None = None
    per_s: float = KEPT_S


@dataclass(frozen=True)
class Queue:
    """The record. `write` is unique for each write, so that a runner recognizes its own."""

    jobs: tuple[QueuedJob, ...] = ()
    refused: dict[str, Any] = field(default_factory=dict)  # by request
    write: str = ""
    version: int = VERSIONS[0]

    def job(self, job_id: str) -> QueuedJob | None:
        """Return the job of this id."""
        return next((each for each in self.jobs if each.id == job_id), None)

    def having(self, *changed: QueuedJob) -> Queue:
        """Return the queue with these jobs as they are here."""
        by_id = {each.id: each for each in changed}
        return replace(self, jobs=tuple(by_id.get(each.id, each) for each in self.jobs))

    def refusal(self, request: str) -> Refusal | None:
        """Return what was refused of this request last."""
        return read(Refusal, self.refused[request]) if request in self.refused else None

    @property
    def waiting(self) -> list[QueuedJob]:
        """The jobs that have neither ended nor a turn, the next one first."""
        found = [each for each in self.jobs if each.end is None and each.turn is None]
        return sorted(found, key=lambda each: (-each.priority, each.order, each.id))

    @property
    def with_turn(self) -> list[QueuedJob]:
        """The jobs of which a slice may exist."""
        return [each for each in self.jobs if each.turn is not None]

    def committed_usd(self, now: float, per_s: float) -> float:
        """Return the dollars of the last `per_s` seconds, with what the slices that may exist cost at most."""
        spent = sum(usd for each in self.jobs for at, usd in each.spent if at > now - per_s)
        return float(spent) + sum(each.turn.most_usd or 0.0 for each in self.with_turn if each.turn is not None)

    def to_json(self) -> bytes:
        """Return the text of the record. What a job has as every new one has it is left out: most of them wait."""
        told = {**_told(self), "jobs": self.jobs, "version": self.version}
        return json.dumps(told, separators=(",", ":"), default=_told).encode()


def _told(part: Any) -> dict[str, Any]:
    defaults = _defaults(type(part))  # type: ignore[arg-type]
    return {name: value for name, value in vars(part).items() if name not in defaults or value != defaults[name]}


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    made = {each.name: each.default_factory() for each in fields(kind) if each.default_factory is not MISSING}
    return made | {each.name: each.default for each in fields(kind) if each.default is not MISSING}


def _job(values: Any) -> QueuedJob:
    """Return the job of these values. Raises ValueError for any that is not taken over as it is: a turn that reads as none
    would let a second one begin.
    """
    job = read(QueuedJob, values)
    if not _has(json.loads(json.dumps(job, default=vars)), values):
        raise ValueError(f"the job {names.for_display(str(job.id))} has what no job has")
    return job


def _has(made: Any, values: Any) -> bool:
    """Return whether all of the JSON values are in what was made of them."""
    if isinstance(values, dict):
        return isinstance(made, dict) and all(key in made and _has(made[key], each) for key, each in values.items())
    return bool(made == values)


def from_json(content: bytes, where: str) -> Queue:
    """Return the record of this text; empty text: an empty queue. Raises ConfigError for one that cannot be read."""
    if not content:
        return Queue()
    try:
        values = parsing.loads(content.decode())
        if not isinstance(values, dict) or not isinstance(values.get("jobs"), list):
            raise ValueError("it is no record of a queue")
        version = values.get("version")
        if version not in VERSIONS:
            raise ConfigError(
                f"the queue in {where} is of another tpujob (version {version!r})",
                hint="install the newer tpujob; nothing of the queue is started or deleted meanwhile",
            )
        jobs = tuple(_job(each) for each in values["jobs"])
        if len({each.id for each in jobs}) < len(jobs):
            raise ValueError("it has a job twice")
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"the record of the queue in {where} cannot be read: {error}",
            hint="nothing of the queue is started or deleted; `tpujob status` shows the slices there are",
        ) from error
    return replace(read(Queue, values), jobs=jobs)

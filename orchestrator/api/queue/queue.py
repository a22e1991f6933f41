"""The queue of jobs: what a user asks of it, and the passes that carry it on.

A queue belongs to the settings: `queue:` says where it is kept and what it may use. Every method reads the record anew, so any
number of machines and commands may use one queue at once.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import places
from orchestrator.api.guarantee import timers
from orchestrator.api.jobs import planning, snapshot
from orchestrator.api.queue import leases
from orchestrator.api.queue.hands import RealHands, RecordIn
from orchestrator.api.queue.turns import snapshot_name
from orchestrator.api.sweeps.sweeps import work_key
from orchestrator.errors import Interrupted, TeardownUnproven, TpujobError, UserError
from orchestrator.job.rules.env import ENV_REFERENCE
from orchestrator.job.rules.notify import variable_of
from orchestrator.places.place import QueuedRun, Wish
from orchestrator.places.preparation import buckets, code
from orchestrator.promise.effects.interpreter import HEARD_WITHIN_S, signals_to
from orchestrator.promise.lease.run_spec import QueueWish, SweepPart
from orchestrator.promise.ledger.rows import SweepRecord, VariantRecord
from orchestrator.queue import record, steps
from orchestrator.queue.passes import change, one_pass, play
from orchestrator.queue.record import Bounds, Queue, QueuedJob
from orchestrator.queue.store import Store, open_store
from orchestrator.text import names
from orchestrator.text.units import format_usd
from orchestrator.traits import is_emulated, traits_on

if TYPE_CHECKING:
    from orchestrator.api.session.session import Session
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.job.sweep import Sweep

UNPROVEN_HINT = "the next pass goes on with it; `tpujob status` shows it"
NO_RESTART = "without a `bucket:` in the job, a job that loses its slice begins anew: nothing keeps its work meanwhile"


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A job of a queue, as JSON values. Times are unix seconds by the clock of the store; None: not yet."""

    id: str  #: of the job, and of its run
    name: str
    state: str  #: waiting, held, starting, running, collecting, undoing, or how it ended
    priority: int
    sweep: str | None  #: its name
    variant: str | None
    asks: str  #: type and places
    why: str  #: why it waits, or the last problem
    added_at: float
    node: str | None  #: its slice
    zone: str | None
    runner: str | None  #: whose turn it is
    since: float | None  #: since when its turn goes on
    metrics: dict[str, Any]  #: the newest figures of the job
    seen_at: float | None  #: when they were read
    attempts: int
    losses: int
    cost_usd: float | None  #: of what is over, by the price table; None: it has no price
    at_most_usd: float | None  #: of the turn that goes on
    exit_code: int | None
    ended_at: float | None

    def as_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class QueueReport:
    """The queue as it is now: what has a turn first, then what waits, in order, then what ended, the newest first."""

    store: str
    now: float  #: the store's time
    slots: int
    max_cost: float | None
    per_s: float
    committed_usd: float  #: spent in that time, and claimed
    runner: str  #: what carries the queue on by itself on this machine; empty: nothing
    emulated: bool
    jobs: tuple[QueueEntry, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def _wish(session: Session) -> QueueWish:
    return session.target.queue or QueueWish()


def store_of(session: Session) -> Store:
    """Return the store of this session's queue."""
    emulator = os.environ.get("STORAGE_EMULATOR_HOST") if is_emulated(session.target.kind) else None
    return open_store(_wish(session).store or str(session.directory / "queue"), emulator=emulator or None)


def bounds_of(session: Session) -> Bounds:
    """Return what the queue may use, as this machine's settings say."""
    wish = _wish(session)
    return Bounds(wish.slots, wish.max_cost, wish.per_s)


def is_there(session: Session) -> bool:
    """Return whether this machine has to do with a queue: by its settings, or since jobs were added here. Asks no bucket."""
    return session.target.queue is not None or (session.directory / "queue" / record.NAME).exists()


def check_not_queued(session: Session, run: str) -> None:
    """Raise UserError for a job of the queue that has not ended: the queue begins its next attempt."""
    job = play(RecordIn(store_of(session)).read()).queue.job(run) if is_there(session) else None
    if job is not None and job.end is None:
        hint = f"`tpujob queue` shows what it waits for; `tpujob queue remove {run}` takes it out"
        raise UserError(f"{run} is in the queue, which goes on with it by itself", hint=hint)


# -- jobs join, and are changed ----------------------------------------------------------------------------------------


def add(
    session: Session, asked: Sequence[tuple[JobSpec, Path, SweepPart]], *, priority: int = 0
) -> tuple[QueuedJob, ...]:
    """Add jobs with their code as it is now, all or none; return them. Raises UserError for one that cannot be run here."""
    store, made = store_of(session), []
    session.check_machine()
    with tempfile.TemporaryDirectory(prefix="tpujob-queue-") as drafts:
        archives = []
        for spec, path, sweep in asked:
            job = _checked(session, spec, path, sweep, priority)
            archive = Path(drafts, f"{job.id}.tar.gz")
            snapshot.pack(session, spec, path, archive)
            archives.append(archive)
            made.append(job)
        for job, archive in zip(made, archives, strict=True):
            session.reporter.progress("queue", f"{job.name}: its code and its job go to {store.where}")
            store.put(snapshot_name(job.id), archive)
    play(change(RecordIn(store), steps.add(*made)))
    _record_sweeps(session, asked)
    most = bounds_of(session).max_cost
    for job in made:
        if most is not None and job.most_usd is not None and job.most_usd > most:
            why = f"may cost {format_usd(job.most_usd)}, and the queue may spend {format_usd(most)}: it never starts so"
            session.reporter.notice("warning", f"{job.name} {why}; a shorter limits.max_duration makes that less")
    if anew := [each.name for each in made if each.restarts and not each.saves]:
        session.reporter.notice("note", f"{', '.join(anew)}: {NO_RESTART}")
    return tuple(made)


def _record_sweeps(session: Session, asked: Sequence[tuple[JobSpec, Path, SweepPart]]) -> None:
    """Record the sweeps in the ledger of this machine, so that `compare` and `report` know their names."""
    for identity in dict.fromkeys(sweep.id for _, _, sweep in asked if sweep.id is not None):
        parts = [(spec, path, sweep) for spec, path, sweep in asked if sweep.id == identity]
        variants = tuple(
            VariantRecord(sweep.number or 0, str(spec.name), sweep.variant or "", dict(spec.params), sweep.key or "")
            for spec, _, sweep in parts
        )
        _, path, sweep = parts[0]
        session.ledger.record_sweep(SweepRecord(identity, str(sweep.name), str(path), session.now(), variants))


def _checked(session: Session, spec: JobSpec, path: Path, sweep: SweepPart, priority: int) -> QueuedJob:
    if not traits_on(spec.on).vms:
        raise UserError(f"{spec.name} runs `on: {spec.on}`, and a queue runs jobs on slices of TPU VMs only")
    planning.environment(spec, session.reporter)
    place, run_id = places.place_on(spec.on), names.new_run_id(secrets.randbits(names.RUN_BITS))
    wish = Wish(detach=True, queued=QueuedRun(run_id, 1, lambda _: None, lambda: True))
    place.check(session, spec, path, wish)
    code.check_directories(spec, path)
    plan = place.capacity(session, spec, wish)
    assert plan is not None, "a slice is planned"
    target, first = session.target, plan.candidates[0]
    others = f" +{len(plan.candidates) - 1}" if len(plan.candidates) > 1 else ""
    # What the create call says of the slice: its watchdog knows the time for results of the job for which it was made.
    same = spec.model_dump_json(include={"on": True, "tpu": True, "access": True, "limits": {"linger"}})
    return QueuedJob(
        id=run_id,
        name=str(spec.name),
        request=hashlib.sha256(f"{target.kind} {target.project} {same}".encode()).hexdigest()[:16],
        asks=f"{first.accelerator_type} {first.zone}{others}",
        cloud=target.kind,
        project=target.project,
        owner=session.owner,
        needs=tuple(_variables(spec)),
        sweep=sweep,
        most_usd=plan.worst_case_usd,
        restarts=spec.max_restarts if spec.on_preemption == "restart" else 0,
        saves=buckets.saves(spec),
        runs=str(session.runs_directory),
        priority=priority,
    )


def _variables(spec: JobSpec) -> list[str]:
    wanted = [name for value in spec.env.values() for name in ENV_REFERENCE.findall(value)]
    address = variable_of(spec.notify.url) if spec.notify is not None else None
    return list(dict.fromkeys([*wanted, *([address] if address else [])]))


def jobs_of(session: Session, sweep: Sweep, path: Path) -> list[tuple[JobSpec, Path, SweepPart]]:
    """Return the jobs of a sweep, each with which part of it it is."""
    identity = names.new_run_id(secrets.randbits(names.RUN_BITS))
    return [
        (each.spec, path, SweepPart(identity, sweep.name, each.number, each.label, work_key(session, each.spec, path)))
        for each in sweep.variants
    ]


def _meant(queue: Queue, texts: Iterable[str]) -> list[str]:
    """Return the ids of the jobs that these ids, beginnings of ids, or names of jobs and sweeps mean. Raises UserError."""
    found: list[str] = []
    for text in texts:
        exact = [each.id for each in queue.jobs if each.id == text]
        living = [each for each in queue.jobs if each.end is None]
        named = [each.id for each in living if text in (each.name, each.sweep.name)]
        begun = [each.id for each in queue.jobs if text and each.id.startswith(text)]
        meant = exact or named or (begun if len(begun) == 1 else [])
        if not meant:
            hint = "`tpujob queue` lists the jobs" if not begun else "type more of the id"
            raise UserError(f"the queue has no job {text!r} that has not ended", hint=hint)
        found += meant
    return list(dict.fromkeys(found))


def alter(
    session: Session, texts: Sequence[str], build: Callable[[QueuedJob], QueuedJob], *, ask_again: bool = False
) -> tuple[QueueEntry, ...]:
    """Change jobs that have not ended; return them as they are then. Raises UserError for an unknown one."""
    records = RecordIn(store_of(session))
    ids = _meant(play(records.read()).queue, texts)
    after = play(change(records, steps.changed(ids, build, ask_again=ask_again)))
    return tuple(_entry(each) for each in after.jobs if each.id in ids)


def move(session: Session, text: str, *, first: bool, priority: int | None) -> tuple[QueueEntry, ...]:
    """Move jobs before all others, or to another priority."""
    queue = play(RecordIn(store_of(session)).read()).queue
    waiting = queue.waiting
    top = max((each.priority for each in waiting), default=0)
    least = min((each.order for each in waiting if each.priority == top), default=0.0)
    ids = _meant(queue, [text])
    places_of = {job: least - len(ids) + number for number, job in enumerate(ids)}

    def moved(job: QueuedJob) -> QueuedJob:
        if first:
            return replace(job, priority=max(top, job.priority), order=places_of.get(job.id, job.order))
        return replace(job, priority=job.priority if priority is None else priority)

    return alter(session, ids, moved)


# -- what is there -------------------------------------------------------------------------------------------------------


def report(session: Session) -> QueueReport:
    """Return the queue as its record has it. Asks the store only."""
    store, bounds = store_of(session), bounds_of(session)
    seen = play(RecordIn(store).read())
    ended = sorted((each for each in seen.queue.jobs if each.end), key=lambda each: -(each.end.at if each.end else 0))
    living = [each for each in seen.queue.jobs if each.end is None and each.turn is not None]
    shown = []
    for job in (*living, *seen.queue.waiting, *ended):
        why = ""
        if job.end is None and job.turn is None:
            why = steps.why_not_now(seen.queue, job, seen.now, bounds) or job.why or "it begins with the next pass"
        shown.append(_entry(job, why))
    return QueueReport(
        store.where,
        seen.now,
        bounds.slots,
        bounds.max_cost,
        bounds.per_s,
        seen.queue.committed_usd(seen.now, bounds.per_s),
        _runner_here(),
        is_emulated(session.target.kind),
        tuple(shown),
    )


def _entry(job: QueuedJob, why: str = "") -> QueueEntry:
    turn, end = job.turn, job.end
    slice_ = turn.leases[-1] if turn is not None and turn.leases else {}
    problem = turn.problem if turn is not None else ""
    return QueueEntry(
        id=job.id, name=job.name, state=job.state, priority=job.priority, sweep=job.sweep.name,
        variant=job.sweep.variant, asks=job.asks, why=why or (end.text if end is not None else problem or job.why),
        added_at=job.added_at, node=slice_.get("node"), zone=slice_.get("zone"),
        runner=turn.runner if turn is not None and turn.until > 0 else None,
        since=turn.began_at if turn is not None else None,
        metrics=(turn.metrics if turn is not None else {}) or job.metrics,
        seen_at=(turn.seen_at or None) if turn is not None else None, attempts=job.attempts, losses=job.losses,
        cost_usd=None if job.most_usd is None and job.attempts else job.usd,
        at_most_usd=turn.most_usd if turn is not None else None, exit_code=end.exit_code if end is not None else None,
        ended_at=end.at if end is not None else None,
    )  # fmt: skip


def _runner_here() -> str:
    for timer in timers.every(os.environ, sys.platform):
        if (present := timer.present()) is not None:
            return present
    return ""


def nothing_goes_on() -> str | None:
    """Return the sentence for a machine on which nothing carries the queue on; None: something does."""
    if _runner_here():
        return None
    return "nothing goes on without a runner: `tpujob install-gc` installs a timer, `tpujob queue run --forever` stays"


# -- who carries it on ---------------------------------------------------------------------------------------------------


def run_passes(session: Session, *, forever: bool = False, every_s: float = 60.0) -> QueueReport:
    """Make a pass, or with `forever` one every `every_s`, until a signal; return the queue after it.

    Raises Interrupted after a signal, once what this had begun is handed over or proven gone; what the store raises, unless
    `forever`.
    """
    hands = RealHands(session, store_of(session), bounds_of(session))
    failed: TpujobError | None = None
    with signals_to(hands.hear):
        try:
            while failed is None:
                try:
                    _one(hands)
                except TpujobError as error:
                    if forever and not isinstance(error, Interrupted):
                        session.reporter.fail(error)
                    else:
                        failed = error
                if not forever or _signal_within(hands, every_s):
                    break
        finally:
            hands.finish()
    if (number := hands.signal_heard()) is not None:
        failed = Interrupted(number)
    if failed is not None and session.unproven:
        raise TeardownUnproven("a slice of the queue is not proven gone", hint=UNPROVEN_HINT) from failed
    if failed is not None:
        raise failed
    return report(session)


def pass_of_timer(session: Session) -> None:
    """Make a pass. What fails is reported: the timer comes again."""
    try:
        run_passes(session)
    except Interrupted:
        raise
    except TpujobError as error:
        session.reporter.fail(error)


def _signal_within(hands: RealHands, within_s: float) -> bool:
    """Return whether a signal came within this time."""
    give_up_at = time.monotonic() + within_s
    while hands.signal_heard() is None and time.monotonic() < give_up_at:
        time.sleep(min(HEARD_WITHIN_S, max(give_up_at - time.monotonic(), 0.0)))
    return hands.signal_heard() is not None


def _one(hands: RealHands) -> None:
    there = hands.session.open_leases()
    leases.close_over(hands.session, there, play(hands.read()).queue)
    try:
        play(one_pass(hands))
    finally:
        while play(hands.wait()):  # the store failed meanwhile: what was begun is ended all the same
            pass

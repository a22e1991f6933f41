"""`top`: a row for each run, each queued job and each slice of this user, with what it does, what it costs, and until when.

What this machine knows is read each time: the ledger, and the files that the processes of its runs write as their workers
report. What others know is asked now and then (`ask`): the API for its slices, the watchdogs for runs that no process here
follows, and the store of the queue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from orchestrator import traits
from orchestrator.api.queue import queue as queues
from orchestrator.api.session import lookup, sweep_progress
from orchestrator.api.slices import status
from orchestrator.api.slices.status import SliceRow, Status
from orchestrator.errors import TpujobError
from orchestrator.promise.lease import guest_reports
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.report.files import metrics, newest
from orchestrator.report.files.newest import Newest
from orchestrator.report.rows import costs, whole_run
from orchestrator.text.parsing import step_of

if TYPE_CHECKING:
    from orchestrator.api.queue.queue import QueueEntry
    from orchestrator.api.session.session import Session
    from orchestrator.api.session.sweep_progress import SweepProgress, VariantState

ASKED_EVERY_S, AGAIN_S = 30.0, 5.0  # again: after no answer
ENDED_S = 3600.0  # for so long after its end a run stays in the table, unless all are wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class TopRow:
    """A run, a job of the queue, or a slice without a run. Times are unix seconds; None: not known, or there is none.

    Percents are from 0 to 100: of the fullest or busiest chip of worker 0, and of its host. Dollars are by the price table.
    """

    kind: Literal["run", "job", "slice"]
    id: str  #: of the run or job; of a slice, that of its lease, else its node
    name: str
    state: str
    sweep: str | None = None
    variant: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    cloud: str
    accelerator_type: str | None = None
    zone: str | None = None
    node: str | None = None
    step: int | None = None
    metric: str | None = None  #: the name of the main figure
    value: float | None = None  #: its last value; None: it is no finite number
    rate: float | None = None  #: in a second
    rate_of: str | None = None  #: images, tokens and so on, or steps
    hbm_percent: float | None = None
    duty_percent: float | None = None
    cpu_percent: float | None = None
    memory_percent: float | None = None
    seen_at: float | None = None  #: when the step came, by this machine's clock; of a job, by that of the queue's store
    usd_so_far: float | None = None
    usd_at_most: float | None = None
    started_at: float | None = None
    until: float | None = None  #: its end at the latest
    ended_at: float | None = None
    remark: str | None = None
    has_page: bool = False  #: it is a run that this machine knows

    @property
    def emulated(self) -> bool:
        """Whether its cloud is an emulated one, whose dollars are not billed."""
        return traits.is_emulated(self.cloud)


@dataclass(frozen=True, slots=True)
class Top:
    """The table: what goes on and what waits first, then what ended, the newest first."""

    at: float  #: unix seconds: the ledger's time of this cloud
    cloud: str
    why: str  #: which cloud this is, and why
    asked_at: float | None  #: when the API answered; None: it has not yet
    problems: tuple[str, ...]  #: what is not known, and so may be missing, and what is not proven gone
    rows: tuple[TopRow, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked of others. `told`: the newest metrics of runs that no process here follows, by the ids of attempts."""

    status: Status | None = None
    told: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    jobs: tuple[QueueEntry, ...] = ()
    problems: tuple[str, ...] = ()


Key = tuple[str, float, int]
Known = dict[Key, TopRow]


def ask(session: Session) -> Asked:
    """Ask the API, the watchdogs and the queue; recovery included. What does not answer or is not proven gone is a problem."""
    found = status.status(session)
    for proven in [each for each in session.unproven if not session.ledger.lease(each).open]:  # by another process
        session.unproven.pop(proven)
    unproven = [each.lease.name for each in session.unproven.values()]
    problems = [
        f"{each.node} ({each.zone}) is not proven gone, and may be billed: `tpujob status`" for each in unproven
    ]
    problems += [f"not known: {each.project}: {each.why}" for each in found.projects if not each.complete]
    problems += [f"not known: {each.summary}" for each in found.projects if not each.running]
    told, jobs = dict[str, Mapping[str, Any]](), tuple[Any, ...]()
    for attempt in session.ledger.attempts_open():
        if attempt.state is AttemptState.RUNNING and attempt.lease_id and not session.locks.is_locked(attempt.id):
            lease = session.ledger.lease(attempt.lease_id)
            if traits.traits_of(lease.cloud).watched:
                with suppress(TpujobError):
                    said = session.cloud(lease.cloud).guest_attributes(lease.name)
                    told[attempt.id] = guest_reports.read_job(said, len(said), attempt.id).metrics
    try:
        jobs = queues.report(session).jobs if queues.is_there(session) else ()
    except (TpujobError, OSError) as error:
        problems.append(f"not known: the queue: {_why(error)}")
    return Asked(found, told, jobs, tuple(problems))


def _why(error: Exception) -> str:
    return error.message if isinstance(error, TpujobError) else f"{type(error).__name__}: {error}"


def table(session: Session, asked: Asked, *, ended: bool = False, known: Known | None = None) -> Top:
    """Return the table. `ended`: with every run that has ended, not only those of the last hour.

    `known`: the rows of such runs, from an earlier look; others are added.
    """
    known = {} if known is None else known
    now, found = session.now(), asked.status
    slices = {row.lease_id: row for row in found.slices if row.lease_id} if found else {}
    jobs = {job.id: job for job in asked.jobs if job.ended_at is None}
    rows: list[TopRow] = []
    in_use: set[str] = set()
    runs = session.ledger.runs()
    for run, attempt in runs:
        if attempt.ended_at is not None and not ended and session.now(run.cloud) - attempt.ended_at > ENDED_S:
            continue
        if attempt.ended_at is not None and run.id in jobs:
            continue  # it waits for its next attempt, or has it on another machine
        leases = lookup.leases_of_run(session, run.id) if attempt.ended_at is None else []
        in_use |= {lease.id for lease in leases}
        if attempt.ended_at is None and attempt.lease_id is not None:
            in_use.add(attempt.lease_id)
        key = _settled(session, run, attempt)
        row = known.get(key) if key else None
        if row is None:
            row = _run(session, run, attempt, slices.get(attempt.lease_id or ""), asked.told.get(attempt.id, {}))
        if key:
            known[key] = row
        rows.append(row)
        jobs.pop(run.id, None)
    rows += [
        _variant(sweep, each) for sweep in sweep_progress.living(session) for each in sweep.variants if each.run is None
    ]
    of_jobs = {row.node: row for row in (found.slices if found else ())}
    with_page, cloud = {run.id for run, _ in runs}, session.target.kind
    rows += [_job(job, cloud, of_jobs.get(job.node or ""), job.id in with_page) for job in jobs.values()]
    nodes = {job.node for job in jobs.values()}
    rows += [
        _lease(session, each, slices.get(each.id)) for each in session.ledger.open_leases() if each.id not in in_use
    ]
    if found is not None:
        here = {lease.id for lease in session.ledger.leases()}
        rows += [
            _slice(row) for row in found.slices if row.yours and row.lease_id not in here and row.node not in nodes
        ]
    rows.sort(key=lambda row: (row.ended_at is not None, -(row.ended_at or 0.0)))
    asked_at = found.projects[0].at if found is not None else None
    return Top(now, session.target.kind, session.target.why, asked_at, asked.problems, tuple(rows))


def _settled(session: Session, run: RunRecord, attempt: Attempt) -> Key | None:
    """Return what the row of a run is known by that nothing changes any more, but a late `collect`; None: something does."""
    lease = session.ledger.lease(attempt.lease_id) if attempt.lease_id else None
    if attempt.ended_at is None or (lease is not None and lease.open):
        return None
    try:
        changed = Path(run.directory, "worker0", "artifacts").stat().st_mtime_ns
    except OSError:
        changed = 0
    return attempt.id, attempt.ended_at, changed


def _run(session: Session, run: RunRecord, attempt: Attempt, row: SliceRow | None, told: Mapping[str, Any]) -> TopRow:
    lease = session.ledger.lease(attempt.lease_id) if attempt.lease_id else None
    directory, is_over = Path(run.directory), attempt.ended_at is not None
    cost = costs.of_run(session.ledger, run, session.now(run.cloud))
    summary = whole_run.summary(run, attempt, lease, cost)
    living = lease if lease is not None and lease.open and not is_over else None
    files = newest.read(directory, metrics.newest(directory))
    metric, value, step = summary.metric, summary.value, files.step
    if told:  # no process here follows it: what its files say is old
        metric, value = metrics.main_figure(told) or (metric, value)
        files, step = Newest(remark=files.remark), step_of(told.get("step")) or step
    elif attempt.state is not AttemptState.RUNNING:
        files = replace(files, rate=None, rate_of=None)
    number = len(session.ledger.attempts_of(run.id))
    remark = attempt.detail if is_over and attempt.state is not AttemptState.SUCCEEDED else row.remark if row else ""
    used = "" if files.remark and files.remark in (remark or "") else files.remark
    said = (f"attempt {number}" if number > 1 and not is_over else "", remark, used)
    asked = run.spec.tpu.place if traits.traits_of(run.cloud).tpus else (None, None)
    place = dict(zip(("accelerator_type", "zone"), asked, strict=True)) if lease is None else _place(lease)
    at_most = None if living is None or cost is None else costs.at_most(living)
    if at_most is not None and living is not None:  # and what the attempts before it cost
        at_most += (cost or 0.0) - (costs.of_lease(living, session.now(run.cloud)) or 0.0)
    own = {"step": step, "node": living and living.name.node, "remark": "; ".join(filter(None, said)) or None}
    return TopRow(
        kind="run", id=run.id, name=run.name, state=str(attempt.state), cloud=run.cloud, sweep=summary.sweep,
        variant=summary.variant, params=summary.params, **place | asdict(files) | own, metric=metric, value=value,
        usd_so_far=cost, usd_at_most=_bounded(at_most, living), started_at=run.created_at,
        until=living.ends_at if living is not None else None, ended_at=attempt.ended_at, has_page=True,
    )  # fmt: skip


def _place(lease: Lease) -> dict[str, Any]:
    name = lease.name
    return {"accelerator_type": lease.accelerator_type, "zone": name.zone, "node": name.node}


def _bounded(usd: float | None, lease: Lease | None) -> float | None:
    budget = lease.budget_usd if lease is not None else None
    return min((each for each in (usd, budget) if each is not None), default=None)


def _job(job: QueueEntry, cloud: str, row: SliceRow | None, has_page: bool) -> TopRow:
    """Return the row of a job that waits, or whose run another machine has, on this slice."""
    metric, value = metrics.main_figure(job.metrics) or (None, None)
    accelerator, _, places = job.asks.partition(" ")
    at_most = None if job.cost_usd is None or job.at_most_usd is None else job.cost_usd + job.at_most_usd
    return TopRow(
        kind="job", id=job.id, name=job.name, state=job.state, cloud=cloud, sweep=job.sweep, variant=job.variant,
        accelerator_type=accelerator or None, zone=job.zone or places or None, node=job.node, metric=metric, value=value,
        step=step_of(job.metrics.get("step")), seen_at=job.seen_at, usd_so_far=job.cost_usd, usd_at_most=at_most,
        started_at=job.added_at, until=row.ends_at if row is not None else None, remark=job.why or None,
        has_page=has_page,
    )  # fmt: skip


def _variant(sweep: SweepProgress, each: VariantState) -> TopRow:
    """Return the row of a variant that waits for its turn."""
    return TopRow(
        kind="job", id=sweep.sweep, name=each.name, state=each.state, cloud="", sweep=sweep.name, variant=each.variant,
        params=each.params, usd_so_far=0.0, started_at=sweep.started_at,
    )  # fmt: skip


def _lease(session: Session, lease: Lease, row: SliceRow | None) -> TopRow:
    seen = row.state if row is not None else str(lease.state)
    return TopRow(
        kind="slice", id=lease.id, name=lease.handle, state="being deleted" if lease.down_at is not None else seen,
        cloud=lease.cloud, **_place(lease), usd_so_far=costs.of_lease(lease, session.now(lease.cloud)),
        usd_at_most=_bounded(costs.at_most(lease), lease), started_at=lease.created_at, until=lease.ends_at,
        remark=row.remark if row is not None else None,
    )  # fmt: skip


def _slice(row: SliceRow) -> TopRow:
    """Return the row of a slice that another machine of this user made."""
    same = ("state", "cloud", "accelerator_type", "zone", "node", "usd_so_far", "usd_at_most", "remark")
    what = {name: getattr(row, name) for name in same}
    times: dict[str, Any] = {"started_at": row.created_at, "until": row.ends_at}
    return TopRow(kind="slice", id=row.lease_id or row.node, name=row.run or row.name, **what, **times)


class Watch:
    """Looks again and again; the API is asked in a thread beside it, so that a slow one delays no look.

    `open_session` is called for each look and each question. Close it at the end; a question that is being asked ends by
    itself.
    """

    def __init__(self, open_session: Callable[[], AbstractContextManager[Session]]) -> None:
        self._open, self._asked, self._closed = open_session, Asked(), threading.Event()
        self._known: Known = {}
        self._thread = threading.Thread(target=self._ask, name="top asks", daemon=True)
        self._thread.start()

    def look(self, *, ended: bool = False) -> Top:
        """Return the table as it is now. Raises TpujobError for a ledger that cannot be read."""
        with self._open() as session:
            return table(session, self._asked, ended=ended, known=self._known)

    def awaits(self, run: str) -> bool:
        """Return whether the run is a job of the queue that has not ended: another attempt may follow."""
        return any(job.id == run and job.ended_at is None for job in self._asked.jobs)

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def _ask(self) -> None:
        while not self._closed.is_set():
            began = time.monotonic()
            try:
                with self._open() as session:
                    self._asked = ask(session)
            except Exception as error:  # else nothing would be asked any more, and the table not say so
                self._asked = replace(self._asked, problems=(f"not known: {_why(error)}",))
            every_s = AGAIN_S if self._asked.problems else ASKED_EVERY_S
            self._closed.wait(max(every_s - (time.monotonic() - began), 1.0))

"""What a turn does, in a session of its own: start a job and leave it, look at it, collect its results, undo what was begun."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import catalog
from orchestrator.api.jobs import runs, snapshot
from orchestrator.api.queue import leases
from orchestrator.errors import (
    AuthError,
    BadRequest,
    Canceled,
    CapacityError,
    CloudError,
    ConfigError,
    Interrupted,
    Preempted,
    SliceLost,
    TeardownUnproven,
    TpujobError,
)
from orchestrator.places.place import QueuedRun
from orchestrator.promise.effects.cloud import Get, GetGuestAttributes
from orchestrator.promise.lease import guest_reports
from orchestrator.promise.lease.cloud_api import SliceState
from orchestrator.promise.lease.lease import CANCEL, Lease, Mode
from orchestrator.promise.lease.run_and_attempt import AttemptState, state_after
from orchestrator.promise.ledger import rows
from orchestrator.queue.passes import UNFINISHED, Did, Gates, Look, TurnLost, play
from orchestrator.queue.record import End, QueuedJob, Turn
from orchestrator.queue.steps import Again
from orchestrator.run.job_run import Lane
from orchestrator.system import private_files
from orchestrator.text import names

if TYPE_CHECKING:
    from orchestrator.api.session.events import RunResult
    from orchestrator.api.session.session import Session
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.queue.store import Store

_SLICES_END = (AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.CANCELED, AttemptState.ERROR)


def start(
    session: Session, store: Store, job: QueuedJob, turn: Turn, gates: Gates, lane: Lane | None, pause_s: float
) -> Did:
    """Start the job on a slice, that of the lane if there is one, and leave it there; or prove gone what was made."""
    lost: list[TurnLost] = []
    made = {str(each["id"]) for each in turn.leases}

    def gate(pass_gate: Callable[[dict[str, Any]], Coroutine[Any, Any, None]], lease: Lease) -> None:
        made.add(lease.id)
        try:
            play(pass_gate(rows.lease_row(lease)))
        except TurnLost as error:
            lost.append(error)
            raise

    session.ledger.before_create = partial(gate, gates.before_create)
    try:
        leases.end_earlier(session, job, turn)
        spec, path = unpacked(session, store, job)
        options = runs.RunOptions(
            detach=True,
            sweep=None if job.sweep.id is None else {k: getattr(job.sweep, k) for k in SWEEP_KEYS},
            lane=lane,
            queued=QueuedRun(
                job.id, turn.attempt, partial(gate, gates.before_start), lambda: bool(play(gates.not_started()))
            ),
        )
        result = runs.start_run(session, spec, path, options)
        error = result.error
    except TpujobError as raised:
        result, error = None, raised
        session.reporter.fail(raised)
        if any(each.runs_detached for each in session.ledger.leases_of(job.id) if each.id in made):
            raise TurnLost(raised.message) from raised  # it is the next runner's
    finally:
        session.ledger.before_create = None
    if lost:
        raise lost[0]
    if result is not None and result.detached:
        return Did(running=True)
    if session.unproven.keys() & made or any(leases.is_open(session, each) for each in made):
        return Did(problem=error.message if error is not None else "its slice is not proven gone")
    did = _did_not_start(error, leases.usd(session, made), pause_s)
    got_slice = any(each.ready_at is not None for each in session.ledger.leases_of(job.id) if each.id in made)
    return replace(did, again=replace(did.again, got_slice=got_slice))


def _did_not_start(error: TpujobError | None, usd: float | None, pause_s: float) -> Did:
    """Return what follows from the error of a start whose slices are all gone."""
    why = error.message if error is not None else "it did not start"
    match error:
        case Canceled():
            return Did(gone=True, usd=usd, end=End("canceled", 0.0, error.exit_code, why))
        case SliceLost():
            return Did(gone=True, usd=usd, again=Again(why, pause_s, lost=True))
        case Interrupted() | None:
            return Did(gone=True, usd=usd, again=Again("its runner was interrupted"))
        case AuthError() | ConfigError() | TeardownUnproven():
            return Did(gone=True, usd=usd, again=Again(why, 5 * pause_s))
        case TpujobError() if type(error) is TpujobError:  # of this machine, such as a guardian that did not start
            return Did(gone=True, usd=usd, again=Again(why, 5 * pause_s, unfinished=True))
        case CloudError() if not isinstance(error, BadRequest):
            if isinstance(error, CapacityError) and isinstance(error.details, dict):
                why = "; Google: ".join([why, *map(str, [*error.details.values()][:1])])  # each place says the same
            return Did(gone=True, usd=usd, again=Again(why, pause_s, refused=True))
    state = runs_state(error)
    return Did(gone=True, usd=usd, end=End(state, 0.0, error.exit_code if error else None, why))


def unpacked(session: Session, store: Store, job: QueuedJob) -> tuple[JobSpec, Path]:
    """Return the job as it was added. Raises UserError for a snapshot that cannot be read, and what the store raises."""
    base = session.directory / "queue" / "jobs" / job.id
    archive = base / "job.tar.gz"
    if not archive.is_file():
        private_files.make_directory(base)
        store.fetch(snapshot_name(job.id), archive)
    return snapshot.unpack(archive, base / "job")


def look(session: Session, job: QueuedJob, turn: Turn) -> Look:
    """Return what the API and the workers say of the job. Raises TpujobError."""
    if not turn.leases:
        return Look("gone")
    lease = rows.lease_of(dict(turn.leases[-1]))
    attempt = f"{job.id}-{turn.attempt}"
    view, published = session.run(_seen(lease), lease.cloud)
    if view is None:
        return _known_end(session, job, lease, attempt)
    if view.state in (SliceState.TOMBSTONE, SliceState.QUEUED) or view.native_state == "SUSPENDING":
        return Look("lost", why=f"{lease.name.node} was taken away while the job ran ({view.native_state})")
    if view.state is not SliceState.READY:
        return Look("unknown", why=f"{lease.name.node} is {view.native_state}")
    if view.labels.get(names.RUN) != job.id:
        return Look("gone", why=f"{lease.name.node} is another run's by now")
    kind = catalog.lookup(lease.accelerator_type)
    workers = kind.hosts if kind is not None else len(published)
    said = guest_reports.read_job(published, workers, attempt)
    why = "" if said.state != "unknown" else "its workers have not said yet"
    return Look(said.state, said.metrics, why, succeeded=said.succeeded)


def _known_end(session: Session, job: QueuedJob, lease: Lease, attempt: str) -> Look:
    """Return how the job ended whose slice is gone, where this machine collected its results or canceled it."""
    with suppress(TpujobError):
        session.recover(look=True)
        found = session.ledger.attempt(attempt)
        if found.lease_id == lease.id and found.error == Preempted.__name__:
            return Look("lost", why=found.detail)
        if found.lease_id == lease.id and found.state in _SLICES_END:
            return Look("gone", end=End(str(found.state), 0.0, found.exit_code, found.detail))
    return Look("gone", why=f"{lease.name.node} is gone")


def collect(session: Session, job: QueuedJob, turn: Turn, gates: Gates) -> tuple[Did, Lane]:
    """Collect the results, then release the slice, proven, or leave it in the lane to the job that follows."""
    end: list[End] = []
    lost: list[SliceLost] = []
    follows: list[QueuedJob] = []

    def ended(state: AttemptState, error: TpujobError | None) -> None:
        if isinstance(error, SliceLost) and not turn.succeeded:
            lost.append(error)  # the job may go on elsewhere
            return
        code = 0 if error is None else error.exit_code
        text = "" if error is None else session.reporter.secrets.hide(error.message)
        end.append(End(str(state), 0.0, code, text))
        play(gates.ended(end[-1]))

    def reserve_next() -> bool:
        following = play(gates.pass_on())
        follows.extend([] if following is None else [following])
        return following is not None

    lane = Lane(reserve_next, ended=ended)
    result: RunResult | None = None
    problem = "its results are not collected"
    try:
        result = runs.attach(session, job.id, lane=lane, owner=_owner_elsewhere(session, job, turn))
        if result.error is not None:
            problem = result.error.message
    except TpujobError as error:
        session.reporter.fail(error)
        problem = error.message
    if follows and follows[0].turn is not None:
        lane.ended, lane.reserve_next = None, lambda: False
        return Did(follows=follows[0]), lane
    ended_here = end[0] if end else _end_of(result)
    ids = {str(each["id"]) for each in turn.leases}
    still = any(leases.is_open(session, each) for each in ids) or bool(ids & session.unproven.keys())
    if lost and not end:
        again = Again(lost[0].message, lost=True)
        return Did(gone=not still, usd=leases.usd(session, ids), again=again, problem=lost[0].message), lane
    if ended_here is None or still or (result is not None and not result.released):
        return Did(end=ended_here, problem=problem), lane
    return Did(gone=True, end=ended_here, usd=leases.usd(session, ids)), lane


def _owner_elsewhere(session: Session, job: QueuedJob, turn: Turn) -> str | None:
    """Return whose the job is if another machine started this attempt: this ledger may have others of it only, all ended."""
    here = {each.lease_id for each in session.ledger.attempts_of(job.id)}
    return None if here & {str(each["id"]) for each in turn.leases} else job.owner


def undo(session: Session, job: QueuedJob, turn: Turn) -> Did:
    """Delete every slice that may exist for the turn, and prove it. Raises TpujobError."""
    for row in turn.leases if job.end is not None and not job.removed else ():
        view = session.run(leases.view(rows.lease_of(dict(row))), str(row["cloud"]))
        if view is not None and (view.labels.get(names.RUN), view.labels.get(names.MODE)) == (job.id, Mode.HOLD):
            return Did(problem=f"its slice is held for its results: `tpujob collect {job.id}` fetches them")
    if turn.lost:  # before its slice goes, so that what is told of it is true
        leases.record_end(session, job, turn)
    owed = [leases.lease_here(session, each) for each in turn.leases]
    why = CANCEL if job.removed else "the queue has ended its turn"
    leases.release(session, [each for each in owed if each.open], why)
    ids = {str(each["id"]) for each in turn.leases}
    if session.unproven.keys() & ids or any(leases.is_open(session, each) for each in ids):
        return Did(problem="its slice is not proven gone")
    return Did(gone=True, again=Again(UNFINISHED, unfinished=True), usd=leases.usd(session, ids))


SWEEP_KEYS = ("id", "name", "number", "variant", "key")


def snapshot_name(job_id: str) -> str:
    """Return the name of the object that has a job as it was added."""
    return f"jobs/{job_id}.tar.gz"


def runs_state(error: TpujobError | None) -> str:
    """Return the state of a job that ended with this error before it ran."""
    return str(AttemptState.ERROR if error is None else state_after(error))


def _end_of(result: RunResult | None) -> End | None:
    """Return how a run ended that another process had collected; None: it goes on."""
    if result is None or result.detached:
        return None
    return End(result.state, 0.0, result.exit_code, "" if result.error is None else result.error.message)


async def _seen(lease: Lease) -> tuple[Any, Any]:
    """Return the slice as the API shows it, and what its workers have published."""
    view = await Get(lease.name)
    if view is None or view.state is not SliceState.READY:
        return view, ()
    return view, await GetGuestAttributes(lease.name)

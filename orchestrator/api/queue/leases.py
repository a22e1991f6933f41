"""The leases of a queue's turns in this machine's ledger: also of slices that another machine may have created."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError, Preempted, SliceLost, TpujobError
from orchestrator.promise.effects.cloud import Get
from orchestrator.promise.lease.changes import AttemptEnded, Intent
from orchestrator.promise.lease.lease import Lease, LeaseState, Purpose
from orchestrator.promise.lease.run_and_attempt import AttemptState
from orchestrator.promise.ledger import rows
from orchestrator.promise.obligations import RELEASE_S
from orchestrator.promise.recover import KILLED
from orchestrator.promise.release import release_all
from orchestrator.queue.record import Queue, QueuedJob, Turn
from orchestrator.report.rows import costs
from orchestrator.text import names

if TYPE_CHECKING:
    from orchestrator.api.session.session import Session
    from orchestrator.promise.effects.base import Program

LATE_S = 10.0  # a create call that has not left so long after its record does not leave


def check(queue: Queue, where: str) -> None:
    """Raise ConfigError for ids, which name files here, and for slices that this tpujob cannot read."""
    for job in queue.jobs:
        try:
            found = [] if job.turn is None else [rows.lease_of(dict(row)).id for row in job.turn.leases]
        except (KeyError, TypeError, ValueError):
            found = [""]
        if not all(map(names.is_run_id, (job.id, *found))):
            raise ConfigError(
                f"the record of the queue in {where} has a job that cannot be read, {names.for_display(job.id)}",
                hint="nothing of the queue is started or deleted; `tpujob status` shows the slices there are",
            )


def lease_here(session: Session, row: dict[str, Any]) -> Lease:
    """Return the lease of a slice that may exist, in this machine's ledger from now on."""
    with suppress(TpujobError):
        return session.ledger.lease(str(row["id"]))
    made = rows.lease_of(dict(row))
    # When its create call left, only the other machine knows: by now and a little, since its gate is shut.
    now = session.now(made.cloud)
    way = replace(made.route, os_login=False)
    lease = replace(
        made,
        purpose=Purpose.RUN,
        state=LeaseState.CREATING,
        created_at=now,
        deadline=now,
        sent_at=now + LATE_S,
        sends=max(made.sends, 1),
        settled=made.settled,
        ready_at=now if made.ready_at is not None else None,
        hold_until=None,
        detached_at=None,
        ready_by=None,
        run=None,
        route=way,
    )
    session.ledger.record(Intent(lease))
    return lease


def release(session: Session, leases: list[Lease], why: str) -> None:
    for cloud in {each.cloud for each in leases}:
        owed = [(each, why) for each in leases if each.cloud == cloud]
        for lease, _ in owed:
            session.locks.lock(lease.id)

        def program(capabilities: Any, owed: list[tuple[Lease, str]] = owed) -> Program[Any]:
            return release_all(owed, capabilities, budget_s=RELEASE_S)

        for released in session.on_cloud(program, cloud):
            session.note(released)
        for lease, _ in owed:
            session.locks.unlock(lease.id)


def close_over(session: Session, leases: list[Lease], queue: Queue) -> None:
    """Close what the ledger has of jobs whose turn is over: another machine has collected or undone it.

    `leases` were read before the record: so a slice that is created meanwhile is in both, or in none.
    """
    there = {str(each["id"]) for job in queue.with_turn if job.turn is not None for each in job.turn.leases}
    over = [each for each in leases if each.id not in there and queue.job(each.run or "") and is_over(session, each)]
    for lease in over:
        job = queue.job(lease.run or "")
        if job is not None and job.end is not None:
            last = Turn("", "", job.attempts, leases=({"id": lease.id},))
            record_end(session, job, last)
    release(session, over, "the queue has ended its turn")


def end_earlier(session: Session, job: QueuedJob, turn: Turn) -> None:
    """Close what this machine's ledger has of earlier turns: the record says that their slices are proven gone."""
    now_there = {each["id"] for each in turn.leases}
    leases = [each for each in session.open_leases() if each.run == job.id and each.id not in now_there]
    earlier = [each for each in leases if is_over(session, each)]
    why = "the queue has ended its turn"
    release(session, earlier, why)
    for each in session.ledger.attempts_of(job.id):
        if not each.state.ended:  # another process of this machine made it, and has not come to it, or stands still
            ended = AttemptEnded.by(each.id, session.now(job.cloud), AttemptState.INTERRUPTED, SliceLost(KILLED))
            with suppress(TpujobError):  # it has ended meanwhile
                session.ledger.record(ended)


def is_over(session: Session, lease: Lease) -> bool:
    """Return whether a slice whose turn is over is the queue's to close: of another machine's, only one that is gone."""
    if lease.purpose is Purpose.ELSEWHERE:
        return session.run(view(lease), lease.cloud) is None
    return lease.purpose is Purpose.QUEUE and lease.runs_detached


def record_end(session: Session, job: QueuedJob, turn: Turn) -> None:
    """Record in this machine's ledger, if it has the attempt, that its slice was taken away, or how it ended elsewhere."""
    with suppress(TpujobError):
        attempt = session.ledger.attempt(f"{job.id}-{turn.attempt}")
        if attempt.state.ended or attempt.lease_id not in {str(each["id"]) for each in turn.leases}:
            return
        now = session.now(job.cloud)
        if job.end is not None and job.end.state in [*AttemptState]:
            told = {"detail": job.end.text or "collected by another machine", "exit_code": job.end.exit_code}
            session.ledger.record(AttemptEnded(attempt.id, now, AttemptState(job.end.state), **told))  # type: ignore[arg-type]
        elif turn.lost:
            cause = "preempted" if job.losses < job.restarts else ""
            lost = Preempted(turn.lost)
            session.ledger.record(AttemptEnded.by(attempt.id, now, AttemptState.INTERRUPTED, lost, cause=cause))


def is_open(session: Session, lease_id: str) -> bool:
    """Return whether this machine's ledger still owes the slice. One that it does not know was never created here."""
    with suppress(TpujobError):
        return session.ledger.lease(lease_id).open
    return False


def usd(session: Session, lease_ids: set[str]) -> float | None:
    """Return what these slices cost, by this machine's ledger; None without a known price, or where another one knows when
    they began.
    """
    amounts = []
    for lease_id in lease_ids:
        with suppress(TpujobError):
            lease = session.ledger.lease(lease_id)
            if lease.run is None:
                return None
            if lease.billed_from is not None and not costs.came_to_nothing(session.ledger, lease):
                until = lease.gone_at or lease.billed_from
                amounts.append(costs.between(lease.usd_per_hour, lease.billed_from, until))
    return costs.total(amounts)


async def view(lease: Lease) -> Any:
    return await Get(lease.name)

"""Which run or slice a name means, for the commands that end, follow or use one; and which run a slice still serves."""

from __future__ import annotations

from orchestrator.client.session import Session, default_handle
from orchestrator.core.lease.lease import Lease, LeaseState, Mode, Purpose
from orchestrator.core.lease.run_and_attempt import Attempt, RunRecord, has_uncollected_results
from orchestrator.errors import UnknownRun, UserError
from orchestrator.settings import GKE


def named(session: Session, handle: str | None, *, on_clusters: bool = False) -> list[Lease]:
    """Return the open leases of this name, node, id or id of a run, those being deleted included.

    None: the user's own slice of `tpujob up`, else every slice of `tpujob up`. `on_clusters`: also jobs on clusters.
    """
    every = session.open_leases()
    if on_clusters:
        every += [lease for lease in session.ledger.open_leases() if lease.cloud == GKE]
    if handle is not None:
        return [lease for lease in every if handle in (lease.handle, lease.name.node, lease.id, lease.run)]
    held = [lease for lease in every if lease.purpose is Purpose.HOLD]
    return [lease for lease in held if lease.handle == default_handle()] or held


def held(session: Session, handle: str | None = None) -> Lease | None:
    """Return the lease of this name unless it is being deleted. Raises UserError when several are meant."""
    found = [lease for lease in named(session, handle) if lease.state is not LeaseState.DOWN]
    return one_of(found)


def live_run(session: Session, text: str) -> tuple[RunRecord, Attempt]:
    """Return the run of this id, or the only one of this name that has not ended, else the newest one.

    For commands that end or follow a run. Raises UnknownRun; UserError where several have not ended.
    """
    found = session.ledger.find_runs(text)
    live = [pair for pair in found if not pair[1].state.ended]
    if len(live) > 1:
        listed = ", ".join(f"{run.id} ({attempt.state})" for run, attempt in live)
        raise UserError(f"several runs named {text!r} have not ended: {listed}", hint="give the id of one of them")
    return (live or found)[0]


def leases_of_run(session: Session, run: str) -> list[Lease]:
    """Return the open leases of the run of this id: in a race several, and not the held slice that it borrows."""
    return [lease for lease in session.ledger.open_leases() if lease.run == run]


def lease_of_run(session: Session, text: str) -> Lease | None:
    """Return the open lease of the run of this name or id, in any cloud.

    None also for an unknown run, and for one of a sweep that has ended and whose slice went to the next one.
    """
    attempt = _last_attempt(session, text)
    lease = next((lease for lease in session.ledger.open_leases() if attempt and lease.id == attempt.lease_id), None)
    if lease is None or attempt is None:
        return None
    passed_on = attempt.state.ended and lease.mode is Mode.RUN and lease.run != attempt.run_id
    return None if passed_on else lease


def uncollected_run(session: Session, lease: Lease) -> str | None:
    """Return the run whose results are the only reason to hold this slice; None if there is another one."""
    attempt = _last_attempt(session, lease.run) if lease.run is not None else None
    return lease.run if attempt is not None and has_uncollected_results(attempt, lease) else None


def _last_attempt(session: Session, run: str) -> Attempt | None:
    try:
        return session.ledger.find_run(run)[1]
    except UnknownRun:
        return None


def is_followed(session: Session, lease: Lease) -> bool:
    """Return whether a process on this machine, the collector or an `attach`, follows the job on the slice to its end."""
    return any(a.lease_id == lease.id and session.locks.is_locked(a.id) for a in session.ledger.attempts_open())


def one_of(found: list[Lease]) -> Lease | None:
    """Return the only lease, or None. Raises UserError for several."""
    if len(found) > 1:
        listed = ", ".join(_described(lease) for lease in found)
        raise UserError(f"several slices are meant: {listed}", hint="give the node's name or the id of the run")
    return found[0] if found else None


def require(session: Session, handle: str | None) -> Lease:
    """Return the lease of this name. Raises UserError when there is none, or several are meant.

    Jobs on clusters count only where no slice has the name: both may have it.
    """
    found = named(session, handle, on_clusters=True)
    lease = one_of([each for each in found if each.cloud != GKE and each.state is not LeaseState.DOWN])
    if lease is None:
        for each in found:
            refuse_cluster(each)
        what = f"no slice named {handle!r}" if handle else "no slice"
        raise UserError(f"there is {what} on the {session.target.kind} cloud", hint="`tpujob up` creates one")
    return lease


def refuse_cluster(lease: Lease) -> None:
    """Raise UserError for a job on a cluster: its pods are no VMs, and the cluster keeps its limits."""
    if lease.cloud == GKE:
        raise UserError(
            f"{lease.handle} runs in pods of a cluster: ssh, scp, forward, stop, start and extend are for slices",
            hint=f"`kubectl exec -it {lease.name.node}-slice-0-0-… -n {lease.name.zone} -- bash` opens a shell; "
            "its time limit is part of what was submitted, and cannot be moved",
        )


def _described(lease: Lease) -> str:
    """Return name, node and run of a slice, as messages list it."""
    run = f", run {lease.run}" if lease.run is not None else ""
    return f"{lease.handle} ({lease.name.node}{run})"

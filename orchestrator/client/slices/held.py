"""One slice that exists: stop it, start it, move its end."""

from dataclasses import dataclass
from functools import partial

from orchestrator.client import lookup
from orchestrator.client.session import Session
from orchestrator.client.slices.shell import write_down
from orchestrator.core.lease.lease import Lease
from orchestrator.engine.slices import up_and_down
from orchestrator.errors import UnknownRun, UserError


@dataclass(frozen=True, slots=True)
class SliceStatus:
    """`state` is the API's own word for it."""

    name: str
    node: str
    state: str
    ends_at: float  #: unix seconds, the ledger's time of its cloud


@dataclass(frozen=True, slots=True)
class SliceEnd:
    """Until when a slice may exist."""

    name: str
    node: str
    ends_at: float  #: unix seconds, the ledger's time of its cloud


def _required(session: Session, name: str | None) -> Lease:
    session.announce()
    session.recover()
    return lookup.require(session, name)


def stop(session: Session, name: str | None = None) -> SliceStatus:
    """Stop a held slice; it keeps its disk, its name, its quota and its end, but has no watchdog until it is started.

    Raises UserError where there is none or it is in use.
    """
    lease = _required(session, name)
    if session.locks.is_locked(lease.id):
        raise UserError(
            f"{lease.handle} is in use by a running tpujob command", hint="end that one first (Ctrl-C there)"
        )
    view = session.run(up_and_down.stop(lease), lease.cloud)
    return SliceStatus(lease.handle, lease.name.node, view.native_state, lease.ends_at)


def start(session: Session, name: str | None = None) -> SliceStatus:
    """Start a stopped slice and wait until it is READY. Raises UserError where there is none."""
    lease = _required(session, name)
    session.ledger.check_not_newer()
    started = session.on_cloud(partial(up_and_down.start, lease), lease.cloud)
    write_down(session, started)
    return SliceStatus(lease.handle, lease.name.node, "READY", lease.ends_at)


def extend(session: Session, name: str, by_s: float) -> SliceEnd:
    """Move the end of a slice (its name, or a run's id) by `by_s` seconds. Raises UserError beyond its limits."""
    session.announce()
    session.recover(look=True)
    lease = _lease_to_extend(session, name)
    session.ledger.check_not_newer()  # the labels come first
    extended = session.on_cloud(partial(up_and_down.extend, lease, by_s), lease.cloud)
    return SliceEnd(extended.handle, extended.name.node, extended.ends_at)


def _lease_to_extend(session: Session, name: str) -> Lease:
    """Return the lease of this run, or of this slice. Raises UserError for none, for several, and for a run that has ended."""
    try:
        run, attempt = lookup.live_run(session, name)
    except UnknownRun:
        return lookup.require(session, name)
    # A living slice of the name comes before an ended run.
    other = lookup.held(session, name) if attempt.state.ended else None
    if other is None and (lease := lookup.lease_of_run(session, run.id)) is not None:
        lookup.refuse_cluster(lease)
        return lease
    if attempt.state.ended and other is None:
        raise UserError(f"{run.id} has ended: {attempt.state}", hint=f"`tpujob show {run.id}` says what became of it")
    return lookup.require(session, name)

"""`forget`: end the obligation for a slice whose deletion tpujob cannot prove. The ledger never calls it gone."""

from dataclasses import dataclass
from enum import StrEnum

from orchestrator import traits
from orchestrator.api.session import lookup
from orchestrator.api.session.session import Session
from orchestrator.errors import Interrupted, TpujobError, UserError
from orchestrator.promise.effects.cloud import Get
from orchestrator.promise.effects.retry import until
from orchestrator.promise.lease import absence
from orchestrator.promise.lease.absence import Released, unchecked
from orchestrator.promise.lease.changes import Forgotten
from orchestrator.promise.lease.cloud_api import SliceState
from orchestrator.promise.lease.lease import Lease, LeaseState
from orchestrator.promise.release import release, remove_key, try_record
from orchestrator.text.units import day_clock

ONE_TRY_S = 3.0
STUCK_S = 600.0  # a deletion that takes so long is not merely slow


class ForgetOutcome(StrEnum):
    ABSENT = "absent"  # proven after all
    NOT_VERIFIED = "not verified"  # nothing changed; `commands` verify it
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True)
class ForgetResult:
    outcome: ForgetOutcome
    node: str
    checked_at: float  # unix seconds, the ledger's time of its cloud
    commands: tuple[str, ...] = ()  # shell lines with which to look for the slice, and to forget it


def forget(session: Session, name: str, *, verified: bool = False, reason: str = "") -> ForgetResult:
    """Try the proof of absence once more; failing that, with `verified`, record that a person verified it, and why.

    Deletes nothing that was not being deleted. Raises UserError unless the slice is being deleted and either cannot be seen
    or its deletion is stuck.
    """
    session.announce()
    lease = _find(session, name)
    if lease.state is not LeaseState.DOWN:
        where = f"{lease.handle} ({lease.name.node}) is {lease.state}"
        raise UserError(
            f"{where} and not being deleted: only what cannot be proven gone can be forgotten",
            hint=f"`tpujob down {lease.handle}` deletes it",
        )
    released = _try_once(session, lease)
    node = lease.name.node
    if released.gone:
        return ForgetResult(ForgetOutcome.ABSENT, node, released.checked_at)
    if problem := _too_early(session, session.ledger.lease(lease.id), released):
        raise UserError(f"{node}: {problem}")
    if not verified:
        return ForgetResult(ForgetOutcome.NOT_VERIFIED, node, released.checked_at, _how_to_verify(lease))
    why = f"verified by a person: {reason or 'no reason given'}; missing: {'; '.join(released.verdict.missing)}"
    session.run(try_record(Forgotten(lease.id, session.now(lease.cloud), why)))
    if lease.route.os_login:
        session.run(remove_key(lease), lease.cloud)
    session.unproven.pop(lease.id, None)
    session.forget_keys(lease.id)
    return ForgetResult(ForgetOutcome.FORGOTTEN, node, released.checked_at)


def _find(session: Session, name: str) -> Lease:
    lease = lookup.one_of(lookup.named(session, name, on_clusters=True))
    if lease is None:
        known = [each for each in session.ledger.leases() if name in (each.handle, each.name.node, each.id)]
        if known:
            raise UserError(f"{known[-1].name.node} is {known[-1].state}: nothing is owed for it")
        raise lookup.no_slice(session, name)
    return lease


def _try_once(session: Session, lease: Lease) -> Released:
    """One more try at the proof. Another process may be at it too: deleting is idempotent."""
    try:
        released = session.on_cloud(
            lambda capabilities: release(lease, capabilities, reason=lease.reason, budget_s=ONE_TRY_S), lease.cloud
        )
    except Interrupted:
        raise
    except TpujobError as error:  # revoked credentials, a project that is gone
        released = unchecked(lease, error)
        session.reporter.fail(error)
    session.note(released)
    return released


def _too_early(session: Session, lease: Lease, released: Released) -> str | None:
    """Return why it is too early to give up: the slice is there, or the proof only takes time. None otherwise."""
    now, quiet_until = session.now(lease.cloud), released.verdict.quiet_until
    if quiet_until is not None and quiet_until > now:
        return f"nothing is visible, and by {day_clock(quiet_until)} that is proof; any tpujob command then records it"
    try:
        view = session.run(until(0.0, Get(lease.name)), lease.cloud)
    except TpujobError:
        return None  # even whether it is there cannot be asked
    if view is None or not absence.is_ours(view, lease):
        return None
    since_s = now - (lease.down_at or now)
    if view.state is not SliceState.DELETING:
        return f"the API shows it, {view.native_state}: it may be billed; see above what refuses its deletion"
    return None if since_s >= STUCK_S else f"it has been being deleted for {since_s:.0f} s: give it ten minutes"


def _how_to_verify(lease: Lease) -> tuple[str, ...]:
    again = f"tpujob forget {lease.handle} --verified-by-me --reason 'how you know'"
    if traits.is_emulated(lease.cloud):
        return ("# it is emulated and not billed; `tpujob emulator status` shows what the emulator has", again)
    by_hand = traits.by_hand(lease.cloud)
    return (
        f"# look, and delete it if it is there; it {by_hand.MAY.removesuffix(',')}:",
        *by_hand.look_commands(lease.name, lease.id),
        by_hand.delete_command(lease.name, lease.id),
        "# and when you have verified that it is gone:",
        again,
    )

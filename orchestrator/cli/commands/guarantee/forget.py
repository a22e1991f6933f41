"""`tpujob forget`: a person takes an obligation over that tpujob cannot prove to be met. Audited, never called gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Cloud, Project

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.lease.lease import Lease
    from orchestrator.engine.leases.release import Released

ONE_TRY_S = 3.0
STUCK_S = 600.0  # a deletion that takes so long is not merely slow


def forget(
    name: Annotated[str, typer.Argument(help="The slice's name, its node or its lease.")],
    verified: Annotated[
        bool, typer.Option("--verified-by-me", help="You looked, by other means, and it is not there (or not yours).")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="How you know; kept in the ledger.")] = "",
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Stop asking after a slice whose deletion cannot be proven. The way out, not a teardown: nothing is deleted by this.

    Only for a slice that is being deleted and that cannot be seen any more, or whose deletion is stuck.
    """
    from orchestrator.cli.console import emit
    from orchestrator.cli.session import open_session
    from orchestrator.core.lease.lease import Forgotten
    from orchestrator.engine.leases.release import note
    from orchestrator.errors import UserError
    from orchestrator.report.layout import clock

    session = open_session(cloud, project, quiet=True, light=True)
    session.announce()
    lease = _one(session, name)
    if problem := _not_down(lease):
        raise UserError(problem, hint=f"`tpujob down {lease.handle}` deletes it")
    released = _once_more(session, lease)
    if released.gone:
        emit(f"{lease.name.node} absent (checked {clock(released.checked_at)}): proven after all, nothing to forget")
        raise ExitCode(session.exit_code())
    if problem := _too_early(session, session.ledger.lease(lease.id), released):
        raise UserError(f"{lease.name.node}: {problem}")
    if not verified:
        for line in _how_to_look(lease):
            emit(line)
        raise ExitCode(session.exit_code())
    why = f"verified by a person: {reason or 'no reason given'}"
    session.run(
        note(Forgotten(lease.id, session.now(lease.cloud), f"{why}; missing: {'; '.join(released.verdict.missing)}"))
    )
    session.unproven.pop(lease.id, None)
    session.forget_keys(lease.id)
    emit(f"{lease.name.node} forgotten: nothing is proven, and tpujob does not ask after it any more")
    raise ExitCode(session.exit_code())


def _one(session: Session, name: str) -> Lease:
    from orchestrator.errors import UserError

    lease = session.one_of(session.named(name))
    if lease is None:
        known = [each for each in session.ledger.leases() if name in (each.handle, each.name.node, each.id)]
        if known:
            raise UserError(f"{known[-1].name.node} is {known[-1].state}: nothing is owed for it")
        raise UserError(f"there is no slice named {name!r} on the {session.target.kind} cloud", hint="`tpujob status`")
    return lease


def _not_down(lease: Lease) -> str | None:
    from orchestrator.core.lease.lease import LeaseState

    if lease.state is LeaseState.DOWN:
        return None
    where = f"{lease.handle} ({lease.name.node}) is {lease.state}"
    return f"{where} and not being deleted: only what cannot be proven gone can be forgotten"


def _once_more(session: Session, lease: Lease) -> Released:
    """One more honest try at the proof. Somebody else may be at it too: deleting is idempotent."""
    from orchestrator.core.lease.absence import Verdict
    from orchestrator.engine.leases.release import Released, release
    from orchestrator.errors import Interrupted, TpujobError

    try:
        released = session.on_cloud(
            lambda capabilities: release(lease, capabilities, reason=lease.reason, budget_s=ONE_TRY_S), lease.cloud
        )
    except Interrupted:
        raise
    except TpujobError as error:  # no way to ask: revoked credentials, a project that is gone
        released = Released(lease, False, 0.0, Verdict(gone=False, missing=(error.message,), last_seen="unknown"))
        session.reporter.fail(error)
    session.note(released)
    return released


def _too_early(session: Session, lease: Lease, released: Released) -> str | None:
    """Why it is too early to give up: it is there, or the proof is only a matter of time."""
    from orchestrator.core.lease import absence
    from orchestrator.core.lease.slices import SliceState
    from orchestrator.engine.effects.cloud import Get
    from orchestrator.engine.runtime.retry import until
    from orchestrator.errors import TpujobError
    from orchestrator.report.layout import day_clock

    now, quiet_until = session.now(lease.cloud), released.verdict.quiet_until
    if quiet_until is not None and quiet_until > now:
        return f"nothing is visible, and by {day_clock(quiet_until)} that is proof; any tpujob command then says so"
    try:
        view = session.run(until(0.0, Get(lease.name)), lease.cloud)
    except TpujobError:
        return None  # nobody can look, not even at whether it is there
    if view is None or not absence.is_ours(view, lease):
        return None
    since_s = now - (lease.down_at or now)
    if view.state is not SliceState.DELETING:
        return f"the API shows it, {view.native_state}: it may be billed; see above what refuses its deletion"
    return None if since_s >= STUCK_S else f"it has been being deleted for {since_s:.0f} s: give it ten minutes"


def _how_to_look(lease: Lease) -> list[str]:
    from orchestrator.clouds.google import gcloud_text

    again = f"tpujob forget {lease.handle} --verified-by-me --reason 'how you know'"
    if lease.cloud == "emulated":
        return ["# it is emulated: nobody pays for it; `tpujob emulator status` shows what the emulator has", again]
    return [
        "# look, and delete it if it is there:",
        gcloud_text.describe_node(lease.name),
        gcloud_text.list_nodes(lease.name, run=lease.id),
        gcloud_text.delete_node(lease.name),
        "# and when you have seen that it is gone:",
        again,
    ]

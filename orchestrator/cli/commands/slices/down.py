"""`tpujob down`: delete, and prove it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Cloud, Name, Project

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.client.slices.inventory import Asked
    from orchestrator.core.lease.lease import Lease
    from orchestrator.core.lease.slices import SliceView


def down(
    name: Name = None,
    everything: Annotated[bool, typer.Option("--all", help="Every slice that this machine's ledger knows.")] = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Delete a slice and prove that it is gone. Nothing to delete is fine too.

    Without a NAME the slice that `tpujob up` brought without one is meant. Where there is none, it asks which other one on a
    terminal, and names them elsewhere (exit code 64). What the ledger does not know is looked for in the API.
    """
    from orchestrator.errors import UserError

    if name and everything:
        raise UserError("give a NAME or --all, not both")
    from orchestrator.cli.session import open_session

    session = open_session(cloud, project, quiet=True, ends=True, light=True)
    session.announce()
    leases = (
        session.ledger.open_leases() if everything else _meant(session, name)
    )  # all: of every cloud, as the help says
    if not leases:
        leases = _look_further(session, name, everything=everything)
    _delete(session, leases)
    session.recover()
    raise ExitCode(session.exit_code())


def _meant(session: Session, name: str | None) -> list[Lease]:
    """By the ledger. Without a name: what `up` brought without one; nothing else is deleted unasked."""
    from orchestrator.client.session import default_handle
    from orchestrator.core.lease.lease import Purpose

    if name is not None:
        return session.named(name)
    held = [lease for lease in session.open_leases() if lease.purpose is Purpose.HOLD]
    found = [lease for lease in held if lease.handle == default_handle()]
    session.one_of(found)
    return found


def _delete(session: Session, leases: list[Lease]) -> None:
    from functools import partial

    from orchestrator.cli.console import emit
    from orchestrator.engine.slices import held
    from orchestrator.report.times import clock

    for kind in sorted({lease.cloud for lease in leases}):
        mine = tuple(lease for lease in leases if lease.cloud == kind)
        down = partial(held.down, mine, reason="tpujob down")
        for released in session.on_cloud(down, kind):
            session.note(released)
            if released.gone:
                emit(f"{released.lease.name.node} absent (checked {clock(released.checked_at)})")


# -- what the ledger does not know -------------------------------------------------------------------------------------


def _look_further(session: Session, name: str | None, *, everything: bool) -> list[Lease]:
    """What else may be meant, by the API's word. Ends the command where nothing is, or where somebody has to say what."""
    from orchestrator.cli.console import emit
    from orchestrator.client.slices import inventory
    from orchestrator.errors import TpujobError, UserError

    session.recover()
    (asked,) = inventory.ask(session, [])
    session.reporter.say("asked", asked.words)
    accounted = {lease.name.node for lease in session.ledger.open_leases()}
    strangers = [v for key, v in asked.views.items() if key not in asked.odd and v.name.node not in accounted]
    found = [] if everything else [view for view in strangers if _is_meant(session, view, name)]
    if found:
        return [_adopt(session, asked, _only(found))]
    what = f"named {name!r}" if name else "to release"
    if not asked.complete:
        why = f"this machine knows of no slice {what}, and what the API has is not known: {asked.why}"
        code = session.exit_code(asked.exit_code)
        raise TpujobError(why, hint=asked.error.hint if asked.error else None, exit_code=code)
    others = [f"{lease.handle} ({lease.name.node})" for lease in session.open_leases()]
    others += [f"{view.name.node} ({_whose(session, view)})" for view in strangers]
    alive_now = f"alive: {', '.join(others) or 'nothing is'}"
    if name is not None and name not in {lease.handle for lease in session.ledger.leases()}:
        raise UserError(f"no slice was ever named {name!r} here, and the API shows none", hint=alive_now)
    if name is None and others and not everything:
        return _choose(session, asked, strangers, alive_now)
    emit(f"nothing to release{f' named {name}' if name else ''}{f'; {alive_now}' if others else ''}")
    raise ExitCode(session.exit_code())


def _choose(session: Session, asked: Asked, strangers: list[SliceView], alive_now: str) -> list[Lease]:
    """One that is not the default slice, by its name: only who is asked deletes what others may be working on."""
    from orchestrator.errors import UserError

    if not sys.stdin.isatty():
        raise UserError(f"no slice was brought by `tpujob up` without a name; {alive_now}", hint="give a NAME")
    session.reporter.say("alive", alive_now.removeprefix("alive: "))
    name = typer.prompt("Which one is to be deleted (Enter: none)", default="", show_default=False, err=True).strip()
    if not name:
        raise ExitCode(session.exit_code())
    leases = session.named(name)
    found = [view for view in strangers if _is_meant(session, view, name)]
    if not leases and not found:
        raise UserError(f"no slice is named {name!r}", hint=alive_now)
    return leases or [_adopt(session, asked, _only(found))]


def _is_meant(session: Session, view: SliceView, name: str | None) -> bool:
    """A node's name or a run's id is nobody else's. Any other name means a slice of this user on this machine."""
    from orchestrator.client.session import default_handle
    from orchestrator.core.lease.lease import Mode
    from orchestrator.core.text import names

    said = view.labels
    if name is not None and name in (view.name.node, said.get(names.LEASE_ID)):
        return True
    handle = names.to_label_value(name or default_handle())
    held = name is not None or said.get(names.MODE) == Mode.HOLD
    return said.get("tpujob-owner") == session.owner and said.get("tpujob-name") == handle and held


def _only(found: list[SliceView]) -> SliceView:
    from orchestrator.errors import UserError

    if len(found) > 1:
        listed = ", ".join(view.name.node for view in found)
        raise UserError(f"several slices are meant: {listed}", hint="name one of these nodes")
    return found[0]


def _whose(session: Session, view: SliceView) -> str:
    owner = view.labels.get("tpujob-owner")
    return "yours, but not in this machine's ledger" if owner == session.owner else f"owner {owner or 'unknown'}"


def _adopt(session: Session, asked: Asked, view: SliceView) -> Lease:
    """Take a slice over that only the API knows: from here on the ledger owes its proof, as that of any other."""
    from orchestrator import catalog
    from orchestrator.clouds.google import gcloud_text
    from orchestrator.core.lease.lease import Intent, adopted
    from orchestrator.errors import TeardownUnproven

    # Both by the server's clock: what ours says may be set at any time.
    made_at, said_at = view.created_at, asked.server_now
    age_s = None if made_at is None or said_at is None else max(said_at - made_at, 0.0)
    price = catalog.usd_per_hour(view.accelerator_type, view.name.zone, spot=view.spot)
    lease = adopted(view, cloud=asked.cloud, now=session.now(), age_s=age_s, usd_per_hour=price)
    known = session.ledger.leases()
    why = None
    if lease is None:
        why = "its label tpujob-lease-id is missing, or no id of a run"
    elif view.name.node in {each.name.node for each in known}:
        why = "this machine's ledger has closed it"
    elif lease.id in {each.id for each in known}:
        why = f"its label tpujob-lease-id={lease.id} is that of another slice"
    if lease is None or why is not None:
        raise TeardownUnproven(
            f"{view.name.node} is {view.native_state}, and {why}", hint=gcloud_text.delete_node(view.name)
        )
    session.reporter.say("found", f"{view.name.node} ({_whose(session, view)}) in the API; deleting it")
    session.ledger.record(Intent(lease))
    return lease

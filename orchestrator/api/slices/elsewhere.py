"""Slices that this machine's ledger does not have: found by their labels, and taken over to be used or to be deleted.

The labels of a slice say whose it is, of which run, and until when it is claimed. So do those of a JobSet on the cluster of the
settings, for commands that mean a run. What is found is recorded in the ledger: from then on every command finds it there. One
that is only used keeps its claim (`Purpose.ELSEWHERE`): nothing here ends it because of the time, since the machine that made
it may have moved that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator import catalog, traits
from orchestrator.api.session import lookup
from orchestrator.api.session.lookup import default_handle
from orchestrator.api.session.session import Session
from orchestrator.api.slices import inventory
from orchestrator.api.slices.inventory import ProjectInventory
from orchestrator.errors import CloudError, TeardownUnproven, TpujobError, UserError, Vanished
from orchestrator.promise.lease import access
from orchestrator.promise.lease.absence import is_ours
from orchestrator.promise.lease.changes import Intent, Relabeled
from orchestrator.promise.lease.claim_labels import adopted, found_elsewhere, read_claim
from orchestrator.promise.lease.cloud_api import SliceState
from orchestrator.promise.lease.lease import Lease, Mode, Purpose
from orchestrator.promise.obtain import letting_in
from orchestrator.promise.renewal import catch_up
from orchestrator.text import names

if TYPE_CHECKING:
    from orchestrator.promise.lease.cloud_api import SliceView

LEAST_LETTERS = 4  # of an id, that stand for it


Found = tuple["ProjectInventory", "SliceView"]  # a slice, and the answer that shows it


def unknown(session: Session, answers: Sequence[ProjectInventory]) -> list[Found]:
    """Return the slices of tpujob in the answers that no open lease of the ledger is for."""
    accounted = {lease.name.node for lease in session.ledger.open_leases()}
    shown = [(asked, key, view) for asked in answers for key, view in asked.views.items()]
    return [(asked, v) for asked, key, v in shown if key not in asked.doubtful and v.name.node not in accounted]


def meant(session: Session, shown: Sequence[Found], name: str | None, owner: str | None) -> list[Found]:
    """Return those of these slices that the name means: of this user, or with `owner` of that one.

    None: the slice of `tpujob up` without a name. Raises UserError for a node or a run of another owner who is not named.
    """
    matching = [each for each in shown if _is_called(each[1], name)]
    whose = [each for each in matching if _belongs(session, each[1], owner)]
    exact = [view for _, view in matching if name in _ids(view)]
    if not whose and exact:
        other = exact[0].labels.get(names.OWNER) or "unknown"
        raise UserError(
            f"{exact[0].name.node} belongs to {names.for_display(other)}, and not to {owner or session.owner}",
            hint=f"`--owner {other}` says that it is meant" if names.owner_problem(other) is None else None,
        )
    return whose


def _ids(view: SliceView) -> tuple[str | None, ...]:
    return view.name.node, view.labels.get(names.LEASE_ID), view.labels.get(names.RUN)


def _is_called(view: SliceView, name: str | None) -> bool:
    """Node names and ids are unique, and the letters that an id begins with nearly. Other names mean a slice or a job."""
    if name is not None and name in _ids(view):
        return True
    if (
        name is not None
        and len(name) >= LEAST_LETTERS
        and any((each or "").startswith(name) for each in _ids(view)[1:])
    ):
        return True
    handle = names.to_label_value(name or default_handle())
    held = name is not None or view.labels.get(names.MODE) == Mode.HOLD
    return view.labels.get(names.NAME) == handle and held


def _belongs(session: Session, view: SliceView, owner: str | None) -> bool:
    label = view.labels.get(names.OWNER)
    return lookup.is_own(session, label) if owner is None else label == owner


def only(found: Sequence[Found]) -> Found:
    """Return the only one. Raises UserError for several."""
    if len(found) > 1:
        listed = ", ".join(view.name.node for _, view in found)
        raise UserError(f"the name matches several slices: {listed}", hint="name one of these nodes")
    return found[0]


def owner_text(session: Session, view: SliceView) -> str:
    """Return whose the slice is, for a message."""
    if is_closed(session, view):
        return f"{view.native_state}, though this machine's ledger has closed it"
    owner = view.labels.get(names.OWNER)
    return "yours, but not in this machine's ledger" if lookup.is_own(session, owner) else f"owner {owner or 'unknown'}"


def is_closed(session: Session, view: SliceView) -> bool:
    """Return whether the slice is that of a lease which ended here, proven absent or forgotten."""
    return any(is_ours(view, lease) for lease in session.ledger.leases() if not lease.open)


def closed_and_alive(asked: ProjectInventory, closed: Sequence[SliceView]) -> TeardownUnproven:
    """Nothing can be written into the ledger of a lease that has ended, so no command of tpujob owes its proof any more."""
    listed = ", ".join(f"{view.name.node} is {view.native_state}" for view in closed)
    them = "it" if len(closed) == 1 else "them"
    by_hand = traits.by_hand(asked.cloud)
    return TeardownUnproven(
        f"{listed}, and this machine's ledger has closed {them}",
        hint=" && ".join(by_hand.delete_command(view.name) for view in closed),
    )


def lease_to_release(session: Session, asked: ProjectInventory, view: SliceView) -> Lease:
    """Return the lease, not recorded yet, of a slice that is to be deleted. Raises TeardownUnproven if there can be none."""
    # Both times are the server's: this machine's clock may be set to anything.
    made_at, asked_at = view.created_at, asked.server_now
    age_s = None if made_at is None or asked_at is None else max(asked_at - made_at, 0.0)
    price = catalog.usd_per_hour(view.accelerator_type, view.name.zone, spot=view.spot)
    lease = adopted(view, cloud=asked.cloud, now=session.now(), age_s=age_s, usd_per_hour=price)
    known = session.ledger.leases()
    why = None
    if view.name.node in {each.name.node for each in known}:
        raise closed_and_alive(asked, [view])
    if lease is None:
        why = f"its label {names.LEASE_ID} is missing, or no id of a lease"
    elif lease.id in {each.id for each in known}:
        why = f"its label {names.LEASE_ID}={lease.id} is that of another slice"
    if lease is None or why is not None:
        raise TeardownUnproven(
            f"{view.name.node} is {view.native_state}, and {why}",
            hint=traits.by_hand(asked.cloud).delete_command(view.name),
        )
    return lease


def adopt_to_release(session: Session, asked: ProjectInventory, view: SliceView) -> Lease:
    """Write the slice into the ledger, which from then on owes its proof of absence. Raises TeardownUnproven."""
    lease = lease_to_release(session, asked, view)
    session.reporter.notice("found", f"{view.name.node} ({owner_text(session, view)}) in the API; deleting it")
    session.ledger.record(Intent(lease))
    return lease


def find_job(session: Session, name: str, owner: str | None = None) -> list[Lease]:
    """Return the lease, now in the ledger to be deleted, of the slice on which the job of this id or name runs; none: no job.

    A slice that is held is none: its job has ended. Raises TpujobError without a complete answer, UserError, TeardownUnproven.
    """
    found = _asked(session, name, owner, alone=False)
    living = [each for each in found if each[1].labels.get(names.MODE) != Mode.HOLD and names.RUN in each[1].labels]
    return [adopt_to_release(session, *only(living))] if living else []


def find(
    session: Session, name: str | None, owner: str | None = None, *, detached: bool = False, of_run: bool = False
) -> Lease | None:
    """Return the lease, now in the ledger, of the slice that the API has of this name, to be used; None: there is none.

    `detached`: only one whose job runs on its own counts. `of_run`: JobSets count, too. Raises TpujobError without a complete
    answer; UserError for several slices, for one of another owner who is not named, and for one that is not READY or that no
    labels describe.
    """
    found = _asked(session, name, owner, alone=not of_run)
    if detached:
        found = [each for each in found if each[1].labels.get(names.MODE) == Mode.DETACHED]
    if not found:
        return None
    asked, view = only(found)
    if view.native_state != "READY" if traits.traits_of(asked.cloud).vms else view.state is SliceState.DELETING:
        raise UserError(f"{view.name.node} is {view.native_state} ({owner_text(session, view)})")
    lease = _described(session, asked, view, lease_to_release(session, asked, view))
    session.ledger.check_not_newer()
    way = replace(access.route(session.target.access), os_login=False, user=access.LOGIN_USER)  # `let_in` sees to it
    session.ledger.record(Intent(replace(lease, route=way)))
    session.reporter.notice("found", f"{view.name.node} ({owner_text(session, view)}) in the API, by its labels")
    return session.ledger.lease(lease.id)


def _described(session: Session, asked: ProjectInventory, view: SliceView, base: Lease) -> Lease:
    """Return the lease as the labels of its slice say it. Raises UserError if they do not."""
    claim = read_claim(view, session.target.timings)
    skew_s = 0.0 if asked.server_now is None else asked.server_now - session.now()
    lease = None if claim is None else found_elsewhere(view, base, claim, now=session.now(), skew_s=skew_s)
    if lease is None:
        raise UserError(f"the labels of {view.name.node} do not say who uses it", hint="`tpujob down` can delete it")
    return lease


def _asked(session: Session, name: str | None, owner: str | None, *, alone: bool) -> list[Found]:
    """Return the slices of this name that are not in the ledger, each with the answer that shows it.

    `alone`: the cluster of the settings is not asked. Of an answer that is not complete, only what has exactly this id counts:
    a name may mean another one, too.
    """
    if owner is not None and (problem := names.owner_problem(owner)):
        raise UserError(f"--owner {names.for_display(owner)} {problem}")
    answers = inventory.ask(session, [], alone=alone)
    found = meant(session, unknown(session, answers), name, owner)
    partial = [asked for asked in answers if not asked.complete]
    if partial and not any(name in _ids(view) for _, view in found):
        raise not_known(session, partial[0], f"named {name!r}" if name else "of `tpujob up`")
    return found


def not_known(session: Session, asked: ProjectInventory, what: str) -> TpujobError:
    """Return the error for a slice that the ledger does not have, where the answer of the API is not complete."""
    why = f"the ledger has no slice {what}, and what the API has is not known: {asked.why}"
    code = session.exit_code(asked.exit_code)
    return TpujobError(why, hint=asked.error.hint if asked.error else None, exit_code=code)


def require(session: Session, name: str | None, owner: str | None = None) -> Lease:
    """Return the lease of this name: that of the ledger, else that of the slice that the API has.

    `owner`: of another owner. Raises UserError when there is none, or several are meant.
    """
    try:
        return lookup.require(session, name, owner=owner)
    except lookup.NoSlice:
        found = find(session, name, owner)
        if found is None:
            raise
        return found


def let_in(session: Session, lease: Lease) -> Lease:
    """Return the lease of a slice that another machine made, with the way in that this machine has. Raises CloudError."""
    if lease.purpose is not Purpose.ELSEWHERE:
        return lease
    session.run(letting_in.let_in(lease), lease.cloud)
    return session.ledger.lease(lease.id)


def as_labels_say(session: Session, lease: Lease) -> Lease:
    """Return a lease that was found before, with what its slice is used for now. Raises TpujobError, Vanished."""
    *_, asked = inventory.ask(session, [lease], alone=True)  # the last one is where it is
    view = asked.view_of(lease)
    if isinstance(view, CloudError):
        raise view
    if view is None or not is_ours(view, lease):
        raise Vanished(f"{lease.name.node} does not exist (any more)")
    now = _described(session, asked, view, replace(lease, handle=view.labels.get(names.NAME) or lease.handle))
    said = (now.handle, now.deadline, now.run, now.hold_until, now.held_for, now.detached_at)
    session.ledger.record(Relabeled(lease.id, session.now(lease.cloud), *said))
    return session.ledger.lease(lease.id)


def up_to_date(session: Session, lease: Lease) -> Lease:
    """Return the lease with the end that its labels have now, if another machine made it. Raises CloudError."""
    return session.run(catch_up(lease), lease.cloud) if lease.purpose is Purpose.ELSEWHERE else lease

"""`down`: delete slices, and prove each absent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from orchestrator import catalog, traits
from orchestrator.api.session import lookup
from orchestrator.api.session.lookup import default_handle
from orchestrator.api.session.session import Session
from orchestrator.api.slices import inventory
from orchestrator.api.slices.inventory import ProjectInventory
from orchestrator.errors import CloudError, ConfigError, TeardownUnproven, TpujobError, UserError
from orchestrator.promise.lease.absence import Released, is_ours
from orchestrator.promise.lease.changes import Intent
from orchestrator.promise.lease.claim_labels import adopted
from orchestrator.promise.lease.cloud_api import SliceView
from orchestrator.promise.lease.lease import DOWN, Lease, Mode, Purpose
from orchestrator.run import up_and_down
from orchestrator.text import names


@dataclass(frozen=True, slots=True)
class SliceRelease:
    """How the deletion of one slice ended. With `absent` false it may still be billed."""

    name: str
    node: str
    zone: str
    absent: bool
    checked_at: float  #: unix seconds, the ledger's time of its cloud

    @classmethod
    def of(cls, released: Released) -> Self:
        """Return what the release says of its slice."""
        lease = released.lease
        return cls(lease.handle, lease.name.node, lease.name.zone, released.gone, released.checked_at)


@dataclass(frozen=True, slots=True)
class DownResult:
    """`released` is empty where there was nothing to delete; then `alive` describes the other slices.

    `error`: why the slices of another cloud could not be asked about; they are not in `released`.
    """

    released: tuple[SliceRelease, ...]
    alive: tuple[str, ...] = ()
    error: TpujobError | None = None


class NameNeeded(UserError):
    """No name was given, and the slices that are alive are not the default one. `alive` describes them."""

    def __init__(self, alive: str) -> None:
        super().__init__(f"there is no slice of `tpujob up` without a name; alive: {alive}", hint="give a NAME")
        self.alive = alive


def take_down(session: Session, name: str | None = None, *, everything: bool = False) -> DownResult:
    """Delete a slice, or every slice of this machine's ledger, and prove each absent. Return how each deletion ended.

    `name` is that of a slice, a node or a run; None means the slice of `up` without a name. A slice that is not in the
    ledger is looked for in the API. Raises NameNeeded where only other slices are alive, UserError for an unknown
    name or one of several slices, TpujobError where the API had to be asked and gave no complete answer,
    TeardownUnproven for a slice that cannot be adopted. An absence that could not be proven raises nothing: see
    `SliceRelease.absent`.
    """
    session.announce()
    alive: tuple[str, ...] = ()
    leases = session.ledger.open_leases() if everything else _in_ledger(session, name)
    if not leases:
        leases, alive = search(session, name, everything=everything)
        if name is None and alive and not everything and not leases:
            raise NameNeeded(", ".join(alive))
    result = DownResult((), alive)
    for kind in sorted({lease.cloud for lease in leases}):
        try:
            result = replace(result, released=(*result.released, *_delete(session, leases, kind)))
        except (CloudError, ConfigError) as error:  # the slices of the other clouds are deleted all the same
            result = replace(result, error=result.error or error)
    session.recover()
    return result


def _in_ledger(session: Session, name: str | None) -> list[Lease]:
    if name is not None:
        return lookup.to_release(session, name, begins=False)
    held_leases = [lease for lease in session.open_leases() if lease.purpose is Purpose.HOLD]
    found = [lease for lease in held_leases if lease.handle == default_handle()]
    lookup.one_of(found)
    return found


def _delete(session: Session, leases: Sequence[Lease], kind: str) -> list[SliceRelease]:
    mine = tuple(lease for lease in leases if lease.cloud == kind)
    releases = []
    for released in session.on_cloud(partial(up_and_down.down, mine, reason=DOWN), kind):
        session.note(released)
        releases.append(SliceRelease.of(released))
    return releases


# Adopt a slice that is in the API and not in this machine's ledger: find the one that `down` names, and record it.


def search(session: Session, name: str | None, *, everything: bool) -> tuple[list[Lease], tuple[str, ...]]:
    """Return the lease of the slice of this name, now in the ledger, and descriptions of the other slices.

    Only where the API has none of exactly this name does it count as the beginning of an id of the ledger. Empty where
    there is none, and always with `everything`. Raises TpujobError without a complete answer of the API,
    UserError when the name matches several slices or was never given, TeardownUnproven when the slice cannot be adopted,
    and with `everything` for slices that the ledger has closed and the API shows.
    """
    session.recover()
    (asked,) = inventory.ask(session, [], alone=True)
    session.reporter.notice("asked", asked.summary)
    accounted = {lease.name.node for lease in session.ledger.open_leases()}
    unknown = [v for key, v in asked.views.items() if key not in asked.doubtful and v.name.node not in accounted]
    found = [] if everything else [view for view in unknown if _matches(session, view, name)]
    if found:
        return [_adopt(session, asked, _only(found))], ()
    what = f"named {name!r}" if name else "to release"
    if everything and (closed := [view for view in unknown if _is_closed(session, view)]):
        raise _closed_and_alive(asked, closed)
    if not asked.complete:
        why = f"the ledger has no slice {what}, and what the API has is not known: {asked.why}"
        code = session.exit_code(asked.exit_code)
        raise TpujobError(why, hint=asked.error.hint if asked.error else None, exit_code=code)
    if name is not None and (begun := lookup.to_release(session, name)):
        return begun, ()
    alive = [f"{lease.handle} ({lease.name.node})" for lease in session.open_leases()]
    alive += [f"{view.name.node} ({_owner_text(session, view)})" for view in unknown]
    if name is not None and name not in {lease.handle for lease in session.ledger.leases()}:
        _refuse_others(asked, name)
        listed = f"alive: {', '.join(alive)}" if alive else "no slice of tpujob is alive"
        raise UserError(f"no slice was ever named {name!r} here, and the API shows none", hint=listed)
    return [], tuple(alive)


def _refuse_others(asked: ProjectInventory, name: str) -> None:
    """Raise UserError if a node of this name lacks a mark of tpujob: it is another program's, or a person's."""
    marked = [asked.views[key] for key in asked.doubtful]
    for view in (*marked, *asked.others.values()):
        if view.name.node == name:
            raise UserError(
                f"{name} exists in {view.name.zone} ({view.native_state}), but is not tpujob's, so it is not deleted",
                hint=f"if it is yours: {traits.by_hand(asked.cloud).delete_command(view.name)}",
            )


def _matches(session: Session, view: SliceView, name: str | None) -> bool:
    """Node names and run ids are unique. Any other name means a slice of this user on this machine."""
    labels = view.labels
    if name is not None and name in (view.name.node, labels.get(names.LEASE_ID)):
        return True
    handle = names.to_label_value(name or default_handle())
    held = name is not None or labels.get(names.MODE) == Mode.HOLD
    return session.is_own(labels.get(names.OWNER)) and labels.get(names.NAME) == handle and held


def _only(found: list[SliceView]) -> SliceView:
    if len(found) > 1:
        listed = ", ".join(view.name.node for view in found)
        raise UserError(f"the name matches several slices: {listed}", hint="name one of these nodes")
    return found[0]


def _owner_text(session: Session, view: SliceView) -> str:
    if _is_closed(session, view):
        return f"{view.native_state}, though this machine's ledger has closed it"
    owner = view.labels.get(names.OWNER)
    return "yours, but not in this machine's ledger" if session.is_own(owner) else f"owner {owner or 'unknown'}"


def _is_closed(session: Session, view: SliceView) -> bool:
    """Return whether the slice is that of a lease which ended here, proven absent or forgotten."""
    return any(is_ours(view, lease) for lease in session.ledger.leases() if not lease.open)


def _closed_and_alive(asked: ProjectInventory, closed: Sequence[SliceView]) -> TeardownUnproven:
    """Nothing can be written into the ledger of a lease that has ended, so no command of tpujob owes its proof any more."""
    listed = ", ".join(f"{view.name.node} is {view.native_state}" for view in closed)
    them = "it" if len(closed) == 1 else "them"
    by_hand = traits.by_hand(asked.cloud)
    return TeardownUnproven(
        f"{listed}, and this machine's ledger has closed {them}",
        hint=" && ".join(by_hand.delete_command(view.name) for view in closed),
    )


def _adopt(session: Session, asked: ProjectInventory, view: SliceView) -> Lease:
    """Write the slice into the ledger, which from then on owes its proof of absence."""
    # Both times are the server's: this machine's clock may be set to anything.
    made_at, asked_at = view.created_at, asked.server_now
    age_s = None if made_at is None or asked_at is None else max(asked_at - made_at, 0.0)
    price = catalog.usd_per_hour(view.accelerator_type, view.name.zone, spot=view.spot)
    lease = adopted(view, cloud=asked.cloud, now=session.now(), age_s=age_s, usd_per_hour=price)
    known = session.ledger.leases()
    why = None
    if view.name.node in {each.name.node for each in known}:
        raise _closed_and_alive(asked, [view])
    if lease is None:
        why = f"its label {names.LEASE_ID} is missing, or no id of a lease"
    elif lease.id in {each.id for each in known}:
        why = f"its label {names.LEASE_ID}={lease.id} is that of another slice"
    if lease is None or why is not None:
        raise TeardownUnproven(
            f"{view.name.node} is {view.native_state}, and {why}",
            hint=traits.by_hand(asked.cloud).delete_command(view.name),
        )
    session.reporter.notice("found", f"{view.name.node} ({_owner_text(session, view)}) in the API; deleting it")
    session.ledger.record(Intent(lease))
    return lease

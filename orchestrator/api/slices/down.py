"""`down`: delete slices, and prove each absent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from orchestrator import traits
from orchestrator.api.session import lookup
from orchestrator.api.session.lookup import default_handle
from orchestrator.api.session.session import Session
from orchestrator.api.slices import elsewhere, inventory
from orchestrator.api.slices.inventory import ProjectInventory
from orchestrator.errors import CloudError, ConfigError, TpujobError, UserError
from orchestrator.promise.lease.absence import Released
from orchestrator.promise.lease.lease import DOWN, Lease, LeaseState, Purpose
from orchestrator.run import up_and_down


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


def take_down(
    session: Session, name: str | None = None, *, owner: str | None = None, everything: bool = False
) -> DownResult:
    """Delete a slice, or every slice of this machine's ledger, and prove each absent. Return how each deletion ended.

    `name` is that of a slice, a node or a run; None means the slice of `up` without a name. A slice that is not in the
    ledger is looked for in the API: one of this user, or of another `owner` who is named. Raises NameNeeded where only
    other slices are alive, UserError for an unknown name, one of several slices or one of another owner, TpujobError where
    the API had to be asked and gave no complete answer,
    TeardownUnproven for a slice that cannot be adopted. An absence that could not be proven raises nothing: see
    `SliceRelease.absent`.
    """
    session.announce()
    alive: tuple[str, ...] = ()
    leases = _of_this_machine(session) if everything else _in_ledger(session, name, owner)
    if not leases:
        leases, alive = search(session, name, owner, everything=everything)
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


def _in_ledger(session: Session, name: str | None, owner: str | None = None) -> list[Lease]:
    if name is not None:
        return lookup.to_release(session, name, begins=False, owner=owner)
    found = [lease for lease in lookup.named(session, None, owner=owner) if lease.handle == default_handle()]
    lookup.one_of(found)
    return found


def _of_this_machine(session: Session) -> list[Lease]:
    """Return the open leases but those of slices that another machine made, and whose job this one has not taken over."""
    runs = {run for run, _ in session.ledger.run_names()}
    leases = session.ledger.open_leases()
    others = [
        each
        for each in leases
        if each.purpose is Purpose.ELSEWHERE and each.state is not LeaseState.DOWN and each.run not in runs
    ]
    if others:
        named = ", ".join(f"{each.handle} ({each.name.node})" for each in others)
        session.reporter.notice("alive", f"{named}: made by another machine; `tpujob down NAME` deletes it")
    return [lease for lease in leases if lease not in others]


def _delete(session: Session, leases: Sequence[Lease], kind: str) -> list[SliceRelease]:
    mine = tuple(lease for lease in leases if lease.cloud == kind)
    releases = []
    for released in session.on_cloud(partial(up_and_down.down, mine, reason=DOWN), kind):
        session.note(released)
        releases.append(SliceRelease.of(released))
    return releases


# A slice that is in the API and not in this machine's ledger: find the one that `down` names, and record it.


def search(
    session: Session, name: str | None, owner: str | None = None, *, everything: bool
) -> tuple[list[Lease], tuple[str, ...]]:
    """Return the lease of the slice of this name, now in the ledger, and descriptions of the other slices.

    Only where the API has none of exactly this name does it count as the beginning of an id of the ledger. Empty where
    there is none, and always with `everything`. Raises TpujobError without a complete answer of the API,
    UserError when the name matches several slices, was never given or belongs to another owner, TeardownUnproven when the
    slice cannot be adopted, and with `everything` for slices that the ledger has closed and the API shows.
    """
    session.recover()
    asked, *_ = answers = inventory.ask(session, [], alone=True)
    for each in answers:
        session.reporter.notice("asked", each.summary)
    unknown = elsewhere.unknown(session, answers)
    if not everything and (found := elsewhere.meant(session, unknown, name, owner)):
        return [elsewhere.adopt_to_release(session, *elsewhere.only(found))], ()
    what = f"named {name!r}" if name else "to release"
    if everything and (closed := [view for _, view in unknown if elsewhere.is_closed(session, view)]):
        raise elsewhere.closed_and_alive(asked, closed)
    for each in answers:
        if not each.complete:
            raise elsewhere.not_known(session, each, what)
    if name is not None and (begun := lookup.to_release(session, name, owner=owner)):
        return begun, ()
    alive = [f"{lease.handle} ({lease.name.node})" for lease in session.open_leases()]
    alive += [f"{view.name.node} ({elsewhere.owner_text(session, view)})" for _, view in unknown]
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

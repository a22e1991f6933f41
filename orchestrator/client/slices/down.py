"""`down`: delete slices, and prove each absent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Self

from orchestrator.client import lookup
from orchestrator.client.session import Session, default_handle
from orchestrator.client.slices import adoption
from orchestrator.core.lease.lease import DOWN, Lease, Purpose
from orchestrator.engine.slices import up_and_down
from orchestrator.errors import CloudError, ConfigError, TpujobError, UserError

if TYPE_CHECKING:
    from orchestrator.engine.leases.release import Released


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
        leases, alive = adoption.search(session, name, everything=everything)
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

"""Adopt a slice that is in the API and not in this machine's ledger: find the one that `down` names, and record it."""

from orchestrator import catalog, places
from orchestrator.client import lookup
from orchestrator.client.session import Session, default_handle
from orchestrator.client.slices import inventory
from orchestrator.client.slices.inventory import ProjectInventory
from orchestrator.core.lease.claim_labels import adopted
from orchestrator.core.lease.cloud_api import SliceView
from orchestrator.core.lease.lease import Intent, Lease, Mode
from orchestrator.core.text import names
from orchestrator.errors import TeardownUnproven, TpujobError, UserError


def search(session: Session, name: str | None, *, everything: bool) -> tuple[list[Lease], tuple[str, ...]]:
    """Return the lease of the slice of this name, now in the ledger, and descriptions of the other slices.

    Only where the API has none of exactly this name does it count as the beginning of an id of the ledger. Empty where
    there is none, and always with `everything`. Raises TpujobError without a complete answer of the API,
    UserError when the name matches several slices or was never given, TeardownUnproven when the slice cannot be adopted.
    """
    session.recover()
    (asked,) = inventory.ask(session, [])
    session.reporter.notice("asked", asked.summary)
    accounted = {lease.name.node for lease in session.ledger.open_leases()}
    unknown = [v for key, v in asked.views.items() if key not in asked.doubtful and v.name.node not in accounted]
    found = [] if everything else [view for view in unknown if _matches(session, view, name)]
    if found:
        return [_adopt(session, asked, _only(found))], ()
    what = f"named {name!r}" if name else "to release"
    if not asked.complete:
        why = f"the ledger has no slice {what}, and what the API has is not known: {asked.why}"
        code = session.exit_code(asked.exit_code)
        raise TpujobError(why, hint=asked.error.hint if asked.error else None, exit_code=code)
    if name is not None and (begun := lookup.to_release(session, name)):
        return begun, ()
    alive = [f"{lease.handle} ({lease.name.node})" for lease in session.open_leases()]
    alive += [f"{view.name.node} ({_owner_text(session, view)})" for view in unknown]
    if name is not None and name not in {lease.handle for lease in session.ledger.leases()}:
        listed = f"alive: {', '.join(alive) or 'nothing is'}"
        raise UserError(f"no slice was ever named {name!r} here, and the API shows none", hint=listed)
    return [], tuple(alive)


def _matches(session: Session, view: SliceView, name: str | None) -> bool:
    """Node names and run ids are unique. Any other name means a slice of this user on this machine."""
    labels = view.labels
    if name is not None and name in (view.name.node, labels.get(names.LEASE_ID)):
        return True
    handle = names.to_label_value(name or default_handle())
    held = name is not None or labels.get(names.MODE) == Mode.HOLD
    return labels.get(names.OWNER) == session.owner and labels.get(names.NAME) == handle and held


def _only(found: list[SliceView]) -> SliceView:
    if len(found) > 1:
        listed = ", ".join(view.name.node for view in found)
        raise UserError(f"the name matches several slices: {listed}", hint="name one of these nodes")
    return found[0]


def _owner_text(session: Session, view: SliceView) -> str:
    owner = view.labels.get(names.OWNER)
    return "yours, but not in this machine's ledger" if owner == session.owner else f"owner {owner or 'unknown'}"


def _adopt(session: Session, asked: ProjectInventory, view: SliceView) -> Lease:
    """Write the slice into the ledger, which from then on owes its proof of absence."""
    # Both times are the server's: this machine's clock may be set to anything.
    made_at, asked_at = view.created_at, asked.server_now
    age_s = None if made_at is None or asked_at is None else max(asked_at - made_at, 0.0)
    price = catalog.usd_per_hour(view.accelerator_type, view.name.zone, spot=view.spot)
    lease = adopted(view, cloud=asked.cloud, now=session.now(), age_s=age_s, usd_per_hour=price)
    known = session.ledger.leases()
    why = None
    if lease is None:
        why = f"its label {names.LEASE_ID} is missing, or no id of a lease"
    elif view.name.node in {each.name.node for each in known}:
        why = "this machine's ledger has closed it"
    elif lease.id in {each.id for each in known}:
        why = f"its label {names.LEASE_ID}={lease.id} is that of another slice"
    if lease is None or why is not None:
        raise TeardownUnproven(
            f"{view.name.node} is {view.native_state}, and {why}",
            hint=places.by_hand(asked.cloud).delete_command(view.name),
        )
    session.reporter.notice("found", f"{view.name.node} ({_owner_text(session, view)}) in the API; deleting it")
    session.ledger.record(Intent(lease))
    return lease

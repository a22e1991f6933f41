"""`status`: every slice of tpujob that the API shows or the ledger has open, with its claim and its cost."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import catalog, places, settings, traits
from orchestrator.api.session import lookup, sweep_progress
from orchestrator.api.session.session import Session
from orchestrator.api.session.sweep_progress import SweepProgress
from orchestrator.api.slices import inventory
from orchestrator.api.slices.inventory import ProjectInventory
from orchestrator.errors import CloudError, TeardownUnproven, TpujobError
from orchestrator.promise.lease.lease import HeldFor, Lease, LeaseState, Mode
from orchestrator.promise.lease.run_and_attempt import AttemptState
from orchestrator.report.rows import costs
from orchestrator.system.lazy import Later
from orchestrator.text import names
from orchestrator.text.units import day_clock, format_usd

if TYPE_CHECKING:
    from orchestrator.promise.lease import absence, claim_labels, cloud_api, guest_reports
    from orchestrator.report.rows import collected
else:  # where there is a slice
    absence = Later("orchestrator.promise.lease.absence")
    claim_labels = Later("orchestrator.promise.lease.claim_labels")
    cloud_api = Later("orchestrator.promise.lease.cloud_api")
    collected = Later("orchestrator.report.rows.collected")
    guest_reports = Later("orchestrator.promise.lease.guest_reports")

LEFT_S = 86400.0  # for so long after the end of a run, its nodes are asked for
_STOPPED_STATES = ("STOPPING", "STOPPED")  # the API's words
_STOPPED = (
    "no watchdog while it is stopped: the next tpujob command or gc timer deletes it then; its full price is counted"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRow:
    """One slice. Times are unix seconds: the ledger's time of its cloud, or the server's where the ledger has no lease.

    None in a field means unknown; `purpose`, `lease`, `in_use` and `followed` are None for a slice without a lease here.
    """

    name: str
    node: str
    project: str
    zone: str
    accelerator_type: str
    spot: bool
    purpose: str | None = None
    lease: str | None = None  #: the state of its lease
    lease_id: str | None
    state: str  #: the API's own word; `not visible`, or `unknown: …` where the API gave no answer
    created_at: float | None
    deadline: float | None
    ends_at: float | None
    hold_until: float | None = None
    idle_s: float | None = None  #: it is deleted when it is held and unused for so long; None: never
    #: no earlier; a login since then makes it later; None: never, or not while stopped
    idle_ends_at: float | None = None
    down_at: float | None = None
    in_use: bool | None = None
    followed: bool | None = None  #: does a process here follow the detached run on it?
    usd_per_hour: float | None
    usd_so_far: float | None
    usd_at_most: float | None
    budget_usd: float | None = None
    mode: str | None
    emulated: bool
    run: str | None = None
    owner: str | None
    yours: bool
    remark: str | None
    now: float

    @property
    def cloud(self) -> str:
        """Its cloud, as amounts of money name it."""
        return settings.EMULATED if self.emulated else settings.GOOGLE

    @property
    def stopped(self) -> bool:
        """Whether its VMs are off, and with them its watchdog."""
        return self.state in _STOPPED_STATES

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "now"}


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A run that asks for capacity and has no slice now: between two candidates, or before the next try.

    `accelerator_type` and `zone` (or region) are those of its job; None: it has several.
    """

    name: str
    run: str
    cloud: str
    accelerator_type: str | None
    zone: str | None


@dataclass(frozen=True, slots=True)
class Status:
    """The answer of every project that was asked, the slices, and the runs that wait for one."""

    cloud: str
    project: str
    why: str  #: which cloud this is, and why
    projects: tuple[ProjectInventory, ...]
    slices: tuple[SliceRow, ...]
    google_not_asked: str | None  #: why Google Cloud was not asked; None: it was
    waiting: tuple[WaitingRun, ...] = ()
    sweeps: tuple[SweepProgress, ...] = ()  #: whose process is alive
    left: tuple[
        str, ...
    ] = ()  #: what runs that ended within a day have left billed, such as nodes: a sentence for each cluster

    @property
    def exit_code(self) -> int:
        """0, 75 without a complete answer, 77 without credentials or a permission; 75 outranks 77."""
        return inventory.worst(self.projects)

    def as_json(self) -> dict[str, Any]:
        return {
            "cloud": self.cloud,
            "project": self.project,
            "why": self.why,
            "asked_at": self.projects[0].at,
            "complete": all(each.complete for each in self.projects),
            "asked": [each.as_json() for each in self.projects],
            "not_asked": [{"cloud": "google", "why": self.google_not_asked}] if self.google_not_asked else [],
            "slices": [row.as_json() for row in self.slices],
            "waiting": [asdict(run) for run in self.waiting],
            "sweeps": [sweep.as_json() for sweep in self.sweeps],
            "left": list(self.left),
        }


def status(session: Session) -> Status:
    """Return every slice of tpujob: asked of the API, in this project and in those of open leases; recovery included.

    An API that does not answer raises nothing: see `RpcStatus.exit_code`. Takes `inventory.ASK_S` seconds at most, the
    recovery of what earlier commands left, and where it does answer one more call for each slice on which a job runs.
    """
    before = {lease.id for lease in session.ledger.open_leases()}
    asked = inventory.ask(session, session.ledger.open_leases())
    session.recover(look=all(each.complete for each in asked))
    _note_overdue(session)
    target = session.target
    rows = tuple(_rows(session, asked, before))
    not_asked = _google_not_asked(session, asked)
    where = (target.kind, target.project, target.why)
    complete = all(each.complete for each in asked)
    said, left = (_said_of_chips(session), tuple(left_by_ended(session))) if complete else ({}, ())
    rows = tuple(_with_use(row, said.get(row.lease_id or "")) for row in rows)
    return Status(*where, tuple(asked), rows, not_asked, _waiting(session), sweep_progress.living(session), left)


def _said_of_chips(session: Session) -> dict[str, str]:
    """Return what the VMs of slices say whose job does not use its chips, by the ids of their leases.

    The first call that fails ends it: what is not known is not said.
    """
    found: dict[str, str] = {}
    with suppress(TpujobError):
        for run, attempt in session.ledger.runs():
            if attempt.state is not AttemptState.RUNNING or attempt.lease_id is None:
                continue
            if session.now(run.cloud) - (attempt.started_at or math.inf) >= session.target.timings.chip_s:
                cloud, lease = session.world(run.cloud).cloud, session.ledger.lease(attempt.lease_id)
                said = guest_reports.published(cloud.guest_attributes(lease.name), attempt.id)
                found[lease.id] = "; ".join(said.values())
    return found


def left_by_ended(session: Session) -> Iterator[str]:
    """Yield which machines are still there of those that their places bill beside the leases of runs."""
    used: dict[tuple[str, str], list[str]] = {}
    for run, last in session.ledger.runs():
        if last.ended_at is None or last.lease_id is None or session.now(run.cloud) - last.ended_at > LEFT_S:
            continue
        project = session.ledger.lease(last.lease_id).name.project
        for attempt in session.ledger.attempts_of(run.id):
            for _, kind, data in session.ledger.events(attempt.id):
                if kind == "nodes_used":
                    used.setdefault((run.cloud, project), []).extend(data["nodes"].split(", "))
    for (cloud, project), machines in used.items():
        try:
            if words := places.place_of(cloud).rest(session, project, machines):
                yield f"ended runs have left {words}, billed until the cluster deletes them"
        except CloudError as error:
            yield f"whether the nodes of ended runs are gone is not known: {error.message}"


def _with_use(row: SliceRow, said: str | None) -> SliceRow:
    """Return the row with what its VMs say of the use of the TPU."""
    text = said and f"{said}, {format_usd(row.usd_so_far)} so far"
    return replace(row, remark="; ".join(filter(None, (row.remark, text))) or None)


def _waiting(session: Session) -> tuple[WaitingRun, ...]:
    with_slice = {lease.run for lease in session.ledger.open_leases()}
    return tuple(
        WaitingRun(run.name, run.id, run.cloud, *run.spec.tpu.place)
        for run, attempt in session.ledger.runs()
        if attempt.state is AttemptState.PENDING and traits.traits_of(run.cloud).billed and run.id not in with_slice
    )


def _google_not_asked(session: Session, asked: list[ProjectInventory]) -> str | None:
    """A slice of an earlier day may be billed there, so the reason is worth a line."""
    if any(traits.traits_of(each.cloud).by_target and not traits.is_emulated(each.cloud) for each in asked):
        return None
    source = session.target.source
    return "no project is configured" if source == "default" else f"{source} names an emulator"


def _rows(session: Session, asked: list[ProjectInventory], before: set[str]) -> list[SliceRow]:
    """The open leases, and every other slice that the API showed. `before`: the leases that were open when it was asked."""
    by_place = {(each.cloud, each.project): each for each in asked}
    known = session.ledger.leases()
    rows = [_leased(session, lease, by_place.get((lease.cloud, lease.name.project))) for lease in known if lease.open]
    accounted = {lease.name.node for lease in known if lease.open or lease.id in before}
    closed = {lease.name.node: lease for lease in known if not lease.open}
    for each in asked:
        for key, view in each.views.items():
            if view.name.node not in accounted:
                remark = each.doubtful.get(key) or _remark(view, closed.get(view.name.node))
                rows.append(_unleased(session, each, view, remark))
    return rows


def _remark(view: cloud_api.SliceView, closed: Lease | None) -> str:
    """What the ledger has about a slice for which it has no open lease."""
    if closed is None or not absence.is_ours(view, closed):
        return "not in this machine's ledger"
    if closed.state is LeaseState.FORGOTTEN:
        return f"forgotten here, {closed.reason}"
    return f"was proven absent {day_clock(closed.gone_at)}, and is listed now"


def _leased(session: Session, lease: Lease, asked: ProjectInventory | None) -> SliceRow:
    now, waiting = session.now(lease.cloud), lookup.uncollected_run(session, lease)
    view = asked.view_of(lease) if asked is not None else CloudError("it was created after the API was asked")
    state = _state(view)
    return SliceRow(
        name=lease.handle, node=lease.name.node, project=lease.name.project, zone=lease.name.zone,
        accelerator_type=lease.accelerator_type, spot=lease.spot, purpose=str(lease.purpose), lease=str(lease.state),
        lease_id=lease.id, state=state, created_at=lease.created_at, deadline=lease.deadline, ends_at=lease.ends_at,
        hold_until=lease.hold_until, idle_s=lease.idle_s,
        idle_ends_at=None if state in _STOPPED_STATES else _idle_ends_at(session, lease), down_at=lease.down_at,
        in_use=session.locks.is_locked(lease.id), followed=lookup.is_followed(session, lease),
        usd_per_hour=lease.usd_per_hour, usd_so_far=costs.of_lease(lease, now), usd_at_most=costs.at_most(lease),
        budget_usd=lease.budget_usd, mode=str(lease.mode), emulated=traits.is_emulated(lease.cloud), run=lease.run,
        owner=lease.owner, yours=True, remark="; ".join(_remarks(session, state, lease, waiting)) or None, now=now,
    )  # fmt: skip


def _remarks(session: Session, state: str, lease: Lease, waiting: str | None) -> list[str]:
    remarks = []
    if waiting is not None:
        kinds = {each.kind for each in collected.read(Path(session.ledger.run(waiting)[0].directory))}
        only = " --work" if "left" in kinds and "missing" not in kinds else ""
        remarks.append(f"results of {waiting} are on it: `tpujob collect {waiting}{only}`")
    if lease.held_for is HeldFor.FAILURE and lease.down_at is None:
        remarks.append(f"run {lease.run} failed on it: the next `tpujob run` of this job uses it")
    if state in _STOPPED_STATES and lease.down_at is None:
        remarks.append(_STOPPED)
    return remarks


def _idle_ends_at(session: Session, lease: Lease) -> float | None:
    """Return the earliest time at which the watchdog deletes the slice because it is idle; None: it does not, or is in use.

    The ledger knows the last run on it; only the watchdog knows of later logins.
    """
    if (
        lease.idle_s is None
        or lease.ready_at is None
        or lease.mode is not Mode.HOLD
        or session.locks.is_locked(lease.id)
    ):
        return None
    ends = [
        attempt.ended_at for _, attempt in session.ledger.runs() if attempt.lease_id == lease.id and attempt.ended_at
    ]
    return max([lease.ready_at, *ends]) + lease.idle_s


def _state(view: cloud_api.SliceView | CloudError | None) -> str:
    """Neither a slice that is not visible nor one that was not asked about is absent."""
    if view is None:
        return "not visible"
    return f"unknown: {view.message}" if isinstance(view, Exception) else view.native_state


def _unleased(session: Session, asked: ProjectInventory, view: cloud_api.SliceView, remark: str) -> SliceRow:
    """A slice that is only in the API: its labels, and its price by the table."""
    now = asked.at or 0.0  # the server's clock, by which its labels are written
    claim = claim_labels.read_claim(view, settings.timings_of(asked.cloud, os.environ))
    if claim is not None and claim.remarks:
        claim = None  # it is not stated, only how gc would judge it
    ends_at = min(claim.claimed_until, claim.deadline) if claim else None
    price = catalog.usd_per_hour(view.accelerator_type, view.name.zone, spot=view.spot)
    billed = view.state not in (cloud_api.SliceState.QUEUED, cloud_api.SliceState.TOMBSTONE)
    since = view.created_at

    def usd(until: float | None) -> float | None:
        if not billed and price is not None:
            return 0.0
        return None if since is None or until is None else costs.between(price, since, until)

    owner = view.labels.get(names.OWNER)
    return SliceRow(
        name=view.labels.get(names.NAME) or view.name.node, node=view.name.node, project=view.name.project,
        zone=view.name.zone, accelerator_type=view.accelerator_type, spot=view.spot,
        lease_id=view.labels.get(names.LEASE_ID), state=view.native_state, created_at=since,
        deadline=claim.deadline if claim else None, ends_at=ends_at, usd_per_hour=price, usd_so_far=usd(now),
        usd_at_most=usd(ends_at), mode=view.labels.get(names.MODE), emulated=traits.is_emulated(asked.cloud),
        owner=owner, yours=lookup.is_own(session, owner), remark=remark, now=now,
    )  # fmt: skip


def _note_overdue(session: Session) -> None:
    """Report deletions of other processes that take longer than they should."""
    for lease in session.ledger.open_leases():
        slow_s = 2 * settings.timings_of(lease.cloud, os.environ).absent_s
        slow = lease.down_at is not None and session.now(lease.cloud) - lease.down_at >= slow_s
        if slow and lease.id not in session.unproven:
            session.note(absence.unchecked(lease, TeardownUnproven("another process is still deleting it")))

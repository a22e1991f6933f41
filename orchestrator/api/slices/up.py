"""A slice without a job: bring it to READY and hold it (`up`), stop it, start it, move its end.

A failure is a TpujobError whose `exit_code` is 75 whenever a slice may still be billed.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from orchestrator import catalog
from orchestrator.api.session import lookup
from orchestrator.api.session.lookup import default_handle
from orchestrator.api.session.session import Session
from orchestrator.api.slices import elsewhere
from orchestrator.api.slices.shell import write_down
from orchestrator.capacity.capacity_request import CapacityRequest
from orchestrator.capacity.location_rules import runtime_doubt
from orchestrator.capacity.plan import Plan, make
from orchestrator.capacity.provisioning import Provisioning
from orchestrator.errors import TeardownUnproven, TpujobError, UnknownRun, UserError
from orchestrator.places.vms import plans, vms_of
from orchestrator.promise.lease.access import AccessWish, Via
from orchestrator.promise.lease.lease import Lease, LeaseState, Purpose
from orchestrator.promise.obtain.drafts import PlanDrafter
from orchestrator.run import up_and_down
from orchestrator.text import names
from orchestrator.text.units import format_duration

DEFAULT_ACCELERATOR = "v5litepod-8"
DEFAULT_IDLE_S = 3600.0


@dataclass(frozen=True, slots=True)
class SliceOptions:
    """The slice to bring up, or to lend. None: the value of the existing slice, else the default. Times are seconds."""

    name: str | None = None  # None: the user's name
    zone: str | None = None  # a zone, a region, a comma list of them, or `any`; None: the configured zone
    accelerator: str | None = None
    runtime: str | None = None
    provisioning: Provisioning | None = None
    wait_s: float = 0.0  # for capacity
    max_duration_s: float = 24 * 3600.0
    idle_s: float | None = None  # deleted when unused for so long; infinity: never
    recreate: bool = False  # delete and create again a slice that was preempted, without NeedsConsent
    via: Via | None = None  # the way to its workers; None: the settings' own


@dataclass(frozen=True, slots=True)
class UpResult:
    """A slice that is READY and held. `action`: created, already ready, waited, started or recreated."""

    name: str
    node: str
    accelerator: str
    zone: str
    action: str
    ends_at: float  #: unix seconds, the ledger's time of its cloud
    idle_s: float | None  #: deleted before, when unused for so long; None: never


def bring_up(session: Session, options: SliceOptions) -> UpResult:
    """Return the slice, READY and held. Bringing it up twice changes nothing.

    Raises NeedsConsent when only deleting the existing slice would help and `recreate` is off; UserError for options that
    do not fit it; CapacityError, QuotaError and the other errors of `orchestrator.errors` where none can be had.
    """
    handle = _handle(options)
    drafter = _drafter(session, options, handle)
    session.ledger.check_not_newer()  # the slice that there is would be started first
    request = up_and_down.UpRequest(
        handle,
        drafter.make(),
        lookup.held(session, handle),
        options.max_duration_s,
        options.recreate,
        wait_s=options.wait_s,
        drafter=drafter,
    )
    outcome = session.on_cloud(partial(up_and_down.up, request))
    if outcome.owed.released is not None:
        session.note(outcome.owed.released)
    session.forget_drafts(drafter.made, kept=outcome.lease)
    if outcome.error is not None:
        outcome.error.exit_code = session.exit_code(outcome.exit_code)
        raise outcome.error
    lease = outcome.lease
    if lease is None:
        raise TpujobError("up ended without a slice and without an error")
    write_down(session, lease)
    where = (lease.name.node, lease.accelerator_type, lease.name.zone)
    return UpResult(handle, *where, outcome.action, lease.ends_at, lease.idle_s)


def preview_up(session: Session, options: SliceOptions) -> dict[str, Any]:
    """Return the exact create request (`method`, `url`, `body`) that `bring_up` would send first; create nothing.

    Raises what `bring_up` raises before its first request.
    """
    drafter = _drafter(session, options, _handle(options), report_always=True)
    made = dict(vms_of(session.target.kind).request_of(drafter.make()[0]))
    session.forget_drafts(drafter.made)
    return made


def _drafter(session: Session, options: SliceOptions, handle: str, *, report_always: bool = False) -> PlanDrafter:
    """Return what drafts the slice, planned and with this name locked. The plan of a slice that exists is not reported."""
    session.announce()
    session.lock(f"up {handle}")
    _finish_ending(session, handle)
    existing = lookup.held(session, handle)
    plan = _plan(session, options, handle, existing)
    idle_s = _idle_s(options, existing)
    if existing is None or report_always:
        _report_plan(session, plan, idle_s, options)
        if doubt := runtime_doubt(plan.candidates[0].accelerator_type, options.runtime):
            session.reporter.notice("warning", f"--runtime {doubt}")
    wish = AccessWish(via=options.via)
    drafter = plans.drafter(
        session, plan, wish, vms_of(session.target.kind).watched, handle=handle, purpose=Purpose.HOLD, idle_s=idle_s
    )
    session.recover(spare=handle)
    return drafter


def _handle(options: SliceOptions) -> str:
    handle = options.name or default_handle()
    if problem := names.job_name_problem(handle):
        raise UserError(f"{handle!r} {problem}", hint="give another NAME")
    return handle


def _idle_s(options: SliceOptions, existing: Lease | None) -> float | None:
    """Return after how many unused seconds the watchdog deletes the slice; None: never."""
    if options.idle_s is None:
        return DEFAULT_IDLE_S if existing is None else existing.idle_s
    return None if options.idle_s == math.inf else options.idle_s


def _finish_ending(session: Session, handle: str) -> None:
    """Wait for the proof of a deletion that is under way: no second slice while the first may be billed."""
    for ending in [lease for lease in lookup.named(session, handle, begins=False) if lease.state is LeaseState.DOWN]:
        (released,) = session.on_cloud(partial(up_and_down.down, (ending,), reason="tpujob up"))
        session.note(released)
        if not released.gone:
            raise TeardownUnproven(f"{ending.name.node} is not proven gone, so no other one is made")


def _plan(session: Session, options: SliceOptions, handle: str, existing: Lease | None) -> Plan:
    places = tuple(part.strip() for part in options.zone.split(",")) if options.zone is not None else ()
    if "" in places:
        raise UserError(
            f"--zone {options.zone!r}: a part of it is empty", hint="such as us-central1 or us-central1-a,us-west4"
        )
    accelerator = catalog.canonical(options.accelerator) if options.accelerator else None
    if existing is not None:
        _check_same(existing, replace(options, accelerator=accelerator))
    accelerator = accelerator or (existing.accelerator_type if existing else DEFAULT_ACCELERATOR)
    plan = plan_of(session, options, accelerator, places)
    if existing is not None and places and existing.name.zone not in {candidate.zone for candidate in plan.candidates}:
        raise UserError(
            f"{handle} is in {existing.name.zone}, not in {options.zone}",
            hint=f"`tpujob down {handle}`, or give another NAME",
        )
    return plan


def plan_of(session: Session, options: SliceOptions, accelerator: str, places: tuple[str, ...]) -> Plan:
    """Return the plan for a slice of this type in these places. Raises UserError if there is none."""
    request = CapacityRequest(
        accelerator=accelerator,
        places=places,
        runtime=options.runtime,
        provisioning=options.provisioning or Provisioning.ON_DEMAND,
        max_duration_s=options.max_duration_s,
    )
    return make([request], default_zone=session.target.zone, wait_s=options.wait_s, inputs=plans.known_to(session))


def _check_same(existing: Lease, options: SliceOptions) -> None:
    """Raise UserError for an option that the existing slice does not have: it is not changed into another one."""
    if existing.purpose in (Purpose.RUN, Purpose.QUEUE) or (
        existing.purpose is Purpose.ELSEWHERE and existing.run is not None
    ):
        raise UserError(f"{existing.handle} is the slice of a running job", hint="give another NAME")
    wanted = {
        "accelerator": (options.accelerator, existing.accelerator_type),
        "runtime": (options.runtime, existing.runtime_version),
        "provisioning": (options.provisioning, existing.provisioning),
        "via": (options.via, existing.route.via),
    }
    for what, (asked, there) in wanted.items():
        if asked is not None and asked != there:
            raise UserError(
                f"{existing.handle} exists with {what} {there}, not {asked}",
                hint=f"`tpujob down {existing.handle}` first, or give another NAME",
            )
    if options.idle_s is not None and _idle_s(options, existing) != existing.idle_s:
        there, asked = (_describe_idle(idle_s) for idle_s in (existing.idle_s, _idle_s(options, existing)))
        raise UserError(
            f"{existing.handle} exists and is {there}, not {asked}: its watchdog has the time from its creation",
            hint=f"`tpujob down {existing.handle}` first, or give another NAME",
        )


def _describe_idle(idle_s: float | None) -> str:
    return "never deleted as unused" if idle_s is None else f"deleted after {format_duration(idle_s)} unused"


def _report_plan(session: Session, plan: Plan, idle_s: float | None, options: SliceOptions) -> None:
    for line in plans.lines_of(session, plan, wish=AccessWish(via=options.via)):
        session.reporter.notice("plan", line)
    if idle_s is not None and idle_s < options.max_duration_s:
        ends = f"it is deleted after {format_duration(idle_s)} without a job or a login"
        session.reporter.notice("plan", f"{ends} (`--idle` sets another time, `--idle never` none)")


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


def extend(session: Session, name: str, by_s: float, *, owner: str | None = None) -> SliceEnd:
    """Move the end of a slice (its name, or a run's id) by `by_s` seconds. Raises UserError beyond its limits.

    `owner`: see `elsewhere.require`.
    """
    session.announce()
    session.recover(look=True)
    lease = _lease_to_extend(session, name) if owner is None else elsewhere.require(session, name, owner)
    session.ledger.check_not_newer()  # the labels come first
    lease = elsewhere.up_to_date(session, lease)
    extended = session.on_cloud(partial(up_and_down.extend, lease, by_s), lease.cloud)
    return SliceEnd(extended.handle, extended.name.node, extended.ends_at)


def _lease_to_extend(session: Session, name: str) -> Lease:
    """Return the lease of this run, or of this slice. Raises UserError for none, for several, and for a run that has ended."""
    try:
        run, attempt = lookup.live_run(session, name)
    except UnknownRun:
        return elsewhere.require(session, name)
    # A living slice of the name comes before an ended run.
    other = lookup.held(session, name) if attempt.state.ended else None
    if other is None and (lease := lookup.lease_of_run(session, run.id)) is not None:
        lookup.refuse_cluster(lease)
        return lease
    if attempt.state.ended and other is None:
        raise UserError(f"{run.id} has ended: {attempt.state}", hint=f"`tpujob show {run.id}` says what became of it")
    return lookup.require(session, name)

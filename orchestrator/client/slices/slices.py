"""Held slices: bring one up, take it down, stop, start, extend it, open a shell on it.

Every function takes a session and returns a frozen value. A failure is a TpujobError whose `exit_code` is 75 whenever a
slice may still be billed.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from orchestrator import catalog
from orchestrator.client import lookup, plans
from orchestrator.client.session import Session, default_handle
from orchestrator.client.slices import adoption
from orchestrator.core.lease.cloud_api import SliceState
from orchestrator.core.lease.lease import DOWN, Lease, LeaseState, Purpose
from orchestrator.core.planning.capacity_request import CapacityRequest, Provisioning
from orchestrator.core.planning.plan import Plan, make
from orchestrator.core.text import names
from orchestrator.core.text.durations import format_duration
from orchestrator.engine.effects.cloud import Get, Workers
from orchestrator.engine.provision.drafts import PlanDrafter
from orchestrator.engine.runtime.retry import until
from orchestrator.engine.runtime.world import open_fleet
from orchestrator.engine.slices import extend as extension
from orchestrator.engine.slices import up_and_down
from orchestrator.errors import CloudError, ConfigError, TeardownUnproven, TpujobError, UnknownRun, UserError

if TYPE_CHECKING:
    from orchestrator.engine.leases.release import Released

DEFAULT_ACCELERATOR = "v5litepod-8"
DEFAULT_IDLE_S = 3600.0
LEAST_LIFE_S, LONGEST_LIFE_S, LEAST_IDLE_S = 6 * 60.0, 7 * 86400.0, 60.0
SSH_S = 30.0


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The slice to bring up. None means: the value of the existing slice, else the default. Times are seconds."""

    name: str | None = None  # None: the user's name
    zone: str | None = None  # a zone, a region, a comma list of them, or `any`; None: the configured zone
    accelerator: str | None = None
    runtime: str | None = None
    provisioning: Provisioning | None = None
    wait_s: float = 0.0  # for capacity
    max_duration_s: float = 24 * 3600.0
    idle_s: float | None = None  # deleted when unused for so long; infinity: never
    recreate: bool = False  # delete and create again a slice that was preempted, without NeedsConsent


@dataclass(frozen=True, slots=True)
class UpResult:
    """A slice that is READY and held. `action`: created, already ready, waited, started or recreated."""

    name: str
    node: str
    accelerator: str
    zone: str
    action: str
    ends_at: float  # unix seconds, the ledger's time of its cloud
    idle_s: float | None  # deleted before, when unused for so long; None: never


@dataclass(frozen=True, slots=True)
class SliceRelease:
    """How the deletion of one slice ended. With `absent` false it may still be billed."""

    name: str
    node: str
    zone: str
    absent: bool
    checked_at: float  # unix seconds, the ledger's time of its cloud

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


@dataclass(frozen=True, slots=True)
class SliceStatus:
    """`state` is the API's own word for it."""

    name: str
    node: str
    state: str
    ends_at: float  # unix seconds, the ledger's time of its cloud


@dataclass(frozen=True, slots=True)
class SliceEnd:
    name: str
    node: str
    ends_at: float  # unix seconds, the ledger's time of its cloud


class NameNeeded(UserError):
    """No name was given, and the slices that are alive are not the default one. `alive` describes them."""

    def __init__(self, alive: str) -> None:
        super().__init__(f"there is no slice of `tpujob up` without a name; alive: {alive}", hint="give a NAME")
        self.alive = alive


# -- up ----------------------------------------------------------------------------------------------------------------


def bring_up(session: Session, options: UpOptions) -> UpResult:
    """Return the slice, READY and held. Bringing it up twice changes nothing.

    Raises NeedsConsent when only deleting the existing slice would help and `recreate` is off; UserError for options that
    do not fit it; CapacityError, QuotaError and the other errors of `orchestrator.errors` where none can be had.
    """
    handle = _handle(options)
    drafter = _drafter(session, options, handle)
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
    where = (lease.name.node, lease.accelerator_type, lease.name.zone)
    return UpResult(handle, *where, outcome.action, lease.ends_at, lease.idle_s)


def preview_up(session: Session, options: UpOptions) -> dict[str, Any]:
    """Return the exact create request (`method`, `url`, `body`) that `bring_up` would send first; create nothing.

    Raises what `bring_up` raises before its first request.
    """
    drafter = _drafter(session, options, _handle(options), report_always=True)
    _, request = drafter.make()[0]
    preview = session.preview(request)
    session.forget_drafts(drafter.made)
    return preview


def _drafter(session: Session, options: UpOptions, handle: str, *, report_always: bool = False) -> PlanDrafter:
    """Return what drafts the slice, planned and with this name locked. The plan of a slice that exists is not reported."""
    session.announce()
    session.lock(f"up {handle}")
    _finish_ending(session, handle)
    existing = lookup.held(session, handle)
    plan = _plan(session, options, handle, existing)
    idle_s = _idle_s(options, existing)
    if existing is None or report_always:
        _report_plan(session, plan, idle_s, options.max_duration_s)
    drafter = PlanDrafter(plan, plans.place(session), handle=handle, purpose=Purpose.HOLD, idle_s=idle_s)
    session.recover(spare=handle)
    return drafter


def _handle(options: UpOptions) -> str:
    handle = options.name or default_handle()
    if problem := names.job_name_problem(handle):
        raise UserError(f"{handle!r} {problem}", hint="give another NAME")
    if not LEAST_LIFE_S <= options.max_duration_s <= LONGEST_LIFE_S:
        raise UserError(f"max_duration_s {options.max_duration_s:g}: must be between 6m and 7d")
    if options.idle_s not in (None, math.inf) and not LEAST_IDLE_S <= options.idle_s <= LONGEST_LIFE_S:
        raise UserError(f"idle_s {options.idle_s:g}: must be between 1m and 7d")
    return handle


def _idle_s(options: UpOptions, existing: Lease | None) -> float | None:
    """Return after how many unused seconds the watchdog deletes the slice; None: never."""
    if options.idle_s is None:
        return DEFAULT_IDLE_S if existing is None else existing.idle_s
    return None if options.idle_s == math.inf else options.idle_s


def _finish_ending(session: Session, handle: str) -> None:
    """Wait for the proof of a deletion that is under way: no second slice while the first may be billed."""
    for ending in [lease for lease in lookup.named(session, handle) if lease.state is LeaseState.DOWN]:
        (released,) = session.on_cloud(partial(up_and_down.down, (ending,), reason="tpujob up"))
        session.note(released)
        if not released.gone:
            raise TeardownUnproven(f"{ending.name.node} is not proven gone, so no other one is made")


def _plan(session: Session, options: UpOptions, handle: str, existing: Lease | None) -> Plan:
    places = tuple(part.strip() for part in options.zone.split(",")) if options.zone is not None else ()
    if "" in places:
        raise UserError(
            f"--zone {options.zone!r}: a part of it is empty", hint="such as us-central1 or us-central1-a,us-west4"
        )
    accelerator = catalog.canonical(options.accelerator) if options.accelerator else None
    if existing is not None:
        _check_same(existing, replace(options, accelerator=accelerator))
    request = CapacityRequest(
        accelerator=accelerator or (existing.accelerator_type if existing else DEFAULT_ACCELERATOR),
        places=places,
        runtime=options.runtime,
        provisioning=options.provisioning or Provisioning.ON_DEMAND,
        max_duration_s=options.max_duration_s,
    )
    plan = make([request], default_zone=session.target.zone, wait_s=options.wait_s, inputs=plans.known_to(session))
    if existing is not None and places and existing.name.zone not in {candidate.zone for candidate in plan.candidates}:
        raise UserError(
            f"{handle} is in {existing.name.zone}, not in {options.zone}",
            hint=f"`tpujob down {handle}`, or give another NAME",
        )
    return plan


def _check_same(existing: Lease, options: UpOptions) -> None:
    """Raise UserError for an option that the existing slice does not have: it is not changed into another one."""
    if existing.purpose is not Purpose.HOLD:
        raise UserError(f"{existing.handle} is the slice of a running job", hint="give another NAME")
    wanted = {
        "accelerator": (options.accelerator, existing.accelerator_type),
        "runtime": (options.runtime, existing.runtime_version),
        "provisioning": (options.provisioning, existing.provisioning),
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


def _report_plan(session: Session, plan: Plan, idle_s: float | None, max_duration_s: float) -> None:
    plans.show_plan(session, plan)
    if idle_s is not None and idle_s < max_duration_s:
        ends = f"it is deleted after {format_duration(idle_s)} without a job or a login"
        session.reporter.notice("plan", f"{ends} (`--idle` sets another time, `--idle never` none)")


# -- down --------------------------------------------------------------------------------------------------------------


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
        found, alive = adoption.search(session, name, everything=everything)
        if name is None and alive and not everything and found is None:
            raise NameNeeded(", ".join(alive))
        leases = [found] if found is not None else []
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
        found = lookup.named(session, name)
        live = [lease for lease in found if lease.state is not LeaseState.DOWN]
        if len({lease.run or lease.id for lease in live}) > 1:  # those of one run, in a race, end together
            lookup.one_of(live)
        return found
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


# -- one slice that exists ---------------------------------------------------------------------------------------------


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
    view = session.run(up_and_down.stop(lease))
    return SliceStatus(lease.handle, lease.name.node, view.native_state, lease.ends_at)


def start(session: Session, name: str | None = None) -> SliceStatus:
    """Start a stopped slice and wait until it is READY. Raises UserError where there is none."""
    lease = _required(session, name)
    session.on_cloud(partial(up_and_down.start, lease))
    return SliceStatus(lease.handle, lease.name.node, "READY", lease.ends_at)


def extend(session: Session, name: str, by_s: float) -> SliceEnd:
    """Move the end of a slice (its name, or a run's id) by `by_s` seconds. Raises UserError beyond its limits."""
    session.announce()
    session.recover(look=True)
    lease = _lease_to_extend(session, name)
    extended = session.on_cloud(partial(extension.extend, lease, by_s))
    return SliceEnd(extended.handle, extended.name.node, extended.ends_at)


def _lease_to_extend(session: Session, name: str) -> Lease:
    """Return the lease of this run, or of this slice. Raises UserError where there is none, or several are meant."""
    with contextlib.suppress(UnknownRun):
        run, _ = lookup.live_run(session, name)
        if (lease := lookup.lease_of_run(session, run.id)) is not None:
            return lease
    return _require_unless_ended(session, name)


def _require_unless_ended(session: Session, name: str) -> Lease:
    """Return the lease of this slice. Raises UserError where there is none, also for a run that has ended."""
    with contextlib.suppress(UnknownRun):
        run, attempt = session.ledger.find_run(name)
        if attempt.state.ended and lookup.held(session, name) is None:
            raise UserError(
                f"{run.id} has ended: {attempt.state}", hint=f"`tpujob show {run.id}` says what became of it"
            )
    return lookup.require(session, name)


def ssh_argv(session: Session, name: str | None, worker: int, command: Sequence[str]) -> list[str]:
    """Return the OpenSSH command line for a shell, or for `command`, on one worker of a held slice.

    Raises UserError where there is no such slice or worker, it is not READY, or this machine has no `ssh`.
    """
    if shutil.which("ssh") is None:
        raise UserError("there is no `ssh` on this machine's PATH", hint="install an OpenSSH client")
    lease = _required(session, name)
    give_up_at = session.now() + SSH_S
    view = session.run(until(give_up_at, Get(lease.name)))
    if view is None or view.state is not SliceState.READY:
        state = view.native_state if view else "gone"
        raise UserError(f"{lease.handle} is {state}", hint=f"`tpujob up {lease.handle}` brings it to READY")
    workers = session.run(until(give_up_at, Workers(lease.name)))
    if worker >= len(workers):
        raise UserError(f"{lease.handle} has no worker {worker}; its last one is worker {len(workers) - 1}")
    fleet = open_fleet(
        session.lease_directory(lease.id), workers, lambda text: session.reporter.notice("ssh", text), session.now
    )
    if len(command) == 1:
        command = ["bash", "-c", command[0]]  # one word is a line for the shell, as with ssh itself
    return fleet.openssh_argv(worker, list(command))

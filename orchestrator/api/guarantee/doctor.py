"""`doctor`: run every health check, and look at every open slice of this machine's ledger."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator import catalog, settings
from orchestrator.api.guarantee import health_checks, recovery, telling
from orchestrator.api.guarantee.access_checks import OF_THE_SETTINGS, AskedAccess, access_checks
from orchestrator.api.guarantee.health_checks import GC, WATCHDOGS, HealthCheck, SliceHealth
from orchestrator.api.jobs import planning
from orchestrator.api.jobs.job import spec_of, sweep_of
from orchestrator.api.session.reporter import Reporter
from orchestrator.api.session.session import Session
from orchestrator.errors import CloudError, TpujobError
from orchestrator.promise.effects.cloud import Get, GetGuestAttributes
from orchestrator.promise.effects.retry import until
from orchestrator.promise.lease import claim_labels, guest_reports
from orchestrator.promise.lease.access import AccessWish
from orchestrator.promise.lease.cloud_api import SliceState
from orchestrator.promise.lease.lease import Lease
from orchestrator.report.rows import costs
from orchestrator.settings import Target

QUESTION_S = 10.0
RECOVERY_S = 3.0  # short: other commands continue the recovery


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`exit_code` is 0 if tpujob is usable here, whatever else could be better."""

    checks: tuple[HealthCheck, ...]
    slices: tuple[SliceHealth, ...] | None  #: None: not known
    exit_code: int

    @property
    def worst_usd(self) -> float | None:
        """Dollars if every slice exists until its deadline; None when a price is unknown, or which slices there are."""
        return None if self.slices is None else costs.total(each.worst_usd for each in self.slices)

    @property
    def is_bounded(self) -> bool:
        """Does a layer that does not need this machine bound the cost?"""
        return any(check.live for check in self.checks if check.name in (WATCHDOGS, GC))

    def as_json(self) -> dict[str, Any]:
        return {
            "usable": self.exit_code == 0,
            "checks": [asdict(check) for check in self.checks],
            "slices": None if self.slices is None else [_slice_as_json(each) for each in self.slices],
            "worst_usd": self.worst_usd,
        }


def _slice_as_json(each: SliceHealth) -> dict[str, Any]:
    return {
        "name": each.lease.handle,
        "node": each.lease.name.node,
        "zone": each.lease.name.zone,
        "cloud": each.lease.cloud,
        "lease": str(each.lease.state),
        "state": each.state,
        "mode": str(each.lease.mode),
        "in_use": each.in_use,
        "claimed_until": each.claimed_until,
        "deadline": each.lease.deadline,
        "watchdogs": [
            {"worker": watchdog.worker, "armed": watchdog.armed, "why": watchdog.why} for watchdog in each.watchdogs
        ],
        "worst_usd": each.worst_usd,
    }


def access_of(file: Path | None, via: str | None) -> AskedAccess:
    """Return the access that a job file wishes, and `via` before that. Raises JobSpecError, UserError."""
    wish, of, zone = AccessWish(via=via), "with this --via" if via else "", None
    if file is not None:
        found = planning.read(planning.JobRequest(file))
        spec = sweep_of(found).variants[0].spec if found.is_sweep else spec_of(found)
        wish, of = wish.over(spec.access.wish), f"of the job {spec.name}{f' {of}' if of else ''}"
        places = [place for one in spec.tpu.alternatives for place in one.zone]
        zone = next((place for place in places if place in (*catalog.zones(), *catalog.regions())), None)
    return AskedAccess(of, wish, zone)


def diagnose(
    reporter: Reporter, *, cloud: str | None = None, project: str | None = None, wished: AskedAccess = OF_THE_SETTINGS
) -> Diagnosis:
    """Return every health check and every open slice. Raises nothing: an error is a check that is not live.

    `wished`: the access to the workers of new slices to ask about.
    """
    try:
        target = settings.resolve(cloud, project, os.environ)
    except TpujobError as error:
        return Diagnosis((health_checks.failed("cloud", error),), None, error.exit_code)
    checks = [health_checks.cloud(target), health_checks.credentials(target, reporter.secrets)]
    session: Session | None = None
    slices: tuple[SliceHealth, ...] | None = None
    try:
        session = Session.open(cloud, project, reporter=reporter, quiet=True, light=True, after_end=recovery.after_end)
        checks.append(health_checks.state(session.directory, session.ledger))
        session.recover(budget_s=RECOVERY_S)
        slices = tuple(_look(session, lease) for lease in session.ledger.open_leases())
        if not any(check.code for check in checks):
            checks += access_checks(session, slices, wished)
    except TpujobError as error:
        checks.append(health_checks.failed("state", error))
    checks += _layers(session, target, slices)
    code = next((check.code for check in checks if check.code), 0)
    return Diagnosis(tuple(checks), slices, session.exit_code(code) if session is not None else code)


def _layers(session: Session | None, target: Target, slices: tuple[SliceHealth, ...] | None) -> list[HealthCheck]:
    ends = "it deletes what it made on every way out: end, error, Ctrl-C, SIGTERM"
    checks = [HealthCheck("command", True, ends)]
    if session is not None:
        checks.append(health_checks.guardian(session.directory))
    ledger = session.ledger if session is not None else None
    told = telling.check(session) if session is not None else None
    return [
        *checks,
        health_checks.timer(ledger, target),
        health_checks.watchdogs(slices),
        health_checks.gc(ledger, target),
        *([] if told is None else [told]),
    ]


def _look(session: Session, lease: Lease) -> SliceHealth:
    kind = catalog.lookup(lease.accelerator_type)
    workers = kind.hosts if kind else 1
    claimed_until = lease.ends_at
    published: tuple[Mapping[str, str], ...] = ()
    try:
        view = session.run(until(session.now(lease.cloud) + QUESTION_S, Get(lease.name)), lease.cloud)
        state = view.native_state if view else "not visible"
        timings = session.world(lease.cloud).cloud.capabilities.timings
        claim = claim_labels.read_claim(view, timings) if view else None
        if claim is not None:
            claimed_until = min(claim.claimed_until, claim.deadline)
        if view is not None and view.state is SliceState.READY:
            question = GetGuestAttributes(lease.name)
            published = session.run(until(session.now(lease.cloud) + QUESTION_S, question), lease.cloud)
    except CloudError as error:
        state = f"unknown: {error.message}"
    watchdogs = guest_reports.read_watchdogs(published, workers)
    in_use = session.locks.is_locked(lease.id)
    return SliceHealth(lease, state, claimed_until, watchdogs, in_use, session.now(lease.cloud))

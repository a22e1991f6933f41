"""`tpujob doctor`: which layers of the guarantee are live here, what is alive, and what it can cost at worst."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Cloud, Json, Project

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.client.guarantee.health_checks import Alive, HealthCheck
    from orchestrator.client.session import Session
    from orchestrator.core.lease.lease import Lease

QUESTION_S = 10.0
RECOVERY_S = 3.0  # who asks what is wrong wants an answer, and other commands go on with it
MARKS = {True: "live", False: "NOT", None: "-"}


def doctor(as_json: Json = False, cloud: Cloud = None, project: Project = None) -> None:
    """Which layers of the guarantee are live for this machine and project, what is alive, and its worst-case cost.

    Exits with 0 if tpujob is usable here, whatever else could be better.
    """
    from orchestrator.cli.console import emit, emit_json

    checks, alive, session = _examine(cloud, project)
    code = next((check.code for check in checks if check.code), 0)
    code = session.exit_code(code) if session is not None else code
    if as_json:
        emit_json(_shape(checks, alive, usable=code == 0))
    else:
        for line in [*_lines(checks), *_alive_lines(alive, checks)]:
            emit(line)
    raise ExitCode(code)


def _examine(cloud: str | None, project: str | None) -> tuple[list[HealthCheck], list[Alive], Session | None]:
    from orchestrator import settings
    from orchestrator.cli.console import console
    from orchestrator.cli.session import open_session
    from orchestrator.client.guarantee import health_checks
    from orchestrator.client.guarantee.health_checks import HealthCheck
    from orchestrator.errors import TpujobError

    try:
        target = settings.resolve(cloud, project, os.environ)
    except TpujobError as error:
        return [health_checks.failed("cloud", error)], [], None
    checks = [health_checks.cloud(target), health_checks.credentials(target, console().secrets)]
    session: Session | None = None
    alive: list[Alive] = []
    try:
        session = open_session(cloud, project, quiet=True, light=True)
        checks.append(HealthCheck("state", True, f"{session.directory}, with a ledger that can be read and written"))
        session.recover(budget_s=RECOVERY_S)
        alive = [_look(session, lease) for lease in session.ledger.open_leases()]
    except TpujobError as error:
        checks.append(health_checks.failed("state", error))
    checks.append(
        HealthCheck("L1 the command", True, "it deletes what it made on every way out: end, error, Ctrl-C, SIGTERM")
    )
    if session is not None:
        checks.append(health_checks.guardian(session.directory))
    ledger = session.ledger if session is not None else None
    checks += [health_checks.timer(ledger, target), health_checks.watchdogs(alive), health_checks.gc(ledger, target)]
    return checks, alive, session


def _look(session: Session, lease: Lease) -> Alive:
    from orchestrator import catalog
    from orchestrator.client.guarantee.health_checks import Alive
    from orchestrator.core.lease import claim_labels, watchdog_report
    from orchestrator.core.lease.slices import SliceState
    from orchestrator.engine.effects.cloud import Get, GetGuestAttributes
    from orchestrator.engine.runtime.retry import until
    from orchestrator.errors import CloudError

    kind = catalog.lookup(lease.accelerator_type)
    workers = kind.hosts if kind else 1
    claimed_until = lease.ends_at
    published: tuple[Mapping[str, str], ...] = ()
    try:
        view = session.run(until(session.now(lease.cloud) + QUESTION_S, Get(lease.name)), lease.cloud)
        state = view.native_state if view else "not visible"
        claim = claim_labels.read_claim(view, session.world(lease.cloud).cloud.capabilities.timings) if view else None
        if claim is not None:
            claimed_until = min(claim.claimed_until, claim.deadline)
        if view is not None and view.state is SliceState.READY:
            published = session.run(
                until(session.now(lease.cloud) + QUESTION_S, GetGuestAttributes(lease.name)), lease.cloud
            )
    except CloudError as error:
        state = f"unknown: {error.message}"
    watchdogs = watchdog_report.read_watchdogs(published, workers)
    return Alive(lease, state, claimed_until, watchdogs, session.locks.is_locked(lease.id), session.now(lease.cloud))


# -- what it says ----------------------------------------------------------------------------------------------------


def _lines(checks: list[HealthCheck]) -> list[str]:
    lines = []
    for check in checks:
        lines.append(f"{MARKS[check.live]:<5}{check.name:<21}{check.text}")
        if check.fix:
            lines.append(f"{'':<26}→ {check.fix}")
    return lines


def _alive_lines(alive: list[Alive], checks: list[HealthCheck]) -> list[str]:
    from orchestrator.client.guarantee.health_checks import GC, WATCHDOGS
    from orchestrator.core.text.durations import format_usd
    from orchestrator.report.layout import day_clock

    lines = []
    for each in alive:
        lease = each.lease
        armed = sum(watchdog.armed for watchdog in each.watchdogs)
        words = [
            lease.handle,
            lease.name.node,
            each.state,
            str(lease.mode),
            f"claimed until {day_clock(each.claimed_until)}",
            f"deadline {day_clock(lease.deadline)}",
            f"watchdog armed on {armed} of {len(each.watchdogs)}",
            f"at most {format_usd(each.worst_usd)} more{' (emulated, nobody pays)' if lease.cloud == 'emulated' else ''}",
        ]
        lines.append("\t".join(words))
    if alive:
        total = _total(alive)
        lines.append(f"worst case, if nothing acts before the deadlines: {format_usd(total)} more on Google Cloud")
        if not any(check.live for check in checks if check.name in (WATCHDOGS, GC)):
            lines.append("and nothing bounds it if this machine is gone by then: neither L3 nor L4 is known to be live")
    return lines


def _total(alive: list[Alive]) -> float | None:
    known = [each.worst_usd for each in alive if each.worst_usd is not None]
    return sum(known) if len(known) == len(alive) else None


def _shape(checks: list[HealthCheck], alive: list[Alive], *, usable: bool) -> dict[str, Any]:
    return {
        "usable": usable,
        "checks": [check.shape() for check in checks],
        "slices": [
            {
                "name": each.lease.handle,
                "node": each.lease.name.node,
                "zone": each.lease.name.zone,
                "cloud": each.lease.cloud,
                "lease": str(each.lease.state),
                "state": each.state,
                "mode": str(each.lease.mode),
                "in_use": each.alive,
                "claimed_until": each.claimed_until,
                "deadline": each.lease.deadline,
                "watchdogs": [
                    {"worker": watchdog.worker, "armed": watchdog.armed, "why": watchdog.why} for watchdog in each.watchdogs
                ],
                "worst_usd": each.worst_usd,
            }
            for each in alive
        ],
        "worst_usd": _total(alive),
    }

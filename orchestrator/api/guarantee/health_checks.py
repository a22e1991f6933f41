"""Health checks of `tpujob doctor`: is each layer of the guarantee live for this machine and project?

Each check returns a `HealthCheck` and never raises: what cannot be found out is its text.
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator import traits
from orchestrator.api.guarantee import timers
from orchestrator.api.session import connections
from orchestrator.api.session.session import Session
from orchestrator.errors import TpujobError
from orchestrator.promise import guardian_process as guardians
from orchestrator.promise.effects.cloud import Workers
from orchestrator.promise.effects.retry import until
from orchestrator.promise.lease import access, guest_reports
from orchestrator.promise.lease.guest_reports import WatchdogStatus
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.ledger.clocks import Clocks
from orchestrator.promise.ledger.file import LedgerUnavailable
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.report.rows import costs
from orchestrator.settings import Target
from orchestrator.text.redaction import Redactor
from orchestrator.text.units import format_duration

WATCHDOGS, GC = "watchdog", "gc"
NOT_KNOWN = "not known"
STALE_TIMER_S = 3 * 3600.0  # a timer whose last run is older does not run
STALE_GC_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One layer. `live` None: it does not apply, or is unknown. `code`: the exit code if it makes tpujob unusable; else 0."""

    name: str
    live: bool | None
    text: str
    fix: str | None = None
    code: int = 0


@dataclass(frozen=True, slots=True)
class SliceHealth:
    """One open lease, and the cloud's answer about it."""

    lease: Lease
    state: str  # the API's own word; `not visible`, or `unknown: …` where the API gave no answer
    claimed_until: float  # unix seconds, the server's clock
    watchdogs: tuple[WatchdogStatus, ...]
    in_use: bool  # does a process of this machine hold its lock?
    checked_at: float  # unix seconds, the ledger's time of its cloud

    @property
    def worst_usd(self) -> float | None:
        """Dollars from now to its deadline; None without a known price. No live layer: nothing bounds the cost after that."""
        return costs.between(self.lease.usd_per_hour, self.checked_at, self.lease.deadline)


def failed(name: str, error: TpujobError) -> HealthCheck:
    """Return the check that this error ended."""
    return HealthCheck(name, False, error.message, error.hint, error.exit_code)


def cloud(target: Target) -> HealthCheck:
    """Return which cloud is the target, and why."""
    fix = None
    if traits.is_emulated(target.kind) and target.endpoint is None:
        fix = "for Google Cloud: `gcloud config set project PROJECT`, or TPUJOB_PROJECT, or --project"
    return HealthCheck("cloud", True, target.why, fix)


def credentials(target: Target, secrets: Redactor) -> HealthCheck:
    """Ask the API for the project's zones. `secrets` learns the emulator's token."""
    began = time.monotonic()
    try:
        zones = connections.connect(target, secrets).zones(target.project).rows
    except TpujobError as error:
        return failed("credentials", error)
    took_ms = (time.monotonic() - began) * 1000
    return HealthCheck("credentials", True, f"the API answered in {took_ms:.0f} ms: {len(zones)} zones")


def state(directory: Path, ledger: Ledger) -> HealthCheck:
    """Return whether the ledger, which could be read, can be written. `directory`: the state directory."""
    try:
        ledger.check_writable()
    except LedgerUnavailable as error:
        return failed("state", error)
    return HealthCheck("state", True, f"{directory}, with a ledger that can be read and written")


def guardian(directory: Path) -> HealthCheck:
    """Start a real one, and let it end. `directory`: the state directory."""
    name = "guardian"
    if os.environ.get(guardians.SETTING, "").lower() in ("off", "0", "no"):
        return HealthCheck(name, False, f"disabled by {guardians.SETTING}", f"unset {guardians.SETTING}")
    began = time.monotonic()
    try:
        guardians.start_guardian(directory).close()
    except guardians.GuardianNotStarted as error:
        return HealthCheck(name, False, str(error), "nothing can be created without it", TpujobError.exit_code)
    took_ms = (time.monotonic() - began) * 1000
    survives, fix = _survives()
    return HealthCheck(
        name,
        True,
        f"armed in {took_ms:.0f} ms; it survives kill -9 of the command and a closed terminal, {survives}",
        fix,
    )


def _survives() -> tuple[str, str | None]:
    if guardians.ci_notice(os.environ):
        return "but not the end of this CI job", "let a scheduled `tpujob gc` clean up: docs/gc.md"
    if not guardians.has_user_manager(os.environ):
        return "and a logout where the system does not end the processes", None
    if timers.lingers():
        return "and a logout", None
    return "but perhaps not a logout", "`loginctl enable-linger` keeps it"


def timer(ledger: Ledger | None, target: Target) -> HealthCheck:
    """Return which timer of `install-gc` is installed, and when it last ran."""
    present = [summary for each in timers.every(os.environ, sys.platform) if (summary := each.present())]
    known, last = _age(ledger, target, local=True)
    ran = "no local gc has run yet" if known else f"when the last local gc ran is {NOT_KNOWN}"
    if last is not None:
        ran = f"the last local gc was {_ago(last)}"
    if not present:
        return HealthCheck("timer", False, f"none is installed; {ran}", "`tpujob install-gc`")
    if last is not None and last > STALE_TIMER_S:
        return HealthCheck("timer", False, f"{', '.join(present)}, but {ran}", "`tpujob install-gc` installs it anew")
    return HealthCheck("timer", True, f"{', '.join(present)}; {ran}")


def watchdogs(slices: Sequence[SliceHealth] | None) -> HealthCheck:
    """Return whether every worker of every open slice has an armed watchdog."""
    name = WATCHDOGS
    if slices is None:
        return HealthCheck(name, None, f"{NOT_KNOWN}: the open slices could not be looked at, see `state`")
    if not slices:
        return HealthCheck(
            name, None, "this machine's ledger has no open slice; each slice has its own and reports when it is armed"
        )
    unarmed = [f"{each.lease.handle}: {why}" for each in slices if (why := guest_reports.problem(each.watchdogs))]
    if unarmed:
        fix = "only this machine or `tpujob gc` ends a slice that is not armed; see docs/gc.md"
        return HealthCheck(name, False, f"not armed on every worker: {'; '.join(unarmed)}", fix)
    return HealthCheck(name, True, f"armed on every worker of {len(slices)} slice{'s' if len(slices) > 1 else ''}")


def gc(ledger: Ledger | None, target: Target) -> HealthCheck:
    """Return when this machine last completed a gc run of the whole project."""
    name, fix = GC, "`tpujob gc` by hand; regularly on another machine: docs/gc.md"
    known, last = _age(ledger, target, local=False)
    if not known:
        return HealthCheck(name, None, f"{NOT_KNOWN}: the ledger cannot be read, see `state`", fix)
    if last is None:
        text = "this machine never completed a gc of the project; whether another one does cannot be seen from here"
        return HealthCheck(name, None, text, fix)
    text = f"this machine's last complete gc of the project was {_ago(last)}"
    return HealthCheck(name, last <= STALE_GC_S, text, fix if last > STALE_GC_S else None)


def _age(ledger: Ledger | None, target: Target, *, local: bool) -> tuple[bool, float | None]:
    """Return whether the ledger can be read, and the seconds since the last complete gc, of all zones; None: there is none."""
    try:
        if ledger is None:
            return False, None
        ran = ledger.gc_runs(target.kind, None if local else target.project)
        now = Clocks(ledger).now(target.kind)
    except TpujobError:
        return False, None
    wanted = "local" if local else "all"
    return True, next((now - each.at for each in ran if each.scope == wanted and each.complete), None)


def _ago(seconds: float) -> str:
    return f"{format_duration(max(seconds, 0.0))} ago"


# Log in to every worker of the open slices, each by the way that it was created for.

SSH = "ssh"
READY = "READY"
ASK_S, LOGIN_S = 10.0, 15.0


def login_check(session: Session, slices: Sequence[SliceHealth]) -> HealthCheck:
    """Return whether the logins work. It is for the slices that are READY."""
    ready = [each.lease for each in slices if each.state == READY]
    if not ready:
        return HealthCheck(
            SSH, None, "no open slice is READY, so no login was tried; what follows was asked of the APIs"
        )
    done = []
    for lease in ready:
        began = time.monotonic()
        try:
            count = _log_in(session, lease)
        except TpujobError as error:
            where = f"{lease.handle}, {access.describe(lease.route)}"
            return HealthCheck(SSH, False, f"{where}: {error.message}", error.hint, error.exit_code)
        workers = "its worker" if count == 1 else f"all {count} workers"
        took_s = time.monotonic() - began
        done.append(f"{lease.handle}: logged in to {workers} {access.describe(lease.route, count)}, in {took_s:.1f} s")
    return HealthCheck(SSH, True, "; ".join(done))


def _log_in(session: Session, lease: Lease) -> int:
    """Return how many workers there are. Raises TpujobError."""
    workers = session.run(until(session.now(lease.cloud) + ASK_S, Workers(lease.name)), lease.cloud)
    notice = lambda text: session.reporter.notice("ssh", text)  # noqa: E731
    fleet = session.world(lease.cloud).reach.fleet(lease, workers, notice, session.now)
    try:
        fleet.connect(LOGIN_S)
    finally:
        fleet.cancel()
    return len(workers)

"""Is each layer of the guarantee live for this machine and project? The questions that `tpujob doctor` asks, one by one.

Each answers with a `Check` in plain words and never raises: what cannot be found out is said like everything else.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import TpujobError

if TYPE_CHECKING:
    from orchestrator.core.lease.lease import Lease
    from orchestrator.core.lease.watchdog_report import WatchdogStatus
    from orchestrator.core.text.redaction import Redactor
    from orchestrator.ledger.ledger import Ledger
    from orchestrator.settings import Target

WATCHDOGS, GC = "L3 watchdog on the VM", "L4 gc"
STALE_TIMER_S = 3 * 3600.0  # a timer whose last run is older does not run
STALE_GC_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """`live` None: nothing to say yes or no to. `code` is the exit code if tpujob is unusable for it; 0: it is not."""

    name: str
    live: bool | None
    text: str
    fix: str | None = None
    code: int = 0

    def shape(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Alive:
    """One open lease with what the cloud says about it."""

    lease: Lease
    state: str
    claimed_until: float
    watchdogs: tuple[WatchdogStatus, ...]
    alive: bool  # does a process of this machine live for it?
    looked_at: float

    @property
    def worst_usd(self) -> float | None:
        """From now to its deadline. Past it nothing is bounded, if no layer is live."""
        if self.lease.usd_per_hour is None:
            return None
        return self.lease.usd_per_hour * max(self.lease.deadline - self.looked_at, 0.0) / 3600


def failed(name: str, error: TpujobError) -> HealthCheck:
    return HealthCheck(name, False, error.message, error.hint, error.exit_code)


def cloud(target: Target) -> HealthCheck:
    fix = None
    if target.kind == "emulated" and target.endpoint is None:
        fix = "for Google Cloud: `gcloud config set project PROJECT`, or TPUJOB_PROJECT, or --project"
    return HealthCheck("cloud", True, target.why, fix)


def credentials(target: Target, secrets: Redactor) -> HealthCheck:
    """Are they good for a question to the API?"""
    from orchestrator.client.guarantee.teardown_client import connect

    began = time.monotonic()
    try:
        zones = connect(target, secrets).zones(target.project).rows
    except TpujobError as error:
        return failed("credentials", error)
    took_ms = (time.monotonic() - began) * 1000
    return HealthCheck("credentials", True, f"the API answered in {took_ms:.0f} ms: {len(zones)} zones")


def guardian(directory: Path) -> HealthCheck:
    """Starts a real one: it ends by itself when this command does, unless there is something to watch."""
    from orchestrator.engine.guardian import process as guardians

    name = "L2 guardian"
    if os.environ.get(guardians.SWITCH, "").lower() in ("off", "0", "no"):
        return HealthCheck(name, False, f"switched off by {guardians.SWITCH}", f"unset {guardians.SWITCH}")
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
    from orchestrator.client.guarantee.timers import lingers
    from orchestrator.engine.guardian import process as guardians

    if guardians.ci_notice(os.environ):
        return "but not the end of this CI job", "let a scheduled `tpujob gc` clean up: docs/gc.md"
    if not guardians.has_user_manager(os.environ):
        return "and a logout where the system lets processes live on", None
    if lingers():
        return "and a logout", None
    return "but perhaps not a logout", "`loginctl enable-linger` keeps it"


def timer(ledger: Ledger | None, target: Target) -> HealthCheck:
    from orchestrator.client.guarantee import timers

    present = [words for each in timers.every(os.environ, sys.platform) if (words := each.present())]
    last = _age(ledger, target, local=True)
    ran = f"the last local gc was {_ago(last)}" if last is not None else "no local gc has run yet"
    if not present:
        return HealthCheck("L2 timer", False, f"none is installed; {ran}", "`tpujob install-gc`")
    if last is not None and last > STALE_TIMER_S:
        return HealthCheck(
            "L2 timer", False, f"{', '.join(present)}, but {ran}", "`tpujob install-gc` installs it anew"
        )
    return HealthCheck("L2 timer", True, f"{', '.join(present)}; {ran}")


def watchdogs(alive: Sequence[Alive]) -> HealthCheck:
    from orchestrator.core.lease.watchdog_report import problem

    name = WATCHDOGS
    if not alive:
        return HealthCheck(
            name, None, "no slice that this machine knows of is alive; each brings its own and says when it is armed"
        )
    unarmed = [f"{each.lease.handle}: {why}" for each in alive if (why := problem(each.watchdogs))]
    if unarmed:
        fix = "a slice that is not armed ends by this machine or by `tpujob gc` only; see docs/gc.md"
        return HealthCheck(name, False, f"not armed on every worker: {'; '.join(unarmed)}", fix)
    return HealthCheck(name, True, f"armed on every worker of {len(alive)} slice{'s' if len(alive) > 1 else ''}")


def gc(ledger: Ledger | None, target: Target) -> HealthCheck:
    name, fix = GC, "`tpujob gc` by hand; from elsewhere and regularly: docs/gc.md"
    last = _age(ledger, target, local=False)
    if last is None:
        text = "this machine never completed a gc of the project; whether another one does cannot be seen from here"
        return HealthCheck(name, None, text, fix)
    text = f"this machine's last complete gc of the project was {_ago(last)}"
    return HealthCheck(name, last <= STALE_GC_S, text, fix if last > STALE_GC_S else None)


def _age(ledger: Ledger | None, target: Target, *, local: bool) -> float | None:
    """Return the seconds since the last complete gc, of all zones; None where there is none."""
    if ledger is None:
        return None
    from orchestrator.ledger.clocks import Clocks

    try:
        ran = ledger.gc_runs(target.kind, None if local else target.project)
        now = Clocks(ledger).now(target.kind)
    except TpujobError:
        return None
    wanted = "local" if local else "all"
    return next((now - each.at for each in ran if each.scope == wanted and each.complete), None)


def _ago(seconds: float) -> str:
    from orchestrator.core.text.durations import format_duration

    return f"{format_duration(max(seconds, 0.0))} ago"

"""Log in to every worker of the open slices, each by the way that it was created for."""

import time
from collections.abc import Sequence

from orchestrator.client.guarantee.health_checks import HealthCheck, SliceHealth
from orchestrator.client.session import Session
from orchestrator.core.lease import access
from orchestrator.core.lease.lease import Lease
from orchestrator.engine.effects.cloud import Workers
from orchestrator.engine.runtime.retry import until
from orchestrator.errors import TpujobError

NAME = "ssh"
READY = "READY"
ASK_S, LOGIN_S = 10.0, 15.0


def login_check(session: Session, slices: Sequence[SliceHealth]) -> HealthCheck:
    """Return whether the logins work. It is for the slices that are READY."""
    ready = [each.lease for each in slices if each.state == READY]
    if not ready:
        return HealthCheck(
            NAME, None, "no open slice is READY, so no login was tried; what follows was asked of the APIs"
        )
    done = []
    for lease in ready:
        began = time.monotonic()
        try:
            count = _log_in(session, lease)
        except TpujobError as error:
            where = f"{lease.handle}, {access.describe(lease.route)}"
            return HealthCheck(NAME, False, f"{where}: {error.message}", error.hint, error.exit_code)
        workers = "its worker" if count == 1 else f"all {count} workers"
        took_s = time.monotonic() - began
        done.append(f"{lease.handle}: logged in to {workers} {access.describe(lease.route, count)}, in {took_s:.1f} s")
    return HealthCheck(NAME, True, "; ".join(done))


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

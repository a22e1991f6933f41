"""Ask the VMs of slices, by their guest attributes, whether the job on them uses the TPU. Their silence says nothing."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from orchestrator import catalog
from orchestrator.core.lease import chip_report
from orchestrator.core.lease.run_and_attempt import AttemptState
from orchestrator.errors import TpujobError

if TYPE_CHECKING:
    from orchestrator.client.session import Session

ASK_S = 5.0  # for all of them together


def unused(session: Session) -> dict[str, str]:
    """Return what is said of slices whose job runs for long enough, by the ids of their leases. Takes ASK_S seconds at most."""
    jobs = [
        (run.cloud, session.ledger.lease(attempt.lease_id), attempt.id)
        for run, attempt in session.ledger.runs()
        if attempt.state is AttemptState.RUNNING and attempt.lease_id
        if session.now(run.cloud) - (attempt.started_at or math.inf) >= session.target.timings.chip_s
    ]
    found: dict[str, str] = {}

    def ask() -> None:
        for cloud, lease, attempt in jobs:
            kind = catalog.lookup(lease.accelerator_type)
            with suppress(TpujobError):
                published = session.world(cloud).cloud.guest_attributes(lease.name)
                said = chip_report.published(published, attempt, kind.hosts if kind else 0)
                found[lease.id] = "; ".join(said.values())

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ASK_S)
    return dict(found)

"""From a job to its plan, with all that this machine knows: the settings, what was granted, what the project really has.

`run`, `submit`, `bench` and `plan` make their plan here, so that `plan` shows what they do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.jobfile.model import JobSpec
    from orchestrator.core.planning.plan import Plan


def plan_of(session: Session, spec: JobSpec, *, keep_s: float = 0.0) -> Plan:
    """Raises UserError when nothing of what the job can live with may be had."""
    from orchestrator.client.plan_inputs import known_to
    from orchestrator.core.planning.plan import CandidateOrder, make
    from orchestrator.engine.jobs import prepare

    return make(
        prepare.wishes(spec, session.target.timings, keep_s=keep_s),
        default_zone=session.target.zone,
        order=CandidateOrder(spec.tpu.order),
        max_price_per_hour=spec.tpu.max_price_per_hour,
        race=spec.tpu.race,
        wait_s=spec.tpu.wait,
        known=known_to(session, spec),
    )

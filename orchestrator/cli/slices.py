"""What `up` and `run` share: the places of a wish, the plan on screen, where slices are asked for."""

from __future__ import annotations

import time

from orchestrator.cli.session import Session
from orchestrator.core.plan import Plan
from orchestrator.engine.prepare import Place
from orchestrator.report.plan import dropped_lines, plan_lines

DEFAULT_EMULATED_CORES = 2


def place(session: Session) -> Place:
    return Place(
        cloud=session.target.kind,
        project=session.target.project,
        owner=session.owner,
        lease_directory=session.lease_directory,
        pace=session.target.pace,
        network=session.target.network,
        service_account=session.target.service_account,
    )


def show_plan(session: Session, plan: Plan, emulated_cores: int | None = None) -> None:
    lines = plan_lines(
        plan,
        time.time(),
        emulated=session.target.kind == "emulated",
        emulated_cores=emulated_cores,
        overlap_s=session.target.pace.absent_s,
    )
    for line in [*lines, *dropped_lines(plan.dropped)]:
        session.talk.say("plan", line)

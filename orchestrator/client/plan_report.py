"""What every plan shares: its report in sentences, and the place where its slices are created."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from orchestrator.client.session import Session
from orchestrator.core.planning.plan import Plan
from orchestrator.core.text.sizes import format_size
from orchestrator.engine.provision.drafts import Place
from orchestrator.report.plan import dropped_lines, plan_lines

if TYPE_CHECKING:
    from orchestrator.core.jobfile.model import JobSpec

DEFAULT_EMULATED_CORES = 2


def place(session: Session) -> Place:
    """Return where the slices of this session are created."""
    return Place(
        cloud=session.target.kind,
        project=session.target.project,
        owner=session.owner,
        lease_directory=session.lease_directory,
        timings=session.target.timings,
        now=session.certain_now,
        network=session.target.network,
        service_account=session.target.service_account,
    )


def show_plan(session: Session, plan: Plan, emulated_cores: int | None = None, spec: JobSpec | None = None) -> None:
    """Report the plan. `spec`: of the job that is to run there."""
    for line in lines_of(session, plan, emulated_cores, spec):
        session.reporter.notice("plan", line)


def lines_of(session: Session, plan: Plan, emulated_cores: int | None = None, spec: JobSpec | None = None) -> list[str]:
    """Return the plan in sentences."""
    emulated = session.target.kind == "emulated"
    has_code = spec is not None and (spec.train is None or spec.train.entry is not None)
    lines = plan_lines(
        plan,
        session.now(),
        emulated=emulated,
        emulated_cores=emulated_cores,
        overlap_s=session.target.timings.absent_s,
        python="{}.{}".format(*sys.version_info) if emulated and has_code else None,
        torch_tpu=spec is not None and spec.train is not None and spec.train.backend == "tpu",
    )
    if spec is not None and spec.limits.max_results is not None:
        lines.append(f"collects {format_size(spec.limits.max_results)} of results at most (limits.max_results)")
    return [*lines, *dropped_lines(plan.dropped)]

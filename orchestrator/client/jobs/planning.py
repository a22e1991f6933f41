"""Plan a job with all that this machine knows: the settings, what was granted, what the project really has.

`run`, `submit` and `plan` make their plan here, so that `plan` shows what they do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.client import plans
from orchestrator.client.cluster import targets
from orchestrator.client.jobs import data, tpu_use
from orchestrator.client.jobs.code import ship_line, ship_shape, survey_of
from orchestrator.core.lease.lease import Purpose
from orchestrator.core.lease.run_and_attempt import LOCAL
from orchestrator.core.planning.plan import CandidateOrder, make
from orchestrator.places.gke.objects import plan as cluster_plan
from orchestrator.report.plan import candidate_shape, table
from orchestrator.run.preparation import checks, runs

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.core.planning.plan import Candidate, Plan
    from orchestrator.report.layout import Table


@dataclass(frozen=True, slots=True, repr=False)
class PlanPreview:
    """What a run would ask for; as text, the sentences and the table of `tpujob plan`.

    `plan` is None, and `requests` empty, for a job with `on: local`. With `on: gke` there is one candidate, whose zone is the
    namespace, and `requests` are the JobSet and its ConfigMap.
    """

    plan: Plan | None
    requests: tuple[Mapping[str, Any], ...]  #: method, url and body of the create call of each candidate
    shape: Mapping[str, Any]  #: the whole as JSON values
    notes: tuple[str, ...] = ()  #: the plan in sentences
    table: Table | None = None  #: of the candidates

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """What would be asked for, in order; nothing for a job with `on: local`."""
        return self.plan.candidates if self.plan is not None else ()

    @property
    def worst_case_usd(self) -> float | None:
        """What the run costs at most, in US dollars by the price table. None: a price is unknown."""
        return 0.0 if self.plan is None else self.plan.worst_case_usd

    def __str__(self) -> str:
        return "\n".join([*self.notes, *(self.table.lines() if self.table else ())])

    def __repr__(self) -> str:
        return f"<plan of {self.shape['job']}: {len(self.requests)} candidates>"


def plan_of(session: Session, spec: JobSpec, *, keep_s: float = 0.0) -> Plan:
    """Return the plan of a job whose slice lives `keep_s` longer than the job.

    Raises UserError when none of the alternatives of the job can be asked for.
    """
    if spec.on == "gke":
        return cluster_plan.plan_of(targets.shape_of(spec, session.target.gke))
    return make(
        runs.capacity_requests(spec, session.target.timings, keep_s=keep_s),
        default_zone=session.target.zone,
        order=CandidateOrder(spec.tpu.order),
        max_price_per_hour=spec.tpu.max_price_per_hour,
        race=spec.tpu.race,
        wait_s=spec.tpu.wait,
        inputs=plans.known_to(session, spec),
    )


def preview(session: Session, spec: JobSpec, path: Path) -> PlanPreview:
    """Return what a run of this job would ask for, without asking for it. Raises UserError for a job that cannot be run."""
    checks.check_directories(spec, path)
    found = survey_of(session, spec, path)
    session.recover()
    ships = () if found is None else (ship_line(found),)
    ships = (*ships, *data.lines_of(session, spec), *tpu_use.warnings(spec, path))
    if spec.on == "local":
        shape = _local_shape(spec) | {"ship": ship_shape(found)}
        return PlanPreview(None, (), shape, notes=("this machine: no cloud is asked for anything", *ships))
    if spec.on == "gke":
        from orchestrator.client.cluster import planning

        return planning.preview(session, spec, path, found, ships)
    checks.check_bucket(spec, session.target.kind, os.environ)
    checks.check_python(spec, session.target.kind)
    plan = plan_of(session, spec)
    drafter = plans.drafter(session, plan, spec.access.wish, handle=str(spec.name), purpose=Purpose.RUN)
    requests = tuple(session.preview(draft.request) for draft in drafter.make())
    session.forget_drafts(drafter.made)
    return PlanPreview(
        plan,
        requests,
        _shape(session, spec, plan, requests) | {"ship": ship_shape(found)},
        (*plans.lines_of(session, plan, spec=spec), *ships),
        table(plan),
    )


def _shape(session: Session, spec: JobSpec, plan: Plan, requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = plan.candidates[0]
    return {
        "job": spec.name,
        "cloud": session.target.kind,
        "project": session.target.project,
        "candidates": [
            {**candidate_shape(one), "request": request} for one, request in zip(plan.candidates, requests, strict=True)
        ],
        "dropped": [asdict(dropped) for dropped in plan.dropped],
        "order": plan.order,
        "race": plan.race,
        "wait_s": plan.wait_s,
        "asked": plan.availability_note,
        "workers": first.workers,
        "cores": first.cores,
        "max_duration_s": plan.max_duration_s,
        "max_results_bytes": spec.limits.max_results,
        "worst_case_usd": plan.worst_case_usd,
        "overlap_usd": plan.overlap_usd(session.target.timings.absent_s),
        "request": requests[0],
    }


def _local_shape(spec: JobSpec) -> dict[str, Any]:
    """The same keys, for a job that asks no cloud for anything."""
    return {
        "job": spec.name,
        "cloud": LOCAL,
        "project": None,
        "candidates": [],
        "dropped": [],
        "order": spec.tpu.order,
        "race": False,
        "wait_s": 0.0,
        "asked": None,
        "workers": 1,
        "cores": None,
        "max_duration_s": spec.limits.max_duration_s,
        "max_results_bytes": spec.limits.max_results,
        "worst_case_usd": 0.0,
        "overlap_usd": 0.0,
        "request": None,
    }

"""Plan a job with all that this machine knows: the settings, what was granted, what the project really has.

`run`, `submit` and `plan` get their plan from the place of the job, so that `plan` shows what they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import places
from orchestrator.places.place import Wish
from orchestrator.places.preparation import checks, data, tpu_use
from orchestrator.places.preparation.code import ship_line, ship_shape, survey_of

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.core.planning.plan import Candidate, Plan
    from orchestrator.core.text.table import Table


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


def preview(session: Session, spec: JobSpec, path: Path) -> PlanPreview:
    """Return what a run of this job would ask for, without asking for it. Raises UserError for a job that cannot be run."""
    place = places.place_on(spec.on)
    checks.check_directories(spec, path)
    found = survey_of(session, spec, path)
    session.recover()
    ships = () if found is None else (ship_line(found),)
    ships = (*ships, *data.lines_of(session, spec), *tpu_use.warnings(spec, path))
    place.check(session, spec, path, Wish(only_plan=True))
    made = place.plan(session, spec, path)
    shape = made.shape(spec) | {"ship": ship_shape(found)}
    return PlanPreview(made.plan, made.requests, shape, (*made.notes, *ships), made.table)

"""What a sweep asks for: the plan of each variant, and what all of them cost at most together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import job as job_file
from orchestrator import places
from orchestrator import traits as place_traits
from orchestrator.api.session import shown_logs
from orchestrator.api.session.events import VariantResult
from orchestrator.api.session.shown_logs import Choice
from orchestrator.places.place import Wish
from orchestrator.places.preparation import buckets, code, requirements
from orchestrator.places.preparation.code import ship_line, survey_of
from orchestrator.promise.lease.run_and_attempt import LOCAL
from orchestrator.report.rows import costs
from orchestrator.report.rows.layout import format_cost
from orchestrator.text.terminal import Table

if TYPE_CHECKING:
    from orchestrator.api.session.session import Session
    from orchestrator.capacity.plan import Plan
    from orchestrator.job.sweep import Sweep, Variant


def sweep_plans(session: Session, variants: tuple[Variant, ...]) -> dict[int, Plan | None]:
    """Return the plan of each variant by its number; None: it runs on this machine. Raises UserError, CloudError."""
    made: dict[str, Plan | None] = {}
    found: dict[int, Plan | None] = {}
    for variant in variants:
        spec = variant.spec
        asked = spec.model_dump_json(include={"on", "gke", "tpu", "limits", "bucket", "data", "allow_egress", "train"})
        if asked not in made:
            made[asked] = places.place_on(spec.on).capacity(session, spec, Wish())
        found[variant.number] = made[asked]
    return found


@dataclass(frozen=True, slots=True, repr=False)
class SweepPlan:
    """What a sweep would run and ask for; as text, sentences and a table of the variants.

    `worst_case_usd`: what all variants cost at most together, in US dollars by the price table. None: a price is unknown.
    """

    sweep: Sweep
    plans: Mapping[int, Plan | None]  #: by the number of the variant; None: it runs on this machine
    worst_case_usd: float | None
    shape: Mapping[str, Any]  #: the whole as JSON values
    notes: tuple[str, ...]
    table: Table

    def __str__(self) -> str:
        return "\n".join([*self.notes, *self.table.lines()])

    def __repr__(self) -> str:
        return f"<plan of {self.sweep.name}: {len(self.sweep.variants)} variants>"


def preview(session: Session, sweep: Sweep, path: Path) -> SweepPlan:
    """Return what a run of this sweep would do, without doing it. Raises UserError for a sweep that cannot be run."""
    check(session, sweep, path)
    session.recover()
    made = sweep_plans(session, sweep.variants)
    usd = worst_case_usd(made)
    lanes = min(sweep.parallel, len(sweep.variants))
    rows = [(variant, made[variant.number]) for variant in sweep.variants]
    shape = {
        "sweep": sweep.name,
        "cloud": _cloud(session, sweep),
        "project": session.target.project if on_slices(sweep) else None,
        "parallel": lanes,
        "variants": [_variant_shape(variant, plan) for variant, plan in rows],
        "worst_case_usd": usd,
    }
    ships = [survey_of(session, variant.spec, path) for variant in sweep.variants]
    shipped = dict.fromkeys(ship_line(found) for found in ships if found is not None)
    notes = (*_lines(session, sweep, made), *shipped, _summary(session, sweep, made, lanes))
    head = ("RUN", "VARIANT", "TYPE", place_traits.traits_of(_cloud(session, sweep)).area.upper(), "AT MOST")
    cells = tuple((variant.name, variant.label, *_where(session, sweep, plan)) for variant, plan in rows)
    return SweepPlan(sweep, made, usd, shape, notes, Table(head, cells, right=(4,)))


def check(session: Session, sweep: Sweep, path: Path) -> None:
    """Raise UserError for what any variant lacks, before the first one is run."""
    for line in dict.fromkeys(line for each in sweep.variants for line in requirements.warnings(each.spec, path)):
        session.reporter.notice("warning", line)
    looked_at: list[object] = []
    for spec in (variant.spec for variant in sweep.variants):
        if (asked := (spec.on, spec.data)) not in looked_at:
            looked_at.append(asked)
            buckets.lines_of(session, spec)
        code.check_directories(spec, path)
        job_file.job_spec.resolve_env(spec, os.environ)
        places.place_on(spec.on).check(session, spec, path, Wish())


def check_logs(session: Session, sweep: Sweep, chosen: Choice) -> None:
    """Raise UserError for a worker that no variant has, where the caller names workers whose logs it shows."""
    if isinstance(chosen, tuple):
        made = sweep_plans(session, sweep.variants).values()
        counts = [max(each.workers for each in plan.candidates) if plan is not None else 1 for plan in made]
        shown_logs.check("--logs", chosen, max(counts))


def _variant_shape(variant: Variant, plan: Plan | None) -> dict[str, Any]:
    own = {"number": variant.number, "variant": variant.label, "name": variant.name, "params": dict(variant.params)}
    candidates = [] if plan is None else [each.shape() for each in plan.candidates]
    return {**own, "candidates": candidates, "worst_case_usd": 0.0 if plan is None else plan.worst_case_usd}


def _where(session: Session, sweep: Sweep, plan: Plan | None) -> tuple[str, str, str]:
    if plan is None:
        return "this machine", "", format_cost(None, LOCAL)
    first, *others = plan.candidates
    zone = f"{first.zone} +{len(others)}" if others else first.zone
    return first.accelerator_type, zone, format_cost(plan.worst_case_usd, _cloud(session, sweep))


def worst_case_usd(found: Mapping[int, Plan | None]) -> float | None:
    """Return what all variants cost at most together, in US dollars; None: a price is unknown."""
    return costs.total(0.0 if plan is None else plan.worst_case_usd for plan in found.values())


def show(session: Session, sweep: Sweep, done: Mapping[int, VariantResult], lanes: int) -> None:
    """Report what will be done, each plan once, and what it costs at most. `done`: what is not run again, by number."""
    made = sweep_plans(session, tuple(variant for variant in sweep.variants if variant.number not in done))
    if any(made.values()) and on_slices(sweep):
        session.announce()
    for line in _lines(session, sweep, made):
        session.reporter.notice("plan", line)
    session.reporter.notice("sweep", _summary(session, sweep, made, lanes))


def _lines(session: Session, sweep: Sweep, made: Mapping[int, Plan | None]) -> list[str]:
    """Return the plans in sentences, each sentence once."""
    lines: dict[str, None] = {}
    for variant in sweep.variants:
        if (plan := made.get(variant.number)) is not None:
            lines |= dict.fromkeys(places.place_on(variant.spec.on).describe(session, variant.spec, plan))
    return list(lines)


def on_slices(sweep: Sweep) -> bool:
    """Whether any variant of the sweep runs on a slice of this session's cloud."""
    return any(place_traits.traits_on(variant.spec.on).by_target for variant in sweep.variants)


def _cloud(session: Session, sweep: Sweep) -> str:
    """Return the cloud whose dollars its plans are in: that of the session, if a variant runs there."""
    traits = [place_traits.traits_on(variant.spec.on) for variant in sweep.variants]
    elsewhere = [each.clouds[0] for each in traits if each.billed and not each.by_target]
    return elsewhere[0] if elsewhere and not on_slices(sweep) else session.target.kind


def _summary(session: Session, sweep: Sweep, made: Mapping[int, Plan | None], lanes: int) -> str:
    """Return what is left to do: `lr-sweep: 6 variants over 2 slices, at most $1.32 together`."""
    before = len(sweep.variants) - len(made)
    parts = [f"{sweep.name}: {len(sweep.variants)} variant{'s'[: len(sweep.variants) != 1]}"]
    parts += [f"{before} of them done before (`--again` runs them again)"] if before else []
    if any(made.values()):
        parts += [f"over {lanes} slice{'s'[: lanes != 1]}" if on_slices(sweep) else f"{lanes} at a time"]
        parts += [f"at most {format_cost(worst_case_usd(made), _cloud(session, sweep))} together"]
    elif made:
        parts += ["on this machine"]
    return ", ".join(parts)

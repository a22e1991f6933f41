"""A plan as sentences and as a table: the candidates in their order, their prices, and what was left out and why. Pure.

A price has its date, emulated cost is marked as such, granted capacity is no zero, and an unknown price is no bound.
"""

from collections.abc import Sequence

from orchestrator import catalog
from orchestrator.capacity.plan import Candidate, CandidateOrder, Dropped, Plan
from orchestrator.text.scripts import VM_PYTHON
from orchestrator.text.terminal import Table
from orchestrator.text.units import day_clock, format_duration, format_usd

SHOWN_OTHERS = 4
_ORDERS = {
    CandidateOrder.AS_LISTED: "as listed",
    CandidateOrder.CHEAPEST: "the cheapest first",
    CandidateOrder.FASTEST: "the shortest expected wait first",
}


def plan_lines(
    plan: Plan,
    now: float,
    *,
    emulated: bool,
    emulated_cores: int | None = None,
    overlap_s: float | None = None,
    python: str | None = None,
    torch_tpu: bool = False,
    chooses_torch: bool = False,
) -> list[str]:
    """Return what a run is about to do. `now`: unix seconds.

    `overlap_s`: how long a loser of a race may exist beside the winner. `python`: the version of emulated workers, for a
    job with code of its own. `torch_tpu`: the job trains with torch_tpu. `chooses_torch`: with `backend: auto`.
    """
    first = plan.candidates[0]
    workers = f"{first.workers} worker{'s'[: first.workers != 1]}"
    cores = f"{first.cores} core{'s'[: first.cores != 1]}"
    if emulated_cores is not None:
        cores += f" emulated as {min(emulated_cores, first.cores_per_worker) * first.workers}"
    until = f"ends by {day_clock(now + first.life_s)} at the latest"
    what = f"{first.accelerator_type} · {first.zone} · {first.runtime_version} · {_provisioning(first)}"
    lines = [f"{what} · {workers} · {cores} · {until}"]
    if len(plan.candidates) > 1:
        lines.append(_others(plan))
    lines += [
        f"the table of offers has no {one.accelerator_type} ({_provisioning(one)}) in {one.zone}, but in {one.offered_in}; "
        "the cloud is asked all the same"
        for one in plan.candidates
        if one.offered_in is not None
    ]
    lines.append(_price_line(plan, emulated))
    if python is not None:
        lines.append(f"the job's own code gets Python {python} here; a TPU VM has Python {VM_PYTHON}")
    if torch_tpu:
        lines.append(
            f"backend: tpu needs Python 3.11 or newer, and a TPU VM has {VM_PYTHON}: the job ends in its setup; "
            'write `python: "3.12"`'
        )
    if chooses_torch and not emulated and all(map(_has_torch_tpu, plan.candidates)):
        lines.append(
            "backend: auto trains with torch_xla; v4 and later have torch_tpu, too, which tpujob has not run on a chip yet: "
            '`backend: tpu` with `python: "3.12"` takes it'
        )
    if len(plan.racing) > 1 and overlap_s is not None:
        lines.append(_race_line(plan, overlap_s))
    if plan.availability_note is not None:
        lines.append(f"what your project has is as it was {plan.availability_note}")
    if plan.wait_s:
        lines.append(f"waits for capacity for {format_duration(plan.wait_s)} altogether")
    return lines


def _has_torch_tpu(one: Candidate) -> bool:
    """Return whether torch_tpu is made for this type: for v4 and later."""
    kind = catalog.lookup(one.accelerator_type)
    return kind is not None and kind.generation not in ("v2", "v3")


def table(plan: Plan) -> Table:
    """Return a table of every candidate, in the order in which they are asked for."""
    rows = tuple(
        (
            str(number),
            one.accelerator_type,
            one.zone,
            _provisioning(one),
            one.runtime_version,
            _amount(one, one.usd_per_hour),
            _amount(one, one.worst_case_usd),
            one.why,
        )
        for number, one in enumerate(plan.candidates, 1)
    )
    return Table(("", "TYPE", "ZONE", "HOW", "RUNTIME", "$/H", "AT MOST $", "WHY"), rows, right=(0, 5, 6))


def dropped_lines(dropped: Sequence[Dropped]) -> list[str]:
    """Return one line for each reason: forty zones that are too expensive are one line."""
    zones: dict[tuple[str, str, str], list[str]] = {}
    for one in dropped:
        why = one.why.replace(f" in {one.zone}", " there")
        zones.setdefault((one.accelerator, one.provisioning.label, why), []).append(one.zone)
    return [f"not {kind} ({how}) in {', '.join(places)}: {why}" for (kind, how, why), places in zones.items()]


def _provisioning(one: Candidate) -> str:
    """Mark spot capacity that is queued; the queued kinds are named so anyway."""
    waits = one.queued and not one.provisioning.queued
    return f"{one.provisioning.label}, queued" if waits else one.provisioning.label


def _others(plan: Plan) -> str:
    first, *others = plan.candidates
    same = all(
        (one.accelerator_type, _provisioning(one)) == (first.accelerator_type, _provisioning(first)) for one in others
    )
    named = [one.zone if same else f"{one.accelerator_type} in {one.zone} ({_provisioning(one)})" for one in others]
    order = "" if plan.order is CandidateOrder.AS_LISTED else f" ({_ORDERS[plan.order]})"
    return f"if {first.zone} has no capacity{order}: {_some(named)}"


def _some(named: Sequence[str]) -> str:
    more = f" and {len(named) - SHOWN_OTHERS} more" if len(named) > SHOWN_OTHERS else ""
    return f"{', '.join(named[:SHOWN_OTHERS])}{more}"


def _price_line(plan: Plan, emulated: bool) -> str:
    first, worst = plan.candidates[0], plan.worst_case_usd
    if first.granted:
        listed = "" if first.list_usd_per_hour is None else f"; listed at about ${first.list_usd_per_hour:,.2f}/h"
        later = f"; the others at most {_sum(plan)}" if worst else ""
        return f"granted to you, by your settings: it costs nothing{listed}{later} ({catalog.PRICES_AS_OF})"
    if first.usd_per_hour is None:
        kind = (
            f"{first.accelerator_type} ({_provisioning(first)})"
            if first.provisioning.queued
            else first.accelerator_type
        )
        return f"price unknown: the {catalog.PRICES_AS_OF} has none for {kind} in {first.zone}"
    bound = "" if worst is None else f", at most {_sum(plan)}"
    if plan.max_cost is not None:
        bound = f"; its budget of {format_usd(plan.max_cost)} lasts {format_duration(first.life_s)}"
    start = "on Google Cloud this would be" if emulated else "this costs"
    return f"{start} about ${first.usd_per_hour:,.2f}/h{bound} ({catalog.PRICES_AS_OF})"


def _sum(plan: Plan) -> str:
    """The worst case with its factors, so that it can be checked: `$329.47 (24 h at $13.728/h in …)`."""
    worst = max(plan.candidates, key=lambda one: one.worst_case_usd or 0.0)
    hours, rest = divmod(round(worst.life_s), 3600)
    time = " ".join([*([f"{hours} h"] if hours else []), *([format_duration(rest)] if rest else [])])
    usd = f"{worst.usd_per_hour:,.5f}".rstrip("0")  # with all of its figures: rounded, the product would be another
    usd += "0" * (2 - len(usd.partition(".")[2]))
    where = f" in {worst.zone}" if worst.usd_per_hour != plan.candidates[0].usd_per_hour else ""
    kind = f" for {worst.accelerator_type}" if worst.accelerator_type != plan.candidates[0].accelerator_type else ""
    return f"{format_usd(worst.worst_case_usd)} ({time} at ${usd}/h{kind}{where})"


def _race_line(plan: Plan, overlap_s: float) -> str:
    usd = plan.overlap_usd(overlap_s)
    zones = _some(list(dict.fromkeys(one.zone for one in plan.racing)))
    bound = "at an unknown price" if usd is None else f"for {format_usd(usd)} more at most"
    return (
        f"{len(plan.racing)} queued requests race ({zones}): the first that is READY wins; the others are deleted, "
        f"and may overlap with it for {format_duration(overlap_s)}, {bound}"
    )


def _amount(one: Candidate, usd: float | None) -> str:
    return "granted" if one.granted else "unknown" if usd is None else f"{usd:,.2f}"

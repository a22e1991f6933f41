"""The page of what was spent, as a research grant asks for it: people, chip-hours, causes, and what a grant does not pay."""

from typing import Any

from orchestrator.report.page.html import Hide, render_plain
from orchestrator.report.rows.layout import format_cost
from orchestrator.report.spending import CloudCost, CostReport, CostRow
from orchestrator.text.units import day_clock, format_duration, format_usd

MOST_RUNS = 500
FIGURES = ("hours", "chip hours", "cost", "free by grant", "at list price")


def cost_page(found: CostReport, title: str, hide: Hide) -> str:
    """Return the page of a report by run. `title`: its period. `hide` takes the secrets out of a text."""
    page = {
        "title": title.partition(" · ")[0],
        "note": found.note,
        "clouds": [_cloud(each) for each in found.clouds],
        "written_at": day_clock(found.asked_at),
    }
    return render_plain("cost.html.j2", page, hide)


def _cloud(found: CloudCost) -> dict[str, Any]:
    total, billed = found.total, found.billed
    runs = [(row.name, row.job or "", *_figures(row, billed), _first_causes(row)) for row in found.rows]
    return {
        "name": found.cloud,
        "dollars": found.dollars,
        "tiles": [
            ("Cost", format_cost(total.cost_usd, found.cloud).partition(" ")[0]),
            ("Chip-hours", _number(total.chip_hours) if billed else "none"),
            ("Free by grant", _usd(total.granted_usd) if billed else "none"),
            ("Runs", str(total.runs)),
        ],
        "figures": FIGURES,
        "people": [
            (each.owner or "unknown", each.accelerator_type or "none", *_figures(each.cost, billed))
            for each in found.people
        ],
        "causes": [
            (each.cause, each.hours / total.hours, *_spent(each.hours, each.chip_hours, each.cost_usd, billed))
            for each in total.shown_causes
        ],
        "waited": format_duration(3600 * total.waited_hours) if total.waited_hours else "",
        "runs": runs[:MOST_RUNS],
        "more_runs": max(len(runs) - MOST_RUNS, 0),
        "not_counted": [
            (each.what, "not measured" if each.quantity is None else f"{_number(each.quantity)} {each.unit}", each.note)
            for each in found.not_counted
        ],
    }


def _figures(row: CostRow, billed: bool) -> tuple[str, ...]:
    at_list = None if row.cost_usd is None or row.granted_usd is None else row.cost_usd + row.granted_usd
    more = tuple(map(_usd, (row.granted_usd, at_list))) if billed else ("none", "none")
    return (*_spent(row.hours, row.chip_hours, row.cost_usd, billed), *more)


def _spent(hours: float, chip_hours: float | None, usd: float | None, billed: bool) -> tuple[str, ...]:
    return (_number(hours), _number(chip_hours), _usd(usd)) if billed else (_number(hours), "none", "none")


def _first_causes(row: CostRow) -> str:
    shares = [(each.cause, 100 * each.hours / row.hours) for each in row.causes[:3]]
    return ", ".join(f"{cause} {share:.0f} %" for cause, share in shares if share > 0.5)


def _number(value: float | None) -> str:
    return "unknown" if value is None else "<0.01" if 0 < value < 0.005 else f"{value:,.2f}"


def _usd(value: float | None) -> str:
    return "unknown" if value is None else format_usd(value)

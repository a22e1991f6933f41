"""The table of `tpujob top`: its columns, its order, and its screen with the keys that change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from orchestrator import catalog
from orchestrator.cli.console import tables
from orchestrator.cli.console.console import wrapped_to
from orchestrator.cli.console.output import console
from orchestrator.cli.options import only_those
from orchestrator.errors import UserError
from orchestrator.report.files.metrics import figure_text
from orchestrator.report.rows.layout import format_cost
from orchestrator.text.units import clock, format_duration, format_usd, short_clock

if TYPE_CHECKING:
    from orchestrator.api.live.top import Top, TopRow

HEAD = (
    "NAME", "RUN", "STATE", "TYPE", "ZONE", "STEP", "FIGURE", "RATE", "HBM", "DUTY", "CPU", "COST", "AT MOST", "UNTIL",
)  # fmt: skip
RIGHT, STATES = (5, 8, 9, 10, 11, 12), (2,)
OPTIONAL = (10, 4, 1, 3, 7)  # in this order
SHORTENS = (0, 6, 7)
ALIASES = {
    "job": "name", "run": "id", "type": "accelerator_type", "figure": "value", "hbm": "hbm_percent", "duty": "duty_percent",
    "cpu": "cpu_percent", "cost": "usd_so_far", "at_most": "usd_at_most", "started": "started_at",
}  # fmt: skip
SORTS = ("state", "name", "type", "step", "figure", "rate", "hbm", "duty", "cost", "until", "started")
HIGHEST_FIRST = ("step", "figure", "rate", "hbm", "duty", "cost", "started")
HELP = "q quit · s sort · r reverse · / filter · a all that ended · arrows scroll"


def values(row: TopRow) -> dict[str, Any]:
    """Return the fields of a row, also under the heads of the table: what `--filter` and `--sort` know."""
    found = asdict(row)
    return found | {alias: found[name] for alias, name in ALIASES.items()}


def ordered(
    rows: Sequence[TopRow], filters: Sequence[str] | None, sort: str | None, *, reverse: bool = False
) -> list[TopRow]:
    """Return the rows for which all conditions hold, in this order. Raises UserError for a condition that no row can meet."""
    found = only_those([(values(row), row) for row in rows], filters)
    if sort is not None:
        known = [row for row in found if values(row)[sort] is not None]
        rest = [row for row in found if values(row)[sort] is None]
        found = sorted(known, key=lambda row: values(row)[sort], reverse=(sort in HIGHEST_FIRST) is not reverse) + rest
    return found


def cells(row: TopRow, now: float) -> tuple[str, ...]:
    """Return the texts of a row, one for each of HEAD."""

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{value:.0f} %"

    name = f"{row.sweep} {row.variant}" if row.sweep and row.variant else row.name
    rate = "-"
    if row.rate is not None:
        rate = f"{row.rate:,.0f}" if row.rate >= 100 else f"{row.rate:.3g}"
        rate += f" {row.rate_of}/s"
    until = "-" if row.until is None else short_clock(row.until, now)
    if row.ended_at is not None:
        until = f"{format_duration(round(max(now - row.ended_at, 0.0)))} ago"
    return (
        name,
        row.id if row.kind != "slice" else "-",
        f"{row.kind} {row.state}" if row.kind == "slice" else row.state,
        catalog.spoken(row.accelerator_type) if row.accelerator_type else "-",
        row.zone or "-",
        "-" if row.step is None else f"{row.step:,}",
        figure_text(row.metric, row.value) if row.metric else "-",
        rate,
        percent(row.hbm_percent),
        percent(row.duty_percent),
        percent(row.cpu_percent),
        format_cost(row.usd_so_far, ""),
        "-" if row.usd_at_most is None or row.ended_at is not None else format_usd(row.usd_at_most),
        until,
    )


def title(top: Top, shown: int) -> str:
    """Return the line above the table: which cloud, when, how many."""
    alive = sum(row.ended_at is None for row in top.rows)
    asked = "the API is being asked" if top.asked_at is None else f"asked the API at {clock(top.asked_at)}"
    count = f"{alive} go on" + (f", {shown} of {len(top.rows)} shown" if shown != len(top.rows) else "")
    money = " · dollars are those that Google would ask" if any(row.emulated for row in top.rows) else ""
    return f"{top.cloud} · {asked} · {count}{money}"


def remarks(rows: Sequence[TopRow]) -> list[str]:
    """Return a sentence for each row that has one."""
    return [f"{row.name}: {row.remark}" for row in rows if row.remark]


def write(top: Top, rows: Sequence[TopRow]) -> None:
    """Print the table once."""
    tables.print_table(
        HEAD,
        [cells(row, top.at) for row in rows],
        right=RIGHT,
        states=STATES,
        optional=_optional(rows),
        shortens=SHORTENS,
    )


def _optional(rows: Sequence[TopRow]) -> tuple[int, ...]:
    """Return which columns are left out first: those in which no row has anything."""
    found = [cells(row, 0.0) for row in rows]
    empty = [number for number in (8, 9, 10, 7, 12) if all(row[number] == "-" for row in found)]
    return (
        *empty,
        *(number for number in OPTIONAL if number not in empty),
        *(each for each in (8, 9) if each not in empty),
    )


class TopScreen:
    """What the keys have chosen: order, filter and how far it is scrolled."""

    def __init__(self, filters: Sequence[str], sort: str | None, *, ended: bool) -> None:
        self.filters, self.sort, self.reverse, self.ended = list(filters), sort, False, ended
        self.typed: str | None = None  # of the filter, while it is typed
        self.first = 0
        self.problem = ""

    def press(self, key: str, page: int) -> bool:
        """Take a key; return False at the end. `page`: how many rows are shown."""
        if self.typed is not None:
            self._type(key)
        elif key in ("q", "interrupt"):
            return False
        elif key == "s":
            self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)] if self.sort else SORTS[0]
        elif key == "r":
            self.reverse = not self.reverse
        elif key == "a":
            self.ended = not self.ended
        elif key == "/":
            self.typed = " ".join(self.filters)
        elif key == "escape":
            self.filters, self.problem = [], ""
        elif key in (steps := {"up": -1, "down": 1, "page up": -page, "page down": page}):
            self.first = max(self.first + steps[key], 0)
        return True

    def _type(self, key: str) -> None:
        assert self.typed is not None
        if key in ("enter", "escape", "interrupt"):
            if key == "enter":
                self.filters, self.problem, self.first = self.typed.split(), "", 0
            self.typed = None
        elif key == "erase":
            self.typed = self.typed[:-1]
        elif len(key) == 1 and key.isprintable():
            self.typed += key

    def lines(self, top: Top, columns: int, height: int) -> list[str]:
        """Return the lines of the screen."""
        try:
            rows, self.problem = ordered(top.rows, self.filters, self.sort, reverse=self.reverse), ""
        except UserError as error:
            rows, self.problem = list(top.rows), error.message
        below = [*(f"not asked: {each}" for each in top.problems), *remarks(rows)]
        said = [part for line in below for part in wrapped_to(console().fit(line), columns, 2)][: max(height // 4, 2)]
        room = max(height - len(said) - 5, 1)
        self.first = min(self.first, max(len(rows) - room, 0))
        shown = rows[self.first : self.first + room]
        body = [cells(row, top.at) for row in shown]
        table = tables.table_lines(
            HEAD, body, columns, right=RIGHT, states=STATES, optional=_optional(shown), shortens=SHORTENS
        )
        empty = [] if rows else ["", "nothing goes on" if not top.rows else "no row meets the conditions"]
        order = f"by {self.sort}{', reversed' if self.reverse else ''}" if self.sort else "newest state first"
        how = [
            order,
            *([f"filter {' '.join(self.filters)}"] if self.filters else []),
            *([self.problem] if self.problem else []),
        ]
        foot = f"filter: {self.typed}▏ (enter; escape leaves it)" if self.typed is not None else f"{HELP}"
        head = _cut(f"tpujob top · {title(top, len(rows))}", columns)
        middle = [*table, *empty, *([""] if said else []), *said][: height - 3]
        blank = [""] * (height - 3 - len(middle))
        return [head, *middle, *blank, _cut(" · ".join(how), columns), _cut(foot, columns)]


def _cut(text: str, columns: int) -> str:
    text = console().fit(text)
    return text if len(text) <= columns else f"{text[: columns - 1]}…"


def shape(top: Top, rows: Sequence[TopRow]) -> Mapping[str, Any]:
    """Return what `--json` prints."""
    return top.as_json() | {"rows": [asdict(row) for row in rows]}

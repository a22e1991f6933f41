"""The table of `tpujob top` on a terminal: printed once, or its screen with the keys that change it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.api.live.tables import HEAD, HIGHEST_FIRST, RIGHT, SORTS, cells, remarks, title, values
from orchestrator.cli.console import tables
from orchestrator.cli.console.filtering import only_those
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.api.live.top import Top, TopRow

STATES = (2,)
OPTIONAL = (10, 4, 1, 3, 7, 8, 9, 12, 13, 11, 5, 6)  # in this order
SHORTENS = (0, 2)  # never a number
ORDERS = (*SORTS, None)
HELP = "q quit · s sort · r reverse · / filter · a all that ended · arrows scroll"


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


def write(top: Top, rows: Sequence[TopRow]) -> None:
    """Print the table once."""
    body, optional = [cells(row, top.at) for row in rows], _optional(rows)
    tables.print_table(HEAD, body, right=RIGHT, states=STATES, optional=optional, shortens=SHORTENS)


def _optional(rows: Sequence[TopRow]) -> tuple[int, ...]:
    """Return which columns are left out first: those in which no row has anything."""
    found = [cells(row, 0.0) for row in rows]
    return tuple(sorted(OPTIONAL, key=lambda number: any(row[number] != "-" for row in found)))


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
            self.sort = ORDERS[(ORDERS.index(self.sort) + 1) % len(ORDERS)]
        elif key == "r":
            self.reverse = not self.reverse
        elif key == "a":
            self.ended = not self.ended
        elif key == "/":
            self.typed = _typed(self.filters)
        elif key == "escape":
            self.filters, self.problem = [], ""
        elif key in (steps := {"up": -1, "down": 1, "page up": -page, "page down": page}):
            self.first = max(self.first + steps[key], 0)
        return True

    def _type(self, key: str) -> None:
        assert self.typed is not None
        if key in ("enter", "escape", "interrupt"):
            if key == "enter":
                self.filters, self.problem, self.first = _conditions(self.typed), "", 0
            self.typed = None
        elif key in ("erase", "\x15"):  # Ctrl-U
            self.typed = self.typed[:-1] if key == "erase" else ""
        elif len(key) == 1 and key.isprintable():
            self.typed += key

    def lines(self, top: Top, columns: int, height: int) -> list[str]:
        """Return the lines of the screen."""
        try:
            rows, self.problem = ordered(top.rows, self.filters, self.sort, reverse=self.reverse), ""
        except UserError as error:
            rows, self.problem = list(top.rows), error.message.partition(": ")[2]
        below = [*top.problems, *remarks(rows)]
        if len(below) > (most := max(height // 4, 2)):
            below[most - 1 :] = [f"and {len(below) - most + 1} more; `tpujob top --once` prints all"]
        said = [_cut(line, columns) for line in below]
        room = max(height - len(said) - 5, 1)
        self.first = min(self.first, max(len(rows) - room, 0))
        body = [cells(row, top.at) for row in rows]  # also those that are scrolled away, so that no column changes
        optional = _optional(rows)
        names, *lines = tables.table_lines(
            HEAD, body, columns, right=RIGHT, states=STATES, optional=optional, shortens=SHORTENS
        )
        table = [names, *lines[self.first :][:room]]
        empty = [] if rows else ["", "nothing goes on" if not top.rows else "no row meets the conditions"]
        order = f"by {self.sort}{', reversed' if self.reverse else ''}" if self.sort else "what goes on first"
        how = [
            order, f"rows {self.first + 1} to {self.first + len(table) - 1} of {len(rows)}" if len(rows) > room else "",
            "all that ended" if self.ended else "", f"filter {_typed(self.filters)}" if self.filters else "", self.problem,
        ]  # fmt: skip
        foot = f"filter: {self.typed}▏ (enter; escape leaves it)" if self.typed is not None else HELP
        head = _cut(f"tpujob top · {title(top, len(rows))}", columns)
        middle = [*table, *empty, *([""] if said else []), *said][: height - 3]
        blank = [""] * (height - 3 - len(middle))
        return [head, *middle, *blank, _cut(" · ".join(filter(None, how)), columns), _cut(foot, columns)]


def _typed(filters: Sequence[str]) -> str:
    """Return the conditions as they are typed: one that has spaces in quotes."""
    return " ".join(shlex.quote(each) if not each or set(each) & set(" '\"\\") else each for each in filters)


def _conditions(typed: str) -> list[str]:
    try:
        return shlex.split(typed)
    except ValueError:  # a quote that has no end
        return [typed]


def _cut(text: str, columns: int) -> str:
    """Return the beginning of the text on one line of so many columns."""
    text = tables.one_line(text)
    if tables.cells.cell_len(text) <= columns:
        return text
    return f"{tables.cells.chop_cells(text, max(columns - 1, 1))[0]}…"

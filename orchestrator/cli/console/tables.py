"""Tables on stdout: aligned under headings on a terminal, and elsewhere one line a row, its cells between tabs.

On a terminal a table fits the width: the least important columns are left out, shortened or wrapped; no other cell is broken.
rich draws it, and is imported only for that. A cell is text: it can neither format the table nor steer the terminal.
"""

import hashlib
import io
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.console.console import console, emit
from orchestrator.cli.console.renderer import color_of, has_color
from orchestrator.system.lazy import Later

if TYPE_CHECKING:
    from rich import cells as rich_cells
    from rich import console as rich_console
    from rich import table as rich_table
    from rich import text as rich_text
else:
    rich_cells, rich_console = Later("rich.cells"), Later("rich.console")
    rich_table, rich_text = Later("rich.table"), Later("rich.text")

GAP = 2  # spaces between two columns
LEAST_WRAPPED, LEAST_SHORTENED = 8, 8  # columns


def on_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def print_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[int] = (),
    states: Collection[int] = (),
    optional: Sequence[int] = (),
    shortens: Sequence[int] = (),
    wraps: Sequence[int] = (),
    head_is_data: bool = False,
) -> None:
    """Print a table. Columns are counted from 0.

    `right`: aligned right. `states`: colored by what they say. Where the terminal is too narrow, `optional` columns are left
    out, `shortens` lose their middle and `wraps` are wrapped, each in this order and only as far as it takes. `head_is_data`:
    print the headings without a terminal, too.
    """
    body = [[_one_line(cell) for cell in row] for row in rows]
    head = [_one_line(cell) for cell in headers]
    if not on_terminal():
        for row in [head, *body] if head_is_data else body:
            emit("\t".join(row))
        return
    width = shutil.get_terminal_size().columns
    shown, widths = fit([head, *body], width, optional=optional, shortens=shortens, wraps=wraps)
    # Drawn from clean cells: what it holds of escapes is color.
    console().out(_drawn(head, body, shown, widths, right=right, states=states, shortens=shortens))


def fit(
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    optional: Sequence[int] = (),
    shortens: Sequence[int] = (),
    wraps: Sequence[int] = (),
) -> tuple[list[int], list[int]]:
    """Return which columns fit into `width`, and how wide each of them is."""
    natural = [max(map(rich_cells.cell_len, column)) for column in zip(*rows, strict=True)]
    least = list(natural)
    for number in (*shortens, *wraps):
        most = (
            LEAST_SHORTENED
            if number in shortens
            else max(LEAST_WRAPPED, _longest_word(rows, number, rich_cells.cell_len))
        )
        least[number] = min(natural[number], most)
    shown = list(range(len(natural)))
    for number in optional:
        if _total(least, shown) > width:
            shown.remove(number)
    widths = list(natural)
    for number in (*shortens, *wraps):
        over = _total(widths, shown) - width
        if over > 0 and number in shown:
            widths[number] = max(widths[number] - over, least[number])
    return shown, [widths[number] for number in shown]


def _longest_word(rows: Sequence[Sequence[str]], number: int, length: Callable[[str], int]) -> int:
    return max((length(word) for row in rows for word in row[number].split()), default=0)


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[number] for number in shown) + GAP * (len(shown) - 1)


def _drawn(
    head: Sequence[str],
    body: Sequence[Sequence[str]],
    shown: Sequence[int],
    widths: Sequence[int],
    *,
    right: Collection[int],
    states: Collection[int],
    shortens: Collection[int],
) -> str:
    table = rich_table.Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for number, width in zip(shown, widths, strict=True):
        table.add_column(
            rich_text.Text(head[number]),
            justify="right" if number in right else "left",
            width=width,
            overflow="fold",
            no_wrap=number in shortens,
        )
    for row in body:
        cells = [
            rich_text.Text(_cut(row[number], width) if number in shortens else row[number], style=style)
            for number, width in zip(shown, widths, strict=True)
            for style in [color_of(row[number]) if number in states else ""]
        ]
        table.add_row(*cells)
    out = io.StringIO()
    plain = not has_color(sys.stdout)
    # As wide as it takes: a terminal that is narrower than the ids wraps the lines.
    drawing = rich_console.Console(
        file=out,
        force_terminal=not plain,
        color_system=None if plain else "auto",
        width=max(sum(widths) + GAP * len(widths), 1),
        highlight=False,
        markup=False,
        emoji=False,
    )
    drawing.print(table)
    return re.sub(r" +((?:\x1b\[0m)?)$", r"\1", out.getvalue().rstrip("\n"), flags=re.MULTILINE)


def _cut(text: str, width: int) -> str:
    """Return the text in so many columns, without its middle: the names of a sweep's runs differ in their end."""
    if rich_cells.cell_len(text) <= width:
        return text
    begin, end = text, text
    while rich_cells.cell_len(end) > width // 2:
        end = end[1:]
    while rich_cells.cell_len(f"{begin}…{end}") > width:
        begin = begin[:-1]
    return f"{begin}…{end}"


def _one_line(cell: str) -> str:
    """Return the cell without secrets, control characters, tabs and newlines."""
    return " ".join(console().fit(cell).split()) if not cell.isprintable() else console().fit(cell)


# A request to the API as a person reads it: method, URL, and its body as YAML, with scripts and keys summarized.

LONG_CHARS = 200  # a text that is longer, or has several lines, is summarized


def request_lines(request: Mapping[str, Any]) -> list[str]:
    """Return the lines of a request that has `method`, `url` and `body`."""
    return [f"{request['method']} {request['url']}", *_lines(request["body"], "")]


def _lines(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _entry(f"{indent}{key}:", inner, indent)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner in value:
            yield from _entry(f"{indent}-", inner, indent)


def _entry(head: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping | list | tuple) and value:
        yield head
        yield from _lines(value, f"{indent}  ")
    else:
        yield f"{head} {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    text = str(value)
    if len(text) > LONG_CHARS or "\n" in text:
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"({len(text.encode()) / 1000:,.1f} KB, sha256 {digest[:16]}; `--json` has it)"
    return text or '""'

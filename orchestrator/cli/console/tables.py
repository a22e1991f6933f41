"""Tables on stdout: aligned under headings on a terminal, and elsewhere one line a row, its cells between tabs.

On a terminal a table fits the width: the least important columns are left out, shortened or wrapped; no other cell is broken.
A cell is text: it can neither format the table nor steer the terminal.
"""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.console.console import BOLD, ESCAPES, RESET, color_of, has_color
from orchestrator.cli.console.output import console, emit
from orchestrator.system.lazy import Later

if TYPE_CHECKING:
    import hashlib
    import shutil

    from rich import cells
else:
    cells, hashlib, shutil = Later("rich.cells"), Later("hashlib"), Later("shutil")

GAP = 2  # spaces between two columns
LEAST_WRAPPED, LEAST_SHORTENED = 8, 8  # columns


def on_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[int] = (), states: Collection[int] = (),
    optional: Sequence[int] = (), shortens: Sequence[int] = (), wraps: Sequence[int] = (), head_is_data: bool = False,
) -> None:  # fmt: skip
    """Print a table. Columns are counted from 0.

    `right`: aligned right. `states`: colored by what they say. Where the terminal is too narrow, `optional` columns are left
    out, `shortens` lose their middle and `wraps` are wrapped, each in this order and only as far as it takes. `head_is_data`:
    print the headings without a terminal, too.
    """
    body = [[one_line(cell) for cell in row] for row in rows]
    head = [one_line(cell) for cell in headers]
    if not on_terminal():
        for row in [head, *body] if head_is_data else body:
            emit("\t".join(row))
        return
    width = shutil.get_terminal_size().columns
    # Drawn from clean cells: what it holds of escapes is color.
    how: dict[str, Any] = {"right": right, "states": states, "optional": optional, "shortens": shortens, "wraps": wraps}
    console().out("\n".join(table_lines(head, body, width, **how)))


def table_lines(
    headers: Sequence[str], rows: Iterable[Sequence[str]], width: int, *, right: Collection[int] = (),
    states: Collection[int] = (), optional: Sequence[int] = (), shortens: Sequence[int] = (), wraps: Sequence[int] = (),
) -> list[str]:  # fmt: skip
    """Return the lines of a table for a terminal of this width, its headings first; see `print_table`."""
    head, body = [one_line(cell) for cell in headers], [[one_line(cell) for cell in row] for row in rows]
    shown, widths = fit([head, *body], width, optional=optional, shortens=shortens, wraps=wraps)
    return _drawn(head, body, shown, widths, right=right, states=states, shortens=shortens)


def fit(
    rows: Sequence[Sequence[str]], width: int, *, optional: Sequence[int] = (), shortens: Sequence[int] = (),
    wraps: Sequence[int] = (),
) -> tuple[list[int], list[int]]:  # fmt: skip
    """Return which columns fit into `width`, and how wide each of them is."""
    natural = [max(map(cells.cell_len, column)) for column in zip(*rows, strict=True)]
    least = list(natural)
    for number in (*shortens, *wraps):
        most = LEAST_SHORTENED if number in shortens else max(LEAST_WRAPPED, _longest_word(rows, number))
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


def _longest_word(rows: Sequence[Sequence[str]], number: int) -> int:
    return max((cells.cell_len(word) for row in rows for word in row[number].split()), default=0)


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[number] for number in shown) + GAP * (len(shown) - 1)


def _drawn(
    head: Sequence[str], body: Sequence[Sequence[str]], shown: Sequence[int], widths: Sequence[int], *,
    right: Collection[int], states: Collection[int], shortens: Collection[int],
) -> list[str]:  # fmt: skip
    paints, lines = has_color(sys.stdout), list[str]()
    for row in (head, *body):
        styles = [BOLD if row is head else ESCAPES[color_of(row[each])] if each in states else "" for each in shown]
        parts = [
            [_cut(row[each], width)] if each in shortens else _wrapped(row[each], width)
            for each, width in zip(shown, widths, strict=True)
        ]
        for number in range(max(map(len, parts))):
            line = ""
            for each, width, style, below in zip(shown, widths, styles, parts, strict=True):
                text = below[number] if number < len(below) else ""
                space = " " * (width - cells.cell_len(text))
                painted = f"{style}{text}{RESET}" if paints and style and text else text
                line += (space + painted if each in right else painted + space) + " " * GAP
            lines.append(line.rstrip())
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    """Return the text in lines of so many columns, between words; a longer word is broken."""
    lines = [""]
    for word in text.split():
        line = f"{lines[-1]} {word}".lstrip()
        if cells.cell_len(line) <= width:
            lines[-1] = line
        else:
            lines += cells.chop_cells(word, width)
    return lines if lines[0] else lines[1:] or lines


def _cut(text: str, width: int) -> str:
    """Return the text in so many columns, without its middle: the names of a sweep's runs differ in their end."""
    if cells.cell_len(text) <= width:
        return text
    begin, end = text, text
    while cells.cell_len(end) > width // 2:
        end = end[1:]
    while cells.cell_len(f"{begin}…{end}") > width:
        begin = begin[:-1]
    return f"{begin}…{end}"


def one_line(cell: str) -> str:
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

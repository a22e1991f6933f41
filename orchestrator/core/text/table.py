"""A table as lines of text. Pure."""

from typing import NamedTuple


class Table(NamedTuple):
    """A table as cells of text. Columns, from 0: `right` are aligned right, `optional` are left out where there is no room."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    optional: tuple[int, ...] = ()

    def lines(self) -> list[str]:
        """Return one line for the heading and for each row, aligned, two spaces between columns."""
        every = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*every, strict=True)]
        return [
            "  ".join(
                cell.rjust(width) if number in self.right else cell.ljust(width)
                for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in every
        ]

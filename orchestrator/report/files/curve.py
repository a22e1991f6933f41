"""Keep a curve of a million values in a few thousand points: the lowest and the highest value of each piece of it. Pure.

Pieces grow as values come, so that one pass is enough and a bounded number of points is held. The first value, the last one and
the extremes of every piece stay; where a value was no finite number, the curve has a hole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Point = tuple[float, float | None]  # x and value; None: it was no finite number

POINTS = 2_000  # of a curve that is complete


class Curve:
    """A curve so far. `add` takes the next values, in their order."""

    __slots__ = ("_first", "_last", "_most", "_points", "_width")

    def __init__(self, points: int = POINTS) -> None:
        self._most = max(2 * points, 16)
        self._width = 1  # values of a piece
        self._points: list[Point] = []
        self._first: Point | None = None
        self._last: Point | None = None

    def add(self, values: Sequence[float], x_of: Callable[[int], float]) -> None:
        """Add finite values. `x_of` returns the x of the one at this index; it is asked for few of them."""
        if not values:
            return
        self._mark(x_of(0), float(values[0]), x_of(len(values) - 1), float(values[-1]))
        if self._width == 1:
            self._points += [(x_of(index), float(value)) for index, value in enumerate(values)]
        else:
            for begin in range(0, len(values), self._width):
                piece = values[begin : begin + self._width]
                low, high = min(piece), max(piece)
                at = sorted((piece.index(low), piece.index(high)))
                self._points += [(x_of(begin + index), float(piece[index])) for index in at]
        self._shrink()

    def add_hole(self, x: float) -> None:
        """Add a value that is no finite number."""
        self._mark(x, None, x, None)
        self._points.append((x, None))
        self._shrink()

    def points(self, most: int = POINTS) -> list[Point]:
        """Return the points by x, `most` of them or a few more. Of a job that repeats steps, several have the same x."""
        kept, width = self._points, 1
        while len(kept) > most:
            width *= 2
            kept = _extremes(self._points, 2 * width)
        ends = [point for point in (self._first, self._last) if point is not None]
        by_x = sorted([*ends[:1], *kept, *ends[1:]], key=lambda point: point[0])
        return [point for number, point in enumerate(by_x) if number == 0 or point != by_x[number - 1]]

    def _mark(self, x: float, value: float | None, last_x: float, last: float | None) -> None:
        if self._first is None:
            self._first = (x, value)
        self._last = (last_x, last)

    def _shrink(self) -> None:
        while len(self._points) > self._most:
            self._points = _extremes(self._points, 4)
            self._width *= 4 if self._width == 1 else 2


def _extremes(points: Sequence[Point], size: int) -> list[Point]:
    """Return the lowest and the highest point of each `size` points in their order, and one of its holes."""
    kept: list[Point] = []
    for begin in range(0, len(points), size):
        piece = points[begin : begin + size]
        finite = [(value, number) for number, (_, value) in enumerate(piece) if value is not None]
        numbers = {min(finite)[1], max(finite)[1]} if finite else set()
        numbers |= {next(n for n, point in enumerate(piece) if point[1] is None)} if len(finite) < len(piece) else set()
        kept += [piece[number] for number in sorted(numbers)]
    return kept

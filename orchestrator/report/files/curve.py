"""Keep a curve of a million values in a few thousand points: the lowest and the highest value of each piece of it. Pure.

Pieces grow as values come, so that one pass is enough and a bounded number of points is held. The first value, the last one and
the extremes of every piece stay; where a value was no finite number, the curve has a hole.
"""

from collections.abc import Callable, Sequence

Point = tuple[float, float | None]  # x and value; None: it was no finite number

POINTS = 2_000  # of a curve that is complete


class Curve:
    """A curve so far. `add` takes the next values, in their order."""

    __slots__ = ("_first", "_last", "_most", "_open", "_open_count", "_points", "_width")

    def __init__(self, points: int = POINTS) -> None:
        self._most = max(2 * points, 16)
        self._width = 1  # values of a piece
        self._points: list[Point] = []  # of complete pieces
        self._open: list[Point] = []  # of the piece that is not complete, which has so many values
        self._open_count = 0
        self._first: Point | None = None
        self._last: Point | None = None

    def add(self, values: Sequence[float], x_of: Callable[[int], float]) -> None:
        """Add finite values. `x_of` returns the x of the one at this index; it is asked for few of them."""
        if not values:
            return
        begin = 0
        while begin < len(values):
            part = values[begin : begin + self._width - self._open_count]
            low, high = min(part), max(part)
            at = sorted({part.index(low), part.index(high)})
            self._extend([(x_of(begin + index), float(part[index])) for index in at], len(part))
            begin += len(part)
        last = len(values) - 1
        self._mark((x_of(0), float(values[0])), (x_of(last), float(values[last])))

    def add_hole(self, x: float) -> None:
        """Add a value that is no finite number."""
        self._extend([(x, None)], 1)
        self._mark((x, None), (x, None))

    def _extend(self, points: list[Point], count: int) -> None:
        """Add the points that stand for so many values of the open piece."""
        self._open = _extremes([*self._open, *points], 8) if self._open else points
        self._open_count += count
        if self._open_count < self._width:
            return
        self._points += self._open
        self._open, self._open_count = [], 0
        while len(self._points) > self._most:
            self._points = _extremes(self._points, 4)
            self._width *= 4 if self._width == 1 else 2

    def points(self, most: int = POINTS) -> list[Point]:
        """Return the points by x, `most` of them or a few more. Of a job that repeats steps, several have the same x."""
        every = [*self._points, *self._open]
        kept, width = every, 1
        while len(kept) > most:
            width *= 2
            kept = _extremes(every, 2 * width)
        ends = [point for point in (self._first, self._last) if point is not None]
        by_x = sorted([*ends[:1], *kept, *ends[1:]], key=lambda point: point[0])
        return [point for number, point in enumerate(by_x) if number == 0 or point != by_x[number - 1]]

    def _mark(self, first: Point, last: Point) -> None:
        self._first = self._first or first
        self._last = last


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

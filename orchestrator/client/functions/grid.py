"""The calls of `map`: a list of them, or all combinations of lists of values."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.errors import UserError

Grid = Iterable[Mapping[str, Any] | tuple[Any, ...]] | Mapping[str, Iterable[Any]]
Call = tuple[tuple[Any, ...], dict[str, Any]]  # arguments, in order and by name

_HINT = "write {'lr': [1e-4, 3e-4]}, [{'lr': 1e-4}, {'lr': 3e-4}] or [(1e-4,), (3e-4,)]"


def calls_of(grid: Grid) -> list[Call]:
    """Return the calls in order: of a mapping of lists every combination, the last name changing fastest.

    Raises UserError for what is none of these, and for no call at all.
    """
    calls = (
        list(_combinations(grid))
        if isinstance(grid, Mapping)
        else [_call(number, one) for number, one in enumerate(grid)]
    )
    if not calls:
        raise UserError("the grid is empty: there is nothing to run", hint=_HINT)
    return calls


def _combinations(grid: Mapping[str, Iterable[Any]]) -> Iterable[Call]:
    lists: list[Sequence[Any]] = []
    for name, values in grid.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
            raise UserError(f"grid[{name!r}] is not a list of values", hint=_HINT)
        lists.append(list(values))
    for combination in itertools.product(*lists) if grid else ():
        yield (), dict(zip(grid, combination, strict=True))


def _call(number: int, one: Mapping[str, Any] | tuple[Any, ...]) -> Call:
    if isinstance(one, Mapping):
        return (), dict(one)
    if isinstance(one, tuple):
        return one, {}
    raise UserError(f"grid[{number}] is neither a dict of arguments nor a tuple of them", hint=_HINT)

"""What calls carry: arguments and results are JSON values, everything else is a file; and the grid of arguments of `map`."""

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.errors import UserError

MAX_ARGUMENT_BYTES = 1_000_000  # they are kept with the job
MAX_DEPTH = 100


def as_json(value: object, where: str, depth: int = 0) -> Any:
    """Return what JSON carries of the value: tuples as lists, and one number of numpy, torch or JAX as a plain one.

    Raises UserError, which names the place, for anything else.
    """
    if depth > MAX_DEPTH:
        raise UserError(f"{where} is nested more than {MAX_DEPTH} levels deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UserError(f"{where} is {value}, which JSON cannot carry", hint="pass None, or a text")
        return float(value)
    if isinstance(value, list | tuple):
        return [as_json(each, f"{where}[{number}]", depth + 1) for number, each in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise UserError(f"{where} has the key {key!r}; the keys of a JSON object are text")
        return {str(key): as_json(each, f"{where}[{key!r}]", depth + 1) for key, each in value.items()}
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return as_json(value.item(), where, depth + 1)
    raise UserError(
        f"{where} is of type {kind_of(value)}, which JSON cannot carry",
        hint="JSON carries None, bool, int, float, str, lists and dicts; write anything else to a file, and ship it with code=",
    )


_EXACT = (type(None), bool, int, float, str)


def exact(value: object, where: str, depth: int = 0) -> Any:
    """Return the value, of which JSON makes the same again. Raises UserError, which names the place, for any other."""
    kind = type(value)
    if isinstance(value, list | dict) and kind in (list, dict) and depth <= MAX_DEPTH:
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            exact(each, f"{where}[{key!r}]", depth + 1)
    elif kind not in _EXACT and depth <= MAX_DEPTH:
        raise UserError(
            f"{where} is of type {kind_of(value)}, which JSON does not carry as it is",
            hint="write a tuple or a set as a list, and another number as int(…) or float(…); make anything else inside of the "
            "function, or save it to a file that code= ships",
        )
    return value if depth else as_json(value, where)


def kind_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def json_text(value: object) -> str:
    """Return a call as JSON. Raises UserError if they are too large."""
    text = json.dumps(value, allow_nan=False)
    if len(text) > MAX_ARGUMENT_BYTES:
        size, most = f"{len(text) / 1e6:,.1f} MB", f"{MAX_ARGUMENT_BYTES / 1e6:.0f} MB"
        raise UserError(
            f"the arguments and globals have {size} as JSON, and {most} is the most",
            hint="write them to a file and ship it with code=, or read them from a bucket",
        )
    return text


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

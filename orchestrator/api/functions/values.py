"""What calls carry: arguments and results are JSON values, everything else is a file; and the grid of arguments of `map`."""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.errors import UserError

MAX_ARGUMENT_BYTES = 1_000_000  # they are kept with the job
MAX_DEPTH, MAX_DIGITS = 100, 4000
TOO_BIG = 10**MAX_DIGITS  # Python makes no text of a number that is a little longer
EXACT = (type(None), bool, int, float, str, list, dict)
_SHIP = "write it to a file, and ship it with code="


def as_json(
    value: object, where: str, seen: set[int] | None = None, depth: int = 0, steps: Iterator[int] | None = None
) -> Any:
    """Return what JSON carries of the value: tuples as lists, and one number of numpy, torch or JAX as a plain one.

    With `seen`, the ids of lists and dicts so far, a value of which JSON would not make the very same again is refused, too.
    Raises UserError, which names the place. `steps` counts the values.
    """
    steps = steps or itertools.count()
    if depth > MAX_DEPTH:
        raise UserError(f"{where} is nested more than {MAX_DEPTH} levels deep", hint=_SHIP)
    if next(steps) > MAX_ARGUMENT_BYTES // 3:  # as text with its comma, a value in a list has 3 bytes at least
        raise UserError(f"{where} comes after more than {MAX_ARGUMENT_BYTES // 3:,} other values", hint=_SHIP)
    if seen is not None:
        _check_exact(value, where, seen)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # `str` makes of a member of an enum its name
    if isinstance(value, int):
        if abs(value) >= TOO_BIG:
            hint = "pass it as the text hex(…), and write int(…, 16) inside of the function"
            raise UserError(f"{where} has more than {MAX_DIGITS:,} digits, which JSON cannot carry", hint=hint)
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UserError(f"{where} is {value}, which JSON cannot carry", hint="pass None, or a text")
        return float(value)
    if isinstance(value, list | tuple):
        return [as_json(each, f"{where}[{number}]", seen, depth + 1, steps) for number, each in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or (seen is not None and type(key) is not str):
                raise UserError(f"{where} has a key of type {kind_of(key)}; the keys of a JSON object are plain text")
        return {
            str.__str__(key): as_json(each, f"{where}[{key!r}]", seen, depth + 1, steps) for key, each in value.items()
        }
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return as_json(value.item(), where, seen, depth + 1, steps)
    raise UserError(
        f"{where} is of type {kind_of(value)}, which JSON cannot carry",
        hint="JSON carries None, bool, int, float, str, lists and dicts; write anything else to a file, and ship it with code=",
    )


def _check_exact(value: object, where: str, seen: set[int]) -> None:
    if type(value) not in EXACT:
        raise UserError(
            f"{where} is of type {kind_of(value)}, which JSON does not carry as it is",
            hint="write a tuple or a set as a list, and another number as int(…) or float(…); make anything else inside of the "
            "function, or save it to a file that code= ships",
        )
    if id(value) in seen:
        raise UserError(
            f"{where} is a {kind_of(value)} that is also in another place of these globals, and on the worker it would be two",
            hint="write list(…) or dict(…) where a copy will do, pass it as an argument, or make it inside of the function",
        )
    if isinstance(value, list | dict):
        seen.add(id(value))


def kind_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def json_text(value: object) -> str:
    """Return a call as JSON. Raises UserError if they are too large."""
    text = json.dumps(value, allow_nan=False).replace(
        "${", "\\u0024{"
    )  # in a job, `${params.x}` would be a parameter of it
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
    calls = list(_combinations(grid) if isinstance(grid, Mapping) else itertools.starmap(_call, enumerate(grid)))
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

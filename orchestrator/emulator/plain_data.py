"""Dataclasses from JSON or YAML, read strictly: one clear line for each mistake, for whoever wrote the file. And back.

Pure. `supply` and `rehearsal` read through me; `fault_data`, whose fields depend on the kind, reads by itself.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
LARGEST = 1e9  # seconds, or things
MOMENTS = 1e11  # what we write down ourselves may be a time of day: seconds since 1970
WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number", tuple: "a list of texts"}


class BadData(ValueError):
    """This is not what was expected; the message is for a person."""


def read(kind: type[T], data: object, what: str) -> T:
    """A `kind` from a mapping. Fields whose metadata say `ours` are not for people, but are read back."""
    if not isinstance(data, Mapping):
        raise BadData(f"{what[0].upper()}{what[1:]} is an object, not {data!r}.")
    known: dict[str, Field[Any]] = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for name in data:
        if name not in known:
            theirs = ", ".join(name for name, field in known.items() if not field.metadata.get("ours"))
            raise BadData(f'There is no field "{name}" in {what}; there are {theirs}.')
    missing = [name for name, field in known.items() if name not in data and _required(field)]
    if missing:
        raise BadData(f"{what[0].upper()}{what[1:]} needs {' and '.join(missing)}.")
    hints = _hints(kind)  # type: ignore[arg-type]  # a class is hashable
    return kind(**{name: _value(f"{name} of {what}", value, hints[name], known[name]) for name, value in data.items()})


def read_all(kind: type[T], data: object, what: str) -> list[T]:
    if not isinstance(data, list):
        raise BadData(f"{what[0].upper()}{what[1:]} is a list, not {data!r}.")
    return [read(kind, row, f"{what}[{index}]") for index, row in enumerate(data)]


def as_fields(thing: Any) -> dict[str, Any]:
    """For `json.dumps(default=…)`: a dataclass by its fields, without the deep copies of `asdict`."""
    return {name: getattr(thing, name) for name in thing.__dataclass_fields__}


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _value(name: str, value: object, hint: Any, field: Field[Any]) -> Any:
    if get_origin(hint) is types.UnionType:  # only ever with None
        if value is None:
            return None
        hint = next(part for part in get_args(hint) if part is not type(None))
    choices = field.metadata.get("choices")
    if choices is not None:
        return _require(f"{name} is one of {', '.join(choices)}", value, value in choices)
    if get_origin(hint) is tuple:
        fine = isinstance(value, list | tuple) and all(isinstance(item, str) and item for item in value)
        return tuple(_require(f"{name} is {WORDS[tuple]}", value, fine))
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        largest = LARGEST if not field.metadata.get("ours") else MOMENTS
        _require(f"{name} is a number between 0 and {largest:g}", value, number and 0 <= value <= largest)  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    if hint is int:
        number = isinstance(value, int) and not isinstance(value, bool)
        return _require(f"{name} is a whole number from 0 on", value, number and 0 <= value <= LARGEST)  # type: ignore[operator]
    return _require(f"{name} is {WORDS[hint]}", value, isinstance(value, hint) and (value != "" or hint is not str))


def _require(rule: str, value: Any, fine: bool) -> Any:
    if not fine:
        raise BadData(f"{rule}, not {value!r}.")
    return value

"""Read dataclasses and single values from plain data (JSON, YAML), strictly: one clear line for each mistake. Pure.

Used for settings, supply, faults, and the bodies of `/_emulator/…`.
Pydantic is not used here: importing it would add a fifth to the start-up time of the daemon.
"""

import types
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
LARGEST = 1e9  # seconds, or a count
LIMITS = ("choices", "least", "most")  # the keys of a field's metadata that `check_value` takes
# Metadata of a field that only the emulator writes; it is read back. `most` admits times in seconds since 1970.
INTERNAL: Mapping[str, Any] = {"internal": True, "most": 1e11}
TYPE_NAMES = {str: "a string", bool: "true or false", list: "a list of strings", tuple: "a list of strings"}


class BadData(ValueError):
    """The data is not what is expected; the message is one line for its author."""


def read(kind: type[T], data: object, what: str, prefix: str = "") -> T:
    """Return a `kind` (a dataclass) from a mapping. `prefix` goes before field names in messages. Raises BadData."""
    known: dict[str, Field[Any]] = {field.name: field for field in fields(kind) if field.init}  # type: ignore[arg-type]
    shown = [name for name, field in known.items() if not field.metadata.get("internal")]
    data = check_object(what, data, shown, known)
    missing = [name for name, field in known.items() if name not in data and _required(field)]
    if missing:
        raise BadData(f"{_capitalised(what)} needs {' and '.join(missing)}.")
    hints = _hints(kind)  # type: ignore[arg-type]  # a class is hashable
    return kind(
        **{name: _field_value(f"{prefix}{name}", value, hints[name], known[name]) for name, value in data.items()}
    )


def read_all(kind: type[T], data: object, name: str) -> list[T]:
    """Return one `kind` for each row of a list. Raises BadData."""
    rows = check_list(name, data)
    return [read(kind, row, f"{name}[{index}]", f"{name}[{index}].") for index, row in enumerate(rows)]


def check_list(name: str, data: object) -> list[Any]:
    """Return `data` if it is a list. Raises BadData."""
    if not isinstance(data, list):
        raise BadData(f"{name} must be a list, not {data!r}.")
    return data


def check_object(
    what: str, data: object, known: Collection[str] | None = None, accepted: Collection[str] = ()
) -> Mapping[str, Any]:
    """Return `data` if it is a mapping with no field but `known` (which messages list) and `accepted`. Raises BadData."""
    if not isinstance(data, Mapping):
        raise BadData(f"{_capitalised(what)} must be an object, not {data!r}.")
    for name in data:
        if known is not None and name not in known and name not in accepted:
            raise BadData(f'There is no field "{name}" in {what}; there are {", ".join(known)}.')
    return data


def check_value(
    name: str, value: object, kind: type[Any], *, choices: Collection[Any] = (), least: float = 0, most: float = LARGEST
) -> Any:
    """Return `value` if it is a `kind`: str, bool, list or tuple (of str), int or float within limits. Raises BadData."""
    if choices:
        rule, fine = f"one of {', '.join(map(str, choices))}", value in choices and not isinstance(value, bool)
    elif kind is int or kind is float:
        number = (
            f"a whole number from {least:.0f} to {most:.0f}" if kind is int else f"a number from {least:g} to {most:g}"
        )
        fine = isinstance(value, int | kind) and not isinstance(value, bool) and least <= value <= most
        rule, value = number, kind(value) if fine else value
    elif kind is list or kind is tuple:
        rule, fine = TYPE_NAMES[kind], isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        value = kind(value) if fine else value
    else:
        rule, fine = TYPE_NAMES[kind], isinstance(value, kind)
    if not fine:
        raise BadData(f"{name} must be {rule}, not {value!r}.")
    return value


def as_fields(record: Any) -> dict[str, Any]:
    """Return a dataclass as a dict, for `json.dumps(default=…)`; without the deep copies of `asdict`."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


_hints = cache(get_type_hints)


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _field_value(name: str, value: object, hint: Any, field: Field[Any]) -> Any:
    if isinstance(hint, types.UnionType):  # only ever with None
        if value is None:
            return None
        hint = next(part for part in get_args(hint) if part is not type(None))
    if "parse" in field.metadata:
        return field.metadata["parse"](value, name)
    if get_origin(hint) is list and isinstance(row := get_args(hint)[0], type) and is_dataclass(row):
        return read_all(row, value, name)
    found = check_value(
        name, value, get_origin(hint) or hint, **{key: field.metadata[key] for key in LIMITS if key in field.metadata}
    )
    if found == "":
        raise BadData(f"{name} must not be empty.")
    return found


def _capitalised(what: str) -> str:
    return what[0].upper() + what[1:]

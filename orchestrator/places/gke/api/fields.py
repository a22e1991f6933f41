"""Fields of objects of Kubernetes, read. One that is missing or of another type counts as not said."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any


def condition(found: Mapping[str, Any], kind: str, status: str = "True") -> Mapping[str, Any] | None:
    """Return the condition of this type if it has this status."""
    listed = dicts(at(found, "status", "conditions"))
    return next((each for each in listed if each.get("type") == kind and each.get("status") == status), None)


def time_of(text: Any) -> float | None:
    """Return a time of the API in unix seconds; None if there is none."""
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) and text else None
    except ValueError:
        return None


def at(found: Any, *keys: str) -> Any:
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def as_dict(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}


def dicts(found: Any) -> list[Mapping[str, Any]]:
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def texts(found: Any) -> dict[str, str]:
    return {key: value for key, value in as_dict(found).items() if isinstance(value, str)}


def number(found: Any, default: int = 0) -> int:
    text = str(found) if found is not None else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else default

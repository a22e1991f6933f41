"""Conditions on the rows of a table, as people type them: `state=run*`, `cost>2`, `mnist`. Pure."""

import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
CONDITION = re.compile(r"\s*([\w.-]*)\s*(>=|<=|!=|==?|>|<)\s*(?P<quote>[\"']?)(.*?)(?P=quote)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. Without a key, some value of the row must hold `value` as a part of its text."""

    key: str
    compare: str
    value: str

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Say whether it holds for a row. Texts are compared without their case, and may have `*` and `?`."""
        if not self.key:
            return any(self.value.lower() in str(each).lower() for each in row.values() if each is not None)
        found = row.get(self.key)
        if isinstance(found, tuple):  # the names that something has
            is_one = [replace(self, compare="=").holds({self.key: each}) for each in found]
            return any(is_one) is (self.compare == "=")
        wanted = _number(self.value)
        if wanted is not None and (number := _number(found)) is not None:
            return OPERATORS[self.compare](number, wanted)
        if self.compare not in ("=", "!="):
            return False  # only numbers have an order
        text = "" if found is None else str(found).lower()
        return fnmatchcase(text, self.value.lower()) is (self.compare == "=")


def parse(text: str, keys: Collection[str]) -> Condition:
    """Return the condition that a text says. Raises ValueError, with its reason, for a key that no row has."""
    found = CONDITION.fullmatch(text)
    if found is None:
        return Condition("", "=", text.strip())
    key, compare, value = found[1].lower(), found[2].replace("==", "="), found[4]
    if key not in keys:
        near = [each for each in sorted(keys) if key and each.endswith(f".{key}")] or get_close_matches(
            key, keys, 1, 0.8
        )
        advice = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(sorted(keys))}"
        raise ValueError(f"no column `{key}`; {advice}")
    if compare not in ("=", "!=") and _number(value) is None:
        raise ValueError(f"`{compare}` compares with a number, and `{value}` is none")
    return Condition(key, compare, value)


def matches(conditions: Iterable[Condition], row: Mapping[str, Any]) -> bool:
    """Say whether all conditions hold for a row."""
    return all(each.holds(row) for each in conditions)


def _number(value: Any) -> float | None:
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None

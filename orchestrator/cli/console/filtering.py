"""The rows of a table for which the conditions of `--filter` hold."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from orchestrator.errors import UserError
from orchestrator.text import filters
from orchestrator.text.names import for_display

T = TypeVar("T")


def only_those(rows: Iterable[tuple[Mapping[str, Any], T]], conditions: Sequence[str] | None) -> list[T]:
    """Return what comes with the rows for which all conditions of `--filter` hold. Raises UserError for one that none can meet.

    The keys of an inner mapping follow its own: `params.lr`. Any row has the keys of all.
    """
    flat = [(_flat(row), each) for row, each in rows]
    keys = {key for row, _ in flat for key in row}
    parsed = []
    for text in conditions or () if flat else ():
        try:
            parsed.append(filters.parse(text, keys))
        except ValueError as error:
            raise UserError(f"--filter `{for_display(text)}`: {error}") from None
    return [each for row, each in flat if filters.matches(parsed, row)]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in row.items():
        found |= {f"{key}.{name}": each for name, each in value.items()} if isinstance(value, Mapping) else {key: value}
    return {key.lower(): value for key, value in found.items()}

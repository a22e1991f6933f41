"""Writes what the docs say about the job file out of its model: docs/job.schema.json and the tables of docs/job-file.md.

Run it (`python docs/job_reference.py`) after changing `orchestrator/job/job_spec.py`; a test fails until then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.job import job_spec

DOCS = Path(__file__).parent
BEGIN, END = "<!-- keys: written by docs/job_reference.py -->", "<!-- end of keys -->"


def schema_text() -> str:
    return json.dumps(job_spec.schema(), indent=2, ensure_ascii=False) + "\n"


def page_text(page: str) -> str:
    """The page with its tables renewed, and everything else as it was."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def tables() -> str:
    schema = job_spec.schema()
    return "\n".join(_table(name, section) for name, section in _sections(schema, schema, ""))


def _sections(schema: dict[str, Any], section: dict[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The whole file, then each section in the order of the keys."""
    yield name, section
    for key, part in section["properties"].items():
        if reference := _reference(part):
            inner = schema["$defs"][reference.rpartition("/")[2]]
            yield from _sections(schema, inner, f"{name}.{key}".lstrip("."))


def _table(name: str, section: dict[str, Any]) -> str:
    head = f"### `{name}:`\n\n{section['description']}\n" if name else "### The file\n"
    rows = [f"| `{key}` | {_kind(part)} | {_default(part)} | {part['description']} |" for key, part in _items(section)]
    return "\n".join([head, "| key | value | default | meaning |", "|---|---|---|---|", *rows, ""])


def _items(section: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return list(section["properties"].items())


def _default(part: dict[str, Any]) -> str:
    default = part.get("default")
    return "" if default is None else f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _kind(part: dict[str, Any]) -> str:
    if "$ref" in part:
        return "section"
    if "$ref" in part.get("items", {}):
        return "list of sections"
    if "anyOf" in part:
        kinds = [_kind(each) for each in part["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "const" in part:
        return f"`{part['const']}`"
    if "enum" in part:
        return ", ".join(f"`{choice}`" for choice in part["enum"])
    if part["type"] == "array":
        return f"list of {_several(part['items'])}"
    if part["type"] == "object":
        values = part.get("additionalProperties", True)
        return "names and any values" if values is True else f"names and {_several(values)}"
    return _PLAIN[part["type"]] + _bounds(part)


def _several(part: dict[str, Any]) -> str:
    """Return what the items of a list or the values of names are: texts, or texts, numbers, ..."""
    kinds = part["type"] if isinstance(part.get("type"), list) else [part.get("type")]
    kinds = [each["type"] for each in part["anyOf"]] if "anyOf" in part else kinds
    *others, last = dict.fromkeys(_SEVERAL[kind] for kind in kinds if kind != "null")
    return f"{', '.join(others)} or {last}" if others else last


_PLAIN = {
    "string": "text",
    "boolean": "`true` or `false`",
    "integer": "whole number",
    "number": "number",
}
_SEVERAL = {
    "string": "texts",
    "boolean": "truth values",
    "integer": "numbers",
    "number": "numbers",
    "array": "lists of values",
    "object": "sections",
}


def _bounds(part: dict[str, Any]) -> str:
    words = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {part[word]:,}" for word, sign in words.items() if word in part]
    return f" {', '.join(bounds)}" if bounds else ""


def _reference(part: dict[str, Any]) -> str | None:
    return next((each["$ref"] for each in (part, *part.get("anyOf", ())) if "$ref" in each), None)


if __name__ == "__main__":
    (DOCS / "job.schema.json").write_text(schema_text(), encoding="utf-8")
    page = DOCS / "job-file.md"
    page.write_text(page_text(page.read_text(encoding="utf-8")), encoding="utf-8")

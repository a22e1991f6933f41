"""The base of the models of a job file, and its JSON Schema as editors like it, made from that of pydantic. Pure."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict

from orchestrator import catalog

MAX_SUGGESTED_HOSTS = 8  # the catalog has a hundred sizes of v5p; an editor's list should be readable

# What a validator accepts, where pydantic cannot tell.
TEXT: dict[str, Any] = {"type": "string"}
TEXTS: dict[str, Any] = {"type": "array", "items": TEXT, "minItems": 1}
TEXT_OR_TEXTS: dict[str, Any] = {"anyOf": [TEXT, TEXTS]}
ALL_OR_NUMBER: dict[str, Any] = {"anyOf": [{"const": "all"}, {"type": "integer", "minimum": 1}]}
OR_NULL: dict[str, Any] = {"anyOf": [TEXT, TEXTS, {"type": "null"}]}
VERSION_OR_NULL: dict[str, Any] = {"anyOf": [TEXT, {"type": "number"}, {"type": "null"}]}
TEXT_OR_NULL: dict[str, Any] = {"anyOf": [TEXT, {"type": "null"}]}
VARIABLES: dict[str, Any] = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
NAMED_TEXTS: dict[str, Any] = {"type": "object", "additionalProperties": TEXT}
CHANGES: dict[str, Any] = {"type": "object", "additionalProperties": {"type": ["object", "null"]}}
DOLLARS_OR_NULL: dict[str, Any] = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]}
PORT: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 65535}
PORTS: dict[str, Any] = {"anyOf": [{"type": "array", "items": PORT, "maxItems": 16, "uniqueItems": True}, PORT]}


class Section(BaseModel):
    """A section of a job file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def schema_of(made: dict[str, Any], *, empty_is_default: tuple[str, ...]) -> dict[str, Any]:
    """Return the editors' schema from pydantic's. `empty_is_default`: sections that may be empty in a file."""
    made = _tidy(made)
    kinds = [kind for name in catalog.types() if (kind := catalog.lookup(name))]
    for name in ("TpuSection", "Alternative"):
        tpu = made["$defs"][name]["properties"]
        tpu["accelerator"]["examples"] = [kind.name for kind in kinds if kind.hosts <= MAX_SUGGESTED_HOSTS]
        tpu["zone"]["examples"] = [*catalog.regions(), *catalog.zones()]
    for part in made["$defs"]["Alternative"]["properties"].values():
        part.pop("default", None)  # a key that is left out there is inherited
    made["$defs"]["LimitsSection"]["properties"]["max_duration"]["default"] = "24h"
    made["$defs"]["TpuSection"]["properties"]["wait"]["default"] = 0
    for section, part in _sections(made, empty_is_default):
        section["anyOf"] = [part, {"type": "null"}]
    several = {"type": "array", "items": {"$ref": "#/$defs/Alternative"}, "minItems": 1}
    made["properties"]["tpu"]["anyOf"].insert(1, several)
    made["properties"]["notify"]["anyOf"][:0] = [TEXT, {"const": False}]
    made["oneOf"] = [{"required": ["train"]}, {"required": ["command"]}]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "tpujob job file"}
    return head | {key: part for key, part in made.items() if key != "title"}


def _tidy(part: Any) -> Any:
    """Drop titles that repeat the key, and defaults that only mean `left out`."""
    if isinstance(part, list):
        return [_tidy(item) for item in part]
    if not isinstance(part, dict):
        return part
    default = part.get("default")
    noise = {"title"} if isinstance(part.get("title"), str) else set()
    noise |= {"default"} if isinstance(default, dict | list) or default in (None, "") else set()
    return {key: _tidy(value) for key, value in part.items() if key not in noise}


def _sections(made: dict[str, Any], names: tuple[str, ...]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for properties in (made["properties"], *(part["properties"] for part in made["$defs"].values())):
        for name in names:
            if name in properties and "anyOf" not in properties[name]:
                keys = ("$ref", "type", "additionalProperties")
                yield properties[name], {key: properties[name].pop(key) for key in keys if key in properties[name]}

"""What the sections of a job file have in common, and how JSON Schema says what a validator takes. `core.jobfile.model` builds on me."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

TEXT: dict[str, Any] = {"type": "string"}
TEXTS: dict[str, Any] = {"type": "array", "items": TEXT, "minItems": 1}
TEXT_OR_TEXTS: dict[str, Any] = {"anyOf": [TEXT, TEXTS]}
ALL_OR_NUMBER: dict[str, Any] = {"anyOf": [{"const": "all"}, {"type": "integer", "minimum": 1}]}
OR_NULL: dict[str, Any] = {"anyOf": [TEXT, TEXTS, {"type": "null"}]}


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

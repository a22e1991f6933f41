"""The JSON object that a request carries, or the refusal of anything else."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from orchestrator.emulator.api_errors import bad_field


async def json_object(request: web.Request) -> dict[str, Any]:
    """An empty body is an empty object."""
    try:
        text = await request.text()
        body = json.loads(text) if text.strip() else {}
    except ValueError as error:  # not UTF-8, or not JSON
        raise bad_field(f"The body is not JSON: {error}.") from None
    if not isinstance(body, dict):
        raise bad_field("The body is not a JSON object.")
    return body

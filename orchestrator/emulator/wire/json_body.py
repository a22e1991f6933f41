"""The body of a request: text, or a JSON object; anything else is refused."""

import json
import re
from typing import Any, NoReturn

from aiohttp import web

from orchestrator.emulator.api_errors import bad_field

MAX_DEPTH = 100  # protobuf's own limit
NUMBER = re.compile(r"[0-9]{1,18}")  # Python refuses to convert more than 4300 digits


async def text_of(request: web.BaseRequest) -> str:
    """Return the body, read as UTF-8, whatever charset a header names. ValueError if it or its transfer encoding is invalid."""
    try:
        return (await request.read()).decode()
    except web.RequestPayloadError as error:
        raise ValueError(str(error)) from None


async def json_object(request: web.Request) -> dict[str, Any]:
    """Return the body; an empty one is an empty object. Raises ApiError if it is not a JSON object."""
    try:
        text = await text_of(request)
        body = json.loads(text, parse_constant=_refuse) if text.strip() else {}
        if "\\u" in text:  # half a surrogate pair cannot be encoded again
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or too deep to be read
        raise bad_field(f"The body is not JSON: {error}.") from None
    if not isinstance(body, dict):
        raise bad_field("The body is not a JSON object.")
    _check_depth(body)
    return body


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number of JSON")


def _check_depth(body: dict[str, Any]) -> None:
    level: list[dict[str, Any] | list[Any]] = [body]
    for _ in range(MAX_DEPTH):
        held = (value.values() if isinstance(value, dict) else value for value in level)
        level = [inner for values in held for inner in values if isinstance(inner, dict | list)]
    if level:
        raise bad_field(f"The body is more than {MAX_DEPTH} levels deep.")

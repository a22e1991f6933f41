"""JSON by the C code of Python's `json` module, without the module: its regular expressions take 8 ms to import on each worker.

An interpreter whose C code has another shape is served by the module itself. Files and answers have the same form either way.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself takes 5 ms to import, on each of many short calls
if TYPE_CHECKING:
    from typing import Any

BLANKS = " \t\r\n"


class _Context:
    """What the scanner asks of a JSONDecoder."""

    strict, object_hook, object_pairs_hook = True, None, None
    parse_float, parse_int = float, int
    memo: dict[str, str] = {}  # noqa: RUF012 - as in a JSONDecoder

    @staticmethod
    def parse_constant(name: str) -> float:
        return float(name.replace("Infinity", "inf"))


def _refuse(value: object) -> None:
    raise TypeError(f"JSON cannot express a {type(value).__name__}")


try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner  # type: ignore[import-not-found,unused-ignore]

    _scan = make_scanner(_Context())  # type: ignore[arg-type]
    _encode = make_encoder(None, _refuse, encode_basestring_ascii, None, ": ", ", ", False, False, True)
    if _scan('{"a": [1, NaN]}', 0)[1] != 15 or "".join(_encode({"a": [1, None]}, 0)) != '{"a": [1, null]}':
        raise ImportError

    def loads(text: bytes | str) -> Any:
        """Return the value. Raises ValueError."""
        text = (text if isinstance(text, str) else text.decode("utf-8", "surrogatepass")).strip(BLANKS)
        try:
            value, end = _scan(text, 0)
            if end == len(text):
                return value
        except (StopIteration, SystemError, ValueError):  # its errors are made by the module
            pass
        from json import loads as explain

        return explain(text)

    def dumps(value: Any) -> str:
        return "".join(_encode(value, 0))

except Exception:
    from json import dumps, loads  # type: ignore[assignment]  # noqa: F401 - what this module offers

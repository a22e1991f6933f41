"""The `entry` of a job: `module:function` in `code:`, found and checked."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from payload.failures import BadConfig
from payload.functions.outcome import as_json

PAYLOAD = str(Path(__file__).resolve().parents[1])


def load_entry(entry_point: str) -> Callable[..., Any]:
    """Import the module and return the function. Raises BadConfig if it has none of this name."""
    module_name, _, name = entry_point.partition(":")
    module = importlib.import_module(module_name)
    function = getattr(module, name, None)
    if not callable(function):
        raise BadConfig(f"entry: {entry_point}: {module_name} has no function {name}")
    return function


def check_found(found: Any, entry: str | None, *, is_first: bool) -> dict[str, Any]:
    """Return what an entry returned, as JSON carries it, for metrics.json, which only the first process writes.

    {} for None, and on the other processes. Raises BadConfig for anything but a dictionary of what JSON can carry.
    """
    if found is not None and not isinstance(found, dict):
        raise BadConfig(f"entry: {entry} returned {type(found).__name__}; it must return a dictionary or None")
    try:
        return dict(as_json(found or {}, "the dictionary")) if is_first else {}
    except (TypeError, ValueError) as error:
        raise BadConfig(f"entry: {entry}: {error}") from None


def own_frames(frame: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the first frame of the job's own code on; None if it has none."""
    while frame is not None and _is_ours(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    return frame


def _is_ours(file: str) -> bool:
    return file.startswith((PAYLOAD, "<frozen importlib", "<frozen runpy")) or file == importlib.__file__

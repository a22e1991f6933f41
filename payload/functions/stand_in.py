"""What `import tpujob` finds on a worker: a module that is decorated with `tpujob.function` imports it there, too.

The decorator returns the function as it is, so that a call on a worker is an ordinary call. Every other name can be imported
and made at the top of a module, and does nothing: a job starts no jobs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def install() -> None:
    """Make it the `tpujob` of this process."""
    sys.modules["tpujob"] = _StandIn("tpujob", __doc__)


def function(*_: object, **__: object) -> Callable[[F], F]:
    """Return a decorator that changes nothing."""
    return lambda decorated: decorated


class Absent(Exception):
    """A name of tpujob on a worker. An exception, because modules may name tpujob's errors in `except` clauses."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "function":  # that of a client
            return function
        raise RuntimeError(f"tpujob.{type(self).__name__}.{name}: tpujob does nothing on a worker")


class _StandIn(ModuleType):
    function = staticmethod(function)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module 'tpujob' of a worker has no attribute {name!r}")
        return type(name, (Absent,), {})

"""Packages whose modules are imported when they are first used: who imports the package pays for nothing yet."""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType


def modules_of(package: str) -> Callable[[str], ModuleType]:
    """Return the `__getattr__` of this package: its value is the module of that name. Raises AttributeError."""

    def find(name: str) -> ModuleType:
        if not name.startswith("_"):
            try:
                return import_module(f"{package}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{package}.{name}":
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find

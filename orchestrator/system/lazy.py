"""Modules that are imported when something of them is first used: who names them pays for nothing yet."""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from orchestrator.errors import ConfigError


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


class Later:
    """Stands for a module that takes long to import. Type checkers read a real import beside it.

    `extra`: of tpujob, which installs that module; named as the place whose jobs need it. Without it, a use raises ConfigError.
    """

    def __init__(self, module: str, extra: str | None = None) -> None:
        self._module, self._extra = module, extra

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(import_module(self._module), name)
        except ModuleNotFoundError as error:
            if self._extra is None:
                raise
            hint = f"install it with: pip install 'tpujob[{self._extra}]'"
            raise ConfigError(f"`on: {self._extra}` needs the Python package {error.name}", hint=hint) from error

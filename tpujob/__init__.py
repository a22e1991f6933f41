"""Run jobs on Cloud TPUs from Python, with the same guarantee as the command line::

    import tpujob

    client = tpujob.Client()
    result = client.run(tpujob.Job.load("job.yaml"))

docs/python-api.md shows the rest. Importing this package loads nothing else: each name is loaded when it is first used.
"""

import ast
import importlib
import pkgutil
from typing import Any

from orchestrator import __version__ as __version__


def _homes() -> dict[str, tuple[str, str]]:
    """Return the module of each public name, and its name there: the list is `__init__.pyi`, which type checkers read, too."""
    listed = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"").body
    rows = ((each.module or "", alias) for each in listed if isinstance(each, ast.ImportFrom) for alias in each.names)
    return {alias.asname or alias.name: (module, alias.name) for module, alias in rows if alias.name != "__version__"}


_HOMES = _homes()
__all__ = sorted(_HOMES)  # noqa: PLE0605 - a list of the table's names


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, there = _HOMES[name]
    globals()[name] = value = getattr(importlib.import_module(module), there)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "__all__", "__doc__"])

"""The names that a function uses and does not define: globals, and variables of functions around it."""

import builtins
import dis
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType

_READS = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}
_ABSENT = object()


def outside_names(code: CodeType, fn: FunctionType) -> list[str]:
    """Return the names of `code`, compiled as if at the top of a module, that are neither builtins nor `fn` itself."""
    own = {fn.__name__, "__name__"}
    around = {*fn.__globals__, *fn.__code__.co_freevars}  # hide a builtin of the same name
    found = (name for name in dict.fromkeys(_globals(code)) if name not in own)
    return [name for name in found if name in around or not hasattr(builtins, name)]


def advice(fn: FunctionType, names: Iterable[str]) -> str:
    """Return what to do about each of these names."""
    imports, arguments, definitions = [], [], []
    for name in names:
        value = _value(fn, name)
        if line := _import_line(name, value):
            imports.append(f"`{line}`")
        elif callable(value):
            definitions.append(name)
        else:
            arguments.append(name)
    parts = [
        f"write {' and '.join(imports)} inside of it" if imports else "",
        f"pass {', '.join(arguments)} as an argument" if arguments else "",
        f"define {', '.join(definitions)} inside of it" if definitions else "",
        "move the function into a module, which travels with its directory",
    ]
    return ", ".join(filter(None, parts[:-1])) + f"; or {parts[-1]}"


def _globals(code: CodeType) -> Iterator[str]:
    own = set[str]()  # of a class body
    for each in dis.get_instructions(code):
        if each.opname == "STORE_NAME":
            own.add(each.argval)
        elif each.opname in _READS and each.argval not in own:
            yield each.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant)


def _value(fn: FunctionType, name: str) -> object:
    if name in fn.__code__.co_freevars:
        try:
            return (fn.__closure__ or ())[fn.__code__.co_freevars.index(name)].cell_contents
        except ValueError:  # not assigned yet
            return _ABSENT
    return fn.__globals__.get(name, _ABSENT)


def _import_line(name: str, value: object) -> str | None:
    """Return the line that imports the value under this name; None for what no module has."""
    if isinstance(value, ModuleType):
        package, _, last = value.__name__.rpartition(".")
        if not package:
            return f"import {last}" + ("" if last == name else f" as {name}")
        return f"from {package} import {last}" + ("" if last == name else f" as {name}")
    home, own = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if isinstance(home, str) and isinstance(own, str) and home not in ("__main__", "builtins") and own.isidentifier():
        return f"from {home} import {own}" + ("" if own == name else f" as {name}")
    return None
